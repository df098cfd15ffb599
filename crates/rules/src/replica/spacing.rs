//! When a leader answers one of several fetches that a follower keeps under way.
//!
//! A record waits for the next answer, and then for one round trip. If each fetch were answered as soon as there is
//! anything, all that are under way would be answered at once, and whatever comes then waits for their
//! acknowledgements: up to a round trip more. So answers are a share of the round trip apart, as long as something is
//! under way:
//!
//! ```text
//! answered at once   ||||||||                    ||||||||                   a record waits 0 to 1 round trips
//! spaced             |   |   |   |   |   |   |   |   |   |   |   |          a record waits 0 to 1/8
//!                    '------ a round trip -------'
//! ```
//!
//! Not here: what is answered. Invariant: what is due waits for no longer than the follower's acknowledgement would
//! take.

/// Times are microseconds of a clock that only goes forward.
#[derive(Clone, Debug)]
pub struct Spacing {
    /// Fetches that the follower keeps under way.
    depth: i64,
    /// The least round trip seen, or `None` before the first.
    round_trip_us: Option<i64>,
    last_answer_us: i64,
    /// The end of what was sent.
    sent: i64,
    acknowledged: i64,
    /// An answer whose acknowledgement measures the round trip: its end, and when it went.
    measured: Option<(i64, i64)>,
}

/// Between two answers, at least, us.
pub const SPACING_MIN_US: i64 = 250;
/// So much that waits is answered at once, bytes.
pub const SPACING_BYTES_MAX: u64 = 1 << 20;

impl Spacing {
    /// Creates the state of a follower that has every record before `offset`, and keeps `depth` fetches under way.
    pub fn new(depth: usize, offset: i64) -> Spacing {
        Spacing {
            depth: i64::try_from(depth).unwrap_or(i64::MAX).max(1),
            round_trip_us: None,
            last_answer_us: 0,
            sent: offset,
            acknowledged: offset,
            measured: None,
        }
    }

    /// The follower has everything before `offset`.
    pub fn acknowledged(&mut self, offset: i64, now_us: i64) {
        self.acknowledged = self.acknowledged.max(offset);
        if let Some((_, went_us)) = self.measured.take_if(|(end, _)| *end <= offset) {
            let sample = (now_us - went_us).max(1);
            self.round_trip_us = Some(self.round_trip_us.map_or(sample, |least| least.min(sample)));
        }
    }

    /// A fetch was answered with what comes before `end`.
    pub fn answered(&mut self, end: i64, now_us: i64) {
        self.last_answer_us = now_us;
        if end > self.sent {
            self.sent = end;
            self.measured.get_or_insert((end, now_us));
        }
    }

    /// When the next fetch is to be answered, of what so many bytes wait: now, or later.
    pub fn due_us(&self, waiting_bytes: u64, now_us: i64) -> i64 {
        if self.acknowledged >= self.sent || waiting_bytes >= SPACING_BYTES_MAX {
            return now_us;
        }
        let share_us = self.round_trip_us.unwrap_or(0) / self.depth;
        (self.last_answer_us + share_us.max(SPACING_MIN_US)).max(now_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_nothing_under_way_an_answer_goes_at_once() {
        let spacing = Spacing::new(8, 100);
        assert_eq!(spacing.due_us(1, 7), 7);
    }

    #[test]
    fn then_answers_are_a_share_of_the_round_trip_apart() {
        let mut spacing = Spacing::new(8, 100);
        spacing.answered(101, 1_000);
        assert_eq!(spacing.due_us(1, 1_001), 1_000 + SPACING_MIN_US, "the round trip is not known");
        spacing.answered(102, 1_250);
        spacing.acknowledged(101, 9_000);
        assert_eq!(spacing.due_us(1, 9_000), 9_000, "longer ago than a share");
        spacing.answered(103, 9_000);
        assert_eq!(spacing.due_us(1, 9_001), 10_000);
        assert_eq!(spacing.due_us(SPACING_BYTES_MAX, 9_001), 9_001, "enough waits");
        spacing.acknowledged(103, 9_500);
        assert_eq!(spacing.due_us(1, 9_500), 9_500, "everything is there");
    }

    #[test]
    fn the_least_round_trip_counts() {
        let mut spacing = Spacing::new(4, 0);
        for (n, took) in [(1, 4_000), (2, 2_000), (3, 8_000)] {
            let went = i64::from(n) * 100_000;
            spacing.answered(n.into(), went);
            spacing.acknowledged(n.into(), went + took);
        }
        spacing.answered(9, 900_000);
        assert_eq!(spacing.due_us(1, 900_000), 900_500);
    }
}
