//! `fullbore info` prints brokers, topics and leaders in the layout of kcat -L.

use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use clap::Args;
use fullbore_bench::report::json::{array, list, object, plain, string, text};
use fullbore_client::ClientError;
use fullbore_wire::apis::metadata::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use fullbore_wire::{ErrorCode, Text, host_port};

/// Print the brokers of a cluster, its topics, and the leaders of their partitions.
///
/// --json prints {"cluster_id", "controller", "brokers": [{"id", "host", "port", "rack"}], "topics": [{"name",
/// "topic_id", "is_internal", "partitions": [{"partition", "leader", "replicas", "isr", "offline_replicas"}]}]}.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore info
  fullbore info orders --json")]
pub struct Info {
    /// Topics to print [default: all].
    #[arg(value_name = "TOPIC")]
    topics: Vec<String>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Prints the metadata.
pub fn run(info: &Info) -> Result<(), Failure> {
    info.format.choose();
    let mut cluster = info.at.cluster(client_id::INFO)?;
    let names: Vec<Text> = info.topics.iter().map(|name| name.as_str().into()).collect();
    let mut found = cluster.metadata((!names.is_empty()).then_some(&names))?;
    found.brokers.sort_by_key(|broker| broker.node_id);
    found.topics.sort_by(|one, other| one.name.cmp(&other.name));
    found.topics.iter_mut().for_each(|topic| topic.partitions.sort_by_key(|partition| partition.partition_index));
    let is_unknown =
        |topic: &&MetadataResponseTopic| topic.error_code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION && !names.is_empty();
    if let Some(unknown) = found.topics.iter().find(is_unknown) {
        return Err(ClientError::NoTopic(unknown.name.clone().unwrap_or_default().to_string()).into());
    }
    if info.format.json {
        line(&document(&found));
    } else {
        let from = cluster.any()?.address().to_owned();
        let of = if names.is_empty() { "all topics".to_owned() } else { names.join(", ") };
        lines(&found, &of, &from).iter().for_each(|text| line(text));
    }
    Ok(())
}

fn lines(found: &MetadataResponse, of: &str, from: &str) -> Vec<String> {
    let mut lines = vec![format!("Metadata for {of} (from {from}):"), format!(" {} brokers:", found.brokers.len())];
    lines.extend(found.brokers.iter().map(|broker| {
        let address = host_port(&broker.host, broker.port);
        let controller = if broker.node_id == found.controller_id { " (controller)" } else { "" };
        format!("  broker {} at {address}{controller}", broker.node_id)
    }));
    lines.push(format!(" {} topics:", found.topics.len()));
    for topic in &found.topics {
        let name = topic.name.as_deref().unwrap_or_default();
        let error = error(topic.error_code);
        lines.push(format!("  topic \"{name}\" with {} partitions:{error}", topic.partitions.len()));
        lines.extend(topic.partitions.iter().map(partition_line));
    }
    lines
}

fn partition_line(partition: &MetadataResponsePartition) -> String {
    let joined = |ids: &[i32]| ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    format!(
        "    partition {}, leader {}, replicas: {}, isrs: {}{}",
        partition.partition_index,
        partition.leader_id,
        joined(&partition.replica_nodes),
        joined(&partition.isr_nodes),
        error(partition.error_code),
    )
}

fn error(code: ErrorCode) -> String {
    if code.is_err() { format!(" ({code})") } else { String::new() }
}

fn document(found: &MetadataResponse) -> String {
    let ids = |ids: &[i32]| list(ids.iter().map(i32::to_string));
    let known = |id: i32| plain((id >= 0).then_some(id));
    let broker = |broker: &MetadataResponseBroker| {
        object([
            ("id", broker.node_id.to_string()),
            ("host", string(&broker.host)),
            ("port", broker.port.to_string()),
            ("rack", text(broker.rack.as_deref())),
        ])
    };
    let partition = |partition: &MetadataResponsePartition| {
        object([
            ("partition", partition.partition_index.to_string()),
            ("leader", known(partition.leader_id)),
            ("replicas", ids(&partition.replica_nodes)),
            ("isr", ids(&partition.isr_nodes)),
            ("offline_replicas", ids(&partition.offline_replicas)),
        ])
    };
    let topic = |topic: &MetadataResponseTopic| {
        object([
            ("name", text(topic.name.as_deref())),
            ("topic_id", string(&topic.topic_id.to_string())),
            ("is_internal", topic.is_internal.to_string()),
            ("partitions", array(topic.partitions.iter().map(partition))),
        ])
    };
    object([
        ("cluster_id", text(found.cluster_id.as_deref())),
        ("controller", known(found.controller_id)),
        ("brokers", array(found.brokers.iter().map(broker))),
        ("topics", array(found.topics.iter().map(topic))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout is that of kcat 1.7.1, except that the first line does not name the broker that has answered.
    #[test]
    fn lines_have_the_layout_of_kcat() {
        let broker = |node_id| MetadataResponseBroker {
            node_id,
            host: "127.0.0.1".into(),
            port: 9091 + node_id,
            ..Default::default()
        };
        let partition = |partition_index, leader_id| MetadataResponsePartition {
            partition_index,
            leader_id,
            replica_nodes: vec![1, 2],
            isr_nodes: vec![2],
            ..Default::default()
        };
        let topic = MetadataResponseTopic {
            name: Some("t".into()),
            partitions: vec![partition(0, 2), partition(1, -1)],
            ..Default::default()
        };
        let found = MetadataResponse {
            brokers: vec![broker(1), broker(2)],
            controller_id: 1,
            topics: vec![topic],
            ..Default::default()
        };
        assert_eq!(
            lines(&found, "all topics", "127.0.0.1:9092"),
            [
                "Metadata for all topics (from 127.0.0.1:9092):",
                " 2 brokers:",
                "  broker 1 at 127.0.0.1:9092 (controller)",
                "  broker 2 at 127.0.0.1:9093",
                " 1 topics:",
                "  topic \"t\" with 2 partitions:",
                "    partition 0, leader 2, replicas: 1,2, isrs: 2",
                "    partition 1, leader -1, replicas: 1,2, isrs: 2",
            ]
        );
        let document = document(&found);
        assert!(document.contains("\"partition\":1,\"leader\":null,\"replicas\":[1,2],\"isr\":[2]"), "{document}");
    }
}
