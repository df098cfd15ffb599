//! Requests from leaders the offsets at which the read of their partitions starts and ends.
//!
//! Invariant: an error of one partition does not affect the others.

use crate::blocking::{Connection, EARLIEST, LATEST};
use crate::error::ClientError;
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, HashMap};

/// The point in the log where the read of a partition starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOffset {
    /// At the oldest record of the log.
    Earliest,
    /// At the end of the log, so that only later records are read.
    Latest,
    /// At this offset.
    At(i64),
    /// At this many offsets before the end of the log.
    Back(i64),
    /// At the first record with this timestamp or a later one, in ms since 1970.
    From(i64),
}

/// The bounds of a partition's read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The id of the topic that the offsets belong to. Zero if it is unknown.
    pub topic_id: Uuid,
    /// The first offset to read, or `None` until the leader has returned it.
    pub offset: Option<i64>,
    /// The leader epoch of the last record before `offset`. `None` if it is unknown.
    pub leader_epoch: Option<i32>,
    /// The first offset that is not read any more. `None` to read forever, or until the leader has returned the end.
    pub end: Option<i64>,
}

/// A partition whose bounds must be requested.
#[derive(Clone, Debug)]
pub(super) struct Unplaced {
    pub(super) topic: Text,
    pub(super) partition: i32,
    pub(super) start: StartOffset,
}

/// The start offset, and the end offset if the run needs one.
pub(super) type OffsetBounds = (i64, Option<i64>);

/// Requests the starts of these partitions from their leader. With `to_end`, requests their ends as well.
pub(super) fn place(
    connection: &mut Connection,
    of: &[Unplaced],
    to_end: bool,
    read_committed: bool,
) -> Result<Vec<Result<OffsetBounds, ClientError>>, ClientError> {
    let mut wanted: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (at, unplaced) in of.iter().enumerate() {
        let end = if to_end { &[LATEST][..] } else { &[] };
        let mut timestamps = [timestamps(unplaced.start), end.to_vec()].concat();
        timestamps.sort_unstable();
        timestamps.dedup();
        timestamps.into_iter().for_each(|timestamp| wanted.entry(timestamp).or_default().push(at));
    }
    let mut offsets: HashMap<(usize, i64), i64> = HashMap::new();
    let mut refused: HashMap<usize, ClientError> = HashMap::new();
    let named = |at: &usize| (of[*at].topic.clone(), of[*at].partition);
    let each = wanted.iter().map(|(timestamp, partitions)| (*timestamp, partitions.iter().map(named).collect()));
    let each: Vec<(i64, Vec<(Text, i32)>)> = each.collect();
    let found = connection.offsets_at_each(&each, read_committed)?;
    for ((timestamp, partitions), found) in wanted.into_iter().zip(found) {
        for (at, offset) in partitions.into_iter().zip(found) {
            match offset {
                Ok(offset) => drop(offsets.insert((at, timestamp), offset)),
                Err(error) => drop(refused.insert(at, error)),
            }
        }
    }
    let placed = |(at, unplaced): (usize, &Unplaced)| match refused.remove(&at) {
        Some(error) => Err(error),
        None => {
            let at_time = |timestamp| offsets.get(&(at, timestamp)).copied().unwrap_or(0);
            Ok((offset(unplaced.start, at_time), to_end.then(|| at_time(LATEST))))
        }
    };
    Ok(of.iter().enumerate().map(placed).collect())
}

/// Returns the timestamps to send in ListOffsets to find this start.
fn timestamps(start: StartOffset) -> Vec<i64> {
    match start {
        StartOffset::Earliest => vec![EARLIEST],
        StartOffset::Latest => vec![LATEST],
        StartOffset::At(_) => Vec::new(),
        StartOffset::Back(_) => vec![EARLIEST, LATEST],
        StartOffset::From(ms) => vec![ms, LATEST],
    }
}

/// Returns the offset of a start. `at` returns the offset that the leader returned for a timestamp.
fn offset(start: StartOffset, at: impl Fn(i64) -> i64) -> i64 {
    match start {
        StartOffset::Earliest => at(EARLIEST),
        StartOffset::Latest => at(LATEST),
        StartOffset::At(offset) => offset,
        StartOffset::Back(count) => at(LATEST).saturating_sub(count).max(at(EARLIEST)),
        StartOffset::From(ms) if at(ms) < 0 => at(LATEST),
        StartOffset::From(ms) => at(ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_is_an_offset_that_the_partition_has() {
        let at = |timestamp| match timestamp {
            EARLIEST => 10,
            LATEST => 20,
            1000 => 15,
            _ => -1,
        };
        for (start, expected) in [
            (StartOffset::Earliest, 10),
            (StartOffset::Latest, 20),
            (StartOffset::At(17), 17),
            (StartOffset::Back(3), 17),
            (StartOffset::Back(30), 10),
            (StartOffset::From(1000), 15),
            (StartOffset::From(2000), 20),
        ] {
            assert_eq!(offset(start, at), expected, "{start:?}");
        }
    }
}
