//! The pace of requests to a store that refuses them as too many (503 SlowDown, 429).
//!
//! A store goes on refusing a client that tries again at once. After a refusal requests leave one after another, at a rate a little below that
//! of those that succeeded; it grows while none is refused, until it bounds nothing. A Retry-After holds for all requests.
//!
//! Not here: how often a request is tried. Invariants: without a refusal nothing waits; the rate is at least [`RATE_MIN`].

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The least rate in requests a second.
const RATE_MIN: f64 = 0.5;
/// Factor of the rate of requests that succeeded, after a refusal.
const CUT: f64 = 0.8;
/// Time in which refusals count once, and for which successes are counted.
const INTERVAL: Duration = Duration::from_secs(1);
/// Growth of the rate after an interval without a refusal: a factor, and requests a second.
const GROWS: (f64, f64) = (1.05, 0.5);
/// Rate from which on it bounds nothing.
const RATE_MAX: f64 = 500.0;
/// The longest Retry-After that is kept to.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Successes that are remembered.
const SUCCESSES_MAX: usize = RATE_MAX as usize;

/// Lock that is given in the order of those who wait for it.
type Turn = tokio::sync::Mutex<()>;

/// Kinds of requests. One of them does not wait behind all of the other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    Write,
}

/// The pace of all requests to a store.
#[derive(Debug, Default)]
pub struct Pace {
    /// Requests of a kind wait in turn; one that is given up takes no time of others.
    reads: Turn,
    writes: Turn,
    /// The first of each kind wait here, so that the kinds alternate.
    turn: Turn,
    state: Mutex<Option<Bounded>>,
    successes: Mutex<VecDeque<Instant>>,
}

/// A rate that is in force.
#[derive(Debug)]
struct Bounded {
    rate: f64,
    /// The earliest time of the next request.
    next: Instant,
    /// The time of the last change.
    changed: Instant,
}

impl Pace {
    /// Waits until a request may leave.
    pub async fn admit(&self, kind: RequestKind) {
        if self.state.lock().is_none() {
            return;
        }
        let _first = match kind {
            RequestKind::Read => self.reads.lock().await,
            RequestKind::Write => self.writes.lock().await,
        };
        let _turn = self.turn.lock().await;
        loop {
            let next = match self.state.lock().as_mut() {
                None => return,
                Some(bounded) if bounded.next > Instant::now() => bounded.next,
                Some(bounded) => {
                    // Brokers of one store do not go in step.
                    let pause = Duration::from_secs_f64(random_part().mul_add(0.4, 0.8) / bounded.rate);
                    bounded.next = Instant::now() + pause;
                    return;
                }
            };
            sleep_until(next).await;
        }
    }

    /// Notes a request that the store has answered. One that failed is not noted: the rate stays.
    pub fn succeeded(&self) {
        let now = Instant::now();
        {
            let mut successes = self.successes.lock();
            successes.push_back(now);
            if successes.len() > SUCCESSES_MAX {
                successes.pop_front();
            }
        }
        let mut state = self.state.lock();
        if let Some(bounded) = state.as_mut().filter(|bounded| bounded.changed + INTERVAL <= now) {
            bounded.rate = bounded.rate.mul_add(GROWS.0, GROWS.1);
            bounded.changed = now;
            if bounded.rate > RATE_MAX {
                *state = None;
            }
        }
    }

    /// Notes a request that was refused, with the pause that the store wants.
    pub fn refused(&self, retry_after: Option<Duration>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let is_same = state.as_ref().is_some_and(|bounded| now < bounded.changed + INTERVAL);
        let next = now + retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        let next = state.as_ref().map_or(next, |bounded| bounded.next.max(next));
        match state.as_mut() {
            Some(bounded) if is_same => bounded.next = next,
            before => {
                let successes = self.successes.lock().iter().filter(|at| **at + INTERVAL > now).count() as f64;
                let rate = before.map_or(successes, |before| before.rate.min(successes));
                *state = Some(Bounded { rate: (rate * CUT).max(RATE_MIN), next, changed: now });
            }
        }
    }
}

/// Returns a random number from 0 to 1.
fn random_part() -> f64 {
    f64::from(RandomState::new().hash_one(0) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    /// A store that takes requests at a rate, and refuses others.
    struct Narrow {
        tokens: Mutex<(f64, Instant)>,
        rate: f64,
        taken: AtomicUsize,
        refused: AtomicUsize,
    }

    impl Narrow {
        fn taking(rate: f64) -> Arc<Narrow> {
            let tokens = Mutex::new((rate, Instant::now()));
            Arc::new(Narrow { tokens, rate, taken: AtomicUsize::new(0), refused: AtomicUsize::new(0) })
        }

        fn takes(&self) -> bool {
            let mut tokens = self.tokens.lock();
            let filled = (tokens.0 + tokens.1.elapsed().as_secs_f64() * self.rate).min(self.rate);
            *tokens = (filled, Instant::now());
            let takes = filled >= 1.0;
            tokens.0 -= if takes { 1.0 } else { 0.0 };
            (if takes { &self.taken } else { &self.refused }).fetch_add(1, Ordering::Relaxed);
            takes
        }
    }

    /// Sends requests of 40 loops for a time, each with the pauses of a fetch.
    async fn send(pace: &Arc<Pace>, store: &Arc<Narrow>, time: Duration) {
        let until = Instant::now() + time;
        let each = (0..40).map(|_| {
            let (pace, store) = (Arc::clone(pace), Arc::clone(store));
            async move {
                while Instant::now() < until {
                    pace.admit(RequestKind::Write).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    match store.takes() {
                        true => pace.succeeded(),
                        false => {
                            pace.refused(None);
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            }
        });
        futures_util::future::join_all(each).await;
    }

    #[tokio::test(start_paused = true)]
    async fn store_refuses_requests_their_rate_falls_below_its_own_and_comes_back() {
        for rate in [2.0, 5.0, 10.0, 20.0, 100.0] {
            let (pace, store) = (Arc::<Pace>::default(), Narrow::taking(rate));
            send(&pace, &store, S(60)).await;
            let (taken, refused) = (store.taken.load(Ordering::Relaxed), store.refused.load(Ordering::Relaxed));
            println!("{rate}/s: {taken} taken, {refused} refused in 60 s");
            assert!(taken as f64 >= rate * 60.0 * 0.6, "{rate}/s: {taken} taken");
            assert!(refused <= taken / 3 + 80, "{rate}/s: {refused} refused, {taken} taken");
            let wide = Narrow::taking(100_000.0);
            send(&pace, &wide, S(90)).await;
            assert!(pace.state.lock().is_none(), "nothing is bounded any more");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn store_refuses_requests_a_read_waits_for_two_turns_not_behind_all_writes() {
        let pace = Arc::<Pace>::default();
        pace.refused(None);
        let writes = (0..40).map(|_| {
            let pace = Arc::clone(&pace);
            tokio::spawn(async move { pace.admit(RequestKind::Write).await })
        });
        let writes: Vec<_> = writes.collect();
        tokio::time::sleep(S(1)).await;
        for _ in 0..5 {
            let began = Instant::now();
            pace.admit(RequestKind::Read).await;
            assert!(began.elapsed() <= S(6), "{:?}: a pause is 2.4 s at most", began.elapsed());
        }
        let left = writes.iter().filter(|write| !write.is_finished()).count();
        assert!((30..=37).contains(&left), "{left} of 40: writes have every other turn");
    }

    #[tokio::test(start_paused = true)]
    async fn store_wants_a_pause_no_request_leaves_before_its_end() {
        for (wanted, kept) in [(3, 3), (3600, 5)] {
            let pace = Pace::default();
            pace.admit(RequestKind::Write).await;
            pace.refused(Some(S(wanted)));
            let began = Instant::now();
            pace.admit(RequestKind::Write).await;
            assert_eq!(began.elapsed(), S(kept));
        }
    }
}
