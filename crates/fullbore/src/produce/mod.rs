//! `fullbore produce` writes records from standard input or files to topics.
//!
//! [`input`] finds the end of a record, and [`layout`] splits it into parts. [`sending`] passes the record to the
//! producer and waits for its result.

mod input;
mod layout;
mod sending;
mod too_large;
mod transactions;

use crate::client::{BOOTSTRAP_DEFAULT, bootstrap_servers, client_properties, key_value};
use crate::failure::Failure;
use crate::output;
use crate::patience::Patience;
use crate::pipe::escapes;
use crate::properties::BOOTSTRAP_SERVERS;
use crate::stop::Stop;
use crate::transactional::{TRANSACTIONAL_ID, TransactionSettings, check_ids, record_count};
use crate::waiting::{self, Idle};
use clap::Args;
use fullbore_client::blocking::Cluster;
use fullbore_config::Properties;
use fullbore_producer::{Header, Producer, ProducerConfig, ProducerRecord, SendError, config};
use input::{Filled, Framing, Input, InputError};
use layout::{Fields, InputLayout, Separators};
use sending::{Answers, InputPosition, Refusal, Sending, Sent, TransactionEnd};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// The client id if no property names one.
const CLIENT_ID: &str = "fullbore-produce";
/// How often results are checked while there is no input.
const ANSWER_TICK: Duration = Duration::from_millis(10);
/// How often signals are checked while there is no input.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// The number of records between two checks for results and signals.
const RECORDS_PER_LOOK: u64 = 256;
/// How long connections may take to close at the end, when every record has its result.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of JSON bytes for one byte of content, as in \u0000.
const JSON_BYTES_PER_BYTE: usize = 6;
/// The size of a usual request with one record, without the record's value, in bytes.
const FRAME_BYTES: usize = 128;
/// Maximum size of a JSON object without its key, value and headers, in bytes.
const JSON_FRAME_BYTES: usize = 4096;

/// Write records from standard input or files: lines, delimited or length-framed records, whole files, or JSON.
///
/// Each line is one record's value. With -K it is split into key and value; with --headers it begins with headers,
/// NAME:VALUE,NAME:VALUE and a tab. Delimiters may contain \n \t \r \0 \\ and \xHH. The producer is idempotent: every
/// record is written once and in order, even if responses are lost. If a record fails, the command reports it and exits
/// with 1. A first Ctrl-C ends the reading. Brokers then have 0.3 s to acknowledge the records that were read, or up to
/// 10 s if earlier records took longer. A second Ctrl-C ends the command at once.
///
/// With --transactional-id records are written in transactions, which are committed after --transaction-records
/// records, or at the end. Ctrl-C and a refused record abort the open transaction.
///
/// With --json each line is an object as `fullbore consume --json` writes it: topic, partition, timestamp, key, value
/// and headers, all of which are optional. Bytes that are not text are in key_base64 and value_base64. Without --topic
/// each object names its own topic.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  echo hello | fullbore produce --topic greetings
  fullbore produce -t users -K : users.txt          lines KEY:VALUE; -Z sends an empty VALUE as null
  fullbore produce -t images --whole *.png          each file is one record
  fullbore produce -t events -z zstd -H source=import --print-offsets <events.log
  fullbore produce -t orders --transactional-id import --transaction-records 1000 <orders.txt
  fullbore consume -t a --json -e | fullbore produce -t b --json")]
pub struct ProduceArgs {
    /// The topic to write to; with --json it overrides the topics of the records.
    #[arg(short, long)]
    topic: Option<String>,
    /// Files to read instead of standard input; - is standard input.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Bootstrap brokers, host:port separated by commas [default: FULLBORE_BOOTSTRAP_SERVER, or localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    #[command(flatten)]
    patience: Patience,
    /// The separator of key and value; a line without it has no key.
    #[arg(short = 'K', long, value_name = "TEXT", value_parser = escapes::delimiter)]
    key_separator: Option<std::vec::Vec<u8>>,
    /// The key of every record without one.
    #[arg(short, long, value_name = "TEXT")]
    key: Option<String>,
    /// Read headers at the start of each line: NAME:VALUE,NAME:VALUE and a tab.
    #[arg(long)]
    headers: bool,
    /// A header of every record, before the record's own headers; NAME without = is null; may be repeated.
    #[arg(short = 'H', long, value_name = "NAME=VALUE")]
    header: Vec<String>,
    /// Send an empty key, value or header value as null.
    #[arg(short = 'Z', long)]
    null: bool,
    /// Send this text as key, value or header value as null.
    #[arg(long, value_name = "TEXT", conflicts_with = "null")]
    null_marker: Option<String>,
    /// The partition of every record without one [default: by the key, or any].
    #[arg(short, long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// The timestamp of every record without one, in milliseconds since 1970 [default: now].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(i64).range(0..))]
    timestamp: Option<i64>,
    /// The separator of records [default: \n].
    #[arg(short = 'D', long, value_name = "TEXT", value_parser = escapes::delimiter, group = "framing")]
    delimiter: Option<std::vec::Vec<u8>>,
    /// Read a length of four bytes, big-endian, before each record, -1 for a null (as `consume -f '%R%s'` writes it).
    #[arg(long, group = "framing")]
    framed: bool,
    /// Send each file as one record.
    #[arg(long, group = "framing")]
    whole: bool,
    /// Read a JSON object from each line; answers are JSON, too.
    #[arg(short = 'J', long, conflicts_with_all = ["key_separator", "headers", "null", "null_marker", "reader_property"])]
    json: bool,
    /// Print topic, partition and offset of each record.
    #[arg(short = 'O', long)]
    print_offsets: bool,
    /// The compression: none, gzip, snappy, lz4 or zstd.
    #[arg(short = 'z', long, visible_alias = "compression-codec", value_name = "CODEC")]
    compression: Option<String>,
    /// Write in transactions of this id: readers at read_committed see all records of a transaction, or none.
    #[arg(long, value_name = "ID")]
    transactional_id: Option<String>,
    /// Commit after this many records [default: at the end of the input].
    #[arg(long, value_name = "COUNT", value_parser = record_count)]
    transaction_records: Option<u64>,
    /// A file of producer properties.
    #[arg(long, visible_alias = "producer.config", value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// A producer property, which overrides the file; may be repeated. See docs/producer.md.
    #[arg(short = 'X', long, visible_alias = "command-property", value_name = "KEY=VALUE", value_parser = key_value)]
    producer_property: Vec<(String, String)>,
    /// kafka-console-producer.sh's parse.key, key.separator, parse.headers, headers.delimiter, headers.separator,
    /// headers.key.separator, null.marker, ignore.error; may be repeated.
    #[arg(long, alias = "property", value_name = "KEY=VALUE", value_parser = raw_key_value)]
    reader_property: Vec<(String, String)>,
}

/// Parses a pair like [`key_value`], but does not trim white space, because the value may be a separator.
pub fn raw_key_value(text: &str) -> Result<(String, String), String> {
    let (key, _) = key_value(text)?;
    let (_, value) = text.split_once('=').unwrap_or_default();
    Ok((key, value.to_owned()))
}

/// Runs the command.
pub fn run(args: ProduceArgs) -> Result<(), Failure> {
    output::Format { json: args.json }.choose();
    let stop = Stop::at_signal(Box::new(|| {}))?;
    let layout = args.layout()?;
    let properties = args.properties()?;
    let config = ProducerConfig::from_properties(properties.iter())?;
    let job = ProduceJob::new(&args, layout, config.max_request_size)?;
    // This connection is used only to give advice about a record that was too large.
    let servers = config.bootstrap_servers.join(",");
    let transactions = TransactionSettings::of(&config, "--transaction-records");
    let cluster = Cluster::new(&servers, &config.client.client_id)?;
    let mut cluster = cluster.secured(config.client.security.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let producer = Producer::new(config)?;
    waiting::for_producer(&producer, &runtime, &servers, args.patience)?;
    producer.on_notice(|notice| output::remark(notice));
    producer.on_trouble(|why| output::remark(format!("nothing gets through: {why}")));
    let mut sending = Sending::new(&producer, &runtime, &stop, args.answers());
    let is_ready = match transactions {
        Some(settings) => sending.begin_transactions(settings, args.transaction_records)?,
        None => true,
    };
    let refused = if is_ready { job.send_all(&mut sending, &stop).err() } else { None };
    let is_whole = refused.is_none() && !stop.is_signalled();
    sending.finish(if is_whole { TransactionEnd::Commit } else { TransactionEnd::Abort });
    let verdict = sending.verdict(refused, |record| record.advice(&mut cluster, &args.place_flags(&servers)));
    runtime.block_on(producer.close(if stop.is_signalled() { Duration::ZERO } else { CLOSE_TIMEOUT }));
    verdict
}

/// The input, and how it is interpreted.
struct ProduceJob<'a> {
    args: &'a ProduceArgs,
    layout: InputLayout,
    framing: Framing,
    max_request_size: usize,
    topic: Option<Rc<str>>,
    headers: Vec<(&'a str, Option<&'a [u8]>)>,
}

impl<'a> ProduceJob<'a> {
    fn new(args: &'a ProduceArgs, layout: InputLayout, max_request_size: usize) -> Result<Self, Failure> {
        if args.topic.is_none() && !args.json {
            return Err(Failure::new(
                "the topic is missing: name it with --topic; only JSON records may name their own",
            ));
        }
        let framing = match (&args.delimiter, args.framed, args.whole) {
            (Some(delimiter), ..) => Framing::Delimiter(delimiter.clone()),
            (None, true, _) => Framing::Length,
            (None, false, true) => Framing::Whole,
            (None, false, false) => Framing::Delimiter(b"\n".to_vec()),
        };
        let header = |text: &'a String| match text.split_once('=') {
            Some((key, value)) => (key, Some(value.as_bytes())),
            None => (text.as_str(), None),
        };
        let topic = args.topic.as_deref().map(Rc::from);
        Ok(ProduceJob {
            args,
            layout,
            framing,
            max_request_size,
            topic,
            headers: args.header.iter().map(header).collect(),
        })
    }

    /// Returns the maximum size of an input record, in bytes. A longer one cannot fit into a request.
    fn limit(&self) -> usize {
        match self.layout {
            InputLayout::Json => self.max_request_size.saturating_mul(JSON_BYTES_PER_BYTE) + JSON_FRAME_BYTES,
            InputLayout::Text(_) => self.max_request_size,
        }
    }

    /// Sends every record of every file. If it ends early, returns a sentence with the position and the reason.
    fn send_all(&self, sending: &mut Sending<'_>, stop: &Stop) -> Result<(), String> {
        let standard_input = [PathBuf::from("-")];
        let files = if self.args.files.is_empty() { &standard_input[..] } else { &self.args.files };
        for path in files {
            let is_standard_input = path == Path::new("-");
            let file = match is_standard_input {
                true => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
                false => File::open(path),
            };
            let file = file.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let name: Option<Rc<str>> = (!is_standard_input).then(|| path.display().to_string().into());
            let mut input = Input::new(file, self.framing.clone(), self.limit());
            self.send_file(&mut input, name, sending, stop)?;
            if stop.is_signalled() {
                break;
            }
        }
        Ok(())
    }

    fn send_file(
        &self,
        input: &mut Input,
        file: Option<Rc<str>>,
        sending: &mut Sending<'_>,
        stop: &Stop,
    ) -> Result<(), String> {
        let unit = if self.framing == Framing::Delimiter(b"\n".to_vec()) { "line" } else { "record" };
        let place = |number| InputPosition { file: file.clone(), unit, number };
        let at = |number, error: InputError| match error {
            InputError::Io(error) => format!("cannot read {}: {error}", file.as_deref().unwrap_or("standard input")),
            InputError::TooLong { size, is_all } => {
                let advice = too_large::for_producer(is_all.then_some(size + FRAME_BYTES));
                format!("{}: {error} for max.request.size={}{advice}", place(number), self.max_request_size)
            }
            error => format!("{}: {error}", place(number)),
        };
        let mut idle = Idle::begin();
        // After a signal, this still sends the complete records that were read, and then ends.
        loop {
            match input.next().map_err(|error| at(input.taken + 1, error))? {
                Some(record) => {
                    let here = place(input.taken);
                    if self.send_one(input.bytes(record), here, sending)? == Sent::Stopped {
                        return Ok(());
                    }
                    if input.taken.is_multiple_of(RECORDS_PER_LOOK) {
                        sending.settle();
                    }
                }
                None if input.is_over() || stop.is_signalled() => return Ok(()),
                None => {
                    let tick = if sending.is_waiting() { ANSWER_TICK } else { IDLE_TICK };
                    let filled = input.fill(tick).map_err(|error| at(input.taken + 1, error))?;
                    sending.settle();
                    if filled == Filled::Nothing {
                        idle.observe(input.taken > 0, || waits_for(file.as_deref(), unit));
                        sending.print();
                    }
                }
            }
        }
    }

    fn send_one(&self, bytes: Option<&[u8]>, place: InputPosition, sending: &mut Sending<'_>) -> Result<Sent, String> {
        // A null in the input (length -1) is a record with a null value and without key and headers.
        let fields = bytes.map_or(Ok(Some(Fields::default())), |bytes| self.layout.read(bytes));
        let Some(fields) = fields.map_err(|wrong| format!("{place}: {wrong}"))? else {
            return Ok(Sent::Taken);
        };
        let topic = match (&self.topic, &fields.topic) {
            (Some(topic), _) => topic.clone(),
            (None, Some(topic)) => Rc::from(&**topic),
            (None, None) => return Err(format!("{place}: names no topic; name one with --topic")),
        };
        let headers = self.headers_of(&fields);
        let record = ProducerRecord {
            topic: &topic,
            partition: fields.partition.or(self.args.partition),
            key: fields.key.as_deref().or(self.args.key.as_deref().map(str::as_bytes)),
            value: fields.value.as_deref(),
            headers: &headers,
            timestamp: fields.timestamp.or(self.args.timestamp),
        };
        let refusal = |error: Refusal| {
            if let Refusal::Uncommitted(sentence) = error {
                return sentence;
            }
            let next = match &error {
                Refusal::Send(SendError::Timeout { .. }) => {
                    format!(
                        "; check whether the topic exists and has leaders with `fullbore topics describe --topic \
                         {topic}`"
                    )
                }
                Refusal::Send(SendError::RecordTooLarge { size, .. }) => too_large::for_producer(Some(*size)),
                _ => String::new(),
            };
            format!("{place}: {error}{next}")
        };
        sending.send(place.clone(), &topic, record).map_err(refusal)
    }

    fn headers_of<'b>(&'b self, fields: &'b Fields<'_>) -> Vec<Header<'b>> {
        // For a record without headers, which is the usual case, this allocates no memory.
        let mut headers: Vec<Header<'b>> =
            self.headers.iter().map(|(key, value)| Header { key: key.as_bytes(), value: *value }).collect();
        headers.extend(fields.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }));
        headers
    }
}

/// Returns the line that is printed if no input has arrived yet.
fn waits_for(file: Option<&str>, unit: &str) -> String {
    match file {
        Some(file) => format!("{file} has no {unit} yet; Ctrl-C ends"),
        None => format!("standard input has no {unit} yet; each is a record, and Ctrl-D ends"),
    }
}

impl ProduceArgs {
    fn answers(&self) -> Answers {
        match (self.print_offsets, self.json) {
            (false, _) => Answers::None,
            (true, false) => Answers::Text,
            (true, true) => Answers::Json,
        }
    }

    /// Returns the flags that name the same cluster in the advised command.
    fn place_flags(&self, servers: &str) -> String {
        let file = self.command_config.as_ref().map(|file| format!(" --command-config {}", file.display()));
        let servers = (servers != BOOTSTRAP_DEFAULT).then(|| format!(" --bootstrap-server {servers}"));
        servers.into_iter().chain(file).collect()
    }

    fn properties(&self) -> Result<Properties, Failure> {
        let mut properties =
            client_properties(self.command_config.as_deref(), &self.producer_property, &config::notice)?;
        check_ids(self.transactional_id.as_deref(), &self.producer_property)?;
        if let Some(id) = &self.transactional_id {
            properties.set(TRANSACTIONAL_ID, id.as_str());
        }
        if self.transaction_records.is_some() && properties.get(TRANSACTIONAL_ID).is_none() {
            return Err(Failure::new("--transaction-records needs --transactional-id, which names the transactions"));
        }
        if let Some(codec) = &self.compression {
            properties.set("compression.type", codec.as_str());
        }
        let servers = bootstrap_servers(self.bootstrap_server.as_deref(), &properties);
        properties.set(BOOTSTRAP_SERVERS, servers);
        if properties.get("client.id").is_none() {
            properties.set("client.id", CLIENT_ID);
        }
        Ok(properties)
    }

    fn layout(&self) -> Result<InputLayout, Failure> {
        if self.json {
            return Ok(InputLayout::Json);
        }
        let mut separators = Separators {
            key: self.key_separator.clone(),
            headers: self.headers.then(|| b"\t".to_vec()),
            ..Separators::default()
        };
        separators.null_marker = match (&self.null_marker, self.null) {
            (Some(marker), _) => Some(marker.clone().into_bytes()),
            (None, null) => null.then(Vec::new),
        };
        self.apply_reader_properties(&mut separators)?;
        Ok(InputLayout::Text(separators))
    }

    /// Applies properties of Kafka's line reader. With parse.key or parse.headers, a line without a separator is
    /// refused, as in Kafka, unless ignore.error is true.
    fn apply_reader_properties(&self, separators: &mut Separators) -> Result<(), Failure> {
        let (mut parses_key, mut parses_headers) = (false, false);
        let (mut key_separator, mut headers_delimiter) = (b"\t".to_vec(), b"\t".to_vec());
        for (key, value) in &self.reader_property {
            let wrong = |allowed: &str| Failure::new(format!("{key}={value}: {allowed}"));
            let boolean = || value.parse::<bool>().map_err(|_| wrong("must be true or false"));
            let text = || escapes::delimiter(value).map_err(|allowed| wrong(&allowed));
            match key.as_str() {
                "parse.key" => parses_key = boolean()?,
                "parse.headers" => parses_headers = boolean()?,
                "key.separator" => key_separator = text()?,
                "headers.delimiter" => headers_delimiter = text()?,
                "headers.separator" => separators.between_headers = text()?,
                "headers.key.separator" => separators.header_key = text()?,
                "null.marker" => separators.null_marker = Some(value.clone().into_bytes()),
                "ignore.error" => separators.strict = !boolean()?,
                _ => {
                    return Err(wrong(
                        "must be one of parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, \
                         headers.key.separator, null.marker, ignore.error; properties of the producer go into \
                         --producer-property",
                    ));
                }
            }
        }
        let requested = self.reader_property.iter().any(|(key, _)| key == "ignore.error");
        if (parses_key || parses_headers) && !requested {
            separators.strict = true;
        }
        if parses_key {
            separators.key = Some(key_separator);
        }
        if parses_headers {
            separators.headers = Some(headers_delimiter);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
