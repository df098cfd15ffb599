//! `fullbore demo --diskless` runs the demo on a distant object store, and compares the rate with that of a producer
//! that has only one request in flight on each connection.

use std::time::Duration;

use clap::Args;
use fullbore_bench::link::units;
use fullbore_bench::report::json::{fraction, object, string};
use fullbore_broker::StoreUse;

use super::figures::Figures;
use super::play::{Ground, Play};
use super::stream::Phase;
use crate::failure::Failure;
use crate::output::line;

/// How long the demo gives records to the producer with one request in flight. Sending its buffered records takes
/// longer.
const SERIAL_SENDS_FOR: Duration = Duration::from_secs(5);
/// The buffer of the producer with one request in flight, in bytes. Sending a full buffer takes some seconds.
const SERIAL_BUFFER_BYTES: usize = 4 << 20;
const SERIAL: &str = "one request at a time";
/// The prices of a PUT and of a GET in dollars, in Amazon's S3 Standard in us-east-1.
const DOLLARS: (f64, f64) = (5e-6, 0.4e-6);
const SECONDS_A_MONTH: f64 = 30.4 * 86_400.0;

/// Flags of the topic's object store.
#[derive(Args, Debug, Default)]
pub struct StoreOptions {
    /// Store the records in an object store (here a directory), and compare with one request at a time.
    #[arg(long)]
    pub diskless: bool,
    /// The time that a PUT takes (150, or 150ms, 1s) [default: 150ms].
    #[arg(long, allow_hyphen_values = true, value_name = "MS", value_parser = units::milliseconds, requires = "diskless")]
    pub put: Option<Duration>,
    /// The time that a GET takes [default: 50ms].
    #[arg(long, allow_hyphen_values = true, value_name = "MS", value_parser = units::milliseconds, requires = "diskless")]
    pub get: Option<Duration>,
}

impl StoreOptions {
    fn put(&self) -> Duration {
        self.put.unwrap_or(Duration::from_millis(150))
    }

    fn get(&self) -> Duration {
        self.get.unwrap_or(Duration::from_millis(50))
    }

    fn sets(&self) -> Vec<(&'static str, String)> {
        let ms = |time: Duration| time.as_millis().to_string();
        vec![("fullbore.diskless.put.delay.ms", ms(self.put())), ("fullbore.diskless.get.delay.ms", ms(self.get()))]
    }
}

/// Runs both streams and prints their results.
///
/// # Errors
/// Returns [`Failure`] if [`Play::on_a_broker`] returns one.
pub fn run(store: &StoreOptions, play: Play, is_json: bool, ground: &Ground<'_>) -> Result<(), Failure> {
    let configs = vec![("diskless.enable".to_owned(), "true".to_owned())];
    let play = Play { sets: store.sets(), configs: configs.clone(), ..play };
    let played = play.on_a_broker("pipelined", ground)?;
    let mut sets = store.sets();
    sets.push(("diskless.puts.per.second.max", "0".into()));
    sets.push(("fullbore.connection.requests.max", "1".into()));
    let phases = vec![Phase { limit: Some(SERIAL_SENDS_FOR), ..Phase::flat_out(SERIAL, play.phases[0].records) }];
    let producer = vec![("buffer.memory", SERIAL_BUFFER_BYTES.to_string())];
    let serial = Play { sets, configs, phases, producer, ..play };
    let one_by_one = serial.on_a_broker("serial", ground)?;
    let phases = || played.phases.iter().chain(&one_by_one.phases);
    if is_json {
        let documents = phases().map(|(name, figures, used)| document(name, figures, used)).collect();
        line(&serial.document(played.records + one_by_one.records, documents, None));
        return Ok(());
    }
    played.print(&serial);
    one_by_one.print(&serial);
    let mut rows = vec![["", "MB/s", "MB per PUT", "PUTs/s", "GETs", "$ a month"].map(str::to_owned).to_vec()];
    rows.extend(phases().map(|(name, figures, used)| row(name, figures, used)));
    line(&format!("\nA PUT takes {} ms and a GET {} ms.\n", store.put().as_millis(), store.get().as_millis()));
    line(&fullbore_bench::report::table(&rows));
    line(
        "\nDollars are for the requests of a month at this rate, at 5 for a million PUTs and 0.40 for a million GETs.",
    );
    Ok(())
}

/// Returns the figures of a phase: MB/s, MB per PUT, PUTs per second, GETs, and dollars per month.
fn costs(figures: &Figures, used: &StoreUse) -> [f64; 5] {
    let (seconds, mb) = (figures.produce_time.as_secs_f64(), figures.bytes as f64 / 1e6);
    let (puts, gets) = (used.puts as f64, used.gets as f64);
    let dollars = (puts * DOLLARS.0 + gets * DOLLARS.1) / seconds * SECONDS_A_MONTH;
    [mb / seconds, mb / puts.max(1.0), puts / seconds, gets, dollars]
}

fn row(name: &str, figures: &Figures, used: &StoreUse) -> Vec<String> {
    let [rate, per_put, puts, gets, dollars] = costs(figures, used);
    vec![
        name.to_owned(),
        format!("{rate:.1}"),
        format!("{per_put:.2}"),
        format!("{puts:.1}"),
        format!("{gets:.0}"),
        format!("{dollars:.0}"),
    ]
}

fn document(name: &str, figures: &Figures, used: &StoreUse) -> String {
    let [rate, per_put, puts, gets, dollars] = costs(figures, used);
    object([
        ("name", string(name)),
        ("mb_per_sec", fraction(rate, 3)),
        ("mb_per_put", fraction(per_put, 3)),
        ("puts_per_sec", fraction(puts, 3)),
        ("gets", fraction(gets, 0)),
        ("dollars_per_month", fraction(dollars, 2)),
        ("figures", figures.document(name)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;
    use fullbore_bench::measure::Latencies;

    #[test]
    fn costs_are_those_of_a_month_at_the_rate_of_a_phase() {
        let figures = Figures {
            records: 100,
            bytes: 80_000_000,
            produce_time: Duration::from_secs(2),
            read_time: Duration::from_secs(2),
            acknowledged: Latencies::default(),
            read: Latencies::default(),
        };
        let used = StoreUse { puts: 20, gets: 10, ..StoreUse::default() };
        assert_eq!(row("x", &figures, &used), ["x", "40.0", "4.00", "10.0", "10", "137"]);
    }

    #[test]
    fn records_are_verified_on_a_slow_store() {
        let store = StoreOptions { diskless: true, put: Some(Duration::from_millis(20)), get: None };
        let phases = vec![Phase::flat_out("some", 500)];
        let (sets, configs, producer) = Default::default();
        let play = Play { sets, configs, phases, record_size: 64, partitions: 2, distance: None, producer };
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let ground = Ground { directory: directory.path(), runtime: &runtime, stop: &Stop::new() };
        run(&store, play, false, &ground).expect("verified");
    }
}
