//! Divergence of two logs, and the offset to which a follower truncates its log (KIP-101, KIP-279; Kafka's
//! `LeaderEpochFileCache`, `UnifiedLog.endOffsetForEpoch`, `AbstractFetcherThread.getOffsetTruncationState`).
//!
//! The epochs of a log are pairs of a leader epoch and the offset of its first record, both ascending.

/// Leader epoch with its end in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    pub epoch: i32,
    /// Offset after the epoch's last record.
    pub end_offset: i64,
}

/// End of a follower's log, as stated in its fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Log end.
    pub offset: i64,
    /// Epoch of the last record of the log; None for an empty log.
    pub last_epoch: Option<i32>,
}

/// Returns the end of the newest epoch that is `epoch` or older. Without such an epoch, `epoch` ends at the start of
/// the log's first epoch.
pub fn end_of(epochs: &[(i32, i64)], epoch: i32, log_end: i64) -> EpochEnd {
    let next = epochs.partition_point(|&(known, _)| known <= epoch);
    let end_offset = epochs.get(next).map_or(log_end, |&(_, start)| start);
    let epoch = epochs[..next].last().map_or(epoch, |&(known, _)| known);
    EpochEnd { epoch, end_offset }
}

/// Result of a leader's comparison of a follower's log with its own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// The follower's log is a prefix of the leader's.
    None,
    /// The logs diverge: contains the leader's newest epoch that both logs may have, and the end of that epoch.
    At(EpochEnd),
    /// The follower's log ends past the leader's, and its fetch has no epoch to compare (OFFSET_OUT_OF_RANGE).
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

/// Returns the offset to which a follower truncates its log, which ends at `log_end`, when its leader responds with the
/// end of an epoch.
///
/// `asked` is the log end in the fetch. Returns None if the log no longer ends there, since the response is then
/// outdated. With several fetches in flight, a second response may report the same divergence, and would truncate
/// records that the leader already counts.
pub fn truncation(epochs: &[(i32, i64)], log_end: i64, asked: Position, leader: EpochEnd) -> Option<i64> {
    let last_epoch = epochs.last().map(|&(epoch, _)| epoch);
    if asked != (Position { offset: log_end, last_epoch }) {
        return None;
    }
    let own = end_of(epochs, leader.epoch, log_end);
    // A follower without the leader's epoch truncates to the end of an older epoch. Its next fetch compares the logs
    // again from there.
    let end = if own.epoch == leader.epoch { own.end_offset.min(leader.end_offset) } else { own.end_offset };
    Some(end.min(log_end))
}
