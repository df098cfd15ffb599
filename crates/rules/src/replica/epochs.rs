//! Finds where two logs diverge, and to which offset a follower truncates its log (KIP-101, KIP-279; Kafka's
//! `LeaderEpochFileCache`, `UnifiedLog.endOffsetForEpoch`, `AbstractFetcherThread.getOffsetTruncationState`).
//!
//! The epochs of a log are a list of pairs: a leader epoch, and the offset of its first record. Both ascend from pair
//! to pair. If the log's first batch is after the log start, the first epoch may be in the list twice. Its first pair
//! then has the log start, and the second one the offset of the batch.

/// A leader epoch, and the offset at which its records end in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    pub epoch: i32,
    /// The offset after the epoch's last record.
    pub end_offset: i64,
}

/// The end of a follower's log, as its fetch reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The offset at which the log ends.
    pub offset: i64,
    /// The epoch of the last record; None if the log is empty.
    pub last_epoch: Option<i32>,
}

/// Returns the newest epoch of the log that is not newer than `epoch`, and the offset at which it ends. If there is no
/// such epoch, returns `epoch` with the first offset of the log's oldest epoch, or with `log_end` if the log has no
/// epochs.
pub fn end_of(epochs: &[(i32, i64)], epoch: i32, log_end: i64) -> EpochEnd {
    let next = epochs.partition_point(|&(known, _)| known <= epoch);
    let end_offset = epochs.get(next).map_or(log_end, |&(_, start)| start);
    let epoch = epochs[..next].last().map_or(epoch, |&(known, _)| known);
    EpochEnd { epoch, end_offset }
}

/// The result of comparing a follower's log with the leader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// The follower's log is a prefix of the leader's.
    None,
    /// The logs diverge. Contains the newest epoch of the leader that the follower may have as well, and its end in the
    /// leader's log.
    At(EpochEnd),
    /// The follower's log is longer than the leader's, and its fetch has no epoch to compare (OFFSET_OUT_OF_RANGE).
    OutOfRange,
}

/// Compares a follower's log, which ends at `position`, with the leader's.
pub fn divergence(epochs: &[(i32, i64)], log_end: i64, position: Position) -> Divergence {
    let Some(last_epoch) = position.last_epoch else {
        return if position.offset <= log_end { Divergence::None } else { Divergence::OutOfRange };
    };
    let end = end_of(epochs, last_epoch, log_end);
    let is_part = end.epoch == last_epoch && position.offset <= end.end_offset;
    if is_part { Divergence::None } else { Divergence::At(end) }
}

/// Returns the offset to which a follower must truncate its log when the leader responds with the end of an epoch. The
/// log ends at `log_end` now.
///
/// `requested` is the log end that the fetch reported. Returns None if the log no longer ends there, because the
/// response is then outdated. With several fetches in flight, two responses may report the same divergence. If the
/// second one truncated the log too, the follower would lose records that the leader already counts as replicated.
pub fn truncation(epochs: &[(i32, i64)], log_end: i64, requested: Position, leader: EpochEnd) -> Option<i64> {
    let last_epoch = epochs.last().map(|&(epoch, _)| epoch);
    if requested != (Position { offset: log_end, last_epoch }) {
        return None;
    }
    let own = end_of(epochs, leader.epoch, log_end);
    // If the follower does not have the leader's epoch, it truncates to the end of an older epoch. The logs are
    // compared again at its next fetch.
    let end = if own.epoch == leader.epoch { own.end_offset.min(leader.end_offset) } else { own.end_offset };
    Some(end.min(log_end))
}
