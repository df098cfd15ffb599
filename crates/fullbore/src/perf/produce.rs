//! `fullbore perf produce` has the flags and output of kafka-producer-perf-test, and uses Fullbore's producer.

use super::lines::Lines;
use crate::client::{bootstrap_servers, client_properties, key_value};
use crate::failure::Failure;
use crate::output::{self, Format, line};
use crate::patience::Patience;
use crate::properties::BOOTSTRAP_SERVERS;
use crate::stop::Stop;
use crate::transactional::{TRANSACTIONAL_ID, TransactionSettings, check_ids};
use crate::waiting;
use clap::{ArgGroup, Args};
use fullbore_bench::measure::{IntervalCounts, Summary};
use fullbore_bench::produce::{ProduceFailure, ProduceOutcome, TRANSACTION_DURATION, Workload, produce};
use fullbore_bench::report::{
    STEADY_LINE, metrics_lines, precise_latency_lines, summary_json, summary_line, warmup_line, window_json,
    window_line,
};
use fullbore_bench::workload::Payload;
use fullbore_config::Properties;
use fullbore_producer::{BrokerStatus, Producer, ProducerConfig, SendError, TransactionError, config};
use fullbore_wire::batch::Compression;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The client id if no property names one. It is that of Kafka's tool.
const CLIENT_ID: &str = "perf-producer-client";
/// The share of the time for which a broker's window must have been full to be reported as the limit of the rate.
const WINDOW_BOUND_MIN: f64 = 0.5;
/// The prefix of the generated transactional id if the flags have a transaction duration but no id, as in Kafka's tool.
const TRANSACTIONAL_ID_PREFIX: &str = "performance-producer-";
/// How long the abort of the last transaction may take after the user has stopped the command.
const ABORT_TIMEOUT: Duration = Duration::from_millis(300);
/// How long connections may take to close at the end, when every record has its result.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Send records at full speed or at a rate, and print the lines of kafka-producer-perf-test.
///
/// With --throughput, latencies count from the time at which each record was due. They therefore include the wait of a
/// record for a full buffer or a late sender (no coordinated omission); Kafka's tool counts from the actual send.
/// Percentiles are of all records, in whole milliseconds as in Kafka's tool; --latency-us prints them precisely.
///
/// Random values are slices of one megabyte of letters that is generated at the start, so that generating them does not
/// slow down the sender. With compression each value is generated separately, as in Kafka's tool, so that the codec
/// finds no repetition.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  fullbore perf produce --topic test --num-records 1000000 --record-size 1000 --throughput -1 \\\n    \
    -X linger.ms=10 compression.type=lz4"
)]
#[command(group = ArgGroup::new("value").required(true).args(["record_size", "payload_file", "payload_monotonic"]))]
pub struct PerfProduceArgs {
    /// The topic to send to.
    #[arg(long)]
    topic: String,
    /// The number of records to send.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    num_records: u64,
    /// The bytes of each value, which is random letters.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    record_size: Option<u32>,
    /// Send random parts of this file.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Send 0, 1, 2, ... as decimal digits.
    #[arg(long)]
    payload_monotonic: bool,
    /// The separator between the parts of --payload-file.
    #[arg(long, default_value = "\\n")]
    payload_delimiter: String,
    /// The records a second; -1 for no limit.
    #[arg(long, value_parser = throughput)]
    throughput: f64,
    /// Bootstrap brokers, host:port separated by commas [default: FULLBORE_BOOTSTRAP_SERVER, or localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    #[command(flatten)]
    patience: Patience,
    /// A file of producer properties.
    #[arg(long, visible_alias = "producer.config", value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// Producer properties, which override the file: acks=1 linger.ms=0 ... See docs/producer.md.
    #[arg(short = 'X', long, visible_alias = "producer-props", value_name = "KEY=VALUE", num_args = 1.., value_parser = key_value)]
    command_property: Vec<(String, String)>,
    /// The number of first records that a second summary, of the steady state, leaves out.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    warmup_records: u64,
    /// Milliseconds between progress lines.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    reporting_interval: u64,
    /// Print the counts again as metrics at the end.
    #[arg(long)]
    print_metrics: bool,
    #[command(flatten)]
    lines: Lines,
    /// Print the latencies in microseconds at the end.
    #[arg(long)]
    latency_us: bool,
    /// Print JSON, an object a line: {"kind": "interval", ...} for each reporting interval, then {"kind": "summary",
    /// ...}, and {"kind": "steady_state", ...} after a warmup. Standard error gets errors as {"error": SENTENCE} and
    /// notes as {"note": SENTENCE}.
    #[arg(long, conflicts_with_all = ["latency_us", "print_metrics"])]
    json: bool,
    /// The transactional id [default: that of the properties, or a new one with --transaction-duration-ms].
    #[arg(long, value_name = "ID")]
    transactional_id: Option<String>,
    /// Commit each transaction after this many milliseconds [default: 3000, with a transactional id].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    transaction_duration_ms: Option<u64>,
}

/// Runs the tool.
pub fn run(args: PerfProduceArgs) -> Result<(), Failure> {
    Format { json: args.json }.choose();
    let stop = Stop::at_signal(Box::new(|| {}))?;
    let properties = args.properties()?;
    let config = ProducerConfig::from_properties(properties.iter())?;
    let client_id = config.client.client_id.clone();
    let workload = args.workload(&config)?;
    let transactions = TransactionSettings::of(&config, "--transaction-duration-ms");
    if let Some(settings) = transactions.as_ref().filter(|of| of.timeout() <= workload.transaction_duration) {
        output::remark(too_long(settings, workload.transaction_duration));
    }
    let transaction_duration = workload.transaction_duration;
    if args.warmup_records > 0 && !args.json {
        line(&warmup_line(args.warmup_records));
    }
    let servers = config.bootstrap_servers.join(",");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let producer = Producer::new(config)?;
    waiting::for_producer(&producer, &runtime, &servers, args.patience)?;
    producer.on_notice(|notice| output::remark(notice));
    producer.on_trouble(|why| output::remark(format!("nothing gets through: {why}")));
    let begun = Instant::now();
    let outcome = runtime.block_on(async {
        let requests = stop.clone();
        let on_window = move |window: &_| {
            print_window(window, args.lines, args.json);
            if output::is_lost() {
                requests.request();
            }
        };
        let outcome = produce(&producer, workload, stop.receiver(), on_window).await;
        producer.brokers().iter().filter_map(|broker| window_bound(broker, begun.elapsed())).for_each(output::remark);
        // After a stop by the user, the command does not wait for the remaining records. It only waits up to
        // [`ABORT_TIMEOUT`] for the abort of an open transaction.
        let abort_timeout = if producer.is_transactional() { ABORT_TIMEOUT } else { Duration::ZERO };
        producer.close(if stop.is_requested() { abort_timeout } else { CLOSE_TIMEOUT }).await;
        outcome
    });
    let outcome = outcome.map_err(|error| refusal(&args.topic, &error, transactions.as_ref(), transaction_duration))?;
    report(&args, &client_id, &outcome);
    verdict(&outcome, args.num_records)
}

/// Returns a sentence if the broker's window limited the rate. This is the case if full batches had to wait only
/// because of the window for a large share of `elapsed`.
fn window_bound(broker: &BrokerStatus, elapsed: Duration) -> Option<String> {
    let share = broker.window_full.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    let BrokerStatus { id, window, .. } = broker;
    (share >= WINDOW_BOUND_MIN).then(|| {
        format!(
            "the rate was limited by the window of {window} batches of broker {id}, which was full {:.0} % of the \
             time; raise max.idempotence.batches.to.retain of the broker",
            share * 100.0
        )
    })
}

/// Returns the failure of a run that the producer has ended by refusing a record or failing a transaction.
fn refusal(
    topic: &str,
    error: &ProduceFailure,
    transactions: Option<&TransactionSettings>,
    transaction_duration: Duration,
) -> Failure {
    let next = match error {
        ProduceFailure::Transaction(error) => return transaction_refusal(error, transactions, transaction_duration),
        ProduceFailure::Send(SendError::Timeout { .. }) => {
            format!("; check whether the topic exists and has leaders with `fullbore topics describe --topic {topic}`")
        }
        _ => String::new(),
    };
    Failure::new(format!("cannot send to topic '{topic}': {error}{next}"))
}

/// Returns a sentence about why a transaction was not committed, and about the state of its records.
fn transaction_refusal(
    error: &TransactionError,
    settings: Option<&TransactionSettings>,
    duration: Duration,
) -> Failure {
    let doubt = if error.may_have_been_written() { "; its records may be committed" } else { "" };
    let cause = settings.and_then(|settings| match settings.timeout() <= duration {
        true => settings.explanation(error, duration).map(|_| too_long(settings, duration)),
        false => settings.explanation(error, Duration::ZERO),
    });
    Failure::new(match cause {
        Some(cause) => format!("cannot send in transactions: {cause}{doubt}"),
        None => format!("{error}{doubt}"),
    })
}

/// Returns a sentence about a transaction.timeout.ms that is shorter than `duration`, so that the coordinator aborts
/// transactions before their commit.
fn too_long(settings: &TransactionSettings, duration: Duration) -> String {
    format!(
        "transaction.timeout.ms={} aborts transactions before --transaction-duration-ms={} commits them; raise the \
         first or lower the second",
        settings.timeout().as_millis(),
        duration.as_millis()
    )
}

fn report(args: &PerfProduceArgs, client_id: &str, outcome: &ProduceOutcome) {
    let summaries: Vec<Summary> = outcome.produced.summaries(outcome.ended).collect();
    // A summary without records has no latencies, so it is not printed. If records failed, `verdict` reports them.
    let acknowledged = || summaries.iter().filter(|summary| summary.records > 0);
    acknowledged().for_each(|summary| match args.json {
        true => line(&summary_json(summary)),
        false => output::folded(&summary_line(summary, args.lines.wide), args.lines.limit()),
    });
    if args.latency_us
        && let Some(last) = acknowledged().next_back()
    {
        line(&precise_latency_lines(&last.latencies));
    }
    if args.print_metrics {
        line(&metrics_lines(&metrics(&summaries[0], outcome, client_id)));
    }
}

fn verdict(outcome: &ProduceOutcome, wanted: u64) -> Result<(), Failure> {
    let failed = outcome.failed.first.as_ref();
    let failed = failed.map(|first| format!("{} records failed; the first: {first}", outcome.failed.records));
    match failed {
        // The run ended because its output has no reader any more, which is not a failure.
        None if outcome.stopped && output::is_lost() => Ok(()),
        None if !outcome.stopped => Ok(()),
        Some(failed) if !outcome.stopped => Err(Failure::new(failed)),
        failed => {
            let failed = failed.map(|failed| format!("; {failed}")).unwrap_or_default();
            let interrupted = format!("interrupted before all of {wanted} records were acknowledged{failed}");
            Err(Failure::interrupted(interrupted))
        }
    }
}

fn print_window(window: &IntervalCounts, lines: Lines, as_json: bool) {
    if as_json {
        return line(&window_json(window));
    }
    if window.first_steady {
        line(STEADY_LINE);
    }
    output::folded(&window_line(window, lines.wide), lines.limit());
}

fn metrics(whole: &Summary, outcome: &ProduceOutcome, client_id: &str) -> Vec<(String, f64)> {
    let seconds = whole.elapsed.as_secs_f64();
    let name = |metric: &str| format!("producer-metrics:{metric}:{{client-id={client_id}}}");
    vec![
        (name("record-send-total"), whole.records as f64),
        (name("record-send-rate"), whole.records as f64 / seconds),
        (name("record-error-total"), outcome.failed.records as f64),
        (name("byte-total"), whole.bytes as f64),
        (name("byte-rate"), whole.bytes as f64 / seconds),
        (name("record-latency-avg-ms"), whole.latencies.mean_us() / 1e3),
        (name("record-latency-max-ms"), whole.latencies.max_us() as f64 / 1e3),
    ]
}

impl PerfProduceArgs {
    fn properties(&self) -> Result<Properties, Failure> {
        let mut properties =
            client_properties(self.command_config.as_deref(), &self.command_property, &config::notice)?;
        check_ids(self.transactional_id.as_deref(), &self.command_property)?;
        if let Some(id) = &self.transactional_id {
            properties.set(TRANSACTIONAL_ID, id.as_str());
        } else if self.transaction_duration_ms.is_some() && properties.get(TRANSACTIONAL_ID).is_none() {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let id = format!("{TRANSACTIONAL_ID_PREFIX}{}-{}", std::process::id(), since.as_nanos());
            properties.set(TRANSACTIONAL_ID, id);
        }
        let servers = bootstrap_servers(self.bootstrap_server.as_deref(), &properties);
        properties.set(BOOTSTRAP_SERVERS, servers);
        if properties.get("client.id").is_none() {
            properties.set("client.id", CLIENT_ID);
        }
        Ok(properties)
    }

    /// Prints a line of Kafka's tool. With `--json`, prints nothing.
    fn print(&self, text: &str) {
        if !self.json {
            line(text);
        }
    }

    fn workload(&self, config: &ProducerConfig) -> Result<Workload, Failure> {
        if self.warmup_records >= self.num_records {
            return Err(Failure::new(
                "The value for --warmup-records must be strictly fewer than the number of records in the test, \
                 --num-records.",
            ));
        }
        let payload = match (self.record_size, &self.payload_file) {
            (Some(size), _) => Payload::random(size as usize, config.compression != Compression::None),
            (None, Some(path)) => {
                let shown = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                self.print(&format!("Reading payloads from: {}", shown.display()));
                // As in Kafka's tool, the two characters `\n` stand for a newline, because the help shows the default
                // in this form.
                let delimiter = if self.payload_delimiter == "\\n" { "\n" } else { &self.payload_delimiter };
                let payload = Payload::from_file(path, delimiter)?;
                self.print(&format!("Number of records read: {}", payload.file_payloads().unwrap_or(0)));
                payload
            }
            (None, None) => Payload::monotonic(),
        };
        Ok(Workload {
            topic: self.topic.clone(),
            records: self.num_records,
            duration: None,
            warmup_records: self.warmup_records,
            throughput: self.throughput,
            payload,
            reporting_interval: Duration::from_millis(self.reporting_interval),
            transaction_duration: self.transaction_duration_ms.map_or(TRANSACTION_DURATION, Duration::from_millis),
        })
    }
}

/// Parses `--throughput`. Refuses 0, because it would never send a second record. Kafka's tool would wait forever.
fn throughput(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Err("nothing would ever be sent; use -1 for as fast as it goes".to_owned()),
        Ok(rate) if rate.is_finite() => Ok(rate),
        _ => Err("must be a number of records a second, or -1 for as fast as it goes".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use fullbore_bench::measure::Produced;
    use fullbore_bench::produce::Failed;
    use fullbore_producer::{Acks, ProduceError};
    use fullbore_wire::ErrorCode;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        produce: PerfProduceArgs,
    }

    fn parse(flags: &str) -> Result<PerfProduceArgs, clap::Error> {
        crate::command_line::parsed::<Line>(std::iter::once("produce").chain(flags.split_whitespace()))
            .map(|line| line.produce)
    }

    const LEAST: &str = "--topic t --num-records 5 --record-size 10 --throughput -1";

    fn config(flags: &str) -> Result<ProducerConfig, Failure> {
        let properties = parse(&format!("{LEAST} {flags}")).expect("flags").properties()?;
        Ok(ProducerConfig::from_properties(properties.iter())?)
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_allowed_values() {
        for (flags, reported) in [
            ("--num-records 5 --record-size 10 --throughput 0", "use -1 for as fast as it goes"),
            ("--num-records 5 --record-size 10 --throughput nan", "must be a number of records a second"),
            ("--num-records 5 --record-size -1 --throughput 1", "-1 is not in 1.."),
            ("--num-records -1 --record-size 1 --throughput 1", "'-1' for '--num-records"),
        ] {
            let refusal = parse(&format!("--topic t {flags}")).expect_err(flags).to_string();
            assert!(refusal.contains(reported), "{refusal}");
        }
    }

    #[test]
    fn properties_without_effect_cause_a_notice() {
        let mut properties = Properties::default();
        for key in ["linger.m", "linger.ms", "key.serializer", "interceptor.classes"] {
            properties.set(key, "5");
        }
        let mut reported = crate::client::notices(&properties, &config::notice);
        reported.sort();
        assert_eq!(
            reported,
            [
                "interceptor.classes: has no effect on this producer",
                "linger.m: is not a producer setting and has no effect; did you mean linger.ms?"
            ]
        );
    }

    #[test]
    fn a_window_full_for_half_of_the_time_is_reported_as_the_limit() {
        let full = |ms: u64| BrokerStatus {
            id: 1,
            batches_to_retain: 5,
            reorder_batches: 0,
            lanes: Vec::new(),
            turns: 0,
            answered: fullbore_producer::Answered::default(),
            window: 5,
            window_full: Duration::from_millis(ms),
        };
        assert_eq!(window_bound(&full(4_900), Duration::from_secs(10)), None);
        let named = window_bound(&full(9_320), Duration::from_secs(10)).expect("it limits");
        let expected = "the rate was limited by the window of 5 batches of broker 1, which was full 93 % of the time; ";
        assert!(named.starts_with(expected), "{named}");
    }

    #[test]
    fn only_a_timeout_gets_the_advice_to_check_the_topic() {
        let large = SendError::RecordTooLarge { size: 1_048_588, max: 1_048_576 }.into();
        let refused = |error| refusal("t", &error, None, Duration::ZERO).to_string();
        let reported = refused(large);
        assert!(reported.contains("max.request.size=1048576") && !reported.contains("fullbore topics"), "{reported}");
        let timeout = SendError::Timeout { what: "metadata", waited: Duration::ZERO, why: String::new() };
        assert!(refused(timeout.into()).contains("fullbore topics describe --topic t"));
    }

    #[test]
    fn kafkas_flags_of_perf_produce_are_accepted() {
        parse(
            "--topic t --num-records 5 --throughput 1000.5 --payload-file f --payload-delimiter , --producer.config f \
             --producer-props a=b c=d --bootstrap-server h:1 --warmup-records 2 --print-metrics --reporting-interval 9",
        )
        .expect("kafka-producer-perf-test's flags");
        let parsed =
            parse(&format!("{LEAST} --command-property acks=1 linger.ms=0 --command-config f")).expect("flags");
        assert_eq!((parsed.command_property.len(), parsed.throughput), (2, -1.0));
        parse("--topic t --num-records 5 --throughput -1 --payload-monotonic").expect("monotonic");
    }

    #[test]
    fn missing_and_contradicting_flags_of_perf_produce_are_refused() {
        for flags in [
            "--topic t --num-records 5 --throughput -1",
            "--topic t --num-records 5 --record-size 10",
            "--topic t --num-records 0 --record-size 10 --throughput -1",
            "--topic t --num-records 5 --record-size 10 --payload-monotonic --throughput -1",
        ] {
            assert!(parse(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn properties_configure_the_producer() {
        let found =
            config("--command-property acks=1 linger.ms=7 key.serializer=x --bootstrap-server h:1,i:2").expect("valid");
        assert_eq!((found.acks, found.linger.as_millis()), (Acks::Leader, 7));
        assert_eq!(found.bootstrap_servers, ["h:1", "i:2"]);
        assert_eq!(found.client.client_id, CLIENT_ID);
    }

    #[test]
    fn transactions_longer_than_their_timeout_are_refused_with_both_settings() {
        let config = config("--transactional-id x --command-property transaction.timeout.ms=1000").expect("valid");
        let settings = TransactionSettings::of(&config, "--transaction-duration-ms").expect("an id");
        let fenced = TransactionError::Coordinator {
            action: "commit the transaction",
            code: ErrorCode::PRODUCER_FENCED,
            message: String::new(),
            possibly_committed: false,
        };
        let refusal = |ms| transaction_refusal(&fenced, Some(&settings), Duration::from_millis(ms)).to_string();
        assert!(refusal(3000).starts_with("cannot send in transactions: transaction.timeout.ms=1000 aborts"));
        assert!(refusal(100).starts_with("cannot send in transactions: another producer has started"));
    }

    #[test]
    fn the_transactional_id_is_named_or_made_for_a_duration() {
        let id = |flags: &str| config(flags).expect("valid").transactional_id;
        assert_eq!(id(""), None);
        assert_eq!(id("--transactional-id x").as_deref(), Some("x"));
        let refused = config("--transactional-id x --command-property transactional.id=y").expect_err("two ids");
        assert!(refused.to_string().starts_with("two transactional ids: "), "{refused}");
        assert_eq!(id("--transaction-duration-ms 5 --command-property transactional.id=y").as_deref(), Some("y"));
        assert!(id("--transaction-duration-ms 5").is_some_and(|id| id.starts_with(TRANSACTIONAL_ID_PREFIX)));
        assert!(parse(&format!("{LEAST} --transaction-duration-ms 0")).is_err());
        let duration = |flags: &str| {
            let args = parse(&format!("{LEAST} {flags}")).expect("flags");
            args.workload(&config(flags).expect("valid")).ok().map(|workload| workload.transaction_duration)
        };
        assert_eq!(duration("--transactional-id x"), Some(Duration::from_secs(3)));
        assert_eq!(duration("--transaction-duration-ms 5"), Some(Duration::from_millis(5)));
    }

    #[test]
    fn a_warmup_as_long_as_the_run_is_refused() {
        let args = parse(&format!("{LEAST} --warmup-records 5")).expect("flags");
        let refusal = args.workload(&config("").expect("valid")).err().expect("too long").to_string();
        assert!(refusal.contains("strictly fewer"), "{refusal}");
    }

    #[test]
    fn an_interrupted_run_reports_failures_too() {
        let failed = |records: u64| Failed {
            records,
            first: (records > 0).then_some(ProduceError::Closed { possibly_written: false }),
        };
        let of = |records, stopped| {
            let produced = Produced::new(Instant::now(), Duration::MAX);
            verdict(&ProduceOutcome { produced, failed: failed(records), ended: Instant::now(), stopped }, 9)
        };
        let status = |records, stopped| of(records, stopped).err().map(|failure| failure.status);
        assert_eq!((status(0, false), status(2, false)), (None, Some(1)));
        assert_eq!((status(0, true), status(2, true)), (Some(130), Some(130)));
        let reported = of(2, true).expect_err("interrupted").to_string();
        assert!(
            reported.starts_with("interrupted before all of 9 records") && reported.contains("2 records failed"),
            "{reported}"
        );
    }
}
