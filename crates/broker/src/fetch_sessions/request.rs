//! The session and the partitions that a fetch request names, as [`Sessions`](super::Sessions) uses them.
//!
//! The list contains each partition once. It shares no memory with the request's frame: a session outlives the request,
//! and a slice of the frame would keep the whole frame in memory.

use super::partition::{FetchedTopic, PartitionFetch, PartitionKey, TopicKey};
use fullbore_control::TOPIC_NAME_CHARS_MAX;
use fullbore_wire::apis::fetch::{FetchRequest, ForgottenTopic};
use fullbore_wire::{Text, Uuid};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// About how much memory a topic takes besides its name.
const TOPIC_BYTES: usize = 128;

/// The session and the partitions that a fetch request names.
pub struct SessionRequest {
    pub(super) session_id: i32,
    pub(super) session_epoch: i32,
    pub(super) read_ahead: bool,
    pub(super) wanted: Vec<PartitionFetch>,
    pub(super) forgotten: Forgotten,
    pub(super) topics_bytes: usize,
    /// True if a name is too long for a topic. Such a request is never stored in a session, so that a client cannot
    /// fill the memory with names.
    pub(super) has_impossible_name: bool,
}

impl SessionRequest {
    /// Takes the session and the partitions out of a request.
    pub fn of(request: FetchRequest) -> SessionRequest {
        let FetchRequest { session_id, session_epoch, read_ahead, .. } = request;
        let forgotten = Forgotten::of(request.forgotten_topics_data);
        let mut wanted = Vec::with_capacity(request.topics.iter().map(|topic| topic.partitions.len()).sum());
        let (mut known, mut topics_bytes) = (HashMap::new(), 0);
        let (mut is_ascending, mut has_impossible_name) = (true, false);
        for requested in request.topics {
            has_impossible_name |= requested.topic.len() > TOPIC_NAME_CHARS_MAX;
            let topic = topic_of(&requested.topic, requested.topic_id, &mut known);
            let is_new = topic.1;
            topics_bytes += if is_new { requested.topic.len() + TOPIC_BYTES } else { 0 };
            is_ascending &= is_new && requested.partitions.is_sorted_by(|one, next| one.partition < next.partition);
            wanted.extend(requested.partitions.iter().map(|partition| PartitionFetch::new(&topic.0, partition)));
        }
        if !is_ascending {
            keep_last(&mut wanted);
        }
        SessionRequest { session_id, session_epoch, read_ahead, wanted, forgotten, topics_bytes, has_impossible_name }
    }

    /// Returns how many bytes of memory the request takes.
    pub fn bytes_held(&self) -> usize {
        self.topics_bytes + self.wanted.capacity() * size_of::<PartitionFetch>() + self.forgotten.bytes_held()
    }

    /// Returns how many partitions the request names.
    pub fn partitions(&self) -> usize {
        self.wanted.len() + self.forgotten.partitions
    }
}

/// Returns the topic of a request, and true if it was not in `known` yet.
fn topic_of(name: &Text, id: Uuid, known: &mut HashMap<TopicKey, Arc<FetchedTopic>>) -> (Arc<FetchedTopic>, bool) {
    match known.entry(TopicKey { name: name.clone(), id }) {
        Entry::Occupied(topic) => (Arc::clone(topic.get()), false),
        Entry::Vacant(place) => {
            let topic = FetchedTopic::new(TopicKey { name: Text::from(name.as_str()), id });
            (Arc::clone(place.insert(Arc::new(topic))), true)
        }
    }
}

/// If a partition is named twice, keeps its last entry at the position of the first, as Kafka does. All entries of a
/// topic share one allocation, so topics are compared by pointer.
fn keep_last(wanted: &mut Vec<PartitionFetch>) {
    let key = |at: u32| (Arc::as_ptr(&wanted[at as usize].topic), wanted[at as usize].index);
    let mut order: Vec<u32> = (0..u32::try_from(wanted.len()).expect("a frame has fewer")).collect();
    order.sort_unstable_by_key(|at| (key(*at), *at));
    let repeated: Vec<(u32, u32)> = order
        .chunk_by(|one, next| key(*one) == key(*next))
        .filter_map(|same| same.split_first())
        .flat_map(|(first, others)| others.iter().map(|other| (*first, *other)))
        .collect();
    drop(order);
    let mut is_kept = vec![true; wanted.len()];
    for (first, other) in repeated {
        is_kept[other as usize] = false;
        wanted[first as usize] = wanted[other as usize].clone();
    }
    let mut is_kept = is_kept.into_iter();
    wanted.retain(|_| is_kept.next().unwrap_or(true));
}

/// The partitions that a request removes from its session.
#[derive(Default)]
pub(super) struct Forgotten {
    /// The partition numbers of each topic, in ascending order.
    topics: HashMap<TopicKey, Vec<i32>>,
    partitions: usize,
    names_bytes: usize,
}

impl Forgotten {
    fn of(requested: Vec<ForgottenTopic>) -> Forgotten {
        let mut forgotten = Forgotten::default();
        for ForgottenTopic { topic, topic_id, partitions, .. } in requested {
            forgotten.partitions += partitions.len();
            let key = TopicKey { name: topic, id: topic_id };
            if let Some(known) = forgotten.topics.get_mut(&key) {
                known.extend(partitions);
                continue;
            }
            forgotten.names_bytes += key.name.len() + TOPIC_BYTES;
            let key = TopicKey { name: Text::from(key.name.as_str()), id: topic_id };
            forgotten.topics.insert(key, partitions);
        }
        forgotten.topics.values_mut().for_each(|indexes| indexes.sort_unstable());
        forgotten
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partitions == 0
    }

    pub(super) fn has(&self, wanted: &PartitionFetch) -> bool {
        self.topics.get(&**wanted.topic).is_some_and(|indexes| indexes.binary_search(&wanted.index).is_ok())
    }

    fn bytes_held(&self) -> usize {
        self.names_bytes + self.topics.values().map(|indexes| indexes.capacity() * size_of::<i32>()).sum::<usize>()
    }
}

/// Returns the position of each partition in a list.
pub(super) fn places(wanted: &[PartitionFetch]) -> HashMap<PartitionKey, usize> {
    wanted.iter().enumerate().map(|(at, wanted)| (wanted.key(), at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::apis::fetch::{FetchPartition, FetchTopic};

    fn request(topics: &[(&str, &[(i32, i64)])]) -> FetchRequest {
        let partition = |(partition, fetch_offset): &(i32, i64)| FetchPartition {
            partition: *partition,
            fetch_offset: *fetch_offset,
            ..Default::default()
        };
        let topic = |(name, partitions): &(&str, &[(i32, i64)])| FetchTopic {
            topic: Text::from(*name),
            partitions: partitions.iter().map(partition).collect(),
            ..Default::default()
        };
        FetchRequest { topics: topics.iter().map(topic).collect(), ..Default::default() }
    }

    fn wanted(topics: &[(&str, &[(i32, i64)])]) -> Vec<(String, i32, i64)> {
        let requested = SessionRequest::of(request(topics)).wanted;
        requested.iter().map(|wanted| (wanted.topic.name.to_string(), wanted.index, wanted.fetch_offset)).collect()
    }

    fn expected(list: &[(&str, i32, i64)]) -> Vec<(String, i32, i64)> {
        list.iter().map(|(topic, index, offset)| ((*topic).to_owned(), *index, *offset)).collect()
    }

    #[test]
    fn partitions_named_once_keep_their_order() {
        let list = wanted(&[("b", &[(2, 1), (0, 2)]), ("a", &[(0, 3)])]);
        assert_eq!(list, expected(&[("b", 2, 1), ("b", 0, 2), ("a", 0, 3)]));
    }

    #[test]
    fn partition_named_again_counts_as_named_last_at_its_first_place() {
        let list =
            wanted(&[("a", &[(0, 1), (1, 2), (0, 3)]), ("b", &[(0, 4)]), ("a", &[(2, 5), (0, 6)]), ("b", &[(0, 7)])]);
        assert_eq!(list, expected(&[("a", 0, 6), ("a", 1, 2), ("b", 0, 7), ("a", 2, 5)]));
    }

    #[test]
    fn topic_named_often_is_held_once() {
        let requested = SessionRequest::of(request(&[("a", &[(0, 1)]), ("a", &[(1, 1)]), ("a", &[(2, 1)])]));
        assert!(requested.wanted.iter().all(|wanted| Arc::ptr_eq(&wanted.topic, &requested.wanted[0].topic)));
        assert_eq!(requested.topics_bytes, 1 + TOPIC_BYTES);
    }

    #[test]
    fn topics_forgotten_in_pieces_are_forgotten_as_a_whole() {
        let of = |partitions: &[i32]| ForgottenTopic {
            topic: Text::from("a"),
            partitions: partitions.to_vec(),
            ..Default::default()
        };
        let forgotten = Forgotten::of(vec![of(&[3, 1]), of(&[0])]);
        let list = SessionRequest::of(request(&[("a", &[(0, 0), (1, 0), (2, 0), (3, 0)]), ("b", &[(0, 0)])])).wanted;
        assert_eq!(
            list.iter().map(|wanted| forgotten.has(wanted)).collect::<Vec<_>>(),
            [true, true, false, true, false]
        );
    }
}
