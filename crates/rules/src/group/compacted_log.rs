//! A group's log for tests, with only the last record of each key, as after compaction.

use super::{Change, PartKey, Parts, Snapshot};
use bytes::Bytes;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(super) struct CompactedLog {
    pub group: Option<Snapshot>,
    records: BTreeMap<PartKey, Bytes>,
}

impl CompactedLog {
    /// Returns a log that has only the group's own record.
    pub fn of(snapshot: Snapshot) -> CompactedLog {
        CompactedLog { group: Some(snapshot), records: BTreeMap::new() }
    }

    pub fn write(&mut self, change: Change) {
        self.group = change.group.or(self.group.take());
        for (key, value) in change.parts {
            match value {
                Some(value) => drop(self.records.insert(key, value)),
                None => drop(self.records.remove(&key)),
            }
        }
    }

    /// Returns the parts to which the group's record refers.
    pub fn parts(&self) -> Parts {
        let parts_id = self.group.as_ref().and_then(Snapshot::parts_id);
        let of_group = self.records.iter().filter(|(key, _)| Some(key.parts_id) == parts_id);
        of_group.map(|(key, value)| (*key, value.clone())).collect()
    }

    /// Returns how many parts the log has, including those that no group refers to.
    pub fn parts_len(&self) -> usize {
        self.records.len()
    }

    /// Returns everything that the log has of the group.
    pub fn records(&self) -> Change {
        let parts = self.parts().into_iter().map(|(key, value)| (key, Some(value)));
        Change { group: self.group.clone(), parts: parts.collect() }
    }
}
