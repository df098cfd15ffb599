//! The leader epochs of the records that were read from a partition. They show if the log was truncated since, and
//! which of the records it has lost (KIP-320, KIP-595).
//!
//! A log loses committed records only in an unclean election or a power loss. The fetch has the epoch of the last
//! record that was read. If that record is gone, the leader returns the newest epoch that it has up to this one, and
//! the end of that epoch. As a follower does, the reader then continues where its own epoch ends, if this is earlier.
//! Invariant: epochs and offsets are both ascending, and at most [`EPOCHS_MAX`] epochs are kept.

use fullbore_wire::apis::fetch::EpochEndOffset;

/// Maximum number of epochs that are kept.
const EPOCHS_MAX: usize = 8;
/// Stands for an unknown epoch, with which the leader compares nothing.
const UNKNOWN: i32 = -1;

/// The position of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FetchPosition {
    /// The next offset to request.
    pub(super) offset: i64,
    /// The epoch of the last record before that offset, or -1 if it is unknown.
    pub(super) last_epoch: i32,
}

impl FetchPosition {
    /// Returns a position before which no record is known.
    pub(super) fn at(offset: i64) -> Self {
        FetchPosition { offset, last_epoch: UNKNOWN }
    }

    /// Returns the epoch of the last record before the offset, or `None` if it is unknown.
    pub(super) fn leader_epoch(self) -> Option<i32> {
        (self.last_epoch > UNKNOWN).then_some(self.last_epoch)
    }

    /// Returns the position after a batch of the epoch `last_epoch`, which ends before `offset`. Returns this position
    /// instead if it is not earlier.
    #[must_use]
    pub(super) fn or_after(self, offset: i64, last_epoch: i32) -> Self {
        if offset > self.offset { FetchPosition { offset, last_epoch } } else { self }
    }

    /// Returns the position at `offset`, or this position if it is not earlier.
    #[must_use]
    pub(super) fn or_at(self, offset: i64) -> Self {
        self.or_after(offset, UNKNOWN)
    }
}

/// The epochs of the records that were read.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadEpochs {
    /// The newest epochs, each with the offset of its first batch that was read.
    starts: Vec<(i32, i64)>,
    /// The offset after the last batch that was read.
    end: i64,
}

impl ReadEpochs {
    /// Returns the epochs of a read that continues at `offset`, after a record of the epoch `last`.
    pub(super) fn before(offset: i64, last: i32) -> Self {
        ReadEpochs { starts: vec![(last, offset)], end: offset }
    }

    /// Notes a batch that was read.
    pub(super) fn note(&mut self, epoch: i32, base_offset: i64, end: i64) {
        self.end = end;
        match self.starts.last() {
            Some((latest, _)) if *latest == epoch => return,
            // Only a faulty leader returns an older epoch. Nothing is known then.
            Some((latest, _)) if *latest > epoch => self.starts.clear(),
            _ => {}
        }
        if self.starts.len() >= EPOCHS_MAX {
            self.starts.remove(0);
        }
        self.starts.push((epoch, base_offset));
    }

    /// Returns the position at `offset`. Its epoch is known only if the last batch ends there. After a gap, which
    /// compaction leaves, a later epoch without records may have begun.
    pub(super) fn position(&self, offset: i64) -> FetchPosition {
        let latest = self.starts.last().filter(|_| offset == self.end);
        FetchPosition { offset, last_epoch: latest.map_or(UNKNOWN, |(epoch, _)| *epoch) }
    }

    /// Returns the offset up to which the leader's log may have the records that were read up to `offset`. `leader` is
    /// the newest epoch that the leader has up to the last one that was read, and its end.
    pub(super) fn common_end(&self, leader: &EpochEndOffset, offset: i64) -> i64 {
        let own_end = self.starts.iter().find(|(epoch, _)| *epoch > leader.epoch).map_or(offset, |(_, start)| *start);
        own_end.min(leader.end_offset).min(offset)
    }

    /// Forgets the records that the leader lacks, which has returned `leader`. The others end at `offset`.
    pub(super) fn truncate(&mut self, leader: &EpochEndOffset, offset: i64) {
        self.starts.retain(|(epoch, start)| *epoch <= leader.epoch && *start < offset);
        self.end = offset;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the epochs of a log of these epochs, each with its first offset and its end.
    fn epochs(of: &[(i32, i64, i64)]) -> ReadEpochs {
        let mut read = ReadEpochs::default();
        of.iter().for_each(|(epoch, start, end)| read.note(*epoch, *start, *end));
        read
    }

    fn leader(epoch: i32, end_offset: i64) -> EpochEndOffset {
        EpochEndOffset { epoch, end_offset, ..Default::default() }
    }

    #[test]
    fn leader_lacks_read_records_the_reader_continues_where_both_logs_part() {
        let read = epochs(&[(2, 0, 10), (4, 10, 20), (5, 20, 25), (5, 25, 30)]);
        for (epoch, end_offset, expected) in [
            // The leader's log ends early.
            ((5, 22), 22, (22, 5)),
            ((4, 15), 15, (15, 4)),
            // The leader continued an older epoch than the reader.
            ((4, 26), 20, (20, 4)),
            ((3, 18), 10, (10, 2)),
            ((2, 30), 10, (10, 2)),
            // Nothing before the first epoch is known.
            ((1, 7), 0, (0, -1)),
        ]
        .map(|(of, end, (offset, last_epoch))| (of, end, FetchPosition { offset, last_epoch }))
        {
            let (mut read, leader) = (read.clone(), leader(epoch.0, epoch.1));
            let end = read.common_end(&leader, 30);
            assert_eq!(end, end_offset, "{epoch:?}");
            read.truncate(&leader, end);
            assert_eq!(read.position(end), expected, "{epoch:?}");
        }
        assert_eq!(read.common_end(&leader(5, 40), 30), 30, "nothing is lost");
    }

    #[test]
    fn reader_began_within_an_epoch_it_continues_at_the_leaders_end_or_its_first_record() {
        let read = epochs(&[(5, 80, 100)]);
        assert_eq!(read.common_end(&leader(4, 50), 100), 50);
        assert_eq!(read.common_end(&leader(4, 90), 100), 80);
    }

    #[test]
    fn position_after_a_gap_has_no_epoch() {
        let read = epochs(&[(2, 0, 10)]);
        assert_eq!(read.position(10), FetchPosition { offset: 10, last_epoch: 2 });
        assert_eq!((read.position(12), read.position(9)), (FetchPosition::at(12), FetchPosition::at(9)));
        assert_eq!(read.position(10).or_at(10), read.position(10));
        assert_eq!(read.position(10).or_at(12), FetchPosition::at(12));
    }

    #[test]
    fn many_epochs_are_read_the_newest_are_kept() {
        let mut read = ReadEpochs::default();
        (0..100).for_each(|epoch| read.note(epoch, i64::from(epoch), i64::from(epoch) + 1));
        assert_eq!((read.starts.len(), read.starts[0]), (EPOCHS_MAX, (92, 92)));
        read.note(3, 100, 101);
        assert_eq!(read.starts, [(3, 100)]);
    }
}
