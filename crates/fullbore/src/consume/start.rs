//! The start and end of a read, in the syntax of kcat's -o.

use crate::failure::Failure;
use crate::time::datetime;
use fullbore_client::consume::StartOffset;

/// The value of one `--offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A start: `beginning`, `end`, an offset, a negative number (-3 is 3 records before the end), `s@TIME` or `@TIME`.
    /// A time is a number of milliseconds since 1970, or is written like `2026-11-21T08:00`, which also needs no `s@`.
    Start(StartOffset),
    /// An end: `e@TIME`. The read ends before the first record of this time or later.
    Until(i64),
}

/// Parses the value of one `--offset`.
///
/// # Errors
/// Returns a text with the allowed values if `text` is not one of them.
pub fn mark(text: &str) -> Result<Mark, String> {
    let allowed = || {
        "must be beginning, end, an OFFSET, -COUNT before the end, s@TIME to start at a time, or e@TIME to end before \
         a time; TIME is in ms since 1970, or like 2026-11-21T08:00:00.000, UTC unless it ends like +01:00"
            .to_owned()
    };
    // No record has a time before 1970, so such a time is the beginning.
    let date = |text: &str| datetime(text).map(|ms| ms.max(0)).map_err(|_| allowed());
    let time = |text: &str| match text.parse::<i64>() {
        Ok(ms) => Some(ms).filter(|ms| *ms >= 0).ok_or_else(allowed),
        Err(_) => date(text),
    };
    match text {
        "beginning" | "earliest" => Ok(Mark::Start(StartOffset::Earliest)),
        "end" | "latest" => Ok(Mark::Start(StartOffset::Latest)),
        _ => match (text.strip_prefix("s@").or(text.strip_prefix('@')), text.strip_prefix("e@")) {
            (Some(ms), _) => time(ms).map(|ms| Mark::Start(StartOffset::From(ms))),
            (_, Some(ms)) => time(ms).map(Mark::Until),
            _ => match text.parse::<i64>() {
                Ok(count) if text.starts_with('-') => Ok(Mark::Start(StartOffset::Back(count.saturating_neg()))),
                Ok(offset) => Ok(Mark::Start(StartOffset::At(offset))),
                Err(_) => date(text).map(|ms| Mark::Start(StartOffset::From(ms))),
            },
        },
    }
}

/// Returns the start and the end that these values set. `otherwise` is the start if no value sets one.
///
/// # Errors
/// Fails if two values both set the start, or both set the end.
pub fn start_and_end(marks: &[Mark], otherwise: StartOffset) -> Result<(StartOffset, Option<i64>), Failure> {
    let (mut start, mut until) = (None, None);
    for mark in marks {
        let doubled = match mark {
            Mark::Until(ms) => until.replace(*ms).is_some(),
            Mark::Start(mark) => start.replace(*mark).is_some(),
        };
        if doubled {
            return Err(Failure::new("--offset: give at most one start and at most one end (e@TIME)"));
        }
    }
    Ok((start.unwrap_or(otherwise), until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_offset_are_kcats_and_times() {
        for (text, expected) in [
            ("beginning", Mark::Start(StartOffset::Earliest)),
            ("latest", Mark::Start(StartOffset::Latest)),
            ("0", Mark::Start(StartOffset::At(0))),
            ("17", Mark::Start(StartOffset::At(17))),
            ("-5", Mark::Start(StartOffset::Back(5))),
            ("s@1000", Mark::Start(StartOffset::From(1000))),
            ("@1000", Mark::Start(StartOffset::From(1000))),
            ("e@1000", Mark::Until(1000)),
            ("2000-02-29T00:00", Mark::Start(StartOffset::From(951_782_400_000))),
            ("s@2000-02-29T01:00:00.000+01:00", Mark::Start(StartOffset::From(951_782_400_000))),
            ("@2000-02-29T00:00:01Z", Mark::Start(StartOffset::From(951_782_401_000))),
            ("e@2000-02-29T00:00", Mark::Until(951_782_400_000)),
            ("1969-12-31T00:00", Mark::Start(StartOffset::From(0))),
        ] {
            assert_eq!(mark(text), Ok(expected), "{text}");
        }
        for wrong in ["", "x", "s@", "e@-1", "1.5", "stored", "@x", "e@2000-02-29", "2000-02-30T00:00"] {
            assert!(mark(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_start_and_one_end_are_accepted_and_two_of_a_kind_refused() {
        let both = [Mark::Start(StartOffset::From(1)), Mark::Until(2)];
        assert_eq!(start_and_end(&both, StartOffset::Latest).ok(), Some((StartOffset::From(1), Some(2))));
        assert_eq!(start_and_end(&[], StartOffset::Latest).ok(), Some((StartOffset::Latest, None)));
        let two = [Mark::Start(StartOffset::Latest), Mark::Start(StartOffset::At(1))];
        assert!(start_and_end(&two, StartOffset::Latest).is_err());
    }
}
