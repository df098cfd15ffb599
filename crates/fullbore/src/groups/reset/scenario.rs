//! The scenarios of a reset, which differ in the source of the new offsets.
//!
//! Invariant: every new offset is within its partition's log at the time of the request, except for a committed offset
//! that --to-current keeps.

use super::logs::LogOffsets;
use super::offsets::ResetOffsets;
use crate::failure::Failure;
use crate::output;
use fullbore_client::admin::CommittedOffsets;
use fullbore_client::blocking::{Cluster, EARLIEST, LATEST};
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};

/// A scenario of kafka-consumer-groups.sh.
#[derive(Debug)]
pub enum Scenario {
    /// The oldest record.
    Earliest,
    /// The end of the log.
    Latest,
    /// The committed offset.
    Current,
    /// This offset.
    Offset(i64),
    /// The committed offset, moved by this number of offsets.
    ShiftBy(i64),
    /// The first record with this timestamp or a later one, in ms since 1970.
    At(i64),
    /// The offsets of each group from a file.
    File(BTreeMap<Text, ResetOffsets>),
}

impl Scenario {
    /// Returns true if new offsets depend on the group's committed offsets.
    pub fn needs_committed(&self) -> bool {
        matches!(self, Scenario::Current | Scenario::ShiftBy(_))
    }

    /// Returns true if the new offset depends on the partition's log. `committed` has the group's committed offsets.
    pub fn needs_log(&self, key: &(Text, i32), committed: &CommittedOffsets) -> bool {
        !matches!(self, Scenario::Current) || !committed.contains_key(key)
    }

    /// Requests the log offsets from which the new offsets of these partitions are computed, once for all groups.
    pub fn look_up(&self, cluster: &mut Cluster, of: &BTreeSet<(Text, i32)>) -> LogOffsets {
        let mut logs = LogOffsets::default();
        match self {
            Scenario::Earliest => logs.look_up(cluster, of, EARLIEST),
            Scenario::Latest | Scenario::Current => logs.look_up(cluster, of, LATEST),
            Scenario::At(timestamp) => {
                logs.look_up(cluster, of, *timestamp);
                let late = logs.without_record_at(*timestamp);
                logs.look_up(cluster, &late, LATEST);
            }
            Scenario::Offset(_) | Scenario::ShiftBy(_) | Scenario::File(_) => {
                logs.look_up(cluster, of, EARLIEST);
                logs.look_up(cluster, of, LATEST);
            }
        }
        logs
    }

    /// Returns the new offset of each of these partitions.
    ///
    /// # Errors
    /// Returns [`Failure`] if a leader returned no offset, or if a committed offset should be shifted but the partition
    /// has none.
    pub fn offsets(
        &self,
        id: &Text,
        of: &[(Text, i32)],
        committed: &CommittedOffsets,
        logs: &mut LogOffsets,
    ) -> Result<ResetOffsets, Failure> {
        match self {
            Scenario::Earliest => logs.each(of, EARLIEST),
            Scenario::Latest => logs.each(of, LATEST),
            Scenario::At(timestamp) => at(logs, of, *timestamp),
            Scenario::Offset(offset) => within(logs, of.iter().map(|key| (key.clone(), *offset)).collect()),
            Scenario::File(plan) => within(logs, plan.get(id).cloned().unwrap_or_default()),
            Scenario::ShiftBy(by) => {
                let shifted = |key: &(Text, i32)| match committed.get(key) {
                    Some(committed) => Ok((key.clone(), committed.offset.saturating_add(*by))),
                    None => Err(Failure::new(format!(
                        "Cannot shift offset for partition {}-{} since there is no current committed offset; set one with \
                         --to-offset, --to-earliest or --to-latest",
                        key.0, key.1
                    ))),
                };
                let shifted: Result<ResetOffsets, Failure> = of.iter().map(shifted).collect();
                within(logs, shifted?)
            }
            Scenario::Current => {
                let offset = |key: &(Text, i32)| {
                    let offset = match committed.get(key) {
                        Some(committed) => committed.offset,
                        None => logs.get(key, LATEST)?,
                    };
                    Ok((key.clone(), offset))
                };
                of.iter().map(offset).collect()
            }
        }
    }
}

/// Returns the offset of each partition at `timestamp`. If no record has this timestamp or a later one, returns the end
/// of the partition.
fn at(logs: &mut LogOffsets, of: &[(Text, i32)], timestamp: i64) -> Result<ResetOffsets, Failure> {
    let mut offsets = logs.each(of, timestamp)?;
    for ((topic, partition), offset) in offsets.iter_mut().filter(|(_, offset)| **offset < 0) {
        output::remark(format!(
            "No record of partition {partition} of topic {topic} has that time or a later one; the end of the \
             partition is used."
        ));
        *offset = logs.get(&(topic.clone(), *partition), LATEST)?;
    }
    Ok(offsets)
}

/// Replaces each offset that is outside its log by the log's start or end, and reports this.
fn within(logs: &mut LogOffsets, offsets: ResetOffsets) -> Result<ResetOffsets, Failure> {
    let of: Vec<(Text, i32)> = offsets.keys().cloned().collect();
    let (starts, ends) = (logs.each(&of, EARLIEST)?, logs.each(&of, LATEST)?);
    let clamp = |(key, offset): ((Text, i32), i64)| {
        let (start, end) = (starts[&key], ends[&key]);
        let kept = offset.min(end).max(start);
        if kept != offset {
            let (which, compared) = if offset > end { ("latest", "higher") } else { ("earliest", "lower") };
            output::remark(format!(
                "New offset ({offset}) is {compared} than {which} offset for topic partition {}-{}. Value will be set to \
                 {kept}.",
                key.0, key.1
            ));
        }
        (key, kept)
    };
    Ok(offsets.into_iter().map(clamp).collect())
}
