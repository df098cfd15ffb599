//! `fullbore demo`: a broker, a producer and a reader in one process, and proof that nothing was lost on the way.
//!
//! Nothing stays behind: data is in a temporary folder, the port is a free one, and Ctrl-C cleans up too, as does a
//! reader of the output that goes away.

mod diskless;
mod distance;
pub mod figures;
mod play;
mod progress;
mod stream;

use crate::failure::Failure;
use crate::output::{self, Format, line, words};
use crate::stop::Stop;
use clap::Args;
use fullbore_bench::link::units;
use fullbore_bench::workload::VALUE_LEN_MIN;
use play::{Ground, Play};
use std::time::Duration;
use stream::Phase;

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
#[derive(Args, Debug, Default)]
#[command(after_help = "Example: fullbore demo --records 200000 --record-size 100 --partitions 6\n\
    Example: fullbore demo --rtt 150\n\
    Example: fullbore demo --diskless --put 150ms --get 50ms")]
pub struct Demo {
    /// How many records to stream [default: 1000000, with --rtt or --diskless 200000].
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
    store: diskless::StoreOptions,
    #[command(flatten)]
    format: Format,
}

impl Demo {
    fn play(&self) -> Play {
        let paced = (PACED_RECORDS_PER_SEC * PACED_SECONDS).min(self.records());
        let phases = vec![
            Phase { name: "as fast as it goes", records: self.records(), throughput: -1.0 },
            Phase { name: "at 10,000 records/s", records: paced, throughput: PACED_RECORDS_PER_SEC as f64 },
        ];
        let Demo { record_size, partitions, rtt, .. } = *self;
        Play { sets: Vec::new(), configs: Vec::new(), phases, record_size, partitions, rtt }
    }

    fn records(&self) -> u64 {
        self.records.unwrap_or(if self.rtt.is_some() || self.store.diskless { DISTANT_RECORDS } else { RECORDS })
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
    let stop = Stop::at_signal(Box::new(move || drop(std::fs::remove_dir_all(data))))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ground = Ground { folder: folder.path(), runtime: &runtime, stop: &stop };
    let outcome = match demo.store.diskless {
        true => diskless::run(&demo.store, demo.play(), demo.format.json, &ground),
        false => classic(&demo, &ground),
    };
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

fn classic(demo: &Demo, ground: &Ground<'_>) -> Result<(), Failure> {
    let play = demo.play();
    let played = play.on_a_broker("data", ground)?;
    if demo.format.json {
        let documents = played.phases.iter().map(|(name, figures, _)| figures.document(name)).collect();
        line(&play.document(played.records, documents));
        return Ok(());
    }
    played.tell(&play);
    line("\nLatencies count from the time a record was meant to leave; \"read\" is until the reader has verified it.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn demo(records: u64, stop: bool) -> (Result<(), Failure>, PathBuf) {
        let demo = Demo { records: Some(records), record_size: 64, partitions: 2, ..Demo::default() };
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let asked = Stop::new();
        if stop {
            asked.ask();
        }
        let ground = Ground { folder: folder.path(), runtime: &runtime, stop: &asked };
        (classic(&demo, &ground), folder.path().to_owned())
    }

    #[test]
    fn every_record_comes_back_and_nothing_stays() {
        let (outcome, folder) = demo(5_000, false);
        outcome.expect("verified");
        assert!(!folder.exists());
    }

    #[test]
    fn an_interrupted_demo_says_so() {
        let (outcome, _) = demo(1_000_000_000, true);
        assert!(outcome.expect_err("interrupted").to_string().contains("interrupted"));
    }
}
