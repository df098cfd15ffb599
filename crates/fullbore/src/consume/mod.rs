//! `fullbore consume`: records of topics to standard output.
//!
//! The way of a record: a lane per leader fetches (`fullbore_client::consume`), [`printer`] prints it into a chunk as
//! [`format`] says, [`outlet`] writes chunks to standard output from a thread of its own. [`direct`] reads partitions
//! that nobody shares, [`grouped`] those that a consumer group gives; [`start`] is where they start and end.

mod direct;
mod format;
mod grouped;
mod outlet;
mod printer;
mod start;

use crate::client::{self, client_properties, key_value, without_effect};
use crate::failure::{Failure, records_were_written};
use crate::output;
use crate::pipe::escapes;
use crate::stop::Stop;
use crate::topics::topic_filter;
use clap::{ArgGroup, Args};
use format::{Piece, Style};
use fullbore_broker::config::Properties;
use fullbore_client::ConsumerConfig;
use fullbore_client::admin::list_topics;
use fullbore_client::blocking::Cluster;
use fullbore_client::consume::{Start, TopicFilter};
use fullbore_client::group::{GroupConfig, Member};
use fullbore_wire::Text;
use grouped::Grouped;
use outlet::Outlet;
use printer::Shared;
use start::Mark;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The client id when no property names one.
const CLIENT_ID: &str = "fullbore-consume";
/// How long standard output may take what was read after the user asked to end.
const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(5);

/// Read topics to standard output: one value a line, in a format like kcat's, or as JSON.
///
/// Without --group every partition is read, also those that topics get meanwhile, nothing is committed, and reading starts with the records that come from now
/// on, or with --exit at the beginning. With --group the members of the group share the partitions and each goes on where
/// the group has committed; committed is what was written out, every auto.commit.interval.ms (5 s) and at the end, so
/// that every record comes out at least once. Ctrl-C and SIGTERM commit and leave the group.
///
/// Formats take %t topic, %p partition, %o offset, %T timestamp in milliseconds, %k key, %K its length, %s value, %S its
/// length, %R its length in four bytes, %h headers, %% a percent sign, and \n \t \r \0 \\ \xHH. A length is -1 for null.
/// With --json each line is an object with topic, partition, offset, timestamp, timestamp_type, headers (where it has any), key and value;
/// bytes that are no UTF-8 are base64 in key_base64 or value_base64, so that nothing is lost.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore consume --topic events                              what comes from now on
  fullbore consume -t events -o -10 -e                         the last ten of each partition
  fullbore consume -t events -e -f '%t [%p] at %o: key %k: %s\\n'
  fullbore consume -t events --group workers --from-beginning  a member of a group
  fullbore consume -t events -o s@1767225600000 -o e@1767312000000 --json | jq .value")]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["topics", "include"]))]
pub struct Consume {
    /// The topic to read; may be repeated.
    #[arg(short, long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Read every topic whose whole name matches this regular expression; without --group also those that come later.
    /// Internal topics only with -X exclude.internal.topics=false.
    #[arg(long, value_name = "REGEX")]
    include: Option<String>,
    /// Brokers to ask, host:port separated by commas [default: localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    /// Read as a member of this consumer group.
    #[arg(short = 'G', long, value_name = "GROUP", conflicts_with_all = ["partitions", "offsets"])]
    group: Option<String>,
    /// A static member: it keeps its partitions while it is away for less than its session.
    #[arg(long, value_name = "ID", requires = "group")]
    group_instance_id: Option<String>,
    /// classic: a member assigns; consumer: the broker assigns (KIP-848).
    #[arg(long, value_name = "PROTOCOL", requires = "group")]
    group_protocol: Option<String>,
    /// Only this partition; may be repeated.
    #[arg(short, long = "partition", value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    partitions: Vec<i32>,
    /// Start at beginning, end, an OFFSET, -COUNT before the end, s@MS at a time; e@MS ends before a time.
    #[arg(short, long = "offset", value_name = "WHERE", allow_hyphen_values = true, value_parser = start::mark)]
    offsets: Vec<Mark>,
    /// Start with the oldest records, with --group where the group has committed nothing; as --offset beginning.
    #[arg(long)]
    from_beginning: bool,
    /// End after this many records.
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    max_messages: Option<u64>,
    /// End where the partitions ended when reading began; one that its broker refuses is tried for 10 s.
    #[arg(short, long)]
    exit: bool,
    /// End when no record came for this long.
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u64>,
    /// Print each record like this; nothing is added, not even a new line.
    #[arg(short, long, value_name = "FORMAT", value_parser = pieces, group = "style")]
    format: Option<Format>,
    /// Print each record as a JSON object.
    #[arg(short = 'J', long, group = "style")]
    json: bool,
    /// Print the key before the value, with what separates them (\t unless -K says so).
    #[arg(long, conflicts_with = "style")]
    print_key: bool,
    /// Print the headers.
    #[arg(long, conflicts_with = "style")]
    print_headers: bool,
    /// Print the timestamp.
    #[arg(long, conflicts_with = "style")]
    print_timestamp: bool,
    /// Print the partition.
    #[arg(long, conflicts_with = "style")]
    print_partition: bool,
    /// Print the offset.
    #[arg(short = 'O', long, conflicts_with = "style")]
    print_offset: bool,
    /// Print the key before the value, with this between them.
    #[arg(short = 'K', long, value_name = "TEXT", value_parser = escapes::delimiter, conflicts_with = "style")]
    key_separator: Option<std::vec::Vec<u8>>,
    /// What follows each record [default: \n].
    #[arg(short = 'D', long, value_name = "TEXT", value_parser = escapes::bytes, conflicts_with = "style")]
    delimiter: Option<std::vec::Vec<u8>>,
    /// Print a key or value that is null as NULL instead of nothing.
    #[arg(short = 'Z', long)]
    null: bool,
    /// read_committed leaves out records of transactions that are open or were aborted.
    #[arg(long, value_name = "LEVEL")]
    isolation_level: Option<String>,
    /// A file of consumer properties.
    #[arg(long, visible_alias = "consumer.config", value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// A consumer property, before those of the file; may be repeated. docs/consumer.md has all of them.
    #[arg(short = 'X', long, visible_alias = "command-property", value_name = "KEY=VALUE", value_parser = key_value)]
    consumer_property: Vec<(String, String)>,
    /// kafka-console-consumer.sh's print.key, print.value, print.headers, print.timestamp, print.partition, print.offset,
    /// key.separator, line.separator, headers.separator, null.literal; may be repeated.
    #[arg(long, alias = "property", value_name = "KEY=VALUE", value_parser = crate::produce::raw_key_value, conflicts_with = "style")]
    formatter_property: Vec<(String, String)>,
}

/// A format that was read.
#[derive(Clone, Debug)]
struct Format(Vec<Piece>);

fn pieces(text: &str) -> Result<Format, String> {
    format::parse(text).map(Format)
}

/// What is to be known of a property that it does not take.
fn notice(key: &str) -> Option<String> {
    if key == "group.id" {
        return Some("has no effect on this consumer; name the group with --group".to_owned());
    }
    let own: Vec<&'static str> = ConsumerConfig::settings().map(|setting| setting.name).collect();
    without_effect(key, "this consumer", &own)
}

/// Runs the command.
pub fn run(args: Consume) -> Result<(), Failure> {
    output::Format { json: args.json }.choose();
    let stop = Stop::at_signal(|| {})?;
    let properties = client_properties(args.command_config.as_deref(), &args.consumer_property, &notice)?;
    let settings = args.settings(&properties)?;
    let otherwise = if args.exit || args.from_beginning { Start::Earliest } else { Start::Latest };
    let (start, until) = start::start_and_end(&args.offsets, otherwise)?;
    let style = args.style()?;
    let mut cluster = client::cluster(args.bootstrap_server.as_deref(), &properties, CLIENT_ID)?;
    let topics = args.topics(&mut cluster, settings.exclude_internal)?;
    let outlet = Outlet::start()?;
    let left = AtomicU64::new(args.max_messages.unwrap_or(u64::MAX));
    let shared = Arc::new(Shared { style, outlet: outlet.clone(), left, until });
    let outcome = match member_of(&args, &settings, topics.all.clone())? {
        None => direct::read(&mut cluster, &topics, &args, start, &settings, &shared, &stop),
        Some(config) => {
            let own = || client::cluster(args.bootstrap_server.as_deref(), &properties, CLIENT_ID);
            // An address where nobody answers is told at once.
            cluster.any()?;
            let member = Member::start(config, own()?, own()?)?;
            Grouped::new(&mut cluster, member, &args, &settings, &topics, &shared, &stop).read()
        }
    };
    let patience = if stop.is_asked() { INTERRUPTED_PATIENCE } else { Duration::MAX };
    let asked = Instant::now();
    // Who asks to end while a slow reader takes the rest does not wait for long.
    outlet.drained(patience, || stop.is_asked() && asked.elapsed() > INTERRUPTED_PATIENCE);
    let End { finished, unread } = outcome?;
    let written = outlet.records();
    match (finished || output::is_lost() || !stop.is_asked(), args.max_messages) {
        (false, Some(wanted)) => {
            Err(Failure::interrupted(format!("interrupted after {written} of {wanted} records were written")))
        }
        (false, None) if args.exit => {
            Err(Failure::interrupted(format!("interrupted before the end; {}", records_were_written(written))))
        }
        // Reading without an end is ended like this.
        _ => match unread.filter(|_| !shared.is_spent() && !output::is_lost()) {
            Some(unread) => Err(Failure::new(format!("{unread}; {}", records_were_written(written)))),
            None => Ok(()),
        },
    }
}

/// How reading ended.
struct End {
    /// Whether what was asked for was reached.
    finished: bool,
    /// Which partition could not be read, and why.
    unread: Option<String>,
}

/// What is to be read.
struct Topics {
    /// Those that were named.
    named: Vec<Text>,
    /// Which others belong to them.
    matches: Option<TopicFilter>,
    /// Those that there were when the command began.
    all: Vec<Text>,
}

/// The member to be, if there is a group.
fn member_of(args: &Consume, settings: &ConsumerConfig, topics: Vec<Text>) -> Result<Option<GroupConfig>, Failure> {
    let group = args.group.as_deref().map(Text::from);
    match group {
        Some(group) if group.is_empty() => Err(Failure::new("--group: must not be empty")),
        group => Ok(group.map(|group| GroupConfig { group, topics, ..settings.group.clone() })),
    }
}

impl Consume {
    fn topics(&self, cluster: &mut Cluster, exclude_internal: bool) -> Result<Topics, Failure> {
        let named: Vec<Text> = self.topics.iter().map(|topic| topic.as_str().into()).collect();
        let mut all = named.clone();
        let mut matches: Option<TopicFilter> = None;
        if let Some(include) = &self.include {
            let filter: TopicFilter = Arc::new(topic_filter("--include", Some(include), exclude_internal)?);
            let matching = list_topics(cluster)?.into_iter().filter(|(name, is_internal)| filter(name, *is_internal));
            all.extend(matching.map(|(name, _)| name));
            if all.is_empty() {
                return Err(Failure::new(format!(
                    "no topic matches {include}; `fullbore topics list` shows those there are"
                )));
            }
            matches = Some(filter);
        }
        all.sort();
        all.dedup();
        Ok(Topics { named, matches, all })
    }

    fn settings(&self, properties: &Properties) -> Result<ConsumerConfig, Failure> {
        let mut settings = ConsumerConfig::default();
        let group_starts = if self.from_beginning { Start::Earliest } else { Start::Latest };
        settings.fetch.reset = self.group.is_some().then_some(group_starts);
        let flags = [
            ("isolation.level", &self.isolation_level),
            ("group.instance.id", &self.group_instance_id),
            ("group.protocol", &self.group_protocol),
        ];
        let flags = flags.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        for (key, value) in properties.iter().chain(flags) {
            // Others are every client's, or told to have no effect.
            settings.set(key, value)?;
        }
        Ok(settings)
    }

    fn style(&self) -> Result<Style, Failure> {
        if self.json {
            return Ok(Style::Json);
        }
        let mut layout = Layout {
            timestamp: self.print_timestamp,
            partition: self.print_partition,
            offset: self.print_offset,
            headers: self.print_headers,
            key: self.print_key || self.key_separator.is_some(),
            value: true,
            separator: self.key_separator.clone().unwrap_or_else(|| b"\t".to_vec()),
            end: self.delimiter.clone().unwrap_or_else(|| b"\n".to_vec()),
            between_headers: b",".to_vec(),
            null: if self.null { b"NULL".to_vec() } else { Vec::new() },
        };
        for (key, value) in &self.formatter_property {
            layout.set(key, value)?;
        }
        let null = layout.null.clone();
        Ok(match &self.format {
            Some(Format(pieces)) => Style::Pieces { pieces: pieces.clone(), null },
            None => Style::Pieces { pieces: layout.pieces(), null },
        })
    }
}

/// What kafka-console-consumer.sh prints, in its order.
struct Layout {
    timestamp: bool,
    partition: bool,
    offset: bool,
    headers: bool,
    key: bool,
    value: bool,
    separator: Vec<u8>,
    end: Vec<u8>,
    between_headers: Vec<u8>,
    null: Vec<u8>,
}

impl Layout {
    /// Kafka's names.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        let wrong = |allowed: &str| Failure::new(format!("{key}={value}: {allowed}"));
        let boolean = || value.parse::<bool>().map_err(|_| wrong("must be true or false"));
        let bytes = || escapes::bytes(value).map_err(|allowed| wrong(&allowed));
        match key {
            "print.timestamp" => self.timestamp = boolean()?,
            "print.partition" => self.partition = boolean()?,
            "print.offset" => self.offset = boolean()?,
            "print.headers" => self.headers = boolean()?,
            "print.key" => self.key = boolean()?,
            "print.value" => self.value = boolean()?,
            "key.separator" => self.separator = bytes()?,
            "line.separator" => self.end = bytes()?,
            "headers.separator" => self.between_headers = bytes()?,
            "null.literal" => self.null = bytes()?,
            _ => {
                return Err(wrong(
                    "must be one of print.key, print.value, print.headers, print.timestamp, print.partition, \
                     print.offset, key.separator, line.separator, headers.separator, null.literal",
                ));
            }
        }
        Ok(())
    }

    fn pieces(self) -> Vec<Piece> {
        let literal = |text: &str| Piece::Literal(text.as_bytes().to_vec());
        let columns: [(bool, Vec<Piece>); 6] = [
            (self.timestamp, vec![Piece::NamedTimestamp]),
            (self.partition, vec![literal("Partition:"), Piece::Partition]),
            (self.offset, vec![literal("Offset:"), Piece::Offset]),
            (self.headers, vec![Piece::NamedHeaders(self.between_headers)]),
            (self.key, vec![Piece::Key]),
            (self.value, vec![Piece::Value]),
        ];
        let shown: Vec<Vec<Piece>> =
            columns.into_iter().filter(|(shown, _)| *shown).map(|(_, column)| column).collect();
        let mut pieces = shown.join(&Piece::Literal(self.separator));
        pieces.push(Piece::Literal(self.end));
        pieces
    }
}

#[cfg(test)]
mod tests;
