//! `fullbore consume`: records of topics to standard output.
//!
//! The way of a record: a lane per leader fetches (`fullbore_bench::consume`), [`printer`] prints it into a chunk as
//! [`format`] says, [`outlet`] writes chunks to standard output from a thread of its own. [`direct`] reads partitions
//! that nobody shares; [`start`] is where they start and end.

mod direct;
mod format;
#[cfg_attr(not(test), expect(dead_code, reason = "some of it is for groups, which come next"))]
mod outlet;
mod printer;
mod start;

use crate::client::{self, BOOTSTRAP_SERVERS, client_properties, key_value};
use crate::failure::Failure;
use crate::output;
use crate::pipe::escapes;
use crate::stop::Stop;
use crate::topics::topic_filter;
use clap::{ArgGroup, Args};
use format::{Piece, Style};
use fullbore_bench::client::{Cluster, list_topics};
use fullbore_bench::consume::FetchSettings;
use fullbore_broker::config::Properties;
use fullbore_producer::Security;
use fullbore_wire::Text;
use outlet::Outlet;
use printer::Shared;
use start::Mark;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The client id when no property names one.
const CLIENT_ID: &str = "fullbore-consume";
/// How long something may stand in the way before it is told.
const TROUBLE_AFTER: Duration = Duration::from_secs(1);
/// How long standard output may take what was read after the user asked to end.
const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(5);

/// Read topics to standard output: one value a line, in a format like kcat's, or as JSON.
///
/// Without --group every partition is read, nothing is committed, and reading starts with the records that come from now
/// on, or with --exit at the beginning.
///
/// Formats take %t topic, %p partition, %o offset, %T timestamp in milliseconds, %k key, %K its length, %s value, %S its
/// length, %R its length in four bytes, %h headers, %% a percent sign, and \n \t \r \0 \\ \xHH. A length is -1 for null.
/// With --json each line is an object with topic, partition, offset, timestamp, timestamp_type, headers, key and value;
/// bytes that are no UTF-8 are base64 in key_base64 or value_base64, so that nothing is lost.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore consume --topic events                              what comes from now on
  fullbore consume -t events -o -10 -e                         the last ten of each partition
  fullbore consume -t events -e -f '%t [%p] at %o: key %k: %s\\n'
  fullbore consume -t events -o s@1767225600000 -o e@1767312000000 --json | jq .value")]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["topics", "include"]))]
pub struct Consume {
    /// The topic to read; may be repeated.
    #[arg(short, long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Read every topic whose whole name matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    include: Option<String>,
    /// Brokers to ask, host:port separated by commas [default: localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    /// Only this partition; may be repeated.
    #[arg(short, long = "partition", value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    partitions: Vec<i32>,
    /// Start at beginning, end, an OFFSET, -COUNT before the end, s@MS at a time; e@MS ends before a time.
    #[arg(short, long = "offset", value_name = "WHERE", allow_hyphen_values = true, value_parser = start::mark)]
    offsets: Vec<Mark>,
    /// Start with the oldest records; as --offset beginning.
    #[arg(long)]
    from_beginning: bool,
    /// End after this many records.
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    max_messages: Option<u64>,
    /// End where the partitions ended when reading began.
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
    /// A consumer property, before those of the file; may be repeated.
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

/// Runs the command.
pub fn run(args: Consume) -> Result<(), Failure> {
    output::Format { json: args.json }.choose();
    let stop = Stop::at_signal(|| {})?;
    let properties = client_properties(args.command_config.as_deref(), &args.consumer_property)?;
    let settings = args.settings(&properties)?;
    let otherwise = if args.exit { Mark::Beginning } else { Mark::End };
    let otherwise = if args.from_beginning { Mark::Beginning } else { otherwise };
    let (start, until) = start::start_and_end(&args.offsets, otherwise)?;
    let style = args.style()?;
    let mut cluster = client::cluster(args.bootstrap_server.as_deref(), &properties, CLIENT_ID)?;
    let topics = args.topics(&mut cluster)?;
    let outlet = Outlet::start()?;
    let left = AtomicU64::new(args.max_messages.unwrap_or(u64::MAX));
    let shared = Arc::new(Shared { style, outlet: outlet.clone(), left, until });
    let outcome = direct::read(&mut cluster, &topics, &args, start, &settings, &shared, &stop);
    let patience = if stop.is_asked() { INTERRUPTED_PATIENCE } else { Duration::MAX };
    let asked = Instant::now();
    // Who asks to end while a slow reader takes the rest does not wait for long.
    outlet.drained(patience, || stop.is_asked() && asked.elapsed() > INTERRUPTED_PATIENCE);
    let finished = outcome?;
    let written = outlet.records();
    match (finished || output::is_lost() || !stop.is_asked(), args.max_messages) {
        (false, Some(wanted)) => {
            Err(Failure::interrupted(format!("interrupted after {written} of {wanted} records were written")))
        }
        (false, None) if args.exit => {
            Err(Failure::interrupted(format!("interrupted before the end; {written} records were written")))
        }
        // Reading without an end is ended like this.
        _ => Ok(()),
    }
}

/// What properties settle.
struct Settings {
    fetch: FetchSettings,
    /// auto.offset.reset, if it was set.
    reset: Option<Mark>,
}

/// Tells once what stands in the way, when it does for a while.
struct Troubles {
    since: Option<(String, Instant)>,
    told: String,
}

impl Troubles {
    fn new() -> Self {
        Troubles { since: None, told: String::new() }
    }

    fn observe(&mut self, trouble: Option<String>) {
        let Some(trouble) = trouble else { return self.since = None };
        let (_, since) = self.since.get_or_insert_with(|| (trouble.clone(), Instant::now()));
        if since.elapsed() >= TROUBLE_AFTER && self.told != trouble {
            eprintln!("nothing comes: {trouble}");
            self.told = trouble;
        }
    }
}

impl Consume {
    fn topics(&self, cluster: &mut Cluster) -> Result<Vec<Text>, Failure> {
        let mut topics: Vec<Text> = self.topics.iter().map(|topic| topic.as_str().into()).collect();
        if let Some(include) = &self.include {
            let matches = topic_filter(Some(include))?;
            topics.extend(list_topics(cluster)?.into_iter().map(|(name, _)| name).filter(|name| matches(name)));
        }
        topics.sort();
        topics.dedup();
        match (topics.is_empty(), &self.include) {
            (true, Some(include)) => {
                Err(Failure::new(format!("no topic matches {include}; `fullbore topics list` shows those there are")))
            }
            _ => Ok(topics),
        }
    }

    fn settings(&self, properties: &Properties) -> Result<Settings, Failure> {
        let mut fetch = FetchSettings { restarts: false, ..FetchSettings::default() };
        let mut reset = None;
        let flag = self.isolation_level.as_deref().map(|level| ("isolation.level", level));
        for (key, value) in properties.iter().chain(flag) {
            let wrong = |allowed: &str| Failure::new(format!("{key}={value}: {allowed}"));
            let number = || value.parse::<i32>().ok().filter(|n| *n >= 0).ok_or_else(|| wrong("must be 0 or more"));
            match key {
                "fetch.max.wait.ms" => fetch.max_wait_ms = number()?,
                "fetch.min.bytes" => fetch.min_bytes = number()?,
                "fetch.max.bytes" => fetch.max_bytes = number()?,
                "max.partition.fetch.bytes" => fetch.partition_max_bytes = number()?,
                "check.crcs" => fetch.check_crcs = value.parse().map_err(|_| wrong("must be true or false"))?,
                "isolation.level" => {
                    fetch.read_committed = match value.to_ascii_lowercase().as_str() {
                        "read_committed" => true,
                        "read_uncommitted" => false,
                        _ => return Err(wrong("must be read_committed or read_uncommitted")),
                    }
                }
                "auto.offset.reset" => {
                    reset = match value {
                        "earliest" => Some(Mark::Beginning),
                        "latest" => Some(Mark::End),
                        "none" => None,
                        _ => return Err(wrong("must be earliest, latest or none")),
                    }
                }
                BOOTSTRAP_SERVERS | "client.id" => {}
                // Java's affair: scripts set them, and nobody misses them.
                "key.deserializer" | "value.deserializer" => {}
                key if Security::has(key) => {}
                _ => eprintln!("{key}={value}: has no effect on this consumer"),
            }
        }
        fetch.restarts = reset.is_some();
        Ok(Settings { fetch, reset })
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
