//! Counts errors, with one counter for each error code that Kafka knows.
//!
//! Invariant: an unknown code is counted as UNKNOWN_SERVER_ERROR.

use super::counter::Counter;
use fullbore_wire::ErrorCode;

/// Number of counters. Kafka's codes are -1 (UNKNOWN_SERVER_ERROR) to 133, and the other counters are for future codes.
const CODES: usize = 144;

/// How often each error code has occurred.
#[derive(Debug)]
pub struct Errors {
    /// The counters. The counter of an error code is at the index code + 1.
    by_code: [Counter; CODES],
}

impl Default for Errors {
    fn default() -> Self {
        Errors { by_code: std::array::from_fn(|_| Counter::default()) }
    }
}

impl Errors {
    pub fn add(&self, code: ErrorCode) {
        let at = usize::try_from(i32::from(code.0) + 1).ok().filter(|at| *at < CODES && code.name().is_some());
        self.by_code[at.unwrap_or(0)].add(1);
    }

    /// Returns the names and counts of those codes that have occurred.
    pub fn occurred(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = (-1..).zip(&self.by_code).map(|(code, count)| (ErrorCode(code), count.get()));
        counts.filter(|(_, count)| *count > 0).filter_map(|(code, count)| Some((code.name()?, count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_code_is_counted_under_a_name() {
        let errors = Errors::default();
        for code in [i16::MIN, -2, 999, i16::MAX] {
            errors.add(ErrorCode(code));
        }
        errors.add(ErrorCode::MESSAGE_TOO_LARGE);
        let occurred: Vec<_> = errors.occurred().collect();
        assert_eq!(occurred, [("UNKNOWN_SERVER_ERROR", 4), ("MESSAGE_TOO_LARGE", 1)]);
    }

    #[test]
    fn every_known_code_has_its_counter() {
        let known = (i16::MIN..=i16::MAX).map(ErrorCode).filter(|code| code.name().is_some());
        for code in known {
            let errors = Errors::default();
            errors.add(code);
            assert_eq!(errors.occurred().next(), code.name().map(|name| (name, 1)));
        }
    }
}
