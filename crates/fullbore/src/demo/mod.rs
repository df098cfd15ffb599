//! `fullbore demo` runs a broker, a producer and a reader in one process, and checks that no record is lost.
//!
//! The demo uses a temporary directory and a free port. It removes its data at the end, also after Ctrl-C and if its
//! output has no reader any more.

mod diskless;
mod distance;
pub mod figures;
mod link;
mod plain;
mod play;
mod progress;
mod stream;

use crate::failure::Failure;
use crate::output::{self, Format, line, words};
use crate::stop::{Stop, hide_panics_of_a_stopped_runtime};
use clap::Args;
use fullbore_bench::workload::VALUE_LEN_MIN;
use play::{Ground, Play};
use std::time::Duration;
use stream::Phase;
use tempfile::TempDir;

/// The number of records in the first phase.
const RECORDS: u64 = 1_000_000;
/// The number of records in the first phase over a distance. They take 16 s, so that the slow first round trips hardly
/// affect the rate.
const DISTANT_RECORDS: u64 = 400_000;
/// The number of records in the first phase on an object store.
const DISKLESS_RECORDS: u64 = 200_000;
/// The number of records per second in the second phase. The rate is low, so that the latencies do not include waiting
/// in a full buffer.
const PACED_RECORDS_PER_SEC: u64 = 10_000;
/// How long the removal of the data may take after Ctrl-C.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of attempts to remove the data of a broker that may still run.
const REMOVALS_MAX: usize = 10;
/// How long the second phase takes, in seconds.
const PACED_SECONDS: u64 = 3;

/// Start a broker, stream records through it, read and verify them while they arrive, and print the rates.
///
/// After the verification, --json prints {"records", "record_size", "partitions", "phases": [{"name", "records",
/// "bytes", "acknowledged": {"records_per_sec", "mb_per_sec", "p50_ms", "p99_ms", "p999_ms", "max_ms"}, "read": the
/// same}]}. With --rtt there is also "plain_mb_per_sec", the rate of a TCP stream.
#[derive(Args, Debug, Default)]
#[command(after_help = "Example: fullbore demo --records 200000 --record-size 100 --partitions 6\n\
    Example: fullbore demo --rtt 150\n\
    Example: fullbore demo --diskless --put 150ms --get 50ms")]
pub struct Demo {
    /// The number of records to stream [default: 1000000, with --rtt 400000, with --diskless 200000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
    /// Bytes of each record's value.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(VALUE_LEN_MIN as i64..=1 << 19))]
    record_size: u32,
    /// The number of partitions of the topic.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=1000))]
    partitions: i32,
    #[command(flatten)]
    link: link::LinkOptions,
    #[command(flatten)]
    store: diskless::StoreOptions,
    #[command(flatten)]
    format: Format,
}

impl Demo {
    fn play(&self) -> Play {
        let paced = (PACED_RECORDS_PER_SEC * PACED_SECONDS).min(self.records());
        let phases = vec![
            Phase::flat_out("as fast as it goes", self.records()),
            Phase { throughput: PACED_RECORDS_PER_SEC as f64, ..Phase::flat_out("at 10,000 records/s", paced) },
        ];
        let Demo { record_size, partitions, .. } = *self;
        let (sets, configs, producer) = Default::default();
        Play { sets, configs, phases, record_size, partitions, distance: self.link.settings(), producer }
    }

    fn records(&self) -> u64 {
        let by_default = match (self.store.diskless, self.link.rtt) {
            (true, _) => DISKLESS_RECORDS,
            (false, Some(_)) => DISTANT_RECORDS,
            (false, None) => RECORDS,
        };
        self.records.unwrap_or(by_default)
    }
}

/// Runs the demo.
pub fn run(demo: Demo) -> Result<(), Failure> {
    demo.format.choose();
    let directory = tempfile::Builder::new().prefix("fullbore-demo-").tempdir().map_err(|error| {
        let place = std::env::temp_dir();
        Failure::new(format!("cannot make a directory in {}: {error}; set TMPDIR to one that exists", place.display()))
    })?;
    let data = directory.path().to_owned();
    // If the data cannot be removed after a second signal, the error is ignored, because the system cleans its
    // temporary directory.
    let stop = Stop::at_signal(Box::new(move || drop(std::fs::remove_dir_all(data))))?;
    stop.allow(REMOVED_WITHIN);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ground = Ground { directory: directory.path(), runtime: &runtime, stop: &stop };
    let outcome = match demo.store.diskless {
        true => diskless::run(&demo.store, demo.play(), demo.format.json, &ground),
        false => match demo.link.settings() {
            Some(settings) => link::run(&settings, demo.play(), demo.format.json, &ground),
            None => classic(&demo, &ground),
        },
    };
    match stop.is_requested() {
        true => {
            hide_panics_of_a_stopped_runtime();
            runtime.shutdown_background();
        }
        false => drop(runtime),
    }
    remove(directory, &stop)?;
    if output::is_lost() {
        // If the output has no reader any more, the command has not failed.
        return Ok(());
    }
    outcome?;
    words("Broker stopped, data removed. Next: fullbore serve");
    Ok(())
}

/// Removes the data. Retries, because a broker that is still stopping may create files.
fn remove(directory: TempDir, stop: &Stop) -> std::io::Result<()> {
    let path = directory.path().to_owned();
    match directory.close() {
        Err(_) if stop.is_requested() => (0..REMOVALS_MAX)
            .map(|_| std::fs::remove_dir_all(&path))
            .find(Result::is_ok)
            .unwrap_or_else(|| std::fs::remove_dir_all(&path)),
        closed => closed,
    }
}

fn classic(demo: &Demo, ground: &Ground<'_>) -> Result<(), Failure> {
    let play = demo.play();
    let played = play.on_a_broker("data", ground)?;
    if demo.format.json {
        let documents = played.phases.iter().map(|(name, figures, _)| figures.document(name)).collect();
        line(&play.document(played.records, documents, None));
        return Ok(());
    }
    played.print(&play);
    line(
        "\nLatencies count from the time when a record was due; \"read\" ends when the reader has verified the record.",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn demo(records: u64, stop: bool) -> (Result<(), Failure>, PathBuf) {
        let demo = Demo { records: Some(records), record_size: 64, partitions: 2, ..Demo::default() };
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let requested = Stop::new();
        if stop {
            requested.request();
        }
        let ground = Ground { directory: directory.path(), runtime: &runtime, stop: &requested };
        (classic(&demo, &ground), directory.path().to_owned())
    }

    #[test]
    fn every_record_is_verified_and_no_data_stay() {
        let (outcome, directory) = demo(5_000, false);
        outcome.expect("verified");
        assert!(!directory.exists());
    }

    #[test]
    fn an_interrupted_demo_reports_it() {
        let (outcome, _) = demo(1_000_000_000, true);
        assert!(outcome.expect_err("interrupted").to_string().contains("interrupted"));
    }
}
