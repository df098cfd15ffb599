//! `topics describe` prints the lines of kafka-topics.sh, or one JSON document.

use super::select::{Select, must_exist, selected};
use crate::client_id;
use crate::failure::Failure;
use crate::output::line;
use clap::Args;
use fullbore_bench::report::json::{array, list, object, plain, string};
use fullbore_client::admin::{
    DamagedLogs, LogDamage, PARTITIONS_PER_ANSWER, SetAside, TopicDescription, TopicPartitionInfo, describe_topics,
    log_damage, topic_name,
};
use fullbore_client::blocking::Cluster;
use fullbore_wire::{Text, Uuid};
use std::collections::BTreeMap;

/// The damage of a partition's logs, by broker. Usually empty.
type ByBroker = BTreeMap<i32, LogDamage>;

#[derive(Args, Debug)]
pub struct DescribeTopicsArgs {
    #[command(flatten)]
    select: Select,
    /// Only the topic with this id.
    #[arg(long, value_name = "ID", value_parser = topic_id)]
    topic_id: Option<Uuid>,
    /// Only topics with their own configurations, without their partitions.
    #[arg(long)]
    topics_with_overrides: bool,
    /// The number of partitions in one request.
    #[arg(long, value_name = "COUNT", default_value_t = PARTITIONS_PER_ANSWER, value_parser = clap::value_parser!(i32).range(1..))]
    partition_size_limit_per_response: i32,
    #[command(flatten)]
    only: Only,
}

/// Flags that select partitions. Several flags select the partitions that any of them selects; no flag selects all.
#[derive(Args, Debug, Default)]
struct Only {
    /// Only partitions with replicas that are not in sync.
    #[arg(long)]
    under_replicated_partitions: bool,
    /// Only partitions without a live leader that serves them.
    #[arg(long)]
    unavailable_partitions: bool,
    /// Only partitions with exactly min.insync.replicas in sync.
    #[arg(long)]
    at_min_isr_partitions: bool,
    /// Only partitions with fewer than min.insync.replicas in sync.
    #[arg(long)]
    under_min_isr_partitions: bool,
}

impl Only {
    fn is_any(&self) -> bool {
        self.under_replicated_partitions
            || self.unavailable_partitions
            || self.at_min_isr_partitions
            || self.under_min_isr_partitions
    }

    /// Returns true if the flags select a partition of a topic with this min.insync.replicas. `is_refused` is true if
    /// the leader refuses the partition because of damage.
    fn means(&self, partition: &TopicPartitionInfo, min_in_sync: Option<usize>, is_refused: bool) -> bool {
        let (in_sync, headless) = (partition.in_sync.len(), partition.leader.is_none() || is_refused);
        (self.under_replicated_partitions && in_sync < partition.replicas.len())
            || (self.unavailable_partitions && headless)
            || (self.at_min_isr_partitions && min_in_sync == Some(in_sync))
            || (self.under_min_isr_partitions && (headless || min_in_sync.is_some_and(|min| in_sync < min)))
    }
}

fn topic_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse(text)
        .ok_or_else(|| "must be a topic id of 22 characters, as `fullbore topics describe` shows it".to_owned())
}

/// Describes the topics.
pub fn run(describe: DescribeTopicsArgs) -> Result<(), Failure> {
    let select = &describe.select;
    select.format.choose();
    let mut cluster = select.at.cluster(client_id::TOPICS)?;
    let names = match describe.topic_id {
        Some(id) => with_id(&mut cluster, id, select.if_exists)?,
        None => {
            let pattern = select.pattern();
            let names = selected(&mut cluster, pattern.as_deref(), select.exclude_internal)?;
            must_exist(&names, pattern.as_deref(), select.if_exists)?;
            names
        }
    };
    let topics = describe_topics(&mut cluster, &names, describe.partition_size_limit_per_response)?;
    let counts =
        |topic: &TopicDescription| (topic.name.clone(), i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX));
    // A broker may refuse to describe its data directories. The output then lacks the damage of this broker's logs.
    let damage = log_damage(&mut cluster, &topics.iter().map(counts).collect::<Vec<_>>()).unwrap_or_default();
    if select.format.json {
        line(&document(&topics, &describe, &damage));
    } else {
        topics.iter().flat_map(|topic| description(topic, &describe, &damage)).for_each(|text| line(&text));
    }
    Ok(())
}

fn with_id(cluster: &mut Cluster, id: Uuid, if_exists: bool) -> Result<Vec<Text>, Failure> {
    match topic_name(cluster, id)? {
        None if !if_exists => Err(Failure::new(format!("TopicId '{id}' does not exist as expected"))),
        found => Ok(found.into_iter().collect()),
    }
}

/// Returns the lines of one topic. If flags select partitions, leaves out the topic's own line, as kafka-topics.sh
/// does.
fn description(topic: &TopicDescription, describe: &DescribeTopicsArgs, damage: &DamagedLogs) -> Vec<String> {
    let (only, overrides) = (&describe.only, describe.topics_with_overrides);
    let mut lines = Vec::new();
    if !only.is_any() && (!overrides || !topic.configs.is_empty()) {
        lines.push(topic_line(topic));
    }
    lines.extend(shown(topic, describe, damage).map(|(partition, damage)| {
        partition_line(&topic.name, partition)
            + &damage.map(|damage| damage_words(partition, damage)).unwrap_or_default()
    }));
    lines
}

/// Returns the selected partitions, each with the damage of its logs.
fn shown<'a>(
    topic: &'a TopicDescription,
    describe: &'a DescribeTopicsArgs,
    damage: &'a DamagedLogs,
) -> impl Iterator<Item = (&'a TopicPartitionInfo, Option<&'a ByBroker>)> {
    let (only, overrides) = (&describe.only, describe.topics_with_overrides);
    let is_shown = move |(partition, damage): &(&TopicPartitionInfo, Option<&ByBroker>)| {
        // Only damage of the leader's log matters here, because a damaged log of a follower prevents neither reads nor
        // writes.
        let of_leader = damage.zip(partition.leader).and_then(|(damage, leader)| damage.get(&leader));
        let is_refused = of_leader.is_some_and(|damage| damage.is_refused);
        !overrides && (!only.is_any() || only.means(partition, topic.min_in_sync, is_refused))
    };
    let damage_of = move |partition: &TopicPartitionInfo| damage.get(&(topic.name.clone(), partition.partition));
    topic.partitions.iter().map(move |partition| (partition, damage_of(partition))).filter(is_shown)
}

fn joined(ids: &[i32]) -> String {
    ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

fn topic_line(topic: &TopicDescription) -> String {
    let id = if topic.topic_id.is_zero() { String::new() } else { format!("\tTopicId: {}", topic.topic_id) };
    let configs: Vec<String> = topic.configs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!(
        "Topic: {}{id}\tPartitionCount: {}\tReplicationFactor: {}\tConfigs: {}",
        topic.name,
        topic.partitions.len(),
        topic.partitions.first().map_or(0, |first| first.replicas.len()),
        configs.join(","),
    )
}

fn partition_line(topic: &str, partition: &TopicPartitionInfo) -> String {
    let or_na = |ids: &Option<Vec<i32>>| ids.as_deref().map_or("N/A".to_owned(), joined);
    format!(
        "\tTopic: {topic}\tPartition: {}\tLeader: {}\tReplicas: {}\tIsr: {}\tElr: {}\tLastKnownElr: {}",
        partition.partition,
        partition.leader.map_or("none".to_owned(), |id| id.to_string()),
        joined(&partition.replicas),
        joined(&partition.in_sync),
        or_na(&partition.eligible),
        or_na(&partition.last_known_eligible),
    )
}

/// Returns the text that is appended to the line of a partition with a damaged log. Kafka's tool has no such text. If
/// the partition has several replicas, the text names the broker.
fn damage_words(partition: &TopicPartitionInfo, damage: &ByBroker) -> String {
    let of_log = |(broker, damage): (&i32, &LogDamage)| {
        let whose = if partition.replicas.len() > 1 { format!(" on broker {broker}") } else { String::new() };
        let aside = damage.set_aside.map(|aside| {
            let files = if aside.files == 1 { "file" } else { "files" };
            format!("\tSetAside: {} {files}, {} bytes{whose}", aside.files, aside.bytes)
        });
        let refused = if damage.is_refused { format!("\tRefused: damaged{whose}") } else { String::new() };
        aside.unwrap_or_default() + &refused
    };
    damage.iter().map(of_log).collect()
}

/// Returns the damage as members of a JSON object: a summary of all logs, and if the partition has several replicas
/// also an entry for each log.
fn damage_members(partition: &TopicPartitionInfo, damage: &ByBroker) -> Vec<(&'static str, String)> {
    let members = |aside: Option<SetAside>, is_refused: bool| {
        let files = |aside: SetAside| object([("files", aside.files.to_string()), ("bytes", aside.bytes.to_string())]);
        let aside = aside.map(|aside| ("set_aside", files(aside)));
        aside.into_iter().chain(is_refused.then(|| ("refused", true.to_string())))
    };
    let asides = damage.values().filter_map(|damage| damage.set_aside);
    let all = asides.reduce(|a, b| SetAside { files: a.files + b.files, bytes: a.bytes + b.bytes });
    let is_refused = damage.values().any(|damage| damage.is_refused);
    let of_log = |(broker, damage): (&i32, &LogDamage)| {
        object([("broker", broker.to_string())].into_iter().chain(members(damage.set_aside, damage.is_refused)))
    };
    let each = || ("damaged_logs", list(damage.iter().map(of_log)));
    let is_one_of_several = partition.replicas.len() > 1 && !damage.is_empty();
    members(all, is_refused).chain(is_one_of_several.then(each)).collect()
}

/// Returns the topics as JSON. Leaves out topics of which the flags select nothing.
fn document(topics: &[TopicDescription], describe: &DescribeTopicsArgs, damage: &DamagedLogs) -> String {
    let ids = |ids: &[i32]| list(ids.iter().map(i32::to_string));
    let or_null = |found: &Option<Vec<i32>>| plain(found.as_deref().map(ids));
    let partition = |(partition, damage): (&TopicPartitionInfo, Option<&ByBroker>)| {
        let members = [
            ("partition", partition.partition.to_string()),
            ("leader", plain(partition.leader)),
            ("replicas", ids(&partition.replicas)),
            ("isr", ids(&partition.in_sync)),
            ("elr", or_null(&partition.eligible)),
            ("last_known_elr", or_null(&partition.last_known_eligible)),
            ("offline_replicas", ids(&partition.offline)),
        ];
        let damage = damage.map(|damage| damage_members(partition, damage)).unwrap_or_default();
        object(members.into_iter().chain(damage))
    };
    let topic = |topic: &TopicDescription| {
        let configs = topic.configs.iter().map(|(key, value)| (&**key, string(value)));
        object([
            ("name", string(&topic.name)),
            ("topic_id", string(&topic.topic_id.to_string())),
            ("partition_count", topic.partitions.len().to_string()),
            ("replication_factor", topic.partitions.first().map_or(0, |first| first.replicas.len()).to_string()),
            ("configs", object(configs)),
            ("partitions", array(shown(topic, describe, damage).map(partition))),
        ])
    };
    let is_requested = |topic: &&TopicDescription| !description(topic, describe, damage).is_empty();
    object([("topics", array(topics.iter().filter(is_requested).map(topic)))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::parse;
    use crate::topics::{TopicsArgs, TopicsCommand};

    /// The expected lines were captured from Kafka 4.3.1.
    #[test]
    fn describe_prints_kafkas_two_kinds_of_lines() {
        let partition = TopicPartitionInfo {
            partition: 2,
            leader: Some(1),
            replicas: vec![1],
            in_sync: vec![1],
            eligible: Some(vec![]),
            last_known_eligible: Some(vec![]),
            offline: vec![],
        };
        let topic = TopicDescription {
            name: "cap1".into(),
            topic_id: Uuid::parse("EUTqIqd-SK2KF81ZIjJiMw").expect("an id"),
            partitions: vec![partition.clone(), partition.clone(), partition.clone()],
            min_in_sync: Some(1),
            configs: vec![
                ("min.insync.replicas".into(), "1".into()),
                ("cleanup.policy".into(), "delete".into()),
                ("retention.ms".into(), "1000000".into()),
            ],
        };
        assert_eq!(
            topic_line(&topic),
            "Topic: cap1\tTopicId: EUTqIqd-SK2KF81ZIjJiMw\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: \
             min.insync.replicas=1,cleanup.policy=delete,retention.ms=1000000"
        );
        let line = "\tTopic: cap1\tPartition: 2\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: ";
        assert_eq!(partition_line("cap1", &partition), line);
        let headless = TopicPartitionInfo { leader: None, replicas: vec![1, 2], eligible: None, ..partition };
        let line = partition_line("cap1", &headless);
        assert!(line.contains("\tLeader: none\tReplicas: 1,2\t") && line.contains("\tElr: N/A\t"), "{line}");
    }

    fn partition(partition: i32, leader: Option<i32>, in_sync: &[i32]) -> TopicPartitionInfo {
        TopicPartitionInfo {
            partition,
            leader,
            replicas: vec![1, 2, 3],
            in_sync: in_sync.to_vec(),
            eligible: None,
            last_known_eligible: None,
            offline: vec![],
        }
    }

    /// Returns topic "t" with these partitions, and min.insync.replicas=2.
    fn topic(partitions: Vec<TopicPartitionInfo>) -> TopicDescription {
        TopicDescription { name: "t".into(), topic_id: Uuid::ZERO, partitions, configs: vec![], min_in_sync: Some(2) }
    }

    fn flags(flags: &str) -> DescribeTopicsArgs {
        let cli = parse(&format!("fullbore topics describe{flags}")).expect(flags);
        match cli.command {
            crate::Command::Topics(TopicsArgs { action: Some(TopicsCommand::Describe(describe)) }) => describe,
            _ => panic!("{flags}"),
        }
    }

    /// Returns the numbers of the partitions that the output with these flags contains, and `topic` if it has the
    /// topic's own line.
    fn numbers(topic: &TopicDescription, typed: &str, damage: &DamagedLogs) -> Vec<String> {
        let number = |line: String| Some(line.split("Partition: ").nth(1)?.split_whitespace().next()?.to_owned());
        let lines = description(topic, &flags(typed), damage).into_iter();
        lines.map(|line| number(line).unwrap_or("topic".into())).collect()
    }

    /// The rules are those of kafka-topics.sh, taken from Kafka 4.3's TopicCommand.
    #[test]
    fn describe_shows_the_selected_partitions() {
        let partitions = vec![
            partition(0, Some(1), &[1, 2, 3]),
            partition(1, Some(1), &[1, 2]),
            partition(2, Some(1), &[1]),
            partition(3, None, &[3, 2]),
            // The ISR of this partition is empty, and its former members are in the ELR.
            TopicPartitionInfo { eligible: Some(vec![2, 3]), offline: vec![1, 2, 3], ..partition(4, None, &[]) },
            // A follower of this partition is dead, but still in the ISR.
            TopicPartitionInfo { offline: vec![3], ..partition(5, Some(2), &[2, 1, 3]) },
        ];
        let topic = topic(partitions);
        let shown = |flags| numbers(&topic, flags, &DamagedLogs::new());
        assert_eq!(shown(""), ["topic", "0", "1", "2", "3", "4", "5"]);
        assert_eq!(shown(" --under-replicated-partitions"), ["1", "2", "3", "4"]);
        assert_eq!(shown(" --unavailable-partitions"), ["3", "4"]);
        assert_eq!(shown(" --at-min-isr-partitions"), ["1", "3"]);
        assert_eq!(shown(" --under-min-isr-partitions"), ["2", "3", "4"]);
        assert_eq!(shown(" --unavailable-partitions --at-min-isr-partitions"), ["1", "3", "4"]);
        assert!(shown(" --topics-with-overrides").is_empty());
    }

    #[test]
    fn lines_have_the_elr_as_kafkas_and_json_also_offline_replicas() {
        let one = TopicPartitionInfo {
            eligible: Some(vec![2, 3]),
            last_known_eligible: Some(vec![1]),
            offline: vec![1, 2, 3],
            ..partition(0, None, &[])
        };
        let line = "\tTopic: t\tPartition: 0\tLeader: none\tReplicas: 1,2,3\tIsr: \tElr: 2,3\tLastKnownElr: 1";
        assert_eq!(partition_line("t", &one), line);
        let json = document(&[topic(vec![one])], &flags(" --json"), &DamagedLogs::new());
        let members =
            r#""leader":null,"replicas":[1,2,3],"isr":[],"elr":[2,3],"last_known_elr":[1],"offline_replicas":[1,2,3]}"#;
        assert!(json.contains(members), "{json}");
    }

    #[test]
    fn damaged_replicas_are_named_and_only_the_leaders_makes_a_partition_unavailable() {
        let aside = |files, is_refused| LogDamage { set_aside: Some(SetAside { files, bytes: 5 }), is_refused };
        let refused = LogDamage { set_aside: None, is_refused: true };
        let damage = DamagedLogs::from([
            (("t".into(), 0), [(1, aside(2, false)), (3, aside(1, true))].into()),
            (("t".into(), 1), [(1, refused)].into()),
        ]);
        let topic = topic((0..3).map(|number| partition(number, Some(1), &[1, 2, 3])).collect());
        assert_eq!(numbers(&topic, " --unavailable-partitions", &damage), ["1"]);
        assert_eq!(numbers(&topic, " --under-min-isr-partitions", &damage), ["1"]);
        let lines = description(&topic, &flags(""), &damage);
        let reported = "\tSetAside: 2 files, 5 bytes on broker 1\tSetAside: 1 file, 5 bytes on broker 3\tRefused: damaged on broker 3";
        assert!(lines[1].ends_with(&format!("\tLastKnownElr: N/A{reported}")), "{}", lines[1]);
        assert!(lines[2].ends_with("\tRefused: damaged on broker 1") && !lines[3].contains("Refused"), "{lines:?}");
        let json = document(std::slice::from_ref(&topic), &flags(" --json"), &damage);
        let each = r#""set_aside":{"files":3,"bytes":10},"refused":true,"damaged_logs":[{"broker":1,"set_aside":{"files":2,"bytes":5}},{"broker":3,"set_aside":{"files":1,"bytes":5},"refused":true}]"#;
        assert!(json.contains(each) && json.matches("damaged_logs").count() == 2, "{json}");
    }
}
