//! Counts of calls to the database of a cluster, and the last answer to this broker's heartbeats.
//!
//! Not here: the statements, which are `control`'s, nor the calls of diskless topics, whose connections are their own.
//! Invariant: recording takes no lock; a read may be of two moments that follow each other.

use fullbore_host::metrics::{Counter, Histogram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Which of a broker's connections to the database a call goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneConnection {
    /// The one that reads and changes the metadata.
    Metadata,
    /// The one that says that this broker lives.
    Beats,
}

impl PlaneConnection {
    /// Each of them.
    pub const ALL: [PlaneConnection; 2] = [PlaneConnection::Metadata, PlaneConnection::Beats];

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            PlaneConnection::Metadata => "metadata",
            PlaneConnection::Beats => "beats",
        }
    }
}

/// Outcomes of all calls to the database.
#[derive(Debug)]
pub struct PlaneCalls {
    started: Instant,
    /// In the order of [`PlaneConnection::ALL`].
    by_connection: [CallsOfConnection; PlaneConnection::ALL.len()],
    beats: LastBeats,
}

#[derive(Debug, Default)]
pub struct CallsOfConnection {
    pub answered: Histogram,
    pub failed: Counter,
}

#[derive(Debug, Default)]
struct LastBeats {
    /// How long a beat may take; 0 while nobody beats.
    patience_ms: AtomicU64,
    /// From the start to when a beat was answered last.
    answered_ms: AtomicU64,
    /// True if the last one has failed, or was answered by an older copy of the database.
    has_failed: AtomicBool,
    newest: AtomicU64,
}

/// State of the database of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneSeen {
    /// True if it answers this broker's beats.
    pub answers: bool,
    /// How long ago it answered one.
    pub since_answer: Duration,
    /// The newest version of the metadata that it told.
    pub newest: u64,
}

impl Default for PlaneCalls {
    fn default() -> Self {
        PlaneCalls { started: Instant::now(), by_connection: Default::default(), beats: LastBeats::default() }
    }
}

impl PlaneCalls {
    /// The database as beats have it; `None` where nobody beats, as on one machine.
    pub fn seen(&self) -> Option<PlaneSeen> {
        let beats = &self.beats;
        let patience = Duration::from_millis(beats.patience_ms.load(Ordering::Relaxed));
        let answered = Duration::from_millis(beats.answered_ms.load(Ordering::Relaxed));
        let since_answer = self.started.elapsed().saturating_sub(answered);
        let answers = !beats.has_failed.load(Ordering::Relaxed) && since_answer <= patience;
        let newest = beats.newest.load(Ordering::Relaxed);
        (!patience.is_zero()).then_some(PlaneSeen { answers, since_answer, newest })
    }

    pub fn of(&self, connection: PlaneConnection) -> &CallsOfConnection {
        &self.by_connection[connection as usize]
    }

    fn beat_answered(&self) {
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beats.answered_ms.store(now_ms, Ordering::Relaxed);
        self.beats.has_failed.store(false, Ordering::Relaxed);
    }
}

/// Counts the calls of one connection.
#[derive(Clone, Debug)]
pub struct CountedCalls {
    calls: Arc<PlaneCalls>,
    connection: PlaneConnection,
}

impl CountedCalls {
    /// Counts the calls of this connection.
    pub fn new(calls: Arc<PlaneCalls>, connection: PlaneConnection) -> CountedCalls {
        CountedCalls { calls, connection }
    }

    /// A call was answered after so long.
    pub fn answered(&self, elapsed: Duration) {
        self.calls.of(self.connection).answered.observe(elapsed);
    }

    /// A call was refused or not answered, or there was no connection to make it over.
    pub fn failed(&self) {
        self.calls.of(self.connection).failed.add(1);
    }

    /// Beats begin: each is answered within this time, unless the database is away.
    pub fn begin_to_beat(&self, patience: Duration) {
        self.calls.beat_answered();
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.calls.beats.patience_ms.store(patience_ms.max(1), Ordering::Relaxed);
    }

    /// A beat was answered by the database that this broker knows, which has this version.
    pub fn beat_answered(&self, newest: u64) {
        self.calls.beats.newest.store(newest, Ordering::Relaxed);
        self.calls.beat_answered();
    }

    /// A beat failed, or was answered by an older copy of the database.
    pub fn beat_failed(&self) {
        self.calls.beats.has_failed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_answers_until_a_beat_fails_or_takes_too_long() {
        let calls = Arc::new(PlaneCalls::default());
        let beats = CountedCalls::new(Arc::clone(&calls), PlaneConnection::Beats);
        assert_eq!(calls.seen(), None, "nobody beats on one machine");
        beats.begin_to_beat(Duration::from_secs(3600));
        assert!(calls.seen().expect("it beats").answers, "it was asked a moment ago");
        beats.beat_failed();
        assert!(!calls.seen().expect("it beats").answers);
        beats.beat_answered(7);
        let seen = calls.seen().expect("it beats");
        assert!(seen.answers && seen.newest == 7, "{seen:?}");
        beats.begin_to_beat(Duration::ZERO);
        while calls.seen().expect("it beats").since_answer <= Duration::from_millis(1) {
            std::thread::yield_now();
        }
        assert!(!calls.seen().expect("it beats").answers, "nothing came for longer than a beat may take");
    }

    #[test]
    fn each_connection_is_counted_for_itself() {
        let calls = Arc::new(PlaneCalls::default());
        CountedCalls::new(Arc::clone(&calls), PlaneConnection::Beats).answered(Duration::from_millis(1));
        CountedCalls::new(Arc::clone(&calls), PlaneConnection::Metadata).failed();
        let counted = PlaneConnection::ALL.map(|of| (calls.of(of).answered.seen().count, calls.of(of).failed.get()));
        assert_eq!(counted, [(0, 1), (1, 0)]);
    }
}
