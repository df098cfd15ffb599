//! The blocking client. It sends requests to a broker one after another, and pipelines fetches.
//!
//! This client exists beside the one on tokio because of fetchers. A fetcher has its own thread and reads each response
//! into one buffer.

mod awaited;
mod cluster;
mod connection;
mod coordinator;
mod doubts;
mod each;
mod kept;
mod offsets;
mod socket;

pub use awaited::Awaited;
pub use cluster::{BrokerAddress, Cluster, PartitionPlace, TopicPlaces, refused_topic};
pub(crate) use cluster::{check_topic, metadata_request, places_in};
pub use connection::{Connection, Stopper};
pub use each::Listed;
pub(crate) use kept::KeptConnection;
pub use offsets::{EARLIEST, FoundOffsets, LATEST};
