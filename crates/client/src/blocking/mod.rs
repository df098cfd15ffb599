//! Blocking client: one request after another to a named broker, and pipelined fetches.
//!
//! It exists beside the tokio client because a fetcher needs a thread of its own, and one buffer that it reads into
//! again and again.

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
