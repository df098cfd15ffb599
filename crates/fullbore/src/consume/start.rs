//! Where reading starts and ends: kcat's -o, and the offsets it means in each partition.

use crate::failure::Failure;
use fullbore_bench::client::{ClientError, Cluster, EARLIEST, LATEST, PartitionPlace, offsets_of};

/// One `--offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `beginning`.
    Beginning,
    /// `end`.
    End,
    /// A number.
    At(i64),
    /// A number below zero: so many before the end.
    Back(i64),
    /// `s@MS`, or `@MS`: the first record at this time or later.
    From(i64),
    /// `e@MS`: end before the first record at this time or later.
    Until(i64),
}

/// Reads one.
///
/// # Errors
/// What is allowed.
pub fn mark(text: &str) -> Result<Mark, String> {
    let allowed =
        || "must be beginning, end, an OFFSET, -COUNT before the end, s@MS to start at a time, e@MS to end before one";
    let time = |text: &str| text.parse::<i64>().ok().filter(|ms| *ms >= 0).ok_or_else(|| allowed().to_owned());
    match text {
        "beginning" | "earliest" => Ok(Mark::Beginning),
        "end" | "latest" => Ok(Mark::End),
        _ => match (text.strip_prefix("s@").or(text.strip_prefix('@')), text.strip_prefix("e@")) {
            (Some(ms), _) => time(ms).map(Mark::From),
            (_, Some(ms)) => time(ms).map(Mark::Until),
            _ => match text.parse::<i64>() {
                Ok(count) if text.starts_with('-') => Ok(Mark::Back(count.saturating_neg())),
                Ok(offset) => Ok(Mark::At(offset)),
                Err(_) => Err(allowed().to_owned()),
            },
        },
    }
}

/// Where to start and what to end before, of the marks given.
///
/// # Errors
/// Two of a kind.
pub fn start_and_end(marks: &[Mark], otherwise: Mark) -> Result<(Mark, Option<i64>), Failure> {
    let (mut start, mut until) = (None, None);
    for mark in marks {
        let doubled = match mark {
            Mark::Until(ms) => until.replace(*ms).is_some(),
            mark => start.replace(*mark).is_some(),
        };
        if doubled {
            return Err(Failure::new("--offset: one place to start and one e@MS to end before, not two of a kind"));
        }
    }
    Ok((start.unwrap_or(otherwise), until))
}

/// The offset of each partition to start with.
///
/// # Errors
/// When a leader cannot be asked.
pub fn offsets(
    cluster: &Cluster,
    places: &[PartitionPlace],
    start: Mark,
    read_committed: bool,
) -> Result<Vec<i64>, ClientError> {
    let at = |timestamp| offsets_of(cluster, places, timestamp, read_committed);
    Ok(match start {
        Mark::Beginning => at(EARLIEST)?,
        Mark::End | Mark::Until(_) => at(LATEST)?,
        Mark::At(offset) => vec![offset; places.len()],
        Mark::Back(count) => {
            let (starts, ends) = (at(EARLIEST)?, at(LATEST)?);
            ends.into_iter().zip(starts).map(|(end, start)| end.saturating_sub(count).max(start)).collect()
        }
        Mark::From(ms) => {
            let (found, ends) = (at(ms)?, at(LATEST)?);
            found.into_iter().zip(ends).map(|(found, end)| if found < 0 { end } else { found }).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_kcats() {
        for (text, expected) in [
            ("beginning", Mark::Beginning),
            ("latest", Mark::End),
            ("0", Mark::At(0)),
            ("17", Mark::At(17)),
            ("-5", Mark::Back(5)),
            ("s@1000", Mark::From(1000)),
            ("@1000", Mark::From(1000)),
            ("e@1000", Mark::Until(1000)),
        ] {
            assert_eq!(mark(text), Ok(expected), "{text}");
        }
        for wrong in ["", "x", "s@", "e@-1", "1.5", "stored", "@x"] {
            assert!(mark(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_start_and_one_end() {
        let both = [Mark::From(1), Mark::Until(2)];
        assert_eq!(start_and_end(&both, Mark::End).ok(), Some((Mark::From(1), Some(2))));
        assert_eq!(start_and_end(&[], Mark::End).ok(), Some((Mark::End, None)));
        assert!(start_and_end(&[Mark::End, Mark::At(1)], Mark::End).is_err());
    }
}
