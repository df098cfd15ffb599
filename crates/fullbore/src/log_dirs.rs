//! `fullbore log-dirs` prints the two lines of text and the JSON document of kafka-log-dirs.sh.

use crate::client::Where;
use crate::client_id;
use crate::failure::{Failure, completeness};
use crate::output::{self, Format, line};
use clap::Args;
use fullbore_bench::report::json::{list, null, object, plain, string};
use fullbore_client::ClientError;
use fullbore_client::admin::{LogDir, LogDirPartition, log_dirs};
use fullbore_client::blocking::{BrokerAddress, refused_topic};
use fullbore_wire::Text;

/// Print the data directories of brokers, and the bytes of each partition in them.
///
/// The document is that of kafka-log-dirs.sh: {"version", "brokers": [{"broker", "logDirs": [{"partitions":
/// [{"partition", "size", "offsetLag", "isFuture"}], "error", "logDir", "totalBytes", "usableBytes"}]}]}. --json prints
/// only this.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore log-dirs
  fullbore log-dirs --broker-list 1 --topic-list orders --json")]
pub struct LogDirsArgs {
    /// Accepted for compatibility with kafka-log-dirs.sh: the only action.
    #[arg(long, hide = true)]
    describe: bool,
    /// Ids of brokers [default: all].
    #[arg(long, value_name = "ID,...", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(0..))]
    broker_list: Vec<i32>,
    /// Names of topics [default: all].
    #[arg(long, value_name = "TOPIC,...", value_delimiter = ',')]
    topic_list: Vec<String>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Prints the document.
pub fn run(args: &LogDirsArgs) -> Result<(), Failure> {
    args.format.choose();
    let mut cluster = args.at.cluster(client_id::LOG_DIRS)?;
    let mut brokers = cluster.brokers()?;
    if let Some(absent) = args.broker_list.iter().find(|id| brokers.iter().all(|broker| broker.id != **id)) {
        return Err(ClientError::no_broker(absent, brokers.iter().map(|broker| broker.id)).into());
    }
    brokers.retain(|broker| args.broker_list.is_empty() || args.broker_list.contains(&broker.id));
    let topics: Vec<Text> = args.topic_list.iter().map(|topic| topic.as_str().into()).collect();
    for (topic, found) in cluster.topics(&topics)? {
        found.map_err(|code| refused_topic(code, &topic))?;
    }
    output::words("Querying brokers for log directories information");
    let (found, failed) = log_dirs(&cluster, &brokers).parts()?;
    let documents = found.iter().map(|(broker, directories)| document(broker, directories, &args.topic_list));
    let ids: Vec<String> = found.iter().map(|(broker, _)| broker.id.to_string()).collect();
    output::words(&format!("Received log directory information from brokers {}", ids.join(",")));
    line(&object([("version", "1".to_owned()), ("brokers", list(documents))]));
    completeness(failed)
}

fn document(broker: &BrokerAddress, directories: &[LogDir], topics: &[String]) -> String {
    let is_wanted =
        |log: &&LogDirPartition| topics.is_empty() || topics.iter().any(|topic| topic.as_str() == &*log.topic);
    let partition = |log: &LogDirPartition| {
        object([
            ("partition", string(&format!("{}-{}", log.topic, log.partition))),
            ("size", log.size.to_string()),
            ("offsetLag", log.offset_lag.to_string()),
            ("isFuture", log.is_future.to_string()),
        ])
    };
    let directory = |directory: &LogDir| {
        let error = if directory.error.is_err() { string(&directory.error.to_string()) } else { null() };
        object([
            ("partitions", list(directory.partitions.iter().filter(is_wanted).map(partition))),
            ("error", error),
            ("logDir", string(&directory.path)),
            ("totalBytes", plain(directory.total_bytes)),
            ("usableBytes", plain(directory.usable_bytes)),
        ])
    };
    object([("broker", broker.id.to_string()), ("logDirs", list(directories.iter().map(directory)))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::ErrorCode;

    #[test]
    fn the_document_has_only_the_logs_of_named_topics() {
        let broker = BrokerAddress { id: 1, host: "h".into(), port: 1 };
        let log = |topic: &str| LogDirPartition {
            topic: topic.into(),
            partition: 0,
            size: 78,
            offset_lag: 0,
            is_future: false,
        };
        let directory = LogDir {
            path: "/data".into(),
            error: ErrorCode::NONE,
            partitions: vec![log("a"), log("b")],
            total_bytes: Some(100),
            usable_bytes: None,
        };
        let kafkas = "{\"broker\":1,\"logDirs\":[{\"partitions\":[{\"partition\":\"a-0\",\"size\":78,\"offsetLag\":0,\
                      \"isFuture\":false}],\"error\":null,\"logDir\":\"/data\",\"totalBytes\":100,\"usableBytes\":null}]}";
        assert_eq!(document(&broker, &[directory], &["a".to_owned()]), kafkas);
    }
}
