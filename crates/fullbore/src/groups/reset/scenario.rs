//! Where the new offsets come from.
//!
//! Invariant: every new offset is within its partition's log as it was when it was asked for.

use super::offsets::ResetOffsets;
use crate::failure::Failure;
use crate::output;
use fullbore_client::ClientError;
use fullbore_client::admin::GroupAdmin;
use fullbore_client::blocking::{EARLIEST, LATEST};
use fullbore_wire::Text;
use std::collections::BTreeMap;

/// One of kafka-consumer-groups.sh's.
#[derive(Debug)]
pub enum Scenario {
    /// The oldest record.
    Earliest,
    /// The end.
    Latest,
    /// Where it is.
    Current,
    /// An offset.
    Offset(i64),
    /// So many records on.
    ShiftBy(i64),
    /// The first record of a time in milliseconds, or later.
    At(i64),
    /// What a file says of each group.
    File(BTreeMap<Text, ResetOffsets>),
}

impl Scenario {
    /// The new offset of each of these partitions, which exist and have leaders.
    ///
    /// # Errors
    /// The cluster's; a shift of a partition without an offset.
    pub fn offsets(&self, groups: &mut GroupAdmin<'_>, id: &Text, of: &[(Text, i32)]) -> Result<ResetOffsets, Failure> {
        match self {
            Scenario::Earliest => found(groups, of, EARLIEST),
            Scenario::Latest => found(groups, of, LATEST),
            Scenario::At(timestamp) => at(groups, of, *timestamp),
            Scenario::Offset(offset) => within(groups, of.iter().map(|key| (key.clone(), *offset)).collect()),
            Scenario::File(plan) => {
                let planned = plan.get(id).cloned().unwrap_or_default();
                within(groups, planned)
            }
            Scenario::ShiftBy(by) => {
                let committed = groups.committed(id)?;
                let shifted = |key: &(Text, i32)| match committed.get(key) {
                    Some(committed) => Ok((key.clone(), committed.offset.saturating_add(*by))),
                    None => Err(Failure::new(format!(
                        "Cannot shift offset for partition {}-{} since there is no current committed offset; set one with \
                         --to-offset, --to-earliest or --to-latest",
                        key.0, key.1
                    ))),
                };
                let shifted: Result<ResetOffsets, Failure> = of.iter().map(shifted).collect();
                within(groups, shifted?)
            }
            Scenario::Current => {
                let committed = groups.committed(id)?;
                let (with, without): (Vec<_>, Vec<_>) = of.iter().cloned().partition(|key| committed.contains_key(key));
                let mut offsets = found(groups, &without, LATEST)?;
                offsets.extend(with.into_iter().map(|key| {
                    let offset = committed[&key].offset;
                    (key, offset)
                }));
                Ok(offsets)
            }
        }
    }
}

/// What leaders answer; all of them must.
fn found(groups: &mut GroupAdmin<'_>, of: &[(Text, i32)], timestamp: i64) -> Result<ResetOffsets, Failure> {
    if of.is_empty() {
        return Ok(ResetOffsets::new());
    }
    let offsets = groups.cluster().offsets_at(of, timestamp)?;
    match of.iter().find(|key| !offsets.contains_key(*key)) {
        Some((topic, partition)) => {
            Err(ClientError::NoLeader { topic: topic.to_string(), partition: *partition }.into())
        }
        None => Ok(offsets),
    }
}

/// The end where no record is that late.
fn at(groups: &mut GroupAdmin<'_>, of: &[(Text, i32)], timestamp: i64) -> Result<ResetOffsets, Failure> {
    let mut offsets = found(groups, of, timestamp)?;
    let late: Vec<(Text, i32)> =
        offsets.iter().filter(|(_, offset)| **offset < 0).map(|(key, _)| key.clone()).collect();
    for (topic, partition) in &late {
        output::tell(format!("No record of partition {partition} of topic {topic} is that late; its end is taken."));
    }
    offsets.extend(found(groups, &late, LATEST)?);
    Ok(offsets)
}

/// Offsets beyond a log become its start or end, and that is said.
fn within(groups: &mut GroupAdmin<'_>, offsets: ResetOffsets) -> Result<ResetOffsets, Failure> {
    let of: Vec<(Text, i32)> = offsets.keys().cloned().collect();
    let (starts, ends) = (found(groups, &of, EARLIEST)?, found(groups, &of, LATEST)?);
    let clamp = |(key, offset): ((Text, i32), i64)| {
        let (start, end) = (starts[&key], ends[&key]);
        let kept = offset.min(end).max(start);
        if kept != offset {
            let (which, compared) = if offset > end { ("latest", "higher") } else { ("earliest", "lower") };
            output::tell(format!(
                "New offset ({offset}) is {compared} than {which} offset for topic partition {}-{}. Value will be set to \
                 {kept}.",
                key.0, key.1
            ));
        }
        (key, kept)
    };
    Ok(offsets.into_iter().map(clamp).collect())
}
