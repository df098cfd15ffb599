//! Parses times and durations in the formats of kafka-consumer-groups.sh, in milliseconds.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_MS: i64 = 86_400_000;

/// Returns the present time in ms since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Parses a time like `2026-11-21T08:00:00.000`. It is in UTC unless a zone follows: `Z`, `+01:00`, `+0100`, `+01`.
/// Seconds and their fraction are optional.
pub fn datetime(text: &str) -> Result<i64, String> {
    let allowed = || "must be a time such as 2026-11-21T08:00:00.000, UTC unless it ends like +01:00".to_owned();
    let (date, clock) = text.split_once('T').ok_or_else(allowed)?;
    let (clock, zone) = match clock.find(['Z', '+', '-']) {
        Some(at) => clock.split_at(at),
        None => (clock, "Z"),
    };
    let date: Vec<i64> = date.split('-').map(digits).collect::<Option<_>>().ok_or_else(allowed)?;
    let [year, month, day] = date[..] else { return Err(allowed()) };
    let of_day = of_day(clock).ok_or_else(allowed)?;
    let ahead = zone_ms(zone).ok_or_else(allowed)?;
    let days = days(year, month, day).ok_or_else(allowed)?;
    Ok(days * DAY_MS + of_day - ahead)
}

/// Parses a duration like `P1DT2H3M4.5S`. Each part is optional.
pub fn duration(text: &str) -> Result<i64, String> {
    let allowed = || "must be a duration such as P1DT2H30M or PT90S".to_owned();
    let rest = text.strip_prefix('P').ok_or_else(allowed)?;
    let (days, clock) = match rest.split_once('T') {
        Some((days, clock)) if !clock.is_empty() => (days, clock),
        Some(_) => return Err(allowed()),
        None => (rest, ""),
    };
    let mut total = 0.0;
    let mut is_any = false;
    for (part, units) in [(days, &[('D', 86_400.0)][..]), (clock, &[('H', 3_600.0), ('M', 60.0), ('S', 1.0)])] {
        let mut part = part;
        for (letter, seconds) in units {
            if let Some((number, rest)) = part.split_once(*letter) {
                let number: f64 = number.parse().ok().filter(|number| *number >= 0.0).ok_or_else(allowed)?;
                total += number * seconds;
                part = rest;
                is_any = true;
            }
        }
        if !part.is_empty() {
            return Err(allowed());
        }
    }
    if is_any && total < i64::MAX as f64 / 1e3 { Ok((total * 1e3) as i64) } else { Err(allowed()) }
}

fn digits(text: &str) -> Option<i64> {
    if (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

fn of_day(clock: &str) -> Option<i64> {
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<i64> = whole.split(':').map(digits).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts[..] {
        [hours, minutes] => (hours, minutes, 0),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    digits(fraction)?;
    let ms = format!("{fraction:0<3}")[..3].parse::<i64>().ok()?;
    let is_valid = hours < 24 && minutes < 60 && seconds < 60;
    is_valid.then_some(((hours * 60 + minutes) * 60 + seconds) * 1000 + ms)
}

/// Returns how many milliseconds a zone is ahead of UTC, or `None` if the text is not a zone.
fn zone_ms(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let rest = rest.replace(':', "");
    let (hours, minutes) = match rest.len() {
        2 => (digits(&rest)?, 0),
        4 => (digits(rest.get(..2)?)?, digits(rest.get(2..)?)?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60_000)
}

/// Returns the number of days since 1970-01-01 (Hinnant's `days_from_civil`), or `None` if the month does not have this
/// day.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_with_zone_and_fraction() {
        // 2026-11-20 22:26:17.590 UTC in ms since 1970.
        const MS: i64 = 1_795_213_577_590;
        for text in [
            "2026-11-20T22:26:17.590",
            "2026-11-20T22:26:17.590Z",
            "2026-11-20T23:26:17.590+01:00",
            "2026-11-20T21:56:17.59-0030",
            "2026-11-21T00:26:17.590+02",
        ] {
            assert_eq!(datetime(text), Ok(MS), "{text}");
        }
        assert_eq!(datetime("1970-01-01T00:00"), Ok(0));
        assert_eq!(datetime("2000-02-29T00:00:00"), Ok(951_782_400_000));
        for wrong in [
            "2026-11-20",
            "2026-13-01T00:00",
            "2026-02-29T00:00",
            "2026-11-20T24:00",
            "xT00:00",
            "2026-11-20T1é",
            "2026-11-20T10:00+aé1",
        ] {
            assert!(datetime(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_parsed_in_days_hours_minutes_and_seconds() {
        for (text, ms) in [
            ("PT1S", 1_000),
            ("PT0.5S", 500),
            ("P1D", DAY_MS),
            ("P1DT2H3M4S", DAY_MS + 7_384_000),
            ("PT90M", 5_400_000),
        ] {
            assert_eq!(duration(text), Ok(ms), "{text}");
        }
        for wrong in ["", "P", "PT", "1h", "P1H", "PT1D", "PT-1S", "P1DT", "PT1S1M", "PTnanS", "PT1e30S"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
