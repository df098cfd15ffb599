//! The lines of kafka-producer-perf-test (`ProducerPerformance` of Kafka 4.3), and one line that this tool lacks.

use super::java::{fixed, megabytes, rate};
use super::json::{fraction, object, string};
use super::table::table;
use crate::measure::{IntervalCounts, Latencies, Summary};

/// The line that is printed before the first reporting interval of the steady state.
pub const STEADY_LINE: &str = "In steady state.";

/// Returns the line that is printed at the start of a run with a warmup.
pub fn warmup_line(records: u64) -> String {
    format!("Warmup first {records} records. Steady state results will print after the complete test summary.")
}

/// Returns the line of one reporting interval.
pub fn window_line(window: &IntervalCounts, kafkas: bool) -> String {
    let seconds = window.elapsed.as_secs_f64();
    format!(
        "{} records sent, {} records/sec ({} MB/sec), {} ms avg latency, {} ms max latency.",
        window.records,
        rate(window.records as f64 / seconds, 1, kafkas),
        rate(megabytes(window.bytes) / seconds, 2, kafkas),
        fixed(window.latency_us_sum as f64 / window.records as f64 / 1e3, 1),
        fixed(window.latency_us_max as f64 / 1e3, 1),
    )
}

/// Returns the line of the whole run or of its steady state. Percentiles are in whole milliseconds as in Kafka's tool,
/// rounded to the nearest.
pub fn summary_line(summary: &Summary, kafkas: bool) -> String {
    let seconds = summary.elapsed.as_secs_f64();
    let latencies = &summary.latencies;
    let whole_ms = |quantile| (latencies.quantile_us(quantile) + 500) / 1000;
    format!(
        "{}{} records sent, {} records/sec ({} MB/sec), {} ms avg latency, {} ms max latency, \
         {} ms 50th, {} ms 95th, {} ms 99th, {} ms 99.9th.",
        summary.records,
        if summary.steady { " steady state" } else { "" },
        rate(summary.records as f64 / seconds, 6, kafkas),
        rate(megabytes(summary.bytes) / seconds, 2, kafkas),
        fixed(latencies.mean_us() / 1e3, 2),
        fixed(latencies.max_us() as f64 / 1e3, 2),
        whole_ms(0.5),
        whole_ms(0.95),
        whole_ms(0.99),
        whole_ms(0.999),
    )
}

/// Returns one reporting interval as an object on one line. A megabyte has 10^6 bytes, as in a sweep's figures.
pub fn window_json(window: &IntervalCounts) -> String {
    let seconds = window.elapsed.as_secs_f64();
    object([
        ("kind", string("interval")),
        ("records", window.records.to_string()),
        ("bytes", window.bytes.to_string()),
        ("elapsed_ms", fraction(seconds * 1e3, 3)),
        ("records_per_sec", fraction(window.records as f64 / seconds, 3)),
        ("mb_per_sec", fraction(window.bytes as f64 / 1e6 / seconds, 3)),
        ("avg_ms", fraction(window.latency_us_sum as f64 / window.records as f64 / 1e3, 3)),
        ("max_ms", fraction(window.latency_us_max as f64 / 1e3, 3)),
    ])
}

/// Returns the whole run or its steady state as an object on one line. The names are those of a sweep's figures.
pub fn summary_json(summary: &Summary) -> String {
    let seconds = summary.elapsed.as_secs_f64();
    let latencies = &summary.latencies;
    let quantile = |quantile| match latencies.count() {
        0 => super::json::null(),
        _ => fraction(latencies.quantile_us(quantile) as f64 / 1e3, 3),
    };
    object([
        ("kind", string(if summary.steady { "steady_state" } else { "summary" })),
        ("records", summary.records.to_string()),
        ("bytes", summary.bytes.to_string()),
        ("elapsed_ms", fraction(seconds * 1e3, 3)),
        ("records_per_sec", fraction(summary.records as f64 / seconds, 3)),
        ("mb_per_sec", fraction(summary.bytes as f64 / 1e6 / seconds, 3)),
        ("avg_ms", fraction(latencies.mean_us() / 1e3, 3)),
        ("p50_ms", quantile(0.5)),
        ("p95_ms", quantile(0.95)),
        ("p99_ms", quantile(0.99)),
        ("p999_ms", quantile(0.999)),
        ("max_ms", fraction(latencies.max_us() as f64 / 1e3, 3)),
    ])
}

/// Returns the lines of `--latency-us`. They show the distribution of latencies in microseconds, because whole
/// milliseconds are too coarse for short latencies.
pub fn precise_latency_lines(latencies: &Latencies) -> String {
    let quantiles =
        [("50th", 0.5), ("90th", 0.9), ("95th", 0.95), ("99th", 0.99), ("99.9th", 0.999), ("99.99th", 0.9999)];
    let mut rows = vec![vec!["latency".to_owned(), "us".to_owned()]];
    rows.extend(quantiles.map(|(name, quantile)| vec![name.to_owned(), latencies.quantile_us(quantile).to_string()]));
    rows.push(vec!["max".to_owned(), latencies.max_us().to_string()]);
    rows.push(vec!["mean".to_owned(), fixed(latencies.mean_us(), 1)]);
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Lines that were captured from Kafka 4.3.1 with
    /// `--num-records 200000 --record-size 100 --throughput 30000 --warmup-records 50000`.
    const KAFKA_WINDOW: &str =
        "59890 records sent, 29915.1 records/sec (2.85 MB/sec), 4.5 ms avg latency, 25.0 ms max latency.";
    const KAFKA_STEADY: &str = "150000 steady state records sent, 29626.703535 records/sec (2.83 MB/sec), 4.21 ms avg \
        latency, 25.00 ms max latency, 4 ms 50th, 9 ms 95th, 16 ms 99th, 21 ms 99.9th.";
    const KAFKA_WARMUP: &str =
        "Warmup first 50000 records. Steady state results will print after the complete test summary.";

    #[test]
    fn a_window_is_the_line_kafkas_tool_printed_for_the_same_figures() {
        let window = IntervalCounts {
            records: 59_890,
            bytes: 5_989_000,
            elapsed: Duration::from_millis(2_002),
            latency_us_sum: 59_890 * 4_500,
            latency_us_max: 25_000,
            first_steady: false,
        };
        assert_eq!(window_line(&window, true), KAFKA_WINDOW);
        assert_eq!(window_line(&window, false), KAFKA_WINDOW.replace("29915.1", "29915"));
    }

    #[test]
    fn a_summary_is_the_line_kafkas_tool_printed_for_the_same_figures() {
        // These 150,000 latencies have the percentiles of the captured line, and its mean to two digits.
        let mut latencies = Latencies::default();
        for (us, count) in [(3_116, 70_000), (4_000, 40_000), (5_000, 31_000), (9_000, 6_900), (16_000, 1_600)] {
            latencies.record(us, count);
        }
        latencies.record(21_000, 499);
        latencies.record(25_000, 1);
        let elapsed = Duration::from_millis(5_063);
        let summary = Summary { records: 150_000, bytes: 15_000_000, elapsed, latencies, steady: true };
        assert_eq!(summary_line(&summary, true), KAFKA_STEADY);
        assert_eq!(summary_line(&summary, false), KAFKA_STEADY.replace("29626.703535", "29627"));
        let whole = summary_line(&Summary { steady: false, ..summary }, true);
        assert_eq!(whole, KAFKA_STEADY.replace(" steady state", ""));
    }

    #[test]
    fn figures_are_json_on_one_line() {
        let mut latencies = Latencies::default();
        let empty =
            Summary { records: 0, bytes: 0, elapsed: Duration::ZERO, latencies: Latencies::default(), steady: false };
        latencies.record(1_600, 2);
        let summary =
            Summary { records: 2, bytes: 4_000_000, elapsed: Duration::from_secs(2), latencies, steady: true };
        let window = IntervalCounts {
            records: 1,
            bytes: 1,
            elapsed: Duration::from_secs(1),
            latency_us_sum: 5,
            latency_us_max: 5,
            first_steady: false,
        };
        for line in [summary_json(&empty), summary_json(&summary), window_json(&window)] {
            crate::report::json::assert_is_json(&line);
            assert_eq!(line.lines().count(), 1, "{line}");
        }
        let reported = summary_json(&summary);
        assert!(reported.starts_with("{\"kind\":\"steady_state\",\"records\":2,\"bytes\":4000000,"), "{reported}");
        assert!(
            reported.contains("\"records_per_sec\":1.000,\"mb_per_sec\":2.000,\"avg_ms\":1.600,\"p50_ms\":1.600"),
            "{reported}"
        );
        assert!(summary_json(&empty).contains("\"records_per_sec\":null"), "{}", summary_json(&empty));
    }

    #[test]
    fn the_warmup_line_is_kafkas() {
        assert_eq!(warmup_line(50_000), KAFKA_WARMUP);
    }

    #[test]
    fn percentiles_are_rounded_to_the_nearest_millisecond() {
        let mut latencies = Latencies::default();
        latencies.record(1_600, 1);
        let summary = Summary { records: 1, bytes: 1, elapsed: Duration::from_secs(1), latencies, steady: false };
        assert!(summary_line(&summary, true).contains(" 2 ms 50th,"));
    }
}
