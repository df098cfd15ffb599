//! Which of many partitions have moved, for one who follows them all: to look at each would cost what there is, and not
//! what changed.
//!
//! Not what has moved: who takes the marks looks. Register first, then look, then wait: a mark that comes in between is
//! kept.
//!
//! Invariant: a place is marked once until the marks are taken, however often its partition moves.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// News of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// There may be records, or the partition has another role, or is gone.
    Records,
    /// The high watermark alone, which may wait for records to go with.
    HighWatermark,
}

const RECORDS: u8 = 1;
const HIGH_WATERMARK: u8 = 2;

/// The marks of one who follows, by places that it gives its partitions.
#[derive(Debug, Default)]
pub struct DirtyPartitions {
    state: Mutex<Marked>,
    told: Notify,
}

/// The places that were marked, each once in each list.
#[derive(Debug, Default)]
struct Marked {
    records: Vec<u32>,
    high_watermarks: Vec<u32>,
    marks: Vec<u8>,
}

impl DirtyPartitions {
    /// Marks a place. Who waits is woken by records only.
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
                self.told.notify_one();
            }
        }
    }

    /// Takes all marks: places where there may be records, and where the high watermark moved.
    pub fn take(&self) -> (Vec<u32>, Vec<u32>) {
        let mut state = self.state.lock();
        let (records, high_watermarks) =
            (std::mem::take(&mut state.records), std::mem::take(&mut state.high_watermarks));
        for place in records.iter().chain(&high_watermarks) {
            state.marks[*place as usize] = 0;
        }
        (records, high_watermarks)
    }

    /// Wakes who waits, without a mark.
    pub fn wake(&self) {
        self.told.notify_one();
    }

    /// Waits until there may be records somewhere.
    pub async fn told(&self) {
        self.told.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_marked_once_and_only_records_wake() {
        let marks = DirtyPartitions::default();
        marks.mark(3, Moved::HighWatermark);
        let waits = tokio::time::timeout(std::time::Duration::from_millis(1), marks.told());
        assert!(waits.await.is_err());
        for _ in 0..2 {
            marks.mark(3, Moved::Records);
            marks.mark(1, Moved::Records);
        }
        marks.told().await;
        assert_eq!(marks.take(), (vec![3, 1], vec![3]));
        assert_eq!(marks.take(), (vec![], vec![]));
        marks.mark(1, Moved::Records);
        assert_eq!(marks.take(), (vec![1], vec![]));
    }
}
