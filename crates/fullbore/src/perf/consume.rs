//! `fullbore perf consume` has the flags and lines of kafka-consumer-perf-test, but uses no consumer group.

use super::lines::Lines;
use crate::client::{self, client_properties, key_value, without_effect};
use crate::failure::Failure;
use crate::output::{self, Format, line};
use crate::patience::Patience;
use crate::stop::Stop;
use crate::topics::topic_filter;
use crate::troubles::Troubles;
use crate::waiting::Wait;
use clap::{ArgGroup, Args};
use fullbore_bench::report::{
    CONSUME_HEADER, CONSUME_HEADER_DETAILED, Consumed, DateFormat, consume_json, consume_line, consume_progress_line,
    consume_timeout_line, metrics_lines,
};
use fullbore_client::ClientError;
use fullbore_client::admin::list_topics;
use fullbore_client::blocking::{Cluster, PartitionPlace};
use fullbore_client::consume::{
    ConsumeOutcome, ConsumePlan, ConsumeProgress, Cursor, FetchSettings, Record, Sink, StartOffset, consume,
};
use fullbore_config::Properties;
use fullbore_wire::Text;
use fullbore_wire::batch::BatchView;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

/// The client id if no property names one. It is that of Kafka's tool.
const CLIENT_ID: &str = "perf-consumer-client";

/// Read a topic at full speed and print the lines of kafka-consumer-perf-test.
///
/// All partitions are read by manual assignment: there is no consumer group and nothing is committed, so that
/// rebalance.time.ms is the time to find the leaders and the first offsets. Every batch's checksum is verified (not in
/// Kafka's tool) and every record is parsed. Times are UTC.
#[derive(Args, Debug)]
#[command(after_help = "Example: fullbore perf consume --topic test --num-records 1000000")]
#[command(group = ArgGroup::new("what").required(true).args(["topic", "include"]))]
#[command(group = ArgGroup::new("count").required(true).args(["num_records", "messages"]))]
pub struct Consume {
    /// The topic to read.
    #[arg(long)]
    topic: Option<String>,
    /// Read every topic whose whole name matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    include: Option<String>,
    /// Stop after this many records.
    #[arg(long)]
    num_records: Option<u64>,
    /// Old name of --num-records.
    #[arg(long, hide = true)]
    messages: Option<u64>,
    /// Bootstrap brokers, host:port separated by commas [default: FULLBORE_BOOTSTRAP_SERVER, or localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    /// Limit of bytes of one partition in a response to the first fetches; the limit grows while the link is not full.
    #[arg(long, visible_alias = "max-partition-fetch-bytes", default_value_t = 1 << 20, value_parser = clap::value_parser!(i32).range(1..))]
    fetch_size: i32,
    /// Start with the next record instead of the oldest one.
    #[arg(long)]
    from_latest: bool,
    /// Accepted for compatibility with kafka-consumer-perf-test; no group is used.
    #[arg(long)]
    group: Option<String>,
    /// Accepted for compatibility with kafka-consumer-perf-test; the system sizes the socket's buffer.
    #[arg(long, hide = true)]
    socket_buffer_size: Option<i32>,
    /// End after this many milliseconds without a record, or without a response.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    timeout: u64,
    /// Print a line for every reporting interval instead of one at the end.
    #[arg(long)]
    show_detailed_stats: bool,
    /// Milliseconds between the lines of --show-detailed-stats.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    reporting_interval: u64,
    /// The format of times: y, M, d, H, m, s and S as in Java's SimpleDateFormat.
    #[arg(long, default_value = "yyyy-MM-dd HH:mm:ss:SSS")]
    date_format: String,
    #[command(flatten)]
    lines: Lines,
    /// Print the counts again as metrics at the end.
    #[arg(long)]
    print_metrics: bool,
    /// Print no header.
    #[arg(long)]
    hide_header: bool,
    /// Print JSON, an object a line: {"kind": "interval", ...} for each interval of --show-detailed-stats, then
    /// {"kind": "summary", ...}; errors as {"error": SENTENCE} and notes as {"note": SENTENCE} to standard error.
    #[arg(long, conflicts_with = "print_metrics")]
    json: bool,
    /// A file of consumer properties.
    #[arg(long, visible_alias = "consumer.config", value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// A consumer property, which overrides the file; may be repeated. docs/consumer.md shows which have an effect
    /// here.
    #[arg(short = 'X', long, value_name = "KEY=VALUE", num_args = 1.., value_parser = key_value)]
    command_property: Vec<(String, String)>,
}

/// Runs the tool.
pub fn run(args: Consume) -> Result<(), Failure> {
    Format { json: args.json }.choose();
    let stop = Stop::at_signal(Box::new(|| {}))?;
    let dates = DateFormat::parse(&args.date_format)?;
    let properties = args.properties()?;
    let mut plan = args.plan(&properties)?;
    if args.messages.is_some() {
        output::note("Warning: --messages is deprecated. Use --num-records instead.");
    }
    if args.group.is_some() {
        output::remark("--group has no effect: perf consume reads by manual assignment, without a consumer group");
    }
    if !args.hide_header && !args.json && !args.prints_pairs() {
        let header = if args.show_detailed_stats { CONSUME_HEADER_DETAILED } else { CONSUME_HEADER };
        output::folded(header, args.lines.limit());
    }
    let started = Consumed { at: SystemTime::now(), records: 0, bytes: 0 };
    let client_id = properties.get("client.id").unwrap_or(CLIENT_ID);
    let mut cluster = client::cluster(args.bootstrap_server.as_deref(), &properties, CLIENT_ID, args.patience())?;
    plan.places = places(&args, &mut cluster)?;
    let cursors = cursors(&plan);
    let mut reporter = Reporter::new(&args, &dates, started);
    let (mut troubles, mut wait) = (Troubles::default(), Wait::begin());
    let outcome = consume(&cluster, cursors, &plan, |progress| {
        reporter.observe(progress);
        if !args.show_detailed_stats {
            wait.observe(|| progress_words(progress, plan.records, started.at));
        }
        troubles.of_run(progress, None);
        !stop.is_requested()
    })?;
    let interrupted = outcome.finished.is_none() && stop.is_requested();
    if outcome.finished.is_none() && !interrupted {
        output::note(&consume_timeout_line(args.timeout));
    }
    report(&args, &dates, started, &outcome, client_id);
    match interrupted && !output::is_lost() {
        true => Err(Failure::interrupted(format!("interrupted before {} records were read", plan.records))),
        false => Ok(()),
    }
}

/// Returns a sentence about how many records were read.
fn progress_words(progress: &ConsumeProgress, wanted: u64, started: SystemTime) -> String {
    let seconds = started.elapsed().unwrap_or_default().as_secs_f64().max(f64::EPSILON);
    let (records, bytes) = (progress.records(), progress.bytes());
    let rate = bytes as f64 / (1 << 20) as f64 / seconds;
    format!("{records} of {wanted} records read, {rate:.1} MB/s")
}

/// A sink that counts down the records that all partitions together may still read. This makes --num-records an exact
/// limit.
struct RecordCountdown(Arc<AtomicI64>);

impl Sink for RecordCountdown {
    fn record(&mut self, _: &BatchView<'_>, _: &Record<'_>) -> Result<ControlFlow<()>, String> {
        let left = self.0.fetch_sub(1, Ordering::Relaxed);
        Ok(if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }
}

fn places(args: &Consume, cluster: &mut Cluster) -> Result<BTreeMap<Text, Vec<PartitionPlace>>, Failure> {
    let topics: Vec<Text> = match (&args.topic, &args.include) {
        (Some(topic), _) => vec![topic.as_str().into()],
        (None, include) => {
            let matches = topic_filter("--include", include.as_deref(), true)?;
            let matching = list_topics(cluster)?.into_iter().filter(|(name, is_internal)| matches(name, *is_internal));
            matching.map(|(name, _)| name).collect()
        }
    };
    let places = cluster.partitions_of(&topics)?;
    match topics.into_iter().find(|topic| !places.contains_key(topic)) {
        Some(missing) => Err(ClientError::NoTopic(missing.to_string()).into()),
        None => Ok(places),
    }
}

fn cursors(plan: &ConsumePlan) -> Vec<Cursor<RecordCountdown>> {
    let left = Arc::new(AtomicI64::new(i64::try_from(plan.records).unwrap_or(i64::MAX)));
    let cursor = |place: &PartitionPlace| Cursor::new(place.clone(), RecordCountdown(left.clone()));
    plan.places.values().flatten().map(cursor).collect()
}

fn report(
    args: &Consume,
    dates: &DateFormat,
    started: Consumed,
    outcome: &ConsumeOutcome<RecordCountdown>,
    client_id: &str,
) {
    let progress = &outcome.progress;
    let at = outcome.finished.unwrap_or_else(SystemTime::now);
    let ended = Consumed { at, records: progress.records(), bytes: progress.bytes() };
    if args.json {
        line(&consume_json("summary", started, ended, progress.setup().unwrap_or_default()));
    } else if !args.show_detailed_stats {
        let setup = progress.setup().unwrap_or_default();
        let figures = consume_line(started, ended, setup, dates, args.lines.wide);
        if args.prints_pairs() { pairs(&figures).iter().for_each(|text| line(text)) } else { line(&figures) }
    }
    if args.print_metrics {
        let seconds = at.duration_since(started.at).unwrap_or_default().as_secs_f64();
        let name = |metric: &str| format!("consumer-fetch-manager-metrics:{metric}:{{client-id={client_id}}}");
        line(&metrics_lines(&[
            (name("records-consumed-total"), ended.records as f64),
            (name("records-consumed-rate"), ended.records as f64 / seconds),
            (name("bytes-consumed-total"), ended.bytes as f64),
            (name("bytes-consumed-rate"), ended.bytes as f64 / seconds),
        ]));
    }
}

/// Returns the figures of the summary, each on its own line with its name.
fn pairs(figures: &str) -> Vec<String> {
    let rows = CONSUME_HEADER.split(", ").zip(figures.split(", "));
    rows.map(|(name, figure)| format!("{name:<22} {figure}")).collect()
}

/// Prints the lines of `--show-detailed-stats`.
struct Reporter<'a> {
    interval: Option<Duration>,
    dates: &'a DateFormat,
    last: Consumed,
    setup_reported: bool,
    as_json: bool,
    lines: Lines,
}

impl<'a> Reporter<'a> {
    fn new(args: &Consume, dates: &'a DateFormat, started: Consumed) -> Self {
        let interval = args.show_detailed_stats.then(|| Duration::from_millis(args.reporting_interval));
        Reporter { interval, dates, last: started, setup_reported: false, as_json: args.json, lines: args.lines }
    }

    fn observe(&mut self, progress: &ConsumeProgress) {
        let now = Consumed { at: SystemTime::now(), records: progress.records(), bytes: progress.bytes() };
        let elapsed = now.at.duration_since(self.last.at).unwrap_or_default();
        if self.interval.is_some_and(|interval| elapsed >= interval) && now.records > self.last.records {
            let first = !std::mem::replace(&mut self.setup_reported, true);
            let setup = progress.setup().filter(|_| first).unwrap_or_default();
            if self.as_json {
                line(&consume_json("interval", self.last, now, setup));
            } else {
                let figures = consume_progress_line(self.last, now, setup, self.dates, self.lines.wide);
                output::folded(&figures, self.lines.limit());
            }
            self.last = now;
        }
    }
}

impl Consume {
    /// Returns true if the summary is too wide for the terminal. Its lines would be wrapped, so that figures would not
    /// be below their headings.
    fn prints_pairs(&self) -> bool {
        let is_narrow = self.lines.limit().is_some_and(|limit| limit < CONSUME_HEADER.len());
        is_narrow && !self.show_detailed_stats && !self.hide_header
    }

    /// Returns how long to wait for a response: `timeout`, but at least a second.
    fn patience(&self) -> Patience {
        Patience::of_ms(self.timeout.max(1_000))
    }

    fn properties(&self) -> Result<Properties, Failure> {
        let own: Vec<&'static str> = FetchSettings::settings().map(|setting| setting.name).collect();
        let notice = |key: &str| without_effect(key, "perf consume", &own);
        client_properties(self.command_config.as_deref(), &self.command_property, &notice)
    }

    fn plan(&self, properties: &Properties) -> Result<ConsumePlan, Failure> {
        let mut fetch = FetchSettings { partition_max_bytes: self.fetch_size, ..Default::default() };
        for (key, value) in properties.iter() {
            // `set` returns false for properties that all clients have, and for keys whose lack of effect was already
            // reported.
            fetch.set(key, value)?;
        }
        let start = if self.from_latest { StartOffset::Latest } else { StartOffset::Earliest };
        fetch.reset = Some(start);
        let records = self.num_records.or(self.messages).unwrap_or(u64::MAX);
        Ok(ConsumePlan { records, start, ..ConsumePlan::new(fetch, Duration::from_millis(self.timeout)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        consume: Consume,
    }

    fn parse(flags: &str) -> Result<Consume, clap::Error> {
        crate::command_line::parsed::<Line>(std::iter::once("consume").chain(flags.split_whitespace()))
            .map(|line| line.consume)
    }

    fn plan(flags: &str) -> Result<ConsumePlan, Failure> {
        let args = parse(flags).expect("flags");
        args.plan(&args.properties()?)
    }

    #[test]
    fn kafkas_flags_of_perf_consume_are_accepted() {
        parse(
            "--topic t --num-records 5 --bootstrap-server h:1 --fetch-size 99 --from-latest --group g --timeout 1000 \
             --show-detailed-stats --reporting-interval 200 --print-metrics --hide-header --date-format HH:mm \
             --consumer.config f --command-property a=b --socket-buffer-size 3",
        )
        .expect("kafka-consumer-perf-test's flags");
        parse("--include t.* --messages 5").expect("the older flags");
    }

    #[test]
    fn missing_and_contradicting_flags_of_perf_consume_are_refused() {
        for flags in
            ["--topic t", "--num-records 5", "--topic t --include t --num-records 5", "--topic t --num-records x"]
        {
            assert!(parse(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn properties_set_the_plan() {
        let plan = plan(
            "--topic t --num-records 5 --from-latest --timeout 70 --command-property fetch.min.bytes=7 check.crcs=false \
             isolation.level=read_committed",
        );
        let plan = plan.expect("valid");
        assert_eq!((plan.records, plan.start, plan.timeout.as_millis()), (5, StartOffset::Latest, 70));
        let reset = Some(StartOffset::Latest);
        let fetch =
            FetchSettings { min_bytes: 7, check_crcs: false, read_committed: true, reset, ..Default::default() };
        assert_eq!(plan.fetch, fetch);
    }

    #[test]
    fn unsupported_settings_are_refused_in_one_line() {
        let refusal = |property: &str| {
            let failure = plan(&format!("--topic t --num-records 5 --command-property {property}"));
            failure.expect_err(property).to_string()
        };
        let no_level = "isolation.level=x: must be read_committed or read_uncommitted";
        assert_eq!(refusal("isolation.level=x"), no_level);
        assert_eq!(refusal("fetch.min.bytes=-1"), "fetch.min.bytes=-1: must be 0 or more");
    }
}
