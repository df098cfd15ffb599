//! Decides when a leader responds to the fetches that a follower keeps in flight.
//!
//! Each response uses up one of the fetches that wait at the leader. If each record were sent at once, these fetches
//! would soon be used up. Later records would then wait up to a round trip, until the follower's next fetches arrive.
//! So while a response is unacknowledged, the leader lets a share of the round trip pass between two responses:
//!
//! ```text
//! at once            ||||||||                    ||||||||                   a record waits 0 to 1 round trips
//! spaced             |   |   |   |   |   |   |   |   |   |   |   |          a record waits 0 to 1/8
//!                    '------ a round trip -------'
//! ```
//!
//! The contents of responses are not here. Invariant: once all responses are acknowledged, no record is held back.

/// Spreads the responses to a follower. All times are in microseconds of a monotonic clock.
#[derive(Clone, Debug)]
pub struct Spacing {
    /// How many fetches the follower keeps in flight.
    depth: i64,
    /// The shortest round trip that was measured; `None` before the first one.
    round_trip_us: Option<i64>,
    last_answer_us: i64,
    /// The offset after the last record that was sent.
    sent: i64,
    acknowledged: i64,
    /// The response whose acknowledgement will measure the round trip: its end offset, and when it was sent.
    measured: Option<(i64, i64)>,
}

/// Minimum time between two responses, in us.
pub const SPACING_MIN_US: i64 = 250;
/// If the waiting records have at least this many bytes, they are sent at once.
pub const SPACING_BYTES_MAX: u64 = 1 << 20;

impl Spacing {
    /// Creates the state for a follower that has all records before `offset` and keeps `depth` fetches in flight.
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

    /// Notes that the follower has all records before `offset`.
    pub fn acknowledged(&mut self, offset: i64, now_us: i64) {
        self.acknowledged = self.acknowledged.max(offset);
        if let Some((_, went_us)) = self.measured.take_if(|(end, _)| *end <= offset) {
            let sample = (now_us - went_us).max(1);
            self.round_trip_us = Some(self.round_trip_us.map_or(sample, |least| least.min(sample)));
        }
    }

    /// Notes that a response with records up to `end` was sent.
    pub fn answered(&mut self, end: i64, now_us: i64) {
        self.last_answer_us = now_us;
        if end > self.sent {
            self.sent = end;
            self.measured.get_or_insert((end, now_us));
        }
    }

    /// Returns when the next response may be sent, while `waiting_bytes` wait. The result is never before `now_us`.
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
    fn no_response_in_flight_the_next_goes_at_once() {
        let spacing = Spacing::new(8, 100);
        assert_eq!(spacing.due_us(1, 7), 7);
    }

    #[test]
    fn responses_in_flight_are_a_share_of_the_round_trip_apart() {
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
    fn least_round_trip_counts() {
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
