//! Divergence of two logs, and the offset to which a follower truncates (KIP-101, KIP-279; Kafka's
//! `LeaderEpochFileCache`, `UnifiedLog.endOffsetForEpoch`, `AbstractFetcherThread.getOffsetTruncationState`).
//!
//! A log's epochs are given as pairs of a leader epoch and the offset of its first record, both ascending.

/// A leader epoch, and where it ends in some log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The epoch.
    pub epoch: i32,
    /// The offset after its last record.
    pub end_offset: i64,
}

/// A place in a log: what a follower's fetch says of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The log end.
    pub offset: i64,
    /// The epoch of the last record before it, or `None` for an empty log.
    pub last_epoch: Option<i32>,
}

/// Returns the end of the newest epoch that is `epoch` or older. Without one, `epoch` ends at the begin of the log's
/// first epoch.
pub fn end_of(epochs: &[(i32, i64)], epoch: i32, log_end: i64) -> EpochEnd {
    let next = epochs.partition_point(|&(known, _)| known <= epoch);
    let end_offset = epochs.get(next).map_or(log_end, |&(_, start)| start);
    let epoch = epochs[..next].last().map_or(epoch, |&(known, _)| known);
    EpochEnd { epoch, end_offset }
}

/// Answer of a leader to a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// The follower's log up to there is the leader's.
    None,
    /// The logs part: the leader's newest epoch that may be common, and its end.
    At(EpochEnd),
    /// The follower is past the leader's log, and says nothing by which it could be told more (OFFSET_OUT_OF_RANGE).
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

/// Returns the offset to which a follower, whose log ends at `log_end`, truncates when its leader answers a fetch with
/// the end of an epoch.
///
/// `asked` is the position of the fetch. `None` if the log no longer ends there: then the answer is an old
/// one. That matters as soon as several fetches are on their way: a second
/// answer to the same question would cut off what the leader already counts.
pub fn truncation(epochs: &[(i32, i64)], log_end: i64, asked: Position, leader: EpochEnd) -> Option<i64> {
    let last_epoch = epochs.last().map(|&(epoch, _)| epoch);
    if asked != (Position { offset: log_end, last_epoch }) {
        return None;
    }
    let own = end_of(epochs, leader.epoch, log_end);
    // One that has not heard of the leader's epoch goes back to an older one, and asks again from there.
    let end = if own.epoch == leader.epoch { own.end_offset.min(leader.end_offset) } else { own.end_offset };
    Some(end.min(log_end))
}
