//! The flags and the output of `groups reset-offsets`. `scenario` computes the new offsets, and `logs` requests the
//! offsets of the logs. `csv` writes and reads the files of `--export` and `--from-file`.
//!
//! Each step handles all groups together, so that thousands of groups need few round trips. Invariant: without
//! --execute no offset is changed. With --execute, only offsets of groups without members are changed.

mod csv;
mod logs;
mod offsets;
mod scenario;

use super::select::{SelectedTopic, Which, partitions, topic};
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{self, Format, line};
use crate::table::{aligned, row};
use crate::time;
use clap::{ArgGroup, Args};
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::ClientError;
use fullbore_client::admin::{CommittedOffsets, GroupAdmin};
use fullbore_wire::Text;
use offsets::ResetOffsets;
use scenario::Scenario;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Reset every partition in which the group has an offset.
    #[arg(long)]
    all_topics: bool,
    /// Set the offsets to the oldest records.
    #[arg(long)]
    to_earliest: bool,
    /// Set the offsets to the ends, so that only later records are read.
    #[arg(long)]
    to_latest: bool,
    /// Keep the offsets; in partitions without an offset, set the end.
    #[arg(long)]
    to_current: bool,
    /// Set the offsets to this offset.
    #[arg(long, value_name = "OFFSET")]
    to_offset: Option<i64>,
    /// Move the offsets by this many records, back if negative.
    #[arg(long, value_name = "RECORDS")]
    shift_by: Option<i64>,
    /// Set the offsets to the first records of this time or later: 2026-11-21T08:00:00.000, in UTC unless a zone like
    /// +01:00 follows.
    #[arg(long, value_name = "TIME", value_parser = time::datetime)]
    to_datetime: Option<i64>,
    /// Set the offsets to the first records that are not older than this duration: P1DT2H30M, PT90S.
    #[arg(long, value_name = "DURATION", value_parser = time::duration)]
    by_duration: Option<i64>,
    /// Set the offsets in this file, as --export writes it: TOPIC,PARTITION,OFFSET; with several groups,
    /// GROUP,TOPIC,PARTITION,OFFSET.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    /// Only show the new offsets; the default.
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

/// Resets the offsets. If a group cannot be reset, still resets the others.
pub fn run(reset: &Reset) -> Result<(), Failure> {
    reset.format.choose();
    let file = reset.from_file.as_deref().map(|path| csv::read(path, &reset.which.group)).transpose()?;
    let mut cluster = reset.at.cluster(client_id::GROUPS)?;
    let mut groups = GroupAdmin::of(&mut cluster, reset.at.patience())?;
    let ids = reset.which.ids(&mut groups)?;
    let scenario = reset.scenario(file);
    let mut failed = BTreeMap::new();
    let described = groups.describe(&ids)?;
    let inactive = kept(ids.into_iter().zip(described), &mut failed, |id, found| match found {
        Ok(group) => check_inactive(id, &group.state),
        // A group need not exist: the new offsets create it.
        Err(ClientError::NoGroup(_)) => Ok(()),
        Err(error) => Err(error.into()),
    });
    let mut done = reset.offsets(&mut groups, inactive.into_keys().collect(), &scenario, &mut failed)?;
    let mut unset = BTreeMap::new();
    if reset.execute {
        let mut outcomes = groups.commit_each(&done);
        done = kept(done, &mut unset, |id, offsets| Ok(outcomes.take(id).map(|()| offsets)?));
    }
    show(reset, &done.into_iter().collect::<Vec<_>>());
    match failed.into_values().chain(unset.into_values()).next() {
        Some(first) => Err(first),
        None => Ok(()),
    }
}

/// Runs a step for each group and returns the outcomes. Groups that fail are left out and added to `failed`.
fn kept<A, B>(
    groups: impl IntoIterator<Item = (Text, A)>,
    failed: &mut BTreeMap<Text, Failure>,
    mut step: impl FnMut(&Text, A) -> Result<B, Failure>,
) -> BTreeMap<Text, B> {
    let mut left = BTreeMap::new();
    for (id, group) in groups {
        match step(&id, group) {
            Ok(group) => drop(left.insert(id, group)),
            Err(failure) => drop(failed.insert(id, failure)),
        }
    }
    left
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
        // The timestamp is at least 0, because brokers give negative timestamps special meanings.
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

    /// Returns the new offsets of these groups. Each request to a coordinator or leader covers many groups.
    fn offsets(
        &self,
        groups: &mut GroupAdmin<'_>,
        ids: Vec<Text>,
        scenario: &Scenario,
        failed: &mut BTreeMap<Text, Failure>,
    ) -> Result<BTreeMap<Text, ResetOffsets>, Failure> {
        let needs_committed = self.all_topics || scenario.needs_committed();
        let mut committed = needs_committed.then(|| groups.committed_each(&ids));
        let topics = kept(ids.into_iter().map(|id| (id, ())), failed, |id, ()| {
            let committed = committed.as_mut().map_or_else(|| Ok(CommittedOffsets::new()), |found| found.take(id))?;
            Ok((self.topics(id, &committed, scenario)?, committed))
        });
        let names: BTreeSet<Text> =
            topics.values().flat_map(|(topics, _)| topics).map(|topic| topic.name.clone()).collect();
        let places = groups.cluster().topics(&names.into_iter().collect::<Vec<_>>())?;
        let found = kept(topics, failed, |_, (topics, committed)| Ok((partitions(&places, &topics)?, committed)));
        let mut wanted = BTreeSet::new();
        for (of, committed) in found.values() {
            wanted.extend(of.iter().filter(|key| scenario.needs_log(key, committed)).cloned());
        }
        let mut logs = scenario.look_up(groups.cluster(), &wanted);
        Ok(kept(found, failed, |id, (of, committed)| scenario.offsets(id, &of, &committed, &mut logs)))
    }

    fn topics(
        &self,
        id: &Text,
        committed: &CommittedOffsets,
        scenario: &Scenario,
    ) -> Result<Vec<SelectedTopic>, Failure> {
        match (scenario, self.all_topics) {
            (Scenario::File(plan), _) => match plan.get(id) {
                Some(offsets) => Ok(offsets.keys().map(only).collect()),
                None => Err(Failure::new(format!("the file of --from-file has no offsets for group '{id}'"))),
            },
            (_, true) if committed.is_empty() => {
                let next = "name them with --topic";
                Err(Failure::new(format!("group '{id}' has no offsets, so --all-topics selects none; {next}")))
            }
            (_, true) => Ok(committed.keys().map(only).collect()),
            (_, false) => Ok(self.topic.clone()),
        }
    }
}

/// Selects a single partition.
fn only((topic, partition): &(Text, i32)) -> SelectedTopic {
    SelectedTopic { name: topic.clone(), partitions: Some(vec![*partition]) }
}

fn show(reset: &Reset, done: &[(Text, ResetOffsets)]) {
    if reset.format.json {
        line(&document(done, reset.execute));
    } else if reset.export {
        let with_group = reset.which.all_groups || reset.which.group.len() > 1;
        done.iter().flat_map(|(id, offsets)| csv::rows(id, offsets, with_group)).for_each(csv::print);
    } else if !done.is_empty() {
        line("");
        table(done).iter().for_each(|text| line(text));
    }
    if !reset.execute && !reset.dry_run && !reset.export && !done.is_empty() {
        output::remark("Nothing was changed; add --execute to set these offsets, or --dry-run to leave this line out.");
    }
}

/// Returns the table of kafka-consumer-groups.sh, sorted by group, topic and partition.
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

    /// The expected table was captured from Kafka 4.3.1.
    #[test]
    fn the_table_of_new_offsets_is_kafkas() {
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
    fn groups_without_failure_are_kept_in_order() {
        let (groups, mut failed) = (["a", "b", "c"].map(|id| (id.into(), id)), BTreeMap::new());
        let left = kept(groups, &mut failed, |id, group| match &**id {
            "b" => Err(ClientError::NoGroup(id.to_string()).into()),
            _ => Ok(group),
        });
        assert_eq!(left, BTreeMap::from([("a".into(), "a"), ("c".into(), "c")]));
        assert!(
            failed.len() == 1 && failed["b"].to_string().contains("'b'"),
            "{:?}",
            failed.get("b").map(|b| b.to_string())
        );
    }

    #[test]
    fn only_a_group_without_members_can_be_reset() {
        for state in ["Empty", "Dead"] {
            check_inactive(&"g".into(), state).expect(state);
        }
        let reported = check_inactive(&"g".into(), "Stable").expect_err("active").to_string();
        assert!(reported.starts_with(
            "Assignments can only be reset if the group 'g' is inactive, but the current state is Stable"
        ));
    }
}
