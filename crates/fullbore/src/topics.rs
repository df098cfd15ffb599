//! `fullbore topics`: kafka-topics.sh's flags and output. The questions to the cluster are in `fullbore_bench::client`.

use crate::client::{self, client_properties, key_value};
use crate::failure::Failure;
use crate::output::line;
use clap::{Args, Subcommand};
use fullbore_bench::client::{
    ClientError, Cluster, Layout, TopicDescription, TopicPartition, create_topic_as, delete_topics, describe_topics,
    list_topics, topic_name,
};
use fullbore_wire::{ErrorCode, Text, Uuid};
use regex_lite::Regex;
use std::ffi::OsString;
use std::path::PathBuf;

/// Create, list, describe and delete topics of any Kafka cluster, with kafka-topics.sh's flags.
#[derive(Args, Debug)]
#[command(after_help = "Example: fullbore topics create --topic orders --partitions 6 --config retention.ms=3600000\n\
    kafka-topics.sh's own form works too: fullbore topics --create --topic orders")]
pub struct Topics {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Create a topic.
    #[command(after_help = "Example: fullbore topics create --topic orders --partitions 6 --replication-factor 1")]
    Create(Create),
    /// Print the names of all topics.
    #[command(after_help = "Example: fullbore topics list --exclude-internal")]
    List(Select),
    /// Print partitions, leaders, replicas and configurations.
    #[command(after_help = "Example: fullbore topics describe --topic orders")]
    Describe(Describe),
    /// Delete topics.
    #[command(after_help = "Example: fullbore topics delete --topic orders --if-exists")]
    Delete(Delete),
    /// Add partitions: not served yet.
    #[command(hide = true, disable_help_flag = true)]
    Alter {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
}

#[derive(Args, Debug)]
struct Where {
    /// Brokers to ask, host:port separated by commas [default: localhost:9092].
    #[arg(long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    /// A file of client properties; bootstrap.servers, client.id, security.protocol and ssl.* are used.
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Create {
    /// The name of the topic.
    #[arg(long)]
    topic: String,
    /// Number of partitions; without it the cluster's default.
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Replicas of each partition; without it the cluster's default.
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
    /// The brokers of each partition instead of counts, the preferred leader first: 1:2,2:3 is two partitions.
    #[arg(long, value_name = "BROKER:...,...", value_parser = replica_assignment, conflicts_with_all = ["partitions", "replication_factor"])]
    replica_assignment: Option<Assignment>,
    /// A topic configuration; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    config: Vec<(String, String)>,
    /// Do nothing when the topic exists.
    #[arg(long)]
    if_not_exists: bool,
    #[command(flatten)]
    at: Where,
}

#[derive(Args, Debug)]
struct Select {
    /// Topics whose whole name matches this regular expression, several separated by commas; all without it.
    #[arg(long)]
    topic: Option<String>,
    /// Leave internal topics out.
    #[arg(long)]
    exclude_internal: bool,
    /// Succeed when no topic matches.
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    at: Where,
}

#[derive(Args, Debug)]
struct Describe {
    #[command(flatten)]
    select: Select,
    /// Only the topic with this id.
    #[arg(long, value_name = "ID", value_parser = topic_id)]
    topic_id: Option<Uuid>,
    /// Only topics with configurations of their own, without their partitions.
    #[arg(long)]
    topics_with_overrides: bool,
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
    fn means(&self, partition: &TopicPartition, min_in_sync: Option<usize>) -> bool {
        let (in_sync, headless) = (partition.in_sync.len(), partition.leader.is_none());
        (self.under_replicated_partitions && in_sync < partition.replicas.len())
            || (self.unavailable_partitions && headless)
            || (self.at_min_isr_partitions && min_in_sync == Some(in_sync))
            || (self.under_min_isr_partitions && (headless || min_in_sync.is_some_and(|min| in_sync < min)))
    }
}

#[derive(Args, Debug)]
struct Delete {
    /// Topics whose whole name matches this regular expression, several separated by commas.
    #[arg(long)]
    topic: String,
    /// Succeed when no topic matches.
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    at: Where,
}

/// The brokers of each partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Assignment(Vec<Vec<i32>>);

/// `--replica-assignment` in kafka-topics.sh's form; every partition has as many replicas, none twice.
fn replica_assignment(text: &str) -> Result<Assignment, String> {
    let brokers = |part: &str| part.split(':').map(|id| id.trim().parse().ok().filter(|id| *id >= 0)).collect();
    let parsed: Option<Vec<Vec<i32>>> = text.split(',').map(brokers).collect();
    let partitions = parsed.ok_or("must be broker ids: 1:2,2:3 is two partitions with two replicas each")?;
    let has_twice = |ids: &Vec<i32>| ids.iter().enumerate().any(|(at, id)| ids[..at].contains(id));
    if partitions.iter().any(has_twice) {
        return Err("a partition has each broker once".to_owned());
    }
    if partitions.iter().any(|ids| ids.len() != partitions[0].len()) {
        return Err("every partition must have as many replicas".to_owned());
    }
    Ok(Assignment(partitions))
}

fn topic_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse(text)
        .ok_or_else(|| "must be a topic id of 22 characters, as `fullbore topics describe` shows it".to_owned())
}

/// Turns `topics --create ...` into `topics create ...`, so that kafka-topics.sh's command lines work; without any action
/// the flags go, since the action is what is missing.
pub fn with_subcommand(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_some_and(|command| command == "topics") {
        let flags = ["--create", "--list", "--describe", "--delete", "--alter"];
        if let Some(at) = args.iter().position(|arg| flags.iter().any(|flag| arg == flag)) {
            let flag = args.remove(at).into_string().expect("one of the flags");
            args.insert(2, flag.trim_start_matches('-').into());
        } else if args.get(2).is_some_and(is_flag_of_an_action) {
            args.truncate(2);
        }
    }
    args
}

fn is_flag_of_an_action(arg: &OsString) -> bool {
    let own = ["--help", "--version"];
    arg.to_str().is_some_and(|arg| arg.starts_with("--") && !own.contains(&arg))
}

/// Runs the command.
pub fn run(topics: Topics) -> Result<(), Failure> {
    match topics.action {
        Some(Action::Create(create)) => run_create(create),
        Some(Action::List(select)) => run_list(select),
        Some(Action::Describe(describe)) => run_describe(describe),
        Some(Action::Delete(delete)) => run_delete(delete),
        Some(Action::Alter { .. }) => Err(Failure::new("adding partitions is not served yet")),
        None => Err(Failure::new("topics: say create, list, describe or delete, as in `fullbore topics list`")),
    }
}

fn cluster(at: &Where) -> Result<Cluster, Failure> {
    let properties = client_properties(at.command_config.as_deref(), &[])?;
    client::cluster(at.bootstrap_server.as_deref(), &properties, "fullbore-topics")
}

fn run_create(create: Create) -> Result<(), Failure> {
    let mut cluster = cluster(&create.at)?;
    if create.topic.contains(['.', '_']) {
        line(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could \
             collide. To avoid issues it is best to use either, but not both.",
        );
    }
    let (partitions, replication_factor) = (create.partitions, create.replication_factor);
    let layout = match create.replica_assignment {
        Some(Assignment(brokers)) => Layout::Assigned(brokers),
        None => Layout::Counts { partitions, replication_factor },
    };
    match create_topic_as(&mut cluster, &create.topic, &layout, &create.config) {
        Ok(()) => line(&format!("Created topic {}.", create.topic)),
        Err(error) if is_topic_exists(&error) && create.if_not_exists => {}
        Err(error) if is_topic_exists(&error) => {
            let hint = "add --if-not-exists to accept that, or delete it first";
            return Err(Failure::new(format!("Topic '{}' already exists; {hint}", create.topic)));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn is_topic_exists(error: &ClientError) -> bool {
    matches!(error, ClientError::Kafka { code: ErrorCode::TOPIC_ALREADY_EXISTS, .. })
}

fn run_list(select: Select) -> Result<(), Failure> {
    let mut cluster = cluster(&select.at)?;
    for name in selected(&mut cluster, select.topic.as_deref(), select.exclude_internal)? {
        line(&name);
    }
    Ok(())
}

fn run_describe(describe: Describe) -> Result<(), Failure> {
    let select = &describe.select;
    let mut cluster = cluster(&select.at)?;
    let names = match describe.topic_id {
        Some(id) => with_id(&mut cluster, id, select.if_exists)?,
        None => {
            let names = selected(&mut cluster, select.topic.as_deref(), select.exclude_internal)?;
            must_exist(&names, select.topic.as_deref(), select.if_exists)?;
            names
        }
    };
    for topic in describe_topics(&mut cluster, &names)? {
        description(&topic, &describe).iter().for_each(|text| line(text));
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
fn description(topic: &TopicDescription, describe: &Describe) -> Vec<String> {
    let (only, overrides) = (&describe.only, describe.topics_with_overrides);
    let mut lines = Vec::new();
    if !only.is_any() && (!overrides || !topic.configs.is_empty()) {
        lines.push(topic_line(topic));
    }
    let shown = |partition: &&TopicPartition| !only.is_any() || only.means(partition, topic.min_in_sync);
    if !overrides {
        lines.extend(topic.partitions.iter().filter(shown).map(|partition| partition_line(&topic.name, partition)));
    }
    lines
}

fn run_delete(delete: Delete) -> Result<(), Failure> {
    let mut cluster = cluster(&delete.at)?;
    let names = selected(&mut cluster, Some(&delete.topic), false)?;
    must_exist(&names, Some(&delete.topic), delete.if_exists)?;
    if names.is_empty() {
        return Ok(());
    }
    Ok(delete_topics(&mut cluster, &names)?)
}

fn must_exist(found: &[Text], asked: Option<&str>, if_exists: bool) -> Result<(), Failure> {
    match asked {
        Some(name) if found.is_empty() && !if_exists => {
            let hint = "`fullbore topics list` shows those that do";
            Err(Failure::new(format!("Topic '{name}' does not exist as expected; {hint}")))
        }
        _ => Ok(()),
    }
}

fn selected(cluster: &mut Cluster, pattern: Option<&str>, exclude_internal: bool) -> Result<Vec<Text>, Failure> {
    let matches = topic_filter(pattern)?;
    let topics = list_topics(cluster)?;
    let kept = topics.into_iter().filter(|(name, internal)| matches(name) && !(*internal && exclude_internal));
    Ok(kept.map(|(name, _)| name).collect())
}

/// Kafka's include list: commas separate alternatives, quotes and blanks around the whole are dropped.
pub fn topic_filter(pattern: Option<&str>) -> Result<impl Fn(&str) -> bool + use<>, Failure> {
    let regex = match pattern {
        None => None,
        Some(pattern) => {
            let alternatives = pattern.trim_matches(['"', '\'']).replace(' ', "").replace(',', "|");
            let of_regex = |error| Failure::new(format!("--topic {pattern} is not a regular expression: {error}"));
            Some(Regex::new(&format!("^(?:{alternatives})$")).map_err(of_regex)?)
        }
    };
    Ok(move |name: &str| regex.as_ref().is_none_or(|regex| regex.is_match(name)))
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

fn partition_line(topic: &str, partition: &TopicPartition) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;
    use fullbore_wire::Uuid;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(with_subcommand(line.split(' ').map(OsString::from)))
    }

    #[test]
    fn kafkas_flags_are_read() {
        for line in [
            "fullbore topics create --topic a --partitions 3 --replication-factor 2 --config a=b --config c=d=e \
             --if-not-exists --bootstrap-server h:1 --command-config f",
            "fullbore topics --bootstrap-server h:1 --create --topic a",
            "fullbore topics list --exclude-internal",
            "fullbore topics --list --bootstrap-server h:1",
            "fullbore topics describe --topic a.* --exclude-internal --if-exists",
            "fullbore topics --delete --topic a --if-exists --bootstrap-server h:1",
            "fullbore topics --describe --under-replicated-partitions --unavailable-partitions --bootstrap-server h:1",
            "fullbore topics --describe --at-min-isr-partitions --under-min-isr-partitions --topics-with-overrides",
            "fullbore topics --describe --topic-id 4L6g3nShT-eMCtK--X86sw",
            "fullbore topics --create --topic a --replica-assignment 1:2,2:3",
            "fullbore topics --alter --topic a --partitions 6 --bootstrap-server h:1",
        ] {
            parse(&line.replace("  ", " ")).expect(line);
        }
    }

    #[test]
    fn wrong_flags_are_refused() {
        for line in [
            "create",
            "create --topic a --partitions 0",
            "create --topic a --config x",
            "delete",
            "shrink",
            "create --topic a --replica-assignment 1 --partitions 1",
            "describe --topic-id x",
        ] {
            assert!(parse(&format!("fullbore topics {line}")).is_err(), "{line}");
        }
        let refusal = parse("fullbore topics create --topic a --partitions -1").expect_err("out of range").to_string();
        assert!(refusal.contains("'-1' for '--partitions"), "{refusal}");
    }

    #[test]
    fn an_action_that_is_missing_or_not_served_is_said_so() {
        let told = |line: &str| match parse(line).expect(line).command {
            crate::Command::Topics(topics) => run(topics).expect_err(line).to_string(),
            other => panic!("{other:?}"),
        };
        for line in ["fullbore topics", "fullbore topics --bootstrap-server h:1"] {
            assert!(told(line).contains("say create, list, describe or delete"), "{}", told(line));
        }
        assert_eq!(told("fullbore topics --alter --topic a --partitions 6"), "adding partitions is not served yet");
    }

    #[test]
    fn replicas_are_assigned_as_kafka_writes_it() {
        assert_eq!(replica_assignment("1:2,2:3"), Ok(Assignment(vec![vec![1, 2], vec![2, 3]])));
        for wrong in ["", "1:x", "1:1", "1:2,3", "-1"] {
            replica_assignment(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_filter_matches_whole_names() {
        let matches = |pattern, name: &str| topic_filter(Some(pattern)).expect("valid")(name);
        assert!(matches("cap.*", "cap1") && matches("a,b", "b") && matches("'a'", "a"));
        assert!(!matches("cap", "cap1") && !matches("ap1", "cap1"));
        assert!(topic_filter(None).expect("valid")("anything"));
        assert!(topic_filter(Some("(")).is_err());
    }

    /// Captured from Kafka 4.3.1.
    #[test]
    fn describe_prints_kafkas_two_kinds_of_lines() {
        let partition = TopicPartition {
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
        let headless = TopicPartition { leader: None, replicas: vec![1, 2], eligible: None, ..partition };
        let line = partition_line("cap1", &headless);
        assert!(line.contains("\tLeader: none\tReplicas: 1,2\t") && line.contains("\tElr: N/A\t"), "{line}");
    }

    /// kafka-topics.sh's rules, from Kafka 4.3's TopicCommand.
    #[test]
    fn describe_shows_the_partitions_that_are_asked_for() {
        let partition = |partition, leader: Option<i32>, in_sync: &[i32]| TopicPartition {
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
            let crate::Command::Topics(Topics { action: Some(Action::Describe(describe)) }) = cli.command else {
                panic!("{flags}");
            };
            let number = |line: String| Some(line.split("Partition: ").nth(1)?.split_whitespace().next()?.to_owned());
            description(&topic, &describe).into_iter().map(|line| number(line).unwrap_or("topic".into())).collect()
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
