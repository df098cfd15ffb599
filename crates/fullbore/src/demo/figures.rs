//! The figures of the demo, as a table and as JSON.

use fullbore_bench::measure::Latencies;
use fullbore_bench::report::json::{fraction, object, string};
use std::time::Duration;

/// The measurement of one phase.
pub struct Figures {
    /// How many records were sent and read.
    pub records: u64,
    /// The total size of the records' values, in bytes.
    pub bytes: u64,
    /// The time until the last record was acknowledged.
    pub produce_time: Duration,
    /// The time until the last record was read and verified.
    pub read_time: Duration,
    /// The latencies of the records, until each was acknowledged.
    pub acknowledged: Latencies,
    /// The latencies of the records, until each was read and verified.
    pub read: Latencies,
}

/// Returns the row with the names of the columns.
pub fn heading() -> Vec<Vec<String>> {
    vec![["", "records/s", "MB/s", "p50", "p99", "p99.9", "max"].map(str::to_owned).to_vec()]
}

impl Figures {
    /// Returns the three rows of a phase: its name, the figures of acknowledged records, and the figures of read
    /// records.
    pub fn rows(&self, phase: &str) -> Vec<Vec<String>> {
        vec![
            vec![phase.to_owned()],
            self.row("  acknowledged", self.produce_time, &self.acknowledged),
            self.row("  read", self.read_time, &self.read),
        ]
    }

    /// Returns the figures as JSON, with the same names as in a sweep.
    pub fn document(&self, phase: &str) -> String {
        object([
            ("name", string(phase)),
            ("records", self.records.to_string()),
            ("bytes", self.bytes.to_string()),
            ("acknowledged", self.object(self.produce_time, &self.acknowledged)),
            ("read", self.object(self.read_time, &self.read)),
        ])
    }

    fn object(&self, time: Duration, latencies: &Latencies) -> String {
        let (seconds, p) = (time.as_secs_f64(), latencies.percentiles());
        let ms = |us: u64| fraction(us as f64 / 1e3, 3);
        object([
            ("records_per_sec", fraction(self.records as f64 / seconds, 3)),
            ("mb_per_sec", fraction(self.bytes as f64 / seconds / 1e6, 3)),
            ("p50_ms", ms(p.p50_us)),
            ("p99_ms", ms(p.p99_us)),
            ("p999_ms", ms(p.p999_us)),
            ("max_ms", ms(p.max_us)),
        ])
    }

    fn row(&self, name: &str, time: Duration, latencies: &Latencies) -> Vec<String> {
        let seconds = time.as_secs_f64();
        let p = latencies.percentiles();
        let mut row = vec![
            name.to_owned(),
            grouped((self.records as f64 / seconds) as u64),
            format!("{:.1}", self.bytes as f64 / seconds / 1e6),
        ];
        row.extend([p.p50_us, p.p99_us, p.p999_us, p.max_us].map(milliseconds));
        row
    }
}

fn milliseconds(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1e3)
}

/// Formats a number with commas, for example 1234567 as 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_row_of_figures_has_rate_volume_and_latencies() {
        let mut latencies = Latencies::default();
        latencies.record(1_500, 2_000);
        let figures = Figures {
            records: 2_000,
            bytes: 2_000_000,
            produce_time: Duration::from_secs(2),
            read_time: Duration::from_secs(1),
            acknowledged: latencies.clone(),
            read: latencies,
        };
        let rows = figures.rows("phase");
        assert_eq!(rows[1], ["  acknowledged", "1,000", "1.0", "1.50 ms", "1.50 ms", "1.50 ms", "1.50 ms"]);
        assert_eq!(rows[2][1], "2,000");
        let document = figures.document("phase");
        let start =
            "{\"name\":\"phase\",\"records\":2000,\"bytes\":2000000,\"acknowledged\":{\"records_per_sec\":1000.000,";
        assert!(document.starts_with(start), "{document}");
    }
}
