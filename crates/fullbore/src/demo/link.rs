//! `fullbore demo --rtt` runs the demo over a distance. For comparison, it also measures a plain TCP stream and a
//! producer with the settings of Kafka's producer.

use super::distance::DistanceSettings;
use super::play::{Ground, Play};
use super::stream::Phase;
use super::{figures::grouped, plain};
use crate::failure::Failure;
use crate::output::{line, words};
use clap::Args;
use fullbore_bench::link::units;
use fullbore_bench::report::json::fraction;
use std::time::Duration;

/// How many requests per connection, and batches per partition, Kafka's producer has in flight.
const KAFKA_IN_FLIGHT: usize = 5;
/// The batch size of Kafka's producer, in bytes (batch.size). Unlike ours, a batch does not grow beyond this size while
/// it waits.
const KAFKA_BATCH_BYTES: usize = 16 * 1024;
/// The size of the socket buffers of Kafka's broker, which limits the bytes per round trip
/// (socket.receive.buffer.bytes).
const KAFKA_SOCKET_BYTES: usize = 100 * 1024;
/// How long the demo gives records to the producer with Kafka's settings. Sending its buffered records takes longer.
const KAFKA_SENDS_FOR: Duration = Duration::from_secs(5);
const KAFKA: &str = "as Kafka's producer sends";
/// The size of a request without its batches, in bytes.
const REQUEST_ROOM: usize = 1024;
/// The minimum and maximum buffer of the producer with Kafka's settings, in bytes. A small buffer is empty soon after
/// the demo gives no more records.
const KAFKA_BUFFER_BYTES: (usize, usize) = (512 * 1024, 4 << 20);

/// Flags of the link to the clients.
#[derive(Args, Debug, Default)]
pub struct LinkOptions {
    /// Put a round trip of this many milliseconds (150, or 150ms, 1s) between the broker and its clients, by the relay
    /// of `fullbore perf link`.
    #[arg(long, allow_hyphen_values = true, value_name = "MS", value_parser = units::milliseconds)]
    pub rtt: Option<Duration>,
    /// The bandwidth of that link in each direction: 200mbit, 25MB/s [default: 200mbit].
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = units::rate, requires = "rtt")]
    pub bandwidth: Option<u64>,
}

impl LinkOptions {
    /// Returns the settings of the link, or `None` without a link.
    pub fn settings(&self) -> Option<DistanceSettings> {
        let bandwidth = Some(self.bandwidth.unwrap_or(25_000_000));
        self.rtt.map(|rtt| DistanceSettings { bandwidth, ..DistanceSettings::new(rtt) })
    }
}

/// Runs both streams over this link, measures a plain TCP stream over a link of the same kind, and prints the results.
///
/// # Errors
/// Returns [`Failure`] if [`Play::on_a_broker`] returns one.
pub fn run(settings: &DistanceSettings, play: Play, is_json: bool, ground: &Ground<'_>) -> Result<(), Failure> {
    words("A plain TCP stream over the link, for comparison");
    let plain = plain::stream(settings, ground.runtime, ground.stop)?;
    let played = play.on_a_broker("data", ground)?;
    let kafka = as_kafka(settings, play);
    let beside = kafka.on_a_broker("kafka", ground)?;
    let phases = || played.phases.iter().chain(&beside.phases);
    if is_json {
        let documents = phases().map(|(name, figures, _)| figures.document(name)).collect();
        let plain = ("plain_mb_per_sec", fraction(plain / 1e6, 3));
        line(&kafka.document(played.records + beside.records, documents, Some(plain)));
        return Ok(());
    }
    played.print(&kafka);
    beside.print(&kafka);
    line(&format!("\nA plain TCP stream carries {:.1} MB/s over this link. Of that, acknowledged:\n", plain / 1e6));
    let mut rows = vec![["", "MB/s", "of plain", "records"].map(str::to_owned).to_vec()];
    rows.extend(phases().map(|(name, figures, _)| {
        let rate = figures.bytes as f64 / figures.produce_time.as_secs_f64();
        let (shown, share) = (format!("{:.1}", rate / 1e6), format!("{:.0} %", rate / plain * 100.0));
        vec![(*name).to_owned(), shown, share, grouped(figures.records)]
    }));
    line(&fullbore_bench::report::table(&rows));
    line(
        "\nLatencies count from the time when a record was due; \"read\" ends when the reader has verified the record.\n\
         Kafka's way: 5 batches of 16 KiB of each partition in flight on one connection, and 100 KiB of socket buffers.",
    );
    Ok(())
}

/// Returns the same demo with Kafka's default settings for the producer, and with only one phase, of limited duration.
fn as_kafka(settings: &DistanceSettings, play: Play) -> Play {
    let partitions = play.partitions.unsigned_abs() as usize;
    // A request has one batch of each partition.
    let batches = partitions * KAFKA_BATCH_BYTES;
    let request = (batches + REQUEST_ROOM).max(play.record_size as usize + REQUEST_ROOM);
    let buffer = (2 * KAFKA_IN_FLIGHT * batches).clamp(KAFKA_BUFFER_BYTES.0, KAFKA_BUFFER_BYTES.1).max(2 * request);
    let set = |key, value: usize| (key, value.to_string());
    let producer = vec![
        set("max.in.flight.requests.per.connection", KAFKA_IN_FLIGHT),
        set("connections.per.broker", 1),
        set("batch.size", KAFKA_BATCH_BYTES),
        set("max.request.size", request),
        set("buffer.memory", buffer),
    ];
    let records = play.phases.first().map_or(0, |phase| phase.records);
    let phases = vec![Phase { limit: Some(KAFKA_SENDS_FOR), ..Phase::flat_out(KAFKA, records) }];
    // `KAFKA_SOCKET_BYTES` is a limit for a whole round trip. A relay holds each byte for only half of the round trip,
    // so the relay gets half of the limit.
    let distance = Some(DistanceSettings { in_flight_max: KAFKA_SOCKET_BYTES / 2, ..settings.clone() });
    Play { producer, phases, distance, ..play }
}
