//! Detects failed brokers. A broker is considered failed if its last heartbeat in the database is too old. A broker
//! whose port refuses connections is considered failed sooner.
//!
//! ```text
//! this broker's heartbeats   | | | |      outage      | | | | | | | | | |
//! a peer's heartbeats        | | | |                  | | |
//!                                                     '-- whole timeout --' only now the peer may be considered failed
//! ```
//!
//! After an outage of the database, the last heartbeat of every broker is old. So a peer's silence counts only while
//! this broker's own heartbeats reach the database. Such a span counts if it lasts a quarter of the session timeout, in
//! which every live broker has sent a heartbeat. A database that stalls again and again only delays the decision. A
//! broker that is considered failed may still be running. The epochs, not this detector, keep it from serving.

use std::collections::VecDeque;

/// The evidence that a broker has about the state of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerEvidence {
    /// The age of the peer's last heartbeat, measured by the database's clock, in ms.
    pub heartbeat_age_ms: i64,
    /// True if a connection to the peer has closed since its last heartbeat, and the peer's port refuses new
    /// connections. The peer's process has then ended.
    pub refuses: bool,
}

/// Two heartbeats have a gap between them if they are further apart than the session timeout divided by this number.
const GAPS_PER_TIMEOUT: u64 = 4;

/// Decides for a broker which of the others have failed (`broker.session.timeout.ms`).
#[derive(Clone, Debug)]
pub struct FailureDetector {
    session_timeout_ms: i64,
    /// The times of this broker's first and last heartbeat since the last gap; `None` before the first heartbeat.
    uninterrupted: Option<(i64, i64)>,
    /// The spans before the last gap that count, oldest first. A span that is older than a whole session timeout of
    /// later ones is removed, so there are at most as many as [`GAPS_PER_TIMEOUT`].
    before: VecDeque<(i64, i64)>,
}

/// Minimum number of heartbeats that a broker sends in a quarter of the session timeout, so that none of its pauses
/// counts as a gap.
const HEARTBEATS_PER_GAP: u64 = 2;

/// Returns the interval of heartbeats in ms. This is `wanted_ms`, or less if `wanted_ms` would cause gaps. A broker
/// with gaps never considers another one failed.
pub fn heartbeat_interval_ms(wanted_ms: u64, session_timeout_ms: u64) -> u64 {
    wanted_ms.min(session_timeout_ms / GAPS_PER_TIMEOUT / HEARTBEATS_PER_GAP).max(1)
}

/// The age of the last heartbeat, in ms, at which a peer whose port refuses connections is considered failed. At the
/// default interval, two heartbeats are missing then.
pub const REFUSING_HEARTBEAT_AGE_MS: i64 = 1_000;

impl FailureDetector {
    /// Creates a detector that has seen no heartbeat yet.
    pub fn new(session_timeout_ms: i64) -> FailureDetector {
        FailureDetector { session_timeout_ms, uninterrupted: None, before: VecDeque::new() }
    }

    /// Notes that this broker's own heartbeat has reached the database at `now_ms` of a monotonic clock.
    pub fn heartbeat(&mut self, now_ms: i64) {
        self.uninterrupted = match self.uninterrupted {
            Some((first, last)) if !self.is_gap(last, now_ms) => Some((first, now_ms)),
            ended => {
                self.before.extend(ended.filter(|span| self.counts(*span)));
                Some((now_ms, now_ms))
            }
        };
        while let Some((_, oldest_to)) = self.before.front()
            && self.reached_since(*oldest_to) >= self.session_timeout_ms
        {
            self.before.pop_front();
        }
    }

    /// Returns true if the span is long enough that every live broker has sent a heartbeat in it.
    fn counts(&self, (first, last): (i64, i64)) -> bool {
        last.saturating_sub(first) >= self.gap_ms()
    }

    /// Returns for how many ms since `since_ms` this broker's heartbeats have reached the database.
    fn reached_since(&self, since_ms: i64) -> i64 {
        let current = self.uninterrupted.filter(|span| self.counts(*span));
        self.before.iter().chain(&current).map(|(first, last)| last.saturating_sub(*first.max(&since_ms)).max(0)).sum()
    }

    /// Returns a quarter of the session timeout, in ms.
    fn gap_ms(&self) -> i64 {
        self.session_timeout_ms / GAPS_PER_TIMEOUT as i64
    }

    /// Returns true if the time from `last_ms` to `now_ms` is a gap, which is more than a quarter of the session
    /// timeout. After a gap, heartbeats of other brokers may be missing as well.
    fn is_gap(&self, last_ms: i64, now_ms: i64) -> bool {
        now_ms.saturating_sub(last_ms) > self.gap_ms()
    }

    /// Returns true if the last heartbeat of this broker has just reached the database, and its heartbeats did so for a
    /// whole session timeout. Only then may it consider others failed.
    pub fn may_judge(&self, now_ms: i64) -> bool {
        self.uninterrupted.is_some_and(|(_, last)| !self.is_gap(last, now_ms))
            && self.reached_since(i64::MIN) >= self.session_timeout_ms
    }

    /// Returns true if the peer is considered failed.
    pub fn is_dead(&self, peer: &PeerEvidence, now_ms: i64) -> bool {
        let timeout_ms = if peer.refuses { REFUSING_HEARTBEAT_AGE_MS } else { self.session_timeout_ms };
        let last = self.uninterrupted.map_or(now_ms, |(_, last)| last);
        let silent_ms = self.reached_since(last.saturating_sub(peer.heartbeat_age_ms));
        self.may_judge(now_ms)
            && peer.heartbeat_age_ms >= timeout_ms
            && silent_ms >= timeout_ms.min(self.session_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT_MS: i64 = 9_000;
    const SILENT: PeerEvidence = PeerEvidence { heartbeat_age_ms: TIMEOUT_MS, refuses: false };

    fn heartbeats_between(detector: &mut FailureDetector, from_ms: i64, to_ms: i64) {
        (from_ms..=to_ms).step_by(500).for_each(|ms| detector.heartbeat(ms));
    }

    #[test]
    fn heartbeats_shorter_than_a_timeout_consider_no_peer_failed() {
        let mut detector = FailureDetector::new(TIMEOUT_MS);
        assert!(!detector.is_dead(&SILENT, 0));
        heartbeats_between(&mut detector, 0, 8_500);
        assert!(!detector.is_dead(&SILENT, 8_500));
        detector.heartbeat(9_000);
        assert!(detector.is_dead(&SILENT, 9_000));
        assert!(!detector.is_dead(&PeerEvidence { heartbeat_age_ms: TIMEOUT_MS - 1, ..SILENT }, 9_000));
    }

    #[test]
    fn an_outage_of_the_database_restarts_the_timeout() {
        let mut detector = FailureDetector::new(TIMEOUT_MS);
        heartbeats_between(&mut detector, 0, 20_000);
        assert!(!detector.is_dead(&SILENT, 50_000), "its own last beat is old");
        heartbeats_between(&mut detector, 50_000, 58_500);
        assert!(!detector.is_dead(&SILENT, 58_500));
        detector.heartbeat(59_000);
        assert!(detector.is_dead(&SILENT, 59_000));
    }

    #[test]
    fn database_stalls_again_and_again_a_dead_peer_is_failed_and_a_live_one_is_not() {
        for (stalled_ms, works_ms) in [(2_500, 4_500), (2_500, 5_500), (3_000, 3_000), (20_000, 2_500)] {
            let mut detector = FailureDetector::new(TIMEOUT_MS);
            heartbeats_between(&mut detector, 0, 20_000);
            let (died_ms, mut now_ms, mut failed_ms) = (20_000, 20_000, None);
            while now_ms < died_ms + 10 * (stalled_ms + works_ms) {
                let from_ms = now_ms + stalled_ms;
                now_ms = from_ms + works_ms;
                for at_ms in (from_ms..=now_ms).step_by(500) {
                    detector.heartbeat(at_ms);
                    let dead = PeerEvidence { heartbeat_age_ms: at_ms - died_ms, refuses: false };
                    failed_ms = failed_ms.or(detector.is_dead(&dead, at_ms).then_some(at_ms));
                    let live = PeerEvidence { heartbeat_age_ms: at_ms - from_ms + stalled_ms + 500, refuses: false };
                    assert!(
                        !detector.is_dead(&live, at_ms),
                        "{stalled_ms} {works_ms}: its last one was before the stall"
                    );
                }
            }
            let periods = TIMEOUT_MS / works_ms + 1;
            let failed_ms = failed_ms.expect("no later than some periods");
            assert!(failed_ms - died_ms <= periods * (stalled_ms + works_ms), "{stalled_ms} {works_ms}: {failed_ms}");
            assert!(detector.before.len() <= GAPS_PER_TIMEOUT as usize, "{:?}", detector.before);
        }
    }

    #[test]
    fn database_works_for_moments_only_no_peer_is_failed() {
        let mut detector = FailureDetector::new(TIMEOUT_MS);
        heartbeats_between(&mut detector, 0, 20_000);
        for nth in 1..50 {
            let from_ms = 20_000 + nth * 10_000;
            heartbeats_between(&mut detector, from_ms, from_ms + 2_000);
            let silent = PeerEvidence { heartbeat_age_ms: from_ms + 2_000 - 20_000, refuses: false };
            assert!(!detector.is_dead(&silent, from_ms + 2_000), "{nth}");
        }
    }

    /// If the timeout is below 2 s, heartbeats every 500 ms would have gaps between them, so the interval must be
    /// shorter.
    #[test]
    fn short_timeout_heartbeats_are_no_gaps() {
        for session_timeout_ms in [8, 100, 2_000, 9_000, 60_000] {
            let every = heartbeat_interval_ms(500, session_timeout_ms as u64) as i64;
            let mut detector = FailureDetector::new(session_timeout_ms);
            // Each heartbeat is half an interval late.
            let mut now_ms = 0;
            while now_ms <= 2 * session_timeout_ms {
                detector.heartbeat(now_ms);
                now_ms += every + every / 2;
            }
            assert!(detector.may_judge(now_ms - every), "{session_timeout_ms}");
        }
        assert_eq!(heartbeat_interval_ms(500, 9_000), 500);
    }

    #[test]
    fn refusing_port_and_two_heartbeats_missing_the_peer_is_failed() {
        let mut detector = FailureDetector::new(TIMEOUT_MS);
        heartbeats_between(&mut detector, 0, TIMEOUT_MS);
        let refusing = |heartbeat_age_ms| PeerEvidence { heartbeat_age_ms, refuses: true };
        assert!(!detector.is_dead(&refusing(999), TIMEOUT_MS));
        assert!(detector.is_dead(&refusing(1_000), TIMEOUT_MS));
        assert!(!FailureDetector::new(TIMEOUT_MS).is_dead(&refusing(1_000), TIMEOUT_MS));
    }
}
