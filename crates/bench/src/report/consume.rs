//! The lines of kafka-consumer-perf-test (`ConsumerPerformance` of Kafka 4.3).

use super::java::{fixed, megabytes, rate};
use super::json::{fraction, object, string};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The header of the summary line.
pub const CONSUME_HEADER: &str = "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, \
    rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec";
/// The header for `--show-detailed-stats`.
pub const CONSUME_HEADER_DETAILED: &str = "time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, \
    nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec";

/// The count of records at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Consumed {
    /// When the records were counted.
    pub at: SystemTime,
    /// How many records had been read until then.
    pub records: u64,
    /// The size of the keys and values of the records that had been read, in bytes.
    pub bytes: u64,
}

fn ms_between(from: SystemTime, to: SystemTime) -> i64 {
    epoch_ms(to) - epoch_ms(from)
}

fn epoch_ms(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Returns the summary of a run. `setup` is the time in which the partitions and their first offsets were looked up.
/// Kafka's tool calls it the rebalance time.
pub fn consume_line(from: Consumed, to: Consumed, setup: Duration, dates: &DateFormat, kafkas: bool) -> String {
    let elapsed_ms = ms_between(from.at, to.at);
    let setup_ms = (setup.as_millis() as i64).min(elapsed_ms);
    let fetch_ms = elapsed_ms - setup_ms;
    let (mb, records) = (megabytes(to.bytes - from.bytes), (to.records - from.records) as f64);
    let per_sec = |amount: f64, ms: i64| rate(amount / (ms as f64 / 1000.0), 4, kafkas);
    format!(
        "{}, {}, {}, {}, {}, {}, {}, {}, {}, {}",
        dates.format(from.at),
        dates.format(to.at),
        fixed(mb, 4),
        per_sec(mb, elapsed_ms),
        to.records - from.records,
        per_sec(records, elapsed_ms),
        setup_ms,
        fetch_ms,
        per_sec(mb, fetch_ms),
        per_sec(records, fetch_ms),
    )
}

/// Returns the records read between two times as an object on one line. `kind` is `interval` or `summary`. A megabyte
/// has 10^6 bytes, and times are in milliseconds since 1970.
pub fn consume_json(kind: &str, from: Consumed, to: Consumed, setup: Duration) -> String {
    let elapsed_ms = ms_between(from.at, to.at);
    let setup_ms = (setup.as_millis() as i64).min(elapsed_ms);
    let (bytes, records) = (to.bytes - from.bytes, to.records - from.records);
    let per_sec = |amount: f64, ms: i64| fraction(amount / (ms as f64 / 1000.0), 3);
    object([
        ("kind", string(kind)),
        ("start_ms", epoch_ms(from.at).to_string()),
        ("end_ms", epoch_ms(to.at).to_string()),
        ("records", records.to_string()),
        ("bytes", bytes.to_string()),
        ("records_per_sec", per_sec(records as f64, elapsed_ms)),
        ("mb_per_sec", per_sec(bytes as f64 / 1e6, elapsed_ms)),
        ("setup_ms", setup_ms.to_string()),
        ("fetch_ms", (elapsed_ms - setup_ms).to_string()),
        ("fetch_records_per_sec", per_sec(records as f64, elapsed_ms - setup_ms)),
        ("fetch_mb_per_sec", per_sec(bytes as f64 / 1e6, elapsed_ms - setup_ms)),
    ])
}

/// Returns the line of one reporting interval of `--show-detailed-stats`: the totals at the end of the interval, and
/// its rates.
pub fn consume_progress_line(
    last: Consumed,
    now: Consumed,
    setup: Duration,
    dates: &DateFormat,
    kafkas: bool,
) -> String {
    let elapsed_ms = ms_between(last.at, now.at);
    let setup_ms = setup.as_millis() as i64;
    let fetch_ms = elapsed_ms - setup_ms;
    let (mb, records) = (megabytes(now.bytes - last.bytes), (now.records - last.records) as f64);
    let per_fetch_sec =
        |amount: f64| rate(if fetch_ms <= 0 { 0.0 } else { 1000.0 * amount / fetch_ms as f64 }, 4, kafkas);
    format!(
        "{}, 0, {}, {}, {}, {}, {}, {}, {}, {}",
        dates.format(now.at),
        fixed(megabytes(now.bytes), 4),
        rate(1000.0 * mb / elapsed_ms as f64, 4, kafkas),
        now.records,
        rate(records / elapsed_ms as f64 * 1000.0, 4, kafkas),
        setup_ms,
        fetch_ms,
        per_fetch_sec(mb),
        per_fetch_sec(records),
    )
}

/// Returns the warning that the timeout passed before the requested number of records was read.
pub fn consume_timeout_line(timeout_ms: u64) -> String {
    format!(
        "WARNING: Exiting before consuming the expected number of records: timeout ({timeout_ms} ms) exceeded. \
         You can use the --timeout option to increase the timeout."
    )
}

/// A subset of Java's `SimpleDateFormat`: the letters `yyyy MM dd HH mm ss SSS`, quotes, and characters other than
/// letters. Times are UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DateFormat(Vec<DatePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum DatePart {
    Number(char, usize),
    Literal(String),
}

/// A letter of a pattern is not supported.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the letter {0:?} is not offered in --date-format; use y, M, d, H, m, s and S, and quote other text with '")]
pub struct DateFormatError(char);

impl Default for DateFormat {
    fn default() -> Self {
        DateFormat::parse("yyyy-MM-dd HH:mm:ss:SSS").expect("the default pattern is valid")
    }
}

impl DateFormat {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns [`DateFormatError`] if a letter is not supported.
    pub fn parse(pattern: &str) -> Result<Self, DateFormatError> {
        let mut pieces: Vec<DatePart> = Vec::new();
        let mut quoted = false;
        for letter in pattern.chars() {
            match (letter, pieces.last_mut()) {
                ('\'', _) => quoted = !quoted,
                (_, Some(DatePart::Number(same, width))) if !quoted && *same == letter => *width += 1,
                ('y' | 'M' | 'd' | 'H' | 'm' | 's' | 'S', _) if !quoted => pieces.push(DatePart::Number(letter, 1)),
                _ if !quoted && letter.is_ascii_alphabetic() => return Err(DateFormatError(letter)),
                (_, Some(DatePart::Literal(text))) => text.push(letter),
                _ => pieces.push(DatePart::Literal(letter.to_string())),
            }
        }
        Ok(DateFormat(pieces))
    }

    /// Formats a time in UTC.
    pub fn format(&self, time: SystemTime) -> String {
        let ms = epoch_ms(time);
        let (year, month, day) = civil(ms.div_euclid(86_400_000));
        let of_day = ms.rem_euclid(86_400_000);
        let piece = |piece: &DatePart| match piece {
            DatePart::Literal(text) => text.clone(),
            DatePart::Number('y', 2) => format!("{:02}", year.rem_euclid(100)),
            DatePart::Number(letter, width) => {
                let value = match letter {
                    'y' => year,
                    'M' => month,
                    'd' => day,
                    'H' => of_day / 3_600_000,
                    'm' => of_day / 60_000 % 60,
                    's' => of_day / 1_000 % 60,
                    _ => of_day % 1_000,
                };
                format!("{value:0width$}")
            }
        };
        self.0.iter().map(piece).collect()
    }
}

/// Converts a number of days since 1970-01-01 into year, month and day (Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch_ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(epoch_ms)
    }

    /// 2026-11-20 22:26:17:590 UTC.
    const START: u64 = 1_795_213_577_590;

    /// The line was captured from Kafka 4.3.1 with `--num-records 100000`, and records of 100 bytes.
    #[test]
    fn the_summary_is_the_line_kafkas_tool_printed_for_the_same_figures() {
        let from = Consumed { at: at(START), records: 0, bytes: 0 };
        let to = Consumed { at: at(START + 2_028), records: 100_207, bytes: 10_020_700 };
        let line = consume_line(from, to, Duration::from_millis(1_502), &DateFormat::default(), true);
        let kafkas = "2026-11-20 22:26:17:590, 2026-11-20 22:26:19:618, 9.5565, 4.7123, 100207, 49411.7357, 1502, 526, \
            18.1682, 190507.6046";
        assert_eq!(line, kafkas);
    }

    /// The line was captured from Kafka 4.3.1 with `--show-detailed-stats --reporting-interval 200`.
    #[test]
    fn progress_is_the_line_kafkas_tool_printed_for_the_same_figures() {
        let last = Consumed { at: at(1_795_213_587_831), records: 28_422, bytes: 2_842_200 };
        let now = Consumed { at: at(1_795_213_588_031), records: 142_416, bytes: 14_241_600 };
        let line = consume_progress_line(last, now, Duration::ZERO, &DateFormat::default(), true);
        let kafkas = "2026-11-20 22:26:28:031, 0, 13.5818, 54.3566, 142416, 569970.0000, 0, 200, 54.3566, 569970.0000";
        assert_eq!(line, kafkas);
        let during_setup = consume_progress_line(last, now, Duration::from_millis(200), &DateFormat::default(), true);
        assert!(during_setup.ends_with(", 200, 0, 0.0000, 0.0000"), "{during_setup}");
    }

    #[test]
    fn headers_and_warning_are_kafkas() {
        assert_eq!(
            CONSUME_HEADER,
            "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
             fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
        );
        assert_eq!(CONSUME_HEADER_DETAILED, CONSUME_HEADER.replace("start.time, end.time", "time, threadId"));
        assert_eq!(
            consume_timeout_line(3000),
            "WARNING: Exiting before consuming the expected number of records: timeout (3000 ms) exceeded. You can use \
             the --timeout option to increase the timeout."
        );
    }

    #[test]
    fn figures_are_json_on_one_line() {
        let from = Consumed { at: at(START), records: 0, bytes: 0 };
        let to = Consumed { at: at(START + 2_000), records: 100, bytes: 4_000_000 };
        let line = consume_json("summary", from, to, Duration::from_millis(1_000));
        assert!(
            line.contains("\"records\":100,\"bytes\":4000000,\"records_per_sec\":50.000,\"mb_per_sec\":2.000"),
            "{line}"
        );
        assert!(line.ends_with("\"fetch_records_per_sec\":100.000,\"fetch_mb_per_sec\":4.000}"), "{line}");
        for line in [line, consume_json("interval", from, from, Duration::ZERO)] {
            crate::report::json::assert_is_json(&line);
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }

    #[test]
    fn nothing_read_in_no_time() {
        let nothing = Consumed { at: at(START), records: 0, bytes: 0 };
        let line = consume_line(nothing, nothing, Duration::ZERO, &DateFormat::default(), true);
        assert!(line.ends_with("0.0000, NaN, 0, NaN, 0, 0, NaN, NaN"), "{line}");
    }

    #[test]
    fn date_patterns() {
        let format = |pattern| DateFormat::parse(pattern).expect("valid").format(at(START));
        assert_eq!(format("yyyy-MM-dd'T'HH:mm:ss.SSS"), "2026-11-20T22:26:17.590");
        assert_eq!(format("d/M/yy"), "20/11/26");
        assert_eq!(DateFormat::parse("yyyy EEE"), Err(DateFormatError('E')));
        assert_eq!(DateFormat::default().format(at(951_782_400_000)), "2000-02-29 00:00:00:000");
    }
}
