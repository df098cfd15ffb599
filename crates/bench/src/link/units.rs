//! Parses durations, rates, sizes and probabilities as people write them: `150ms`, `200mbit`, `64KiB`, `0.1%`.
//!
//! Settings with Kafka's names are bare numbers and are not parsed here. Invariant: a number without a unit is refused
//! if it could have two meanings, unless the number is zero.

use std::time::Duration;

/// The longest duration that is accepted. A longer one is probably a typing error.
const DURATION_MAX: Duration = Duration::from_secs(3600);
/// The number of bits in a byte, because rates are stored in bytes.
const BITS: f64 = 8.0;

/// Parses `150ms`, `1.5s`, `500us` or `0`.
///
/// # Errors
/// Returns a sentence with the allowed values if `text` is not a duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let allowed = "must be a duration with its unit, such as 150ms, 1.5s or 500us";
    let (number, unit) = split(text).ok_or(allowed)?;
    let seconds = match unit {
        "us" | "µs" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "" if number == 0.0 => 0.0,
        _ => return Err(allowed.to_owned()),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= DURATION_MAX => Ok(duration),
        _ => Err(format!("must be at most {} s", DURATION_MAX.as_secs())),
    }
}

/// Parses `150`, which means milliseconds, or any text that [`duration`] accepts.
///
/// # Errors
/// Returns a sentence with the allowed values if `text` is not a duration.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(_) => duration(&format!("{}ms", text.trim())),
        Err(_) => duration(text),
    }
}

/// Parses bytes per second from `200mbit`, `1.5gbit`, `64kbit` or `25MB/s`, `25MiB/s`. Never returns 0.
///
/// # Errors
/// Returns a sentence with the allowed values if `text` is not a rate.
pub fn rate(text: &str) -> Result<u64, String> {
    let allowed = "must be a rate with its unit, such as 200mbit, 1gbit, 64kbit (bits a second) or 25MB/s";
    let (number, unit) = split(text).ok_or(allowed)?;
    let lower = unit.to_ascii_lowercase();
    let bits = lower.strip_suffix("/s").unwrap_or(&lower);
    let bytes_per_sec = match (bits, unit) {
        ("bit", _) => number / BITS,
        ("kbit", _) => number * 1e3 / BITS,
        ("mbit", _) => number * 1e6 / BITS,
        ("gbit", _) => number * 1e9 / BITS,
        (_, "B/s" | "kB/s" | "KB/s" | "MB/s" | "GB/s" | "KiB/s" | "MiB/s" | "GiB/s") => {
            number * bytes_of(&unit[..unit.len() - 2]).ok_or(allowed)?
        }
        _ => return Err(allowed.to_owned()),
    };
    match bytes_per_sec {
        bytes if (1.0..=1e12).contains(&bytes) => Ok(bytes as u64),
        _ => Err("must be from 8bit to 8000gbit".to_owned()),
    }
}

/// Parses bytes from `64KiB`, `1MB`, `1.5MiB`, `100B` or a bare number.
///
/// # Errors
/// Returns a sentence with the allowed values if `text` is not a size.
pub fn size(text: &str) -> Result<u64, String> {
    let allowed = "must be a size such as 64KiB, 1MB or a number of bytes";
    let (number, unit) = split(text).ok_or(allowed)?;
    let bytes = number * if unit.is_empty() { 1.0 } else { bytes_of(unit).ok_or(allowed)? };
    if bytes <= 1e12 { Ok(bytes as u64) } else { Err("must be at most 1000GB".to_owned()) }
}

/// Parses a probability from `0.1%` or `0.001`.
///
/// # Errors
/// Returns a sentence with the allowed values if `text` is not a probability.
pub fn probability(text: &str) -> Result<f64, String> {
    let allowed = "must be a probability such as 0.1% or 0.001, below 100%";
    let (number, unit) = split(text).ok_or(allowed)?;
    let probability = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(allowed.to_owned()),
    };
    if probability < 1.0 { Ok(probability) } else { Err(allowed.to_owned()) }
}

fn bytes_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        _ => return None,
    })
}

/// Splits a number that is not negative from the text that follows it. Returns `None` if there is no such number.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let ms = Duration::from_millis;
        for (text, expected) in [("150ms", ms(150)), ("1.5s", ms(1500)), ("500us", ms(1) / 2), ("0", ms(0))] {
            assert_eq!(duration(text), Ok(expected), "{text}");
        }
        for text in ["150", "", "ms", "-1ms", "1m", "1 day", "1e3ms", "nan", "1..5s"] {
            let refusal = duration(text).expect_err(text);
            assert!(refusal.contains("150ms"), "{refusal}");
        }
        assert_eq!(duration("2000000000s"), Err("must be at most 3600 s".to_owned()));
    }

    #[test]
    fn a_bare_number_may_be_milliseconds() {
        assert_eq!(milliseconds("150"), Ok(Duration::from_millis(150)));
        assert_eq!(milliseconds("150ms"), duration("150ms"));
        assert_eq!(milliseconds("1s"), duration("1s"));
        for text in ["-150", "150m", "inf", "nan"] {
            milliseconds(text).expect_err(text);
        }
    }

    #[test]
    fn bits_and_bytes_a_second_are_not_confused() {
        for (text, expected) in [
            ("200mbit", 25_000_000),
            ("200Mbit/s", 25_000_000),
            ("1gbit", 125_000_000),
            ("64kbit", 8_000),
            ("25MB/s", 25_000_000),
            ("1MiB/s", 1_048_576),
            ("8bit", 1),
        ] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        // "mb" and "mbps" mean bits to some people and bytes to others.
        for text in ["200", "200mb", "200mbps", "200MB", "mbit", "-1mbit"] {
            let refusal = rate(text).expect_err(text);
            assert!(refusal.contains("200mbit"), "{refusal}");
        }
        assert!(rate("0mbit").expect_err("nothing passes").contains("8bit"));
    }

    #[test]
    fn sizes_may_be_bare() {
        for (text, expected) in [("100", 100), ("64KiB", 65_536), ("1MB", 1_000_000), ("1.5MiB", 1_572_864)] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for text in ["", "1mb", "1 apple", "99999999GB"] {
            size(text).expect_err(text);
        }
    }

    #[test]
    fn probabilities_are_below_one() {
        assert_eq!(probability("0.1%"), Ok(0.001));
        assert_eq!(probability("0.25"), Ok(0.25));
        assert_eq!(probability("0"), Ok(0.0));
        for text in ["100%", "1", "1.5", "-0.1", "1x", ""] {
            probability(text).expect_err(text);
        }
    }
}
