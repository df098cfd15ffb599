//! Remembers which partitions of a follower's session have changed. Otherwise each fetch would have to check all
//! partitions of the session.
//!
//! This set contains no records: the leader reads them from the partitions. To miss no change, a session first
//! registers at a partition, then reads it, and then waits. If a slot was marked for records before the wait, the wait
//! ends at once.
//!
//! Invariant: each of the two lists of marked slots contains a slot at most once, until [`DirtyPartitions::take`]
//! empties the lists.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How a partition has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// There may be new records, the role may have changed, or the partition may be deleted.
    Records,
    /// Only the high watermark has moved. The leader need not send it at once: it can wait until the next records are
    /// sent.
    HighWatermark,
}

const RECORDS: u8 = 1;
const HIGH_WATERMARK: u8 = 2;

/// The changed partitions of one follower. A slot is the number that the follower's session has given to a partition.
#[derive(Debug, Default)]
pub struct DirtyPartitions {
    state: Mutex<Marked>,
    notify: Notify,
}

/// The marked slots, in one list for each [`Moved`]. Each list contains a slot at most once.
#[derive(Debug, Default)]
struct Marked {
    records: Vec<u32>,
    high_watermarks: Vec<u32>,
    marks: Vec<u8>,
}

impl DirtyPartitions {
    /// Marks a slot, and wakes the waiter for [`Moved::Records`]. A moved high watermark alone does not wake the
    /// waiter.
    pub fn mark(&self, place: u32, moved: Moved) {
        let mut state = self.state.lock();
        let at = place as usize;
        if state.marks.len() <= at {
            state.marks.resize(at + 1, 0);
        }
        let bit = if moved == Moved::Records { RECORDS } else { HIGH_WATERMARK };
        if state.marks[at] & bit != 0 {
            return;
        }
        state.marks[at] |= bit;
        match moved {
            Moved::HighWatermark => state.high_watermarks.push(place),
            Moved::Records => {
                state.records.push(place);
                drop(state);
                self.notify.notify_one();
            }
        }
    }

    /// Returns two lists and clears all marks: the slots that may have records, and the slots whose high watermark has
    /// moved.
    pub fn take(&self) -> (Vec<u32>, Vec<u32>) {
        let mut state = self.state.lock();
        let (records, high_watermarks) =
            (std::mem::take(&mut state.records), std::mem::take(&mut state.high_watermarks));
        for place in records.iter().chain(&high_watermarks) {
            state.marks[*place as usize] = 0;
        }
        (records, high_watermarks)
    }

    /// Wakes the waiter without marking a slot.
    pub fn wake(&self) {
        self.notify.notify_one();
    }

    /// Waits until a slot may have records.
    pub async fn marked(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slot_is_marked_once_and_only_records_wake() {
        let marks = DirtyPartitions::default();
        marks.mark(3, Moved::HighWatermark);
        let waits = tokio::time::timeout(std::time::Duration::from_millis(1), marks.marked());
        assert!(waits.await.is_err());
        for _ in 0..2 {
            marks.mark(3, Moved::Records);
            marks.mark(1, Moved::Records);
        }
        marks.marked().await;
        assert_eq!(marks.take(), (vec![3, 1], vec![3]));
        assert_eq!(marks.take(), (vec![], vec![]));
        marks.mark(1, Moved::Records);
        assert_eq!(marks.take(), (vec![1], vec![]));
    }
}
