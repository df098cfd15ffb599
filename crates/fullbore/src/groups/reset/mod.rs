//! `groups reset-offsets`: what the user types and sees. Where the offsets come from is in `scenario`, the file of
//! `--export` and `--from-file` in `csv`, times in `time`.
//!
//! Invariant: without --execute nothing is changed; with it, only groups without members are.

mod csv;
mod offsets;
mod scenario;
mod time;

use super::select::{SelectedTopic, Which, partitions, topic};
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{self, Format, line};
use crate::table::{aligned, row};
use clap::{ArgGroup, Args};
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::ClientError;
use fullbore_client::admin::GroupAdmin;
use fullbore_wire::Text;
use offsets::ResetOffsets;
use scenario::Scenario;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("scenario").required(true).args(["to_earliest", "to_latest", "to_current", "to_offset",
    "shift_by", "to_datetime", "by_duration", "from_file"]))]
#[command(group = ArgGroup::new("scope").required(true).args(["all_topics", "topic", "from_file"]).multiple(false))]
#[command(group = ArgGroup::new("mode").args(["dry_run", "execute"]))]
pub struct Reset {
    #[command(flatten)]
    which: Which,
    /// A topic, or some of its partitions: orders:0,1; may be repeated.
    #[arg(long, value_name = "TOPIC[:PARTITION,...]", value_parser = topic)]
    topic: Vec<SelectedTopic>,
    /// Every partition the group has an offset of.
    #[arg(long)]
    all_topics: bool,
    /// To the oldest record.
    #[arg(long)]
    to_earliest: bool,
    /// To the end, so that only records that come from now on are read.
    #[arg(long)]
    to_latest: bool,
    /// To where it is; to the end where it has no offset.
    #[arg(long)]
    to_current: bool,
    /// To this offset.
    #[arg(long, value_name = "OFFSET", allow_negative_numbers = true)]
    to_offset: Option<i64>,
    /// So many records on, or back when negative.
    #[arg(long, value_name = "RECORDS", allow_negative_numbers = true)]
    shift_by: Option<i64>,
    /// To the first record of this time or later: 2026-11-21T08:00:00.000, UTC unless it ends like +01:00.
    #[arg(long, value_name = "TIME", value_parser = time::datetime)]
    to_datetime: Option<i64>,
    /// To the first record of so long ago or later: P1DT2H30M, PT90S.
    #[arg(long, value_name = "DURATION", value_parser = time::duration)]
    by_duration: Option<i64>,
    /// To what this file says, as --export writes it: TOPIC,PARTITION,OFFSET, with several groups GROUP before it.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    /// Only show what would be done; the default.
    #[arg(long)]
    dry_run: bool,
    /// Set the offsets.
    #[arg(long)]
    execute: bool,
    /// Print the new offsets as CSV, for --from-file.
    #[arg(long, conflicts_with = "json")]
    export: bool,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Resets them. Groups that cannot be do not keep the others.
pub fn run(reset: &Reset) -> Result<(), Failure> {
    reset.format.choose();
    let file = reset.from_file.as_deref().map(|path| csv::read(path, &reset.which.group)).transpose()?;
    let mut cluster = reset.at.cluster(client_id::GROUPS)?;
    let mut groups = GroupAdmin::of(&mut cluster, reset.at.patience())?;
    let ids = reset.which.ids(&mut groups)?;
    let scenario = reset.scenario(file);
    let (mut done, mut failed): (Vec<(Text, ResetOffsets)>, Vec<Failure>) = (Vec::new(), Vec::new());
    for (id, found) in ids.iter().zip(groups.describe(&ids)?) {
        let state = match found {
            Ok(group) => Ok(group.state),
            // A group that does not exist yet gets its first offsets.
            Err(ClientError::NoGroup(_)) => Ok("Dead".into()),
            Err(error) => Err(error.into()),
        };
        let offsets = state.and_then(|state| {
            check_inactive(id, &state)?;
            reset.offsets(&mut groups, id, &scenario)
        });
        match offsets {
            Ok(offsets) => done.push((id.clone(), offsets)),
            Err(failure) => failed.push(failure),
        }
    }
    if reset.execute {
        failed.extend(commit_each(&mut done, |id, offsets| groups.commit(id, offsets)));
    }
    show(reset, &done);
    match failed.into_iter().next() {
        Some(first) => Err(first),
        None => Ok(()),
    }
}

/// Sets the offsets of each group, leaves out those whose cannot be set, and says why.
fn commit_each(
    groups: &mut Vec<(Text, ResetOffsets)>,
    mut commit: impl FnMut(&Text, &ResetOffsets) -> Result<(), ClientError>,
) -> Vec<Failure> {
    let mut failed = Vec::new();
    groups.retain(|(id, offsets)| match commit(id, offsets) {
        Ok(()) => true,
        Err(error) => {
            failed.push(error.into());
            false
        }
    });
    failed
}

fn check_inactive(id: &Text, state: &str) -> Result<(), Failure> {
    match state {
        "Empty" | "Dead" => Ok(()),
        other => Err(Failure::new(format!(
            "Assignments can only be reset if the group '{id}' is inactive, but the current state is {other}; stop its \
             consumers first, and see them with `fullbore groups describe --group {id} --members`"
        ))),
    }
}

impl Reset {
    fn scenario(&self, file: Option<BTreeMap<Text, ResetOffsets>>) -> Scenario {
        let by_time = self.to_datetime.or(self.by_duration.map(|ago| time::now_ms().saturating_sub(ago)));
        // Brokers take numbers below zero for names of offsets.
        let by_time = by_time.map(|timestamp| timestamp.max(0));
        match (file, self.to_offset, self.shift_by, by_time) {
            (Some(plan), ..) => Scenario::File(plan),
            (_, Some(offset), ..) => Scenario::Offset(offset),
            (.., Some(by), _) => Scenario::ShiftBy(by),
            (.., Some(timestamp)) => Scenario::At(timestamp),
            _ if self.to_earliest => Scenario::Earliest,
            _ if self.to_latest => Scenario::Latest,
            _ => Scenario::Current,
        }
    }

    fn offsets(&self, groups: &mut GroupAdmin<'_>, id: &Text, scenario: &Scenario) -> Result<ResetOffsets, Failure> {
        let topics: Vec<SelectedTopic> = match (scenario, self.all_topics) {
            (Scenario::File(plan), _) => match plan.get(id) {
                Some(offsets) => offsets.keys().map(only).collect(),
                None => return Err(Failure::new(format!("the file of --from-file has no offsets for group '{id}'"))),
            },
            (_, true) => {
                let committed = groups.committed(id)?;
                if committed.is_empty() {
                    let next = "name them with --topic";
                    return Err(Failure::new(format!("group '{id}' has no offsets, so --all-topics is none; {next}")));
                }
                committed.keys().map(only).collect()
            }
            (_, false) => self.topic.clone(),
        };
        let partitions = partitions(groups.cluster(), &topics)?;
        scenario.offsets(groups, id, &partitions)
    }
}

/// One partition.
fn only((topic, partition): &(Text, i32)) -> SelectedTopic {
    SelectedTopic { name: topic.clone(), partitions: Some(vec![*partition]) }
}

fn show(reset: &Reset, done: &[(Text, ResetOffsets)]) {
    if reset.format.json {
        line(&document(done, reset.execute));
    } else if reset.export {
        let with_group = reset.which.all_groups || reset.which.group.len() > 1;
        done.iter().flat_map(|(id, offsets)| csv::rows(id, offsets, with_group)).for_each(|text| line(&text));
    } else if !done.is_empty() {
        line("");
        table(done).iter().for_each(|text| line(text));
    }
    if !reset.execute && !reset.dry_run && !reset.export && !done.is_empty() {
        output::tell("Nothing was changed; add --execute to set these offsets, or --dry-run to leave this line out.");
    }
}

/// As kafka-consumer-groups.sh prints it, in order.
fn table(done: &[(Text, ResetOffsets)]) -> Vec<String> {
    let mut rows = vec![row(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"])];
    for (id, offsets) in done {
        rows.extend(offsets.iter().map(|((topic, partition), offset)| {
            vec![id.to_string(), topic.to_string(), partition.to_string(), offset.to_string()]
        }));
    }
    aligned(&rows, &[15, 15, 10])
}

fn document(done: &[(Text, ResetOffsets)], is_executed: bool) -> String {
    let offset = |((topic, partition), offset): (&(Text, i32), &i64)| {
        object([("topic", string(topic)), ("partition", partition.to_string()), ("new_offset", offset.to_string())])
    };
    let group = |(id, offsets): &(Text, ResetOffsets)| {
        object([
            ("group", string(id)),
            ("is_executed", is_executed.to_string()),
            ("offsets", array(offsets.iter().map(offset))),
        ])
    };
    object([("groups", array(done.iter().map(group)))])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured from Kafka 4.3.1.
    #[test]
    fn the_table_is_kafkas() {
        let offsets = BTreeMap::from([(("t1".into(), 0), 956), (("t1".into(), 1), 15)]);
        assert_eq!(
            table(&[("gclassic".into(), offsets)]),
            [
                "GROUP           TOPIC           PARTITION  NEW-OFFSET",
                "gclassic        t1              0          956",
                "gclassic        t1              1          15",
            ]
        );
    }

    #[test]
    fn a_group_that_takes_no_offsets_does_not_keep_the_others() {
        let mut groups: Vec<(Text, ResetOffsets)> = ["a", "b", "c"].map(|id| (id.into(), BTreeMap::new())).into();
        let failed = commit_each(&mut groups, |id, _| match &**id {
            "b" => Err(ClientError::NoGroup(id.to_string())),
            _ => Ok(()),
        });
        let done: Vec<&str> = groups.iter().map(|(id, _)| &**id).collect();
        assert_eq!((done, failed.len()), (vec!["a", "c"], 1));
        assert!(failed[0].to_string().contains("'b'"), "{}", failed[0]);
    }

    #[test]
    fn only_a_group_without_members_is_reset() {
        for state in ["Empty", "Dead"] {
            check_inactive(&"g".into(), state).expect(state);
        }
        let told = check_inactive(&"g".into(), "Stable").expect_err("active").to_string();
        assert!(told.starts_with(
            "Assignments can only be reset if the group 'g' is inactive, but the current state is Stable"
        ));
    }
}
