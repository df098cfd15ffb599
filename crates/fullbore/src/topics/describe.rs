//! `topics describe`: kafka-topics.sh's lines, or one JSON document.

use super::select::{Select, must_exist, selected};
use crate::client_id;
use crate::failure::Failure;
use crate::output::line;
use clap::Args;
use fullbore_bench::report::json::{array, list, object, plain, string};
use fullbore_client::admin::{
    LogDamage, PARTITIONS_PER_ANSWER, TopicDescription, TopicPartitionInfo, describe_topics, log_damage, topic_name,
};
use fullbore_client::blocking::Cluster;
use fullbore_wire::{Text, Uuid};
use std::collections::HashMap;

/// What power cuts have left beside the logs, by topic and partition; most have nothing.
type Damage = HashMap<(Text, i32), LogDamage>;

#[derive(Args, Debug)]
pub struct DescribeTopicsArgs {
    #[command(flatten)]
    select: Select,
    /// Only the topic with this id.
    #[arg(long, value_name = "ID", value_parser = topic_id)]
    topic_id: Option<Uuid>,
    /// Only topics with configurations of their own, without their partitions.
    #[arg(long)]
    topics_with_overrides: bool,
    /// How many partitions to ask for at a time.
    #[arg(long, value_name = "COUNT", default_value_t = PARTITIONS_PER_ANSWER, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(1..))]
    partition_size_limit_per_response: i32,
    #[command(flatten)]
    only: Only,
}

/// Which partitions to show; with several flags those that any of them means. All without.
#[derive(Args, Debug, Default)]
struct Only {
    /// Only partitions with replicas that are not in sync.
    #[arg(long)]
    under_replicated_partitions: bool,
    /// Only partitions without a leader.
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

    /// Whether a partition of a topic with this min.insync.replicas is meant.
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

/// Describes them.
pub fn run(describe: DescribeTopicsArgs) -> Result<(), Failure> {
    let select = &describe.select;
    select.format.choose();
    let mut cluster = select.at.cluster(client_id::TOPICS)?;
    let names = match describe.topic_id {
        Some(id) => with_id(&mut cluster, id, select.if_exists)?,
        None => {
            let names = selected(&mut cluster, select.topic.as_deref(), select.exclude_internal)?;
            must_exist(&names, select.topic.as_deref(), select.if_exists)?;
            names
        }
    };
    let topics = describe_topics(&mut cluster, &names, describe.partition_size_limit_per_response)?;
    let counts =
        |topic: &TopicDescription| (topic.name.clone(), i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX));
    // A broker that does not let everybody know its folders has nothing to tell here either.
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

/// The lines of one topic: kafka-topics.sh leaves the topic's own line out when only some partitions are meant.
fn description(topic: &TopicDescription, describe: &DescribeTopicsArgs, damage: &Damage) -> Vec<String> {
    let (only, overrides) = (&describe.only, describe.topics_with_overrides);
    let mut lines = Vec::new();
    if !only.is_any() && (!overrides || !topic.configs.is_empty()) {
        lines.push(topic_line(topic));
    }
    lines.extend(shown(topic, describe, damage).map(|(partition, damage)| {
        partition_line(&topic.name, partition) + &damage.map(damage_words).unwrap_or_default()
    }));
    lines
}

/// The partitions that are asked for, each with what is wrong with its log.
fn shown<'a>(
    topic: &'a TopicDescription,
    describe: &'a DescribeTopicsArgs,
    damage: &'a Damage,
) -> impl Iterator<Item = (&'a TopicPartitionInfo, Option<&'a LogDamage>)> {
    let (only, overrides) = (&describe.only, describe.topics_with_overrides);
    let is_shown = move |(partition, damage): &(&TopicPartitionInfo, Option<&LogDamage>)| {
        let is_refused = damage.is_some_and(|damage| damage.is_refused);
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

/// What the line of a partition ends with whose log is damaged; Kafka knows nothing like it.
fn damage_words(damage: &LogDamage) -> String {
    let aside = damage.set_aside.map(|aside| {
        let files = if aside.files == 1 { "file" } else { "files" };
        format!("\tSetAside: {} {files}, {} bytes", aside.files, aside.bytes)
    });
    let refused = if damage.is_refused { "\tRefused: damaged" } else { "" };
    aside.unwrap_or_default() + refused
}

/// The same as JSON; a topic is left out where nothing of it is asked for.
fn document(topics: &[TopicDescription], describe: &DescribeTopicsArgs, damage: &Damage) -> String {
    let ids = |ids: &[i32]| list(ids.iter().map(i32::to_string));
    let or_null = |found: &Option<Vec<i32>>| plain(found.as_deref().map(ids));
    let partition = |(partition, damage): (&TopicPartitionInfo, Option<&LogDamage>)| {
        let aside = damage.and_then(|damage| damage.set_aside);
        let aside = aside.map(|aside| object([("files", aside.files.to_string()), ("bytes", aside.bytes.to_string())]));
        let refused = damage.is_some_and(|damage| damage.is_refused).then(|| true.to_string());
        let members = [
            ("partition", partition.partition.to_string()),
            ("leader", plain(partition.leader)),
            ("replicas", ids(&partition.replicas)),
            ("isr", ids(&partition.in_sync)),
            ("elr", or_null(&partition.eligible)),
            ("last_known_elr", or_null(&partition.last_known_eligible)),
        ];
        let aside = aside.map(|aside| ("set_aside", aside));
        object(members.into_iter().chain(aside).chain(refused.map(|refused| ("refused", refused))))
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
    let is_asked = |topic: &&TopicDescription| !description(topic, describe, damage).is_empty();
    object([("topics", array(topics.iter().filter(is_asked).map(topic)))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::parse;
    use crate::topics::{TopicsArgs, TopicsCommand};

    /// Captured from Kafka 4.3.1.
    #[test]
    fn describe_prints_kafkas_two_kinds_of_lines() {
        let partition = TopicPartitionInfo {
            partition: 2,
            leader: Some(1),
            replicas: vec![1],
            in_sync: vec![1],
            eligible: Some(vec![]),
            last_known_eligible: Some(vec![]),
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

    /// kafka-topics.sh's rules, from Kafka 4.3's TopicCommand.
    #[test]
    fn describe_shows_the_partitions_that_are_asked_for() {
        let partition = |partition, leader: Option<i32>, in_sync: &[i32]| TopicPartitionInfo {
            partition,
            leader,
            replicas: vec![1, 2, 3],
            in_sync: in_sync.to_vec(),
            eligible: None,
            last_known_eligible: None,
        };
        let topic = TopicDescription {
            name: "t".into(),
            topic_id: Uuid::ZERO,
            partitions: vec![
                partition(0, Some(1), &[1, 2, 3]),
                partition(1, Some(1), &[1, 2]),
                partition(2, Some(1), &[1]),
                partition(3, None, &[3, 2]),
            ],
            configs: vec![],
            min_in_sync: Some(2),
        };
        let shown = |flags: &str| {
            let cli = parse(&format!("fullbore topics describe{flags}")).expect(flags);
            let crate::Command::Topics(TopicsArgs { action: Some(TopicsCommand::Describe(describe)) }) = cli.command
            else {
                panic!("{flags}");
            };
            let number = |line: String| Some(line.split("Partition: ").nth(1)?.split_whitespace().next()?.to_owned());
            description(&topic, &describe, &Damage::new())
                .into_iter()
                .map(|line| number(line).unwrap_or("topic".into()))
                .collect()
        };
        let shown = |flags| -> Vec<String> { shown(flags) };
        assert_eq!(shown(""), ["topic", "0", "1", "2", "3"]);
        assert_eq!(shown(" --under-replicated-partitions"), ["1", "2", "3"]);
        assert_eq!(shown(" --unavailable-partitions"), ["3"]);
        assert_eq!(shown(" --at-min-isr-partitions"), ["1", "3"]);
        assert_eq!(shown(" --under-min-isr-partitions"), ["2", "3"]);
        assert_eq!(shown(" --unavailable-partitions --at-min-isr-partitions"), ["1", "3"]);
        assert!(shown(" --topics-with-overrides").is_empty());
    }
}
