//! Blocking client: requests to a broker one after another, and pipelined fetches.
//!
//! It exists beside the tokio client for fetchers: a fetcher has its own thread, and one buffer into which it reads
//! each response.

mod awaited;
mod cluster;
mod connection;
mod coordinator;
mod kept;
mod offsets;
mod socket;

pub use awaited::Awaited;
pub use cluster::{BrokerAddress, Cluster, PartitionPlace, TopicPlaces, refused_topic};
pub(crate) use cluster::{check_topic, metadata_request, places_in};
pub use connection::{Connection, Stopper};
pub(crate) use kept::KeptConnection;
pub use offsets::{EARLIEST, FoundOffsets, LATEST};
