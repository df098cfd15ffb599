//! `fullbore demo`: a broker, a producer and a reader in one process, and proof that nothing was lost on the way.
//!
//! Nothing stays behind: data is in a temporary folder, the port is a free one, and Ctrl-C cleans up too, as does a
//! reader of the output that goes away.

mod distance;
pub mod figures;
mod progress;
mod stream;

use crate::failure::Failure;
use crate::output::{self, Format, line, words};
use crate::stop::Stop;
use clap::Args;
use distance::Distance;
use fullbore_bench::link::units;
use fullbore_bench::report::json::{array, object};
use fullbore_bench::workload::VALUE_LEN_MIN;
use fullbore_broker::Broker;
use fullbore_broker::config::{BrokerConfig, Properties};
use fullbore_client::admin::create_topic;
use fullbore_client::blocking::Cluster;
use fullbore_producer::{Producer, ProducerConfig};
use progress::DemoProgress;
use std::path::Path;
use std::time::Duration;
use stream::{DemoStream, Phase};

/// The demo's topic.
const TOPIC: &str = "demo";
/// Records of the first phase.
const RECORDS: u64 = 1_000_000;
/// The same over a distance, where the reader waits a round trip for each answer: some seconds at 150 ms.
const DISTANT_RECORDS: u64 = 200_000;
/// The rate of the second phase: low enough that latency is not the time spent in a full buffer.
const PACED_RECORDS_PER_SEC: u64 = 10_000;
/// How long the second phase is.
const PACED_SECONDS: u64 = 3;

/// Start a broker, stream records through it, read them back while they arrive, verify each, and say how fast it was.
///
/// --json prints {"records", "record_size", "partitions", "phases": [{"name", "records", "bytes", "acknowledged":
/// {"records_per_sec", "mb_per_sec", "p50_ms", "p99_ms", "p999_ms", "max_ms"}, "read": the same}]} once all is verified.
#[derive(Args, Debug)]
#[command(after_help = "Example: fullbore demo --records 200000 --record-size 100 --partitions 6\n\
    Example: fullbore demo --rtt 150")]
pub struct Demo {
    /// How many records to stream [default: 1000000, with --rtt 200000].
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
    /// Bytes of each record's value.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(VALUE_LEN_MIN as i64..=1 << 19))]
    record_size: u32,
    /// Partitions to spread them over.
    #[arg(long, allow_negative_numbers = true, default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=1000))]
    partitions: i32,
    /// Put a round trip of so many milliseconds (150, or 150ms, 1s) between the broker and its clients, with the relay of
    /// `fullbore perf link`.
    #[arg(long, allow_negative_numbers = true, value_name = "MS", value_parser = units::milliseconds)]
    rtt: Option<Duration>,
    #[command(flatten)]
    format: Format,
}

impl Demo {
    fn records(&self) -> u64 {
        self.records.unwrap_or(if self.rtt.is_some() { DISTANT_RECORDS } else { RECORDS })
    }
}

/// Runs the demo.
pub fn run(demo: Demo) -> Result<(), Failure> {
    demo.format.choose();
    let folder = tempfile::Builder::new().prefix("fullbore-demo-").tempdir().map_err(|error| {
        let place = std::env::temp_dir();
        Failure::new(format!("cannot make a folder in {}: {error}; set TMPDIR to one that exists", place.display()))
    })?;
    let data = folder.path().to_owned();
    // What cannot be removed at a second signal is in the temporary folder, where the system removes it some day.
    let stop = Stop::at_signal(move || drop(std::fs::remove_dir_all(data)))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let distance = demo.rtt.map(|rtt| Distance::new(rtt, &runtime)).transpose()?;
    let advertised = distance.as_ref().map(Distance::advertised);
    let broker = runtime.block_on(Broker::start(config(folder.path(), advertised.as_deref())?))?;
    words(&format!("Broker on {}, data in {}", broker.addr(), folder.path().display()));
    let address = broker.addr().to_string();
    let relayed = distance.map(|distance| distance.relay_to(&address, &runtime));
    let outcome = stream(&demo, relayed.as_ref().map_or(&address, |relayed| &relayed.address), &runtime, &stop);
    drop(relayed);
    runtime.block_on(broker.shutdown());
    drop(runtime);
    folder.close()?;
    if output::is_lost() {
        // Nobody waits for the rest.
        return Ok(());
    }
    outcome?;
    words("Broker stopped, data removed. Next: fullbore serve");
    Ok(())
}

fn config(folder: &Path, advertised: Option<&str>) -> Result<BrokerConfig, Failure> {
    let mut properties = Properties::default();
    properties.set("log.dirs", folder.join("data").display().to_string());
    properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
    properties.set("fullbore.admin.listener", "");
    if let Some(advertised) = advertised {
        properties.set("advertised.listeners", advertised);
    }
    Ok(BrokerConfig::from_properties(&properties)?.0)
}

fn stream(demo: &Demo, address: &str, runtime: &tokio::runtime::Runtime, stop: &Stop) -> Result<(), Failure> {
    let mut cluster = Cluster::new(address, "fullbore-demo")?;
    create_topic(&mut cluster, TOPIC, Some(demo.partitions), None, &[])?;
    let producer = Producer::new(ProducerConfig::new(address))?;
    let mut stream = DemoStream::new(TOPIC, &mut cluster, demo.record_size as usize)?;
    let paced = (PACED_RECORDS_PER_SEC * PACED_SECONDS).min(demo.records());
    let phases = [
        Phase { name: "as fast as it goes", records: demo.records(), throughput: -1.0 },
        Phase { name: "at 10,000 records/s", records: paced, throughput: PACED_RECORDS_PER_SEC as f64 },
    ];
    let (mut rows, mut documents) = (figures::heading(), Vec::new());
    for phase in &phases {
        let progress = DemoProgress::new(phase.name, phase.records);
        let figures = stream.run(phase, &mut cluster, &producer, runtime.handle(), &progress, stop);
        progress.finish();
        let figures = figures?;
        rows.extend(figures.rows(phase.name));
        documents.push(figures.document(phase.name));
    }
    runtime.block_on(producer.close(Duration::from_secs(5)));
    let records = stream.verify_ends(&mut cluster)?;
    if demo.format.json {
        line(&object([
            ("records", records.to_string()),
            ("record_size", demo.record_size.to_string()),
            ("partitions", demo.partitions.to_string()),
            ("phases", array(documents)),
        ]));
        return Ok(());
    }
    line(&format!(
        "\nVerified: {} records of {} bytes on {} partitions, each read once, in order, byte for byte.\n",
        figures::grouped(records),
        figures::grouped(u64::from(demo.record_size)),
        demo.partitions
    ));
    line(&fullbore_bench::report::table(&rows));
    line("\nLatencies count from the time a record was meant to leave; \"read\" is until the reader has verified it.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn demo(records: u64, stop: bool) -> (Result<(), Failure>, PathBuf) {
        let demo =
            Demo { records: Some(records), record_size: 64, partitions: 2, rtt: None, format: Format::default() };
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let broker = runtime.block_on(Broker::start(config(folder.path(), None).expect("valid"))).expect("started");
        let asked = Stop::new();
        if stop {
            asked.ask();
        }
        let outcome = stream(&demo, &broker.addr().to_string(), &runtime, &asked);
        runtime.block_on(broker.shutdown());
        (outcome, folder.path().to_owned())
    }

    #[test]
    fn every_record_comes_back_and_nothing_stays() {
        let (outcome, folder) = demo(5_000, false);
        outcome.expect("verified");
        assert!(!folder.exists());
    }

    #[test]
    fn a_record_nobody_sent_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let broker = runtime.block_on(Broker::start(config(folder.path(), None).expect("valid"))).expect("started");
        let address = broker.addr().to_string();
        let mut cluster = Cluster::new(&address, "test").expect("valid");
        create_topic(&mut cluster, TOPIC, Some(2), None, &[]).expect("created");
        let producer = Producer::new(ProducerConfig::new(&address)).expect("started");
        let mut stream = DemoStream::new(TOPIC, &mut cluster, 64).expect("the topic exists");
        let phase = Phase { name: "test", records: 100, throughput: -1.0 };
        let (progress, stop) = (DemoProgress::new(phase.name, phase.records), Stop::new());
        stream.run(&phase, &mut cluster, &producer, runtime.handle(), &progress, &stop).expect("verified");
        assert_eq!(stream.verify_ends(&mut cluster).expect("nothing more"), 100);
        let stranger = fullbore_producer::ProducerRecord::new(TOPIC, b"x").partition(1);
        runtime.block_on(async { producer.send(stranger).await.expect("taken").await }).expect("written");
        let found = stream.verify_ends(&mut cluster).expect_err("one too many").to_string();
        assert_eq!(found, "partition 1: sent 50 records, read 50, and the log ends at 51");
        runtime.block_on(broker.shutdown());
    }

    #[test]
    fn an_interrupted_demo_says_so() {
        let (outcome, _) = demo(1_000_000_000, true);
        assert!(outcome.expect_err("interrupted").to_string().contains("interrupted"));
    }
}
