//! The flags of `fullbore consume`.

use super::format::{self, FormatPart};
use super::start::{self, Mark};
use crate::client::key_value;
use crate::patience::Patience;
use crate::pipe::escapes;
use clap::{ArgGroup, Args};
use std::path::PathBuf;

/// Read topics to standard output: one value a line, in a format like kcat's, or as JSON.
///
/// Without --group, every partition is read, including new ones, and no offsets are committed. Reading starts with the
/// next record, or with --exit at the beginning.
///
/// With --group, the members of the group share the partitions, and each starts at the group's committed offset.
/// Offsets of records that were written out are committed every auto.commit.interval.ms (5 s) and at the end, so that
/// every record is written out at least once. Ctrl-C and SIGTERM commit and leave the group. After Ctrl-C, the
/// coordinator has 0.3 s to answer, or up to 10 s if its earlier answers took longer.
///
/// Formats contain %t topic, %p partition, %o offset, %T timestamp in milliseconds, %k key, %s value, %h headers, and
/// %% a percent sign. %K and %S are the lengths of key and value, -1 for null, and %R is the value's length in four
/// bytes. \n \t \r \0 \\ \xHH are escapes.
///
/// With --json each line is an object with topic, partition, offset, timestamp, timestamp_type, headers (if any), key
/// and value. Bytes that are not UTF-8 are base64 in key_base64 or value_base64.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore consume --topic events                              what comes from now on
  fullbore consume -t events -o -10 -e                         the last ten of each partition
  fullbore consume -t events -e -f '%t [%p] at %o: key %k: %s\\n'
  fullbore consume -t events --group workers --from-beginning  a member of a group
  fullbore consume -t events -o s@1767225600000 -o e@1767312000000 --json | jq .value")]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["topics", "include", "names"]))]
pub struct Consume {
    /// A topic to read; may be repeated.
    #[arg(short, long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Topics to read, without the flag.
    #[arg(value_name = "TOPIC")]
    names: Vec<String>,
    /// Read every topic whose whole name matches this regular expression; without --group also new ones. Internal
    /// topics only with -X exclude.internal.topics=false.
    #[arg(long, value_name = "REGEX")]
    pub(super) include: Option<String>,
    /// Bootstrap brokers, host:port separated by commas [default: FULLBORE_BOOTSTRAP_SERVER, or localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    pub(super) bootstrap_server: Option<String>,
    #[command(flatten)]
    pub(super) patience: Patience,
    /// Read as a member of this consumer group.
    #[arg(short = 'G', long, value_name = "GROUP", conflicts_with_all = ["partitions", "offsets"])]
    pub(super) group: Option<String>,
    /// The id of a static member, which keeps its partitions while it is away for less than its session timeout.
    #[arg(long, value_name = "ID", requires = "group")]
    pub(super) group_instance_id: Option<String>,
    /// The group's protocol: classic, in which a member assigns the partitions, or consumer, in which the broker does
    /// (KIP-848).
    #[arg(long, value_name = "PROTOCOL", requires = "group")]
    pub(super) group_protocol: Option<String>,
    /// Only this partition; may be repeated.
    #[arg(short, long = "partition", value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    pub(super) partitions: Vec<i32>,
    /// Start at beginning, end, an OFFSET, -COUNT before the end, s@TIME at a time; e@TIME ends before a time. A time
    /// is in milliseconds since 1970, or like 2026-11-21T08:00, in UTC unless a zone like +01:00 follows.
    #[arg(short, long = "offset", value_name = "WHERE", allow_hyphen_values = true, value_parser = start::mark)]
    pub(super) offsets: Vec<Mark>,
    /// Start with the oldest records, like --offset beginning; with --group, only in partitions without a committed
    /// offset.
    #[arg(long)]
    pub(super) from_beginning: bool,
    /// End after this many records.
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_messages: Option<u64>,
    /// End at the log ends that the partitions had at the start. A partition that has no leader, or whose broker
    /// refuses to read it, is retried for --timeout. A group member that has no partitions ends once it can get none
    /// any more. If a member assigns all partitions at once (eager protocol), that is after the first assignment.
    /// Otherwise it is after a minute without a change, or after max.poll.interval.ms if that is shorter.
    #[arg(short, long)]
    pub(super) exit: bool,
    /// End after this many milliseconds without a record.
    #[arg(long, value_name = "MS")]
    pub(super) timeout_ms: Option<u64>,
    /// Print each record in this format, without a new line after it.
    #[arg(short, long, value_name = "FORMAT", value_parser = pieces, group = "style")]
    pub(super) format: Option<Format>,
    /// Print each record as a JSON object.
    #[arg(short = 'J', long, group = "style")]
    pub(super) json: bool,
    /// Print the key before the value, with a separator between them (-K, default \t).
    #[arg(long, conflicts_with = "style")]
    pub(super) print_key: bool,
    /// Print the headers.
    #[arg(long, conflicts_with = "style")]
    pub(super) print_headers: bool,
    /// Print the timestamp.
    #[arg(long, conflicts_with = "style")]
    pub(super) print_timestamp: bool,
    /// Print the partition.
    #[arg(long, conflicts_with = "style")]
    pub(super) print_partition: bool,
    /// Print the offset.
    #[arg(short = 'O', long, conflicts_with = "style")]
    pub(super) print_offset: bool,
    /// Print the key before the value, with this separator between them.
    #[arg(short = 'K', long, value_name = "TEXT", value_parser = escapes::delimiter, conflicts_with = "style")]
    pub(super) key_separator: Option<std::vec::Vec<u8>>,
    /// The bytes after each record [default: \n].
    #[arg(short = 'D', long, value_name = "TEXT", value_parser = escapes::bytes, conflicts_with = "style")]
    pub(super) delimiter: Option<std::vec::Vec<u8>>,
    /// Print a null key or value as NULL instead of nothing.
    #[arg(short = 'Z', long)]
    pub(super) null: bool,
    /// read_committed leaves out records of open and aborted transactions.
    #[arg(long, value_name = "LEVEL")]
    pub(super) isolation_level: Option<String>,
    /// Skip a batch that its producer sent unreadable, or that the object store no longer has, and report it.
    #[arg(long)]
    pub(super) skip_bad_batches: bool,
    /// A file of consumer properties.
    #[arg(long, visible_alias = "consumer.config", value_name = "FILE")]
    pub(super) command_config: Option<PathBuf>,
    /// A consumer property, which overrides the file; may be repeated. See docs/consumer.md.
    #[arg(short = 'X', long, visible_alias = "command-property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(super) consumer_property: Vec<(String, String)>,
    /// kafka-console-consumer.sh's print.key, print.value, print.headers, print.timestamp, print.partition,
    /// print.offset, key.separator, line.separator, headers.separator, null.literal; may be repeated.
    #[arg(long, alias = "property", value_name = "KEY=VALUE", value_parser = crate::produce::raw_key_value, conflicts_with = "style")]
    pub(super) formatter_property: Vec<(String, String)>,
}

impl Consume {
    /// Returns the topics, whether they were named with or without the flag.
    pub(super) fn named(&self) -> impl Iterator<Item = &String> {
        self.topics.iter().chain(&self.names)
    }
}

/// A format that has been parsed.
#[derive(Clone, Debug)]
pub(super) struct Format(pub(super) Vec<FormatPart>);

fn pieces(text: &str) -> Result<Format, String> {
    format::parse(text).map(Format)
}
