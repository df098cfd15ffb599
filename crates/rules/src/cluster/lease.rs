//! When a broker is held for dead: by its beats, which the database has the times of, and by its port.
//!
//! ```text
//! beats of the judge   | | | |      outage      | | | | | | | | | |
//! beats of a peer      | | | |                  | | |
//!                                               '-- whole timeout --' only now may the judge say that the peer is dead
//! ```
//!
//! After an outage of the database everybody's last beat is old. So who judges must have beaten for a whole timeout
//! himself: in that time everybody that lives has beaten again. What it is not: it keeps nobody from serving. Epochs do
//! that.

/// State of another broker at this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerEvidence {
    /// Since its last beat, by the database's clock, ms.
    pub beat_age_ms: i64,
    /// True if a connection to it closed since, and its port refuses a new one: the process is gone.
    pub refuses: bool,
}

/// Such a part of the timeout without a beat is a gap.
const GAPS_PER_TIMEOUT: u64 = 4;

/// Holds others for dead (`broker.session.timeout.ms`).
#[derive(Clone, Debug)]
pub struct FailureDetector {
    session_timeout_ms: i64,
    /// The first and the last of the own beats that came one after the other.
    beaten: Option<(i64, i64)>,
}

/// A gap is so many beats long at least.
const BEATS_PER_GAP: u64 = 2;

/// How often a broker beats that was told to do so this often, ms: more often where its beats would be gaps, since then
/// it would hold nobody for dead.
pub fn beat_interval_ms(wanted_ms: u64, session_timeout_ms: u64) -> u64 {
    wanted_ms.min(session_timeout_ms / GAPS_PER_TIMEOUT / BEATS_PER_GAP).max(1)
}

/// A peer whose port refuses is dead once its last beat is so old, ms: two beats are missing.
pub const REFUSING_BEAT_AGE_MS: i64 = 1_000;

impl FailureDetector {
    /// Creates the detector before the first heartbeat.
    pub fn new(session_timeout_ms: i64) -> FailureDetector {
        FailureDetector { session_timeout_ms, beaten: None }
    }

    /// A beat of the own broker's has arrived, at this time of a clock that only goes forward, ms.
    pub fn beat(&mut self, now_ms: i64) {
        self.beaten = match self.beaten {
            Some((first, last)) if !self.is_gap(last, now_ms) => Some((first, now_ms)),
            _ => Some((now_ms, now_ms)),
        };
    }

    /// A quarter of the timeout without a beat: the others may not have come through either.
    fn is_gap(&self, last_ms: i64, now_ms: i64) -> bool {
        now_ms.saturating_sub(last_ms) > self.session_timeout_ms / GAPS_PER_TIMEOUT as i64
    }

    /// Returns true if this broker has beaten for a whole timeout until now.
    pub fn may_judge(&self, now_ms: i64) -> bool {
        self.beaten.is_some_and(|(first, last)| {
            !self.is_gap(last, now_ms) && last.saturating_sub(first) >= self.session_timeout_ms
        })
    }

    /// Returns true if the peer is dead.
    pub fn is_dead(&self, peer: &PeerEvidence, now_ms: i64) -> bool {
        let timeout_ms = if peer.refuses { REFUSING_BEAT_AGE_MS } else { self.session_timeout_ms };
        self.may_judge(now_ms) && peer.beat_age_ms >= timeout_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT_MS: i64 = 9_000;
    const SILENT: PeerEvidence = PeerEvidence { beat_age_ms: TIMEOUT_MS, refuses: false };

    fn beating(detector: &mut FailureDetector, from_ms: i64, to_ms: i64) {
        (from_ms..=to_ms).step_by(500).for_each(|ms| detector.beat(ms));
    }

    #[test]
    fn who_has_not_beaten_for_a_whole_timeout_holds_nobody_for_dead() {
        let mut detector = FailureDetector::new(TIMEOUT_MS);
        assert!(!detector.is_dead(&SILENT, 0));
        beating(&mut detector, 0, 8_500);
        assert!(!detector.is_dead(&SILENT, 8_500));
        detector.beat(9_000);
        assert!(detector.is_dead(&SILENT, 9_000));
        assert!(!detector.is_dead(&PeerEvidence { beat_age_ms: TIMEOUT_MS - 1, ..SILENT }, 9_000));
    }

    #[test]
    fn an_outage_of_the_database_begins_the_timeout_anew() {
        let mut detector = FailureDetector::new(TIMEOUT_MS);
        beating(&mut detector, 0, 20_000);
        assert!(!detector.is_dead(&SILENT, 50_000), "its own last beat is old");
        beating(&mut detector, 50_000, 58_500);
        assert!(!detector.is_dead(&SILENT, 58_500));
        detector.beat(59_000);
        assert!(detector.is_dead(&SILENT, 59_000));
    }

    /// 500 ms apart, the beats of who waits 2 s for others were gaps.
    #[test]
    fn beats_are_no_gaps_however_short_the_timeout_is() {
        for session_timeout_ms in [8, 100, 2_000, 9_000, 60_000] {
            let every = beat_interval_ms(500, session_timeout_ms as u64) as i64;
            let mut detector = FailureDetector::new(session_timeout_ms);
            // Each a little late.
            let mut now_ms = 0;
            while now_ms <= 2 * session_timeout_ms {
                detector.beat(now_ms);
                now_ms += every + every / 2;
            }
            assert!(detector.may_judge(now_ms - every), "{session_timeout_ms}");
        }
        assert_eq!(beat_interval_ms(500, 9_000), 500);
    }

    #[test]
    fn a_port_that_refuses_is_enough_once_two_beats_are_missing() {
        let mut detector = FailureDetector::new(TIMEOUT_MS);
        beating(&mut detector, 0, TIMEOUT_MS);
        let refusing = |beat_age_ms| PeerEvidence { beat_age_ms, refuses: true };
        assert!(!detector.is_dead(&refusing(999), TIMEOUT_MS));
        assert!(detector.is_dead(&refusing(1_000), TIMEOUT_MS));
        assert!(!FailureDetector::new(TIMEOUT_MS).is_dead(&refusing(1_000), TIMEOUT_MS));
    }
}
