//! Counts this broker's calls to the database of a cluster. Also records whether the database is available, which the
//! responses to heartbeats show.
//!
//! Calls for diskless topics use other connections and are not counted here. Invariant: recording takes no lock. A
//! reader may therefore see some values from just before a call and others from just after it.

use fullbore_host::metrics::{Counter, Histogram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A connection of a broker to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneConnection {
    /// The connection that reads and changes the metadata.
    Metadata,
    /// The connection that sends heartbeats.
    Heartbeats,
}

impl PlaneConnection {
    /// All connections of a broker.
    pub const ALL: [PlaneConnection; 2] = [PlaneConnection::Metadata, PlaneConnection::Heartbeats];

    /// Returns the connection's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            PlaneConnection::Metadata => "metadata",
            PlaneConnection::Heartbeats => "beats",
        }
    }
}

/// Counters of all calls to the database, by their outcome.
#[derive(Debug)]
pub struct PlaneCalls {
    started: Instant,
    /// The calls over each connection, in the order of [`PlaneConnection::ALL`].
    by_connection: [CallsOfConnection; PlaneConnection::ALL.len()],
    heartbeats: LastHeartbeats,
}

#[derive(Debug, Default)]
pub struct CallsOfConnection {
    pub answered: Histogram,
    pub failed: Counter,
}

#[derive(Debug, Default)]
struct LastHeartbeats {
    /// The time in ms for which the database counts as available after each successful heartbeat. 0 while this broker
    /// sends no heartbeats.
    patience_ms: AtomicU64,
    /// The time of the last response to a heartbeat, in ms since `started`.
    answered_ms: AtomicU64,
    /// True if the last heartbeat failed, or if an older copy of the database responded to it.
    has_failed: AtomicBool,
    newest: AtomicU64,
}

/// The state of a cluster's database, from the responses to this broker's heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneSeen {
    /// True if the database responds to the heartbeats of this broker.
    pub answers: bool,
    /// The time since the last response to a heartbeat.
    pub since_answer: Duration,
    /// The newest metadata version that a response has contained.
    pub newest: u64,
}

impl Default for PlaneCalls {
    fn default() -> Self {
        PlaneCalls { started: Instant::now(), by_connection: Default::default(), heartbeats: LastHeartbeats::default() }
    }
}

impl PlaneCalls {
    /// Returns the state of the database. Returns `None` if this broker sends no heartbeats, like a standalone broker.
    pub fn seen(&self) -> Option<PlaneSeen> {
        let heartbeats = &self.heartbeats;
        let patience = Duration::from_millis(heartbeats.patience_ms.load(Ordering::Relaxed));
        let answered = Duration::from_millis(heartbeats.answered_ms.load(Ordering::Relaxed));
        let since_answer = self.started.elapsed().saturating_sub(answered);
        let answers = !heartbeats.has_failed.load(Ordering::Relaxed) && since_answer <= patience;
        let newest = heartbeats.newest.load(Ordering::Relaxed);
        (!patience.is_zero()).then_some(PlaneSeen { answers, since_answer, newest })
    }

    pub fn of(&self, connection: PlaneConnection) -> &CallsOfConnection {
        &self.by_connection[connection as usize]
    }

    fn heartbeat_answered(&self) {
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heartbeats.answered_ms.store(now_ms, Ordering::Relaxed);
        self.heartbeats.has_failed.store(false, Ordering::Relaxed);
    }
}

/// Counts the calls over one connection.
#[derive(Clone, Debug)]
pub struct CountedCalls {
    calls: Arc<PlaneCalls>,
    connection: PlaneConnection,
}

impl CountedCalls {
    /// Creates the counter for this connection.
    pub fn new(calls: Arc<PlaneCalls>, connection: PlaneConnection) -> CountedCalls {
        CountedCalls { calls, connection }
    }

    /// Counts a call that got its response after `elapsed`.
    pub fn answered(&self, elapsed: Duration) {
        self.calls.of(self.connection).answered.observe(elapsed);
    }

    /// Counts a call that was refused, got no response, or found no connection.
    pub fn failed(&self) {
        self.calls.of(self.connection).failed.add(1);
    }

    /// Starts to record heartbeats. At first the database counts as available. If no heartbeat succeeds for `patience`,
    /// it counts as unavailable. Must be called before the first heartbeat.
    pub fn begin_to_heartbeat(&self, patience: Duration) {
        self.calls.heartbeat_answered();
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.calls.heartbeats.patience_ms.store(patience_ms.max(1), Ordering::Relaxed);
    }

    /// Records a successful heartbeat. `newest` is the newest metadata version in the database, which is never older
    /// than this broker's.
    pub fn heartbeat_answered(&self, newest: u64) {
        self.calls.heartbeats.newest.store(newest, Ordering::Relaxed);
        self.calls.heartbeat_answered();
    }

    /// Records a heartbeat that failed, or to which an older copy of the database has responded.
    pub fn heartbeat_failed(&self) {
        self.calls.heartbeats.has_failed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_counts_as_up_until_a_heartbeat_fails_or_is_late() {
        let calls = Arc::new(PlaneCalls::default());
        let heartbeats = CountedCalls::new(Arc::clone(&calls), PlaneConnection::Heartbeats);
        assert_eq!(calls.seen(), None, "nobody beats on one machine");
        heartbeats.begin_to_heartbeat(Duration::from_secs(3600));
        assert!(calls.seen().expect("it beats").answers, "it was asked a moment ago");
        heartbeats.heartbeat_failed();
        assert!(!calls.seen().expect("it beats").answers);
        heartbeats.heartbeat_answered(7);
        let seen = calls.seen().expect("it beats");
        assert!(seen.answers && seen.newest == 7, "{seen:?}");
        heartbeats.begin_to_heartbeat(Duration::ZERO);
        while calls.seen().expect("it beats").since_answer <= Duration::from_millis(1) {
            std::thread::yield_now();
        }
        assert!(!calls.seen().expect("it beats").answers, "nothing came for longer than a beat may take");
    }

    #[test]
    fn calls_are_counted_by_connection() {
        let calls = Arc::new(PlaneCalls::default());
        CountedCalls::new(Arc::clone(&calls), PlaneConnection::Heartbeats).answered(Duration::from_millis(1));
        CountedCalls::new(Arc::clone(&calls), PlaneConnection::Metadata).failed();
        let counted = PlaneConnection::ALL.map(|of| (calls.of(of).answered.seen().count, calls.of(of).failed.get()));
        assert_eq!(counted, [(0, 1), (1, 0)]);
    }
}
