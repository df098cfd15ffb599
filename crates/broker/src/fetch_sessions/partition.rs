//! A partition in a fetch: its name, what is wanted of it, and what came of it.

use fullbore_wire::apis::fetch::{FetchPartition, PartitionData};
use fullbore_wire::{Text, Uuid};

/// A partition as requests name it: by topic name or by topic id, whichever the version has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey {
    /// The topic's name, or empty.
    pub topic: Text,
    /// The topic's id, or zero.
    pub topic_id: Uuid,
    /// The partition.
    pub index: i32,
}

/// One partition to fetch from.
#[derive(Clone, Debug)]
pub struct PartitionFetch {
    /// Which.
    pub key: PartitionKey,
    /// From where and how much.
    pub fetch: FetchPartition,
}

/// The outcome for one partition.
pub struct Fetched {
    /// Which.
    pub key: PartitionKey,
    /// As it goes into the response.
    pub data: PartitionData,
    /// The offset after the records, in a session that reads ahead.
    pub end_offset: Option<i64>,
}

/// The keys of a topic's partitions. The name is copied: a session outlives the request, and a slice would keep all of
/// the request's frame.
pub fn keys<'t, P>(
    topic: &Text,
    topic_id: Uuid,
    partitions: &'t [P],
    index: impl Fn(&P) -> i32 + 't,
) -> impl Iterator<Item = PartitionKey> + 't {
    let topic = Text::from(topic.as_str());
    partitions.iter().map(move |p| PartitionKey { topic: topic.clone(), topic_id, index: index(p) })
}
