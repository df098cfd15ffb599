//! Offsets that a group has committed in transactions that are still open. They become valid when a marker commits the
//! transaction.
//!
//! The caller stores the valid offsets, and calls [`PendingOffsets::end`] when a transaction ends. It does the same for
//! clients' requests and for the replay of a log.
//!
//! Invariant: calls come in the order of the log, and each pending offset is in both `by_key` and `by_producer`. If an
//! offset is committed both with and without a transaction, the later commit in the log wins, whenever the transaction
//! ends. Kafka's `OffsetMetadataManager` has the same rule.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The pending offsets of a group by key, which is the topic and the partition.
#[derive(Debug)]
pub struct PendingOffsets<K, V> {
    by_key: BTreeMap<K, BTreeMap<i64, Pending<V>>>,
    by_producer: HashMap<i64, BTreeSet<K>>,
    /// Number of commits so far. The number at a commit is the commit's position in the order of the log.
    commits: u64,
}

#[derive(Debug)]
struct Pending<V> {
    order: u64,
    value: V,
    /// True if a later commit in the log is already valid for the key. The end of this transaction then leaves the
    /// valid offset as it is.
    is_superseded: bool,
}

/// The offsets of a transaction that has ended.
#[derive(Debug)]
pub struct EndedOffsets<K, V> {
    /// The offsets that have become valid.
    pub applied: Vec<(K, V)>,
    /// The offsets that never become valid, because the transaction was aborted or a later offset is valid.
    pub dropped: Vec<V>,
}

/// The result of [`PendingOffsets::remove`].
#[derive(Debug)]
pub struct RemovedOffsets<V> {
    /// The removed offsets.
    pub values: Vec<V>,
    /// The producers that now have no pending offset in the group.
    pub producers: Vec<i64>,
}

impl<K, V> Default for PendingOffsets<K, V> {
    fn default() -> Self {
        PendingOffsets { by_key: BTreeMap::new(), by_producer: HashMap::new(), commits: 0 }
    }
}

impl<K: Ord + Clone, V> PendingOffsets<K, V> {
    /// Returns true if an open transaction has an offset for the key.
    pub fn contains(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// Returns true if no open transaction has an offset.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns each key once, with one of its offsets.
    pub fn keys(&self) -> impl Iterator<Item = (&K, &V)> {
        self.by_key.iter().filter_map(|(key, of_key)| Some((key, &of_key.values().next()?.value)))
    }

    /// Returns all offsets.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.by_key.values().flat_map(BTreeMap::values).map(|pending| &pending.value)
    }

    /// Returns the producers of all offsets.
    pub fn producers(&self) -> impl Iterator<Item = i64> {
        self.by_producer.keys().copied()
    }

    /// Notes an offset that a producer's transaction has committed. Returns the offset that it replaces, if there is
    /// one.
    pub fn put(&mut self, producer_id: i64, key: K, value: V) -> Option<V> {
        self.commits += 1;
        self.by_producer.entry(producer_id).or_default().insert(key.clone());
        let pending = Pending { order: self.commits, value, is_superseded: false };
        self.by_key.entry(key).or_default().insert(producer_id, pending).map(|before| before.value)
    }

    /// Notes that an offset was committed outside transactions, and is valid from now on.
    pub fn supersede(&mut self, key: &K) {
        let of_key = self.by_key.get_mut(key).into_iter().flat_map(BTreeMap::values_mut);
        of_key.for_each(|pending| pending.is_superseded = true);
    }

    /// Ends a producer's transaction.
    pub fn end(&mut self, producer_id: i64, is_commit: bool) -> EndedOffsets<K, V> {
        let mut ended = EndedOffsets { applied: Vec::new(), dropped: Vec::new() };
        for key in self.by_producer.remove(&producer_id).unwrap_or_default() {
            let Some(of_key) = self.by_key.get_mut(&key) else { continue };
            let Some(pending) = of_key.remove(&producer_id) else { continue };
            let holds = is_commit && !pending.is_superseded;
            if holds {
                let earlier = of_key.values_mut().filter(|other| other.order < pending.order);
                earlier.for_each(|other| other.is_superseded = true);
            }
            if of_key.is_empty() {
                self.by_key.remove(&key);
            }
            match holds {
                true => ended.applied.push((key, pending.value)),
                false => ended.dropped.push(pending.value),
            }
        }
        ended
    }

    /// Removes the offsets of a key, as a tombstone in the log does.
    pub fn remove(&mut self, key: &K) -> RemovedOffsets<V> {
        let mut removed = RemovedOffsets { values: Vec::new(), producers: Vec::new() };
        for (producer_id, pending) in self.by_key.remove(key).unwrap_or_default() {
            removed.values.push(pending.value);
            let Some(keys) = self.by_producer.get_mut(&producer_id) else { continue };
            keys.remove(key);
            if keys.is_empty() {
                self.by_producer.remove(&producer_id);
                removed.producers.push(producer_id);
            }
        }
        removed
    }

    /// Converts the keys and the offsets by `convert`. An offset for which it returns None is dropped.
    pub fn converted<L: Ord + Clone, W>(
        self,
        mut convert: impl FnMut(&K, V) -> Option<(L, W)>,
    ) -> PendingOffsets<L, W> {
        let mut converted = PendingOffsets { commits: self.commits, ..PendingOffsets::default() };
        for (key, of_key) in self.by_key {
            for (producer_id, Pending { order, value, is_superseded }) in of_key {
                let Some((key, value)) = convert(&key, value) else { continue };
                converted.by_producer.entry(producer_id).or_default().insert(key.clone());
                let pending = Pending { order, value, is_superseded };
                converted.by_key.entry(key).or_default().insert(producer_id, pending);
            }
        }
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(ended: EndedOffsets<u8, i64>) -> Vec<(u8, i64)> {
        ended.applied
    }

    #[test]
    fn committed_transaction_applies_offsets_unless_later_ones_are_valid() {
        let mut pending = PendingOffsets::default();
        assert_eq!(pending.put(1, b'a', 10), None);
        assert_eq!(pending.put(1, b'b', 11), None);
        pending.supersede(&b'b');
        assert_eq!(pending.put(1, b'a', 12), Some(10), "the later one of a transaction counts");
        pending.put(2, b'a', 20);
        assert!(pending.contains(&b'b'));
        assert_eq!(applied(pending.end(2, true)), [(b'a', 20)]);
        let ended = pending.end(1, true);
        assert_eq!((ended.applied, ended.dropped), (vec![], vec![12, 11]), "both are earlier in the log");
        assert!(pending.is_empty() && pending.producers().next().is_none());
    }

    #[test]
    fn aborted_transaction_leaves_other_offsets_valid() {
        let mut pending = PendingOffsets::default();
        pending.put(1, b'a', 10);
        pending.put(2, b'a', 20);
        pending.put(3, b'a', 30);
        assert_eq!(pending.end(2, false).dropped, [20]);
        assert_eq!(applied(pending.end(1, true)), [(b'a', 10)]);
        assert_eq!(applied(pending.end(3, true)), [(b'a', 30)]);
        assert_eq!(applied(pending.end(3, true)), [], "a marker may come twice");
    }

    #[test]
    fn key_is_removed_with_producers_that_have_no_other() {
        let mut pending = PendingOffsets::default();
        pending.put(1, b'a', 10);
        pending.put(1, b'b', 11);
        pending.put(2, b'a', 20);
        let removed = pending.remove(&b'a');
        assert_eq!((removed.values, removed.producers), (vec![10, 20], vec![2]));
        assert_eq!(pending.values().collect::<Vec<_>>(), [&11]);
        let mut converted = pending.converted(|key, value| Some((u16::from(*key), value * 2)));
        assert_eq!(converted.keys().collect::<Vec<_>>(), [(&u16::from(b'b'), &22)]);
        assert_eq!(converted.end(1, true).applied, [(u16::from(b'b'), 22)]);
    }
}
