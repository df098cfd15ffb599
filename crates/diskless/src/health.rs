//! Tracks whether this broker can use the object store. The evidence is the outcome of the broker's requests and of
//! probes. A broker sends probes while its requests fail or make no progress, and while it is left out. A broker is
//! left out if the metadata lists it as one that does not serve diskless topics.
//!
//! A probe puts, reads and deletes an object. A successful probe clears earlier failures, such as that of a GET for a
//! damaged object. On a broker without diskless partitions, the probes are the only requests.
//!
//! The consequences of a lost store are in `membership/store.rs`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fullbore_host::task;
use fullbore_rules::cluster::store::StoreState;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::objects::counts::StoreCounts;
use super::objects::{ObjectError, Objects};
use super::tries::Tries;

/// How long requests may fail or make no progress before the store counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(4);
/// How long requests may fail or make no progress before the broker sends probes.
const PROBED_AFTER: Duration = Duration::from_secs(1);
/// How long the broker pauses after a probe.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How long after a successful probe the store counts as answering.
const PROBED_WITHIN: Duration = Duration::from_secs(3);
/// How often the broker checks whether a probe is due.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The health of the object store, as this broker sees it.
pub struct StoreHealth {
    counts: Arc<StoreCounts>,
    puts: Arc<Tries>,
    gets: Arc<Tries>,
    state: Mutex<Probes>,
}

/// The results of the probes so far.
#[derive(Debug, Default)]
struct Probes {
    /// True while the metadata lists this broker as one that does not serve diskless topics. Probes then continue even
    /// if no request fails.
    is_left_out: bool,
    /// When the last successful probe ended. `None` before the first one.
    answered: Option<Instant>,
    /// The error of the last probe. `None` if it succeeded, or if there was no probe yet.
    failed: Option<ObjectError>,
}

impl StoreHealth {
    /// Creates the state of a store that has not received any request yet.
    pub fn new(counts: Arc<StoreCounts>, puts: Arc<Tries>, gets: Arc<Tries>) -> StoreHealth {
        StoreHealth { counts, puts, gets, state: Mutex::default() }
    }

    /// Spawns the task that probes the store when a probe is due. The task ends after `health` is dropped.
    pub fn start(health: &Arc<StoreHealth>, objects: Objects) {
        let health = Arc::downgrade(health);
        task::spawn(task::boxed(run(health, objects)));
    }

    /// Returns how long the store has been unusable, or `None` if it does not count as lost.
    pub fn lost_for(&self) -> Option<Duration> {
        let failing = self.counts.failing_for().filter(|time| *time >= LOST_AFTER);
        [&self.puts, &self.gets].into_iter().filter_map(|tries| self.silent_for(tries)).chain(failing).max()
    }

    /// Returns for how long the requests in `tries` have made no progress. Returns `None` if no request is under way,
    /// or if that time is shorter than `LOST_AFTER` or than the usual wait for a second try.
    fn silent_for(&self, tries: &Tries) -> Option<Duration> {
        let least = tries.usual_wait().unwrap_or_default().max(LOST_AFTER);
        tries.silent_for(self.state.lock().answered).filter(|time| *time >= least)
    }

    /// Returns the state of the store. `is_left_out` is true if the metadata lists this broker as one that does not
    /// serve diskless topics. Probes then continue until a later call passes false.
    pub fn state(&self, is_left_out: bool) -> StoreState {
        self.state.lock().is_left_out = is_left_out;
        if self.lost_for().is_some() {
            return StoreState::Lost;
        }
        let is_probed = || self.state.lock().answered.is_some_and(|at| at.elapsed() < PROBED_WITHIN);
        let is_unsure = self.counts.failing_for().is_some() || is_left_out && !is_probed();
        if is_unsure { StoreState::Unsure } else { StoreState::Answers }
    }

    /// Counts the hanging PUTs as failed. The caller has just reported that the store is lost. Returns the error of the
    /// last probe, or `None` if that probe succeeded or none has ended yet.
    pub fn reported_lost(&self) -> Option<ObjectError> {
        if self.silent_for(&self.puts).is_some() {
            self.counts.put_hung(self.puts.under_way());
        }
        self.state.lock().failed.clone()
    }

    fn probe_is_due(&self) -> bool {
        let (is_left_out, answered) = {
            let probes = self.state.lock();
            (probes.is_left_out, probes.answered)
        };
        let silent = [&self.puts, &self.gets].into_iter().filter_map(|tries| tries.silent_for(answered));
        is_left_out || silent.chain(self.counts.failing_for()).any(|time| time >= PROBED_AFTER)
    }

    fn probed(&self, outcome: Result<(), ObjectError>) {
        match &outcome {
            Ok(()) => self.counts.probe_succeeded(),
            Err(_) => self.counts.put_failed(),
        }
        let mut probes = self.state.lock();
        probes.failed = outcome.err();
        if probes.failed.is_none() {
            probes.answered = Some(Instant::now());
        }
    }
}

async fn run(health: Weak<StoreHealth>, objects: Objects) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(now) = health.upgrade() else { return };
        if !now.probe_is_due() {
            continue;
        }
        drop(now);
        let outcome = objects.probe().await;
        let Some(now) = health.upgrade() else { return };
        now.probed(outcome);
        drop(now);
        sleep(PROBE_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::double::StoreDouble;
    use super::super::tries::BUFFERED_MAX;
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    struct Broker {
        store: Arc<StoreDouble>,
        objects: Objects,
        health: Arc<StoreHealth>,
    }

    impl Broker {
        fn new() -> Broker {
            let store = StoreDouble::taking(MS(50));
            let objects = Objects::over(store.clone(), "one");
            let (puts, gets) = (Arc::new(Tries::new("PUT", BUFFERED_MAX)), Arc::new(Tries::new("GET", 0)));
            let health = Arc::new(StoreHealth::new(Arc::default(), puts, gets));
            StoreHealth::start(&health, objects.clone());
            Broker { store, objects, health }
        }

        /// Starts a PUT that hangs. The `behind` requests after it hang as well.
        fn put_hangs(&self, behind: usize) -> tokio::task::JoinHandle<()> {
            let (puts, objects) = (Arc::clone(&self.health.puts), self.objects.clone());
            self.store.hang_next(1 + behind);
            tokio::spawn(async move {
                let put = |progress| {
                    let objects = objects.clone();
                    async move { objects.put(1, Vec::new(), progress).await }
                };
                let _ = puts.run(0, put, || ()).await;
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_fails_a_probe_shows_that_the_store_answers() {
        let broker = Broker::new();
        assert_eq!(broker.health.state(false), StoreState::Answers);
        broker.health.counts.get_failed(&ObjectError::Unavailable("416".into()));
        assert_eq!(broker.health.state(false), StoreState::Unsure);
        sleep(MS(2_500)).await;
        assert_eq!(broker.health.state(false), StoreState::Answers);
        assert_eq!(broker.store.puts(), 1);
        sleep(MS(60_000)).await;
        assert_eq!(broker.store.puts(), 1, "nobody probes a store that answers");
    }

    #[tokio::test(start_paused = true)]
    async fn store_refuses_it_is_lost_after_four_seconds_and_answers_with_a_probe() {
        let broker = Broker::new();
        broker.store.fail_next(6);
        broker.health.counts.put_failed();
        sleep(MS(3_900)).await;
        assert_eq!(broker.health.state(false), StoreState::Unsure);
        sleep(MS(200)).await;
        assert_eq!(broker.health.state(false), StoreState::Lost);
        assert!(broker.health.reported_lost().is_some());
        assert_eq!(broker.health.state(true), StoreState::Lost);
        sleep(MS(20_000)).await;
        assert_eq!((broker.health.state(true), broker.health.lost_for()), (StoreState::Answers, None));
    }

    #[tokio::test(start_paused = true)]
    async fn store_hangs_it_is_lost_after_four_seconds() {
        let broker = Broker::new();
        let _put = broker.put_hangs(100);
        sleep(MS(3_900)).await;
        assert_eq!(broker.health.lost_for(), None);
        sleep(MS(200)).await;
        assert_eq!(broker.health.state(false), StoreState::Lost);
        broker.health.reported_lost();
        assert_eq!(broker.health.counts.so_far(0).put_failures, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_put_hangs_a_probe_shows_that_the_store_answers() {
        let broker = Broker::new();
        let _put = broker.put_hangs(0);
        for _ in 0..40 {
            sleep(MS(1_000)).await;
            assert_eq!(broker.health.lost_for(), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn broker_is_left_out_probes_decide_whether_it_comes_back() {
        let broker = Broker::new();
        assert_eq!(broker.health.state(true), StoreState::Unsure, "nothing is known yet");
        sleep(MS(2_000)).await;
        assert_eq!(broker.health.state(true), StoreState::Answers);
        broker.store.hang_next(1);
        sleep(MS(3_000)).await;
        assert_ne!(broker.health.state(true), StoreState::Answers);
    }
}
