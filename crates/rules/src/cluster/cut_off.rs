//! Decides when a broker that cannot reach the database stands down, because the other brokers go on without it.
//!
//! ```text
//! this broker's heartbeats   | | | |                                           | | |
//! a peer's metadata                         fences this broker
//! this broker                serves --------- polls peers, stands down -------- serves
//!                                  '-session-'
//! ```
//!
//! While the database is away for all brokers, they go on serving with the metadata that they have. The silence of the
//! database is therefore no reason to stand down. A peer's metadata are the proof: only a broker that reaches the
//! database can have fenced this one.

/// The pause between two rounds in which a broker polls its peers, in ms.
const POLL_PAUSE_MS: i64 = 1_000;

/// The metadata of another broker, as far as they are about this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerMetadata {
    /// The version of the peer's metadata, or an older one.
    pub version: u64,
    /// True if this broker is fenced in them.
    pub fences_this_broker: bool,
}

/// Returns true if the peer's metadata prove that the cluster goes on without this broker. `version` is the version of
/// this broker's metadata. A peer that fences this broker in older metadata may itself have lost the database.
pub fn proves_cut_off(version: u64, peer: &PeerMetadata) -> bool {
    peer.fences_this_broker && peer.version > version
}

/// Decides when a broker polls its peers. The times are in ms of a monotonic clock.
#[derive(Clone, Debug)]
pub struct CutOffWatch {
    session_timeout_ms: i64,
    /// The time of the last heartbeat that has reached the database, or of the start.
    heartbeat_ms: i64,
    /// The end of the last round.
    polled_ms: Option<i64>,
}

impl CutOffWatch {
    /// Creates the state of a broker that starts now.
    pub fn new(session_timeout_ms: i64, now_ms: i64) -> CutOffWatch {
        CutOffWatch { session_timeout_ms, heartbeat_ms: now_ms, polled_ms: None }
    }

    /// Notes that this broker's heartbeat has reached the database.
    pub fn heartbeat(&mut self, now_ms: i64) {
        self.heartbeat_ms = now_ms;
    }

    /// Notes that a round has ended.
    pub fn polled(&mut self, now_ms: i64) {
        self.polled_ms = Some(now_ms);
    }

    /// Returns the time at which the next round is due, if no heartbeat reaches the database before that. Earlier, no
    /// peer can have fenced this broker for its silence.
    pub fn poll_due_ms(&self) -> i64 {
        let session_ends_ms = self.heartbeat_ms.saturating_add(self.session_timeout_ms);
        self.polled_ms.map_or(session_ends_ms, |polled_ms| session_ends_ms.max(polled_ms.saturating_add(POLL_PAUSE_MS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION_MS: i64 = 9_000;

    #[test]
    fn peer_with_newer_metadata_that_fences_this_broker_proves_that_it_is_cut_off() {
        for (version, fences_this_broker, proves) in
            [(8, true, true), (8, false, false), (7, true, false), (6, true, false)]
        {
            let peer = PeerMetadata { version, fences_this_broker };
            assert_eq!(proves_cut_off(7, &peer), proves, "{peer:?}");
        }
    }

    #[test]
    fn heartbeats_missing_for_a_session_peers_are_polled_with_pauses() {
        let mut watch = CutOffWatch::new(SESSION_MS, 100);
        assert_eq!(watch.poll_due_ms(), 9_100, "it has just started");
        watch.heartbeat(500);
        assert_eq!(watch.poll_due_ms(), 9_500);
        watch.polled(9_700);
        assert_eq!(watch.poll_due_ms(), 10_700);
        watch.heartbeat(10_000);
        assert_eq!(watch.poll_due_ms(), 19_000, "the database is back");
        watch.heartbeat(i64::MAX);
        assert_eq!(watch.poll_due_ms(), i64::MAX);
    }
}
