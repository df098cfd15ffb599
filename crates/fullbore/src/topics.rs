//! `fullbore topics`: kafka-topics.sh's flags and output. The questions to the cluster are in `fullbore_bench::client`.

use crate::client::{bootstrap_servers, key_value, read_properties};
use crate::failure::Failure;
use crate::output::line;
use clap::{Args, Subcommand};
use fullbore_bench::client::{
    ClientError, Cluster, TopicDescription, TopicPartition, create_topic, delete_topics, describe_topics, list_topics,
};
use fullbore_wire::{ErrorCode, Text};
use regex_lite::Regex;
use std::ffi::OsString;
use std::path::PathBuf;

/// Create, list, describe and delete topics of any Kafka cluster, with kafka-topics.sh's flags.
#[derive(Args, Debug)]
#[command(after_help = "Example: fullbore topics create --topic orders --partitions 6 --config retention.ms=3600000\n\
    kafka-topics.sh's own form works too: fullbore topics --create --topic orders")]
pub struct Topics {
    #[command(subcommand)]
    action: Action,
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
    Describe(Select),
    /// Delete topics.
    #[command(after_help = "Example: fullbore topics delete --topic orders --if-exists")]
    Delete(Delete),
}

#[derive(Args, Debug)]
struct Where {
    /// Brokers to ask, host:port separated by commas [default: localhost:9092].
    #[arg(long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    /// A file of client properties; bootstrap.servers and client.id are used.
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Create {
    /// The name of the topic.
    #[arg(long)]
    topic: String,
    /// Number of partitions; without it the cluster's default.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Replicas of each partition; without it the cluster's default.
    #[arg(long, value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
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

/// Turns `topics --create ...` into `topics create ...`, so that kafka-topics.sh's command lines work.
pub fn with_subcommand(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_some_and(|command| command == "topics") {
        let flags = ["--create", "--list", "--describe", "--delete"];
        if let Some(at) = args.iter().position(|arg| flags.iter().any(|flag| arg == flag)) {
            let flag = args.remove(at).into_string().expect("one of the flags");
            args.insert(2, flag.trim_start_matches('-').into());
        }
    }
    args
}

/// Runs the command.
pub fn run(topics: Topics) -> Result<(), Failure> {
    match topics.action {
        Action::Create(create) => run_create(create),
        Action::List(select) => run_list(select),
        Action::Describe(select) => run_describe(select),
        Action::Delete(delete) => run_delete(delete),
    }
}

fn cluster(at: &Where) -> Result<Cluster, Failure> {
    let properties = read_properties(at.command_config.as_deref())?;
    let servers = bootstrap_servers(at.bootstrap_server.as_deref(), &properties);
    Ok(Cluster::new(&servers, properties.get("client.id").unwrap_or("fullbore-topics"))?)
}

fn run_create(create: Create) -> Result<(), Failure> {
    let mut cluster = cluster(&create.at)?;
    if create.topic.contains(['.', '_']) {
        line(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could \
             collide. To avoid issues it is best to use either, but not both.",
        );
    }
    match create_topic(&mut cluster, &create.topic, create.partitions, create.replication_factor, &create.config) {
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

fn run_describe(select: Select) -> Result<(), Failure> {
    let mut cluster = cluster(&select.at)?;
    let names = selected(&mut cluster, select.topic.as_deref(), select.exclude_internal)?;
    must_exist(&names, select.topic.as_deref(), select.if_exists)?;
    for topic in describe_topics(&mut cluster, &names)? {
        line(&topic_line(&topic));
        for partition in &topic.partitions {
            line(&partition_line(&topic.name, partition));
        }
    }
    Ok(())
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
        ] {
            parse(&line.replace("  ", " ")).expect(line);
        }
    }

    #[test]
    fn wrong_flags_are_refused() {
        for line in ["create", "create --topic a --partitions 0", "create --topic a --config x", "delete", "shrink"] {
            assert!(parse(&format!("fullbore topics {line}")).is_err(), "{line}");
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
}
