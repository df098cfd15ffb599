//! Limits the rate of requests to a store that refuses many of them (503 SlowDown, 429).
//!
//! A store keeps refusing a client that retries at once. If the store refuses most requests of a second, requests are
//! therefore sent one by one, at a lower rate than the store has accepted. While no request is refused, the rate grows
//! faster each second, until it is unlimited again.
//!
//! Pauses and attempts of a single request are elsewhere.
//!
//! Invariants: while refusals are few, they delay no other request. The rate is at least [`RATE_MIN`]. If writes and
//! other requests are waiting, three out of four permits are for writes.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::BodyProgress;

/// Minimum rate, in requests per second.
const RATE_MIN: f64 = 1.0;
/// Minimum estimate of the rate that the store accepts, at the moment when the rate becomes limited, in requests per
/// second. The estimate is based on past requests, and a broker may have sent only a few of them.
const RATE_BEGINS_MIN: f64 = 10.0;
/// Rate in requests per second above which the rate becomes unlimited again.
const RATE_MAX: f64 = 500.0;
/// The rate is multiplied by this factor after a refusal.
const CUT: f64 = 0.8;
/// The rate grows by `n * rate * GROWS.0 + GROWS.1` requests per second after the n-th interval in a row without a
/// refusal.
const GROWS: (f64, f64) = (0.1, 0.2);
/// Answers are counted in intervals of this length. The rate changes at most once per interval.
const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of refusals in an interval to limit the rate. The refusals must also outnumber the accepted requests.
const REFUSALS_MIN: u32 = 5;
/// Number of earlier intervals that are kept. The estimate of the rate that the store accepts is the largest number of
/// accepted requests in any of them.
const INTERVALS_MAX: usize = 60;
/// Maximum wait after a refusal. A longer Retry-After is cut to this time.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);
/// How many writes get a permit for each other request, while both are waiting.
const WRITES_FOR_ANOTHER: u32 = 3;
/// How often a request that waits for a permit is marked as just begun, so that it does not count as silent.
const WAITS_NOTED_EVERY: Duration = Duration::from_millis(500);

/// A lock that callers get in the order in which they request it.
type Turn = tokio::sync::Mutex<()>;

/// The kinds of requests. Each kind has its own queue, so that a burst of one kind does not block the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A PUT. Producers wait for it.
    Write,
    Read,
    Delete,
}

/// The pace of all requests to a store.
#[derive(Debug, Default)]
pub struct Pace {
    /// The queue of each kind. If the caller gives up, its request leaves the queue at once.
    turns: [Turn; 3],
    /// Notified when a request gets its permit or gives up.
    admitted: Notify,
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
struct PaceState {
    bounded: Option<Bounded>,
    answers: Answers,
    /// The number of waiting writes, and the number of other waiting requests.
    waiting: [usize; 2],
    /// How many writes got a permit since the last permit for another kind.
    writes_in_a_row: u32,
}

/// The current limit of the rate.
#[derive(Debug)]
struct Bounded {
    rate: f64,
    /// When the next request may be sent.
    next: Instant,
    /// When the rate last changed.
    changed: Instant,
    /// True if a request was refused after the rate last changed.
    is_refused: bool,
    /// The number of intervals in a row without a refusal.
    clean: u32,
}

impl Bounded {
    /// Changes the rate, at most once per interval. The rate falls if the store has refused a request since the last
    /// change, and otherwise grows. `taken` is the rate of accepted requests, and is passed while the store refuses
    /// most requests. The new rate is then below `taken`.
    fn adjust(&mut self, now: Instant, taken: Option<f64>) {
        if now < self.changed + INTERVAL {
            return;
        }
        self.changed = now;
        if std::mem::take(&mut self.is_refused) {
            self.clean = 0;
            self.rate = (self.rate.min(taken.unwrap_or(self.rate)) * CUT).max(RATE_MIN);
        } else {
            self.clean += 1;
            self.rate += self.rate * GROWS.0 * f64::from(self.clean) + GROWS.1;
        }
    }
}

/// Counts the accepted (`answered`) and the refused requests in each interval.
#[derive(Debug, Default)]
struct Answers {
    began: Option<Instant>,
    answered: u32,
    refused: u32,
    /// The number of accepted requests in each earlier interval, oldest first.
    before: VecDeque<u32>,
}

impl Answers {
    /// Begins a new interval if the current one has ended.
    fn roll(&mut self, now: Instant) {
        if self.began.is_some_and(|began| now < began + INTERVAL) {
            return;
        }
        self.before.push_back(self.answered);
        if self.before.len() > INTERVALS_MAX {
            self.before.pop_front();
        }
        (self.began, self.answered, self.refused) = (Some(now), 0, 0);
    }

    /// Returns true if the store has refused most requests of this interval.
    fn are_refused(&self) -> bool {
        self.refused >= REFUSALS_MIN && self.refused > self.answered
    }

    /// Returns the largest number of requests that were accepted in one interval. Compares the current interval and the
    /// `count` intervals before it.
    fn best_of(&self, count: usize) -> f64 {
        f64::from(self.before.iter().rev().take(count).copied().max().unwrap_or(0).max(self.answered))
    }
}

/// A request that is waiting. When this guard is dropped, waiting requests of other kinds are woken.
struct Waiting<'a> {
    pace: &'a Pace,
    kind: RequestKind,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.pace.state.lock().waiting(self.kind) -= 1;
        self.pace.admitted.notify_waiters();
    }
}

impl Pace {
    /// Waits until a request may be sent. While it waits, `progress` shows the request as just begun.
    pub async fn admit(&self, kind: RequestKind, progress: &BodyProgress) {
        if self.state.lock().bounded.is_none() {
            return;
        }
        let mut turn = pin!(self.turn(kind));
        loop {
            tokio::select! {
                biased;
                () = &mut turn => return progress.begins(),
                () = sleep(WAITS_NOTED_EVERY) => progress.begins(),
            }
        }
    }

    async fn turn(&self, kind: RequestKind) {
        *self.state.lock().waiting(kind) += 1;
        let _waiting = Waiting { pace: self, kind };
        let _first = self.turns[kind as usize].lock().await;
        loop {
            let mut admitted = pin!(self.admitted.notified());
            admitted.as_mut().enable();
            let next = match self.state.lock().take_turn(kind) {
                Ok(()) => return,
                Err(next) => next,
            };
            match next {
                Some(next) => sleep_until(next).await,
                None => admitted.await,
            }
        }
    }

    /// Records that the store has answered a request without refusing it for its rate. Not called after other failures,
    /// which leave the rate unchanged.
    pub fn succeeded(&self) {
        let now = Instant::now();
        let state = &mut *self.state.lock();
        state.answers.roll(now);
        state.answers.answered += 1;
        if let Some(bounded) = &mut state.bounded {
            bounded.adjust(now, None);
            if bounded.rate > RATE_MAX {
                state.bounded = None;
                self.admitted.notify_waiters();
            }
        }
    }

    /// Records that the store has refused a request for its rate. `retry_after` is how long the store wants the client
    /// to wait.
    pub fn refused(&self, retry_after: Option<Duration>) {
        let now = Instant::now();
        let state = &mut *self.state.lock();
        state.answers.roll(now);
        state.answers.refused += 1;
        let are_refused = state.answers.are_refused();
        let pause_until = now + retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        match &mut state.bounded {
            Some(bounded) => {
                bounded.next = bounded.next.max(pause_until);
                bounded.is_refused = true;
                bounded.adjust(now, are_refused.then(|| state.answers.best_of(1)));
            }
            None if are_refused => {
                let rate = state.answers.best_of(INTERVALS_MAX).max(RATE_BEGINS_MIN) * CUT;
                state.bounded = Some(Bounded { rate, next: pause_until, changed: now, is_refused: false, clean: 0 });
            }
            None => {}
        }
    }
}

impl PaceState {
    fn waiting(&mut self, kind: RequestKind) -> &mut usize {
        &mut self.waiting[usize::from(kind != RequestKind::Write)]
    }

    /// Takes the next permit. If no permit is due yet, fails with the time at which one will be due. If the permit that
    /// is due belongs to another kind of request, fails with `None`.
    fn take_turn(&mut self, kind: RequestKind) -> Result<(), Option<Instant>> {
        let Some(bounded) = &mut self.bounded else { return Ok(()) };
        let now = Instant::now();
        if bounded.next > now {
            return Err(Some(bounded.next));
        }
        let is_write = kind == RequestKind::Write;
        let is_of_writes = self.writes_in_a_row < WRITES_FOR_ANOTHER;
        let do_others_wait = self.waiting[usize::from(is_write)] > 0;
        if do_others_wait && is_write != is_of_writes {
            return Err(None);
        }
        self.writes_in_a_row = if is_write { self.writes_in_a_row + 1 } else { 0 };
        // The interval is random, so that several brokers do not send to the same store at the same moments.
        bounded.next = now + Duration::from_secs_f64(random_part().mul_add(0.4, 0.8) / bounded.rate);
        Ok(())
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

    /// A store that accepts requests up to a certain rate and refuses the others.
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

    /// Runs 40 loops for `time`. Each loop sends one request after another, and pauses after a refusal as a fetch does.
    async fn send(pace: &Arc<Pace>, store: &Arc<Narrow>, time: Duration) {
        let until = Instant::now() + time;
        let each = (0..40).map(|_| {
            let (pace, store) = (Arc::clone(pace), Arc::clone(store));
            async move {
                while Instant::now() < until {
                    admit(&pace, RequestKind::Write).await;
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

    async fn admit(pace: &Pace, kind: RequestKind) {
        pace.admit(kind, &BodyProgress::default()).await;
    }

    /// Returns the pace after a store has refused all requests for `time`.
    async fn refused_for(time: Duration) -> Arc<Pace> {
        let pace = Arc::<Pace>::default();
        send(&pace, &Narrow::taking(0.0), time).await;
        pace
    }

    #[tokio::test(start_paused = true)]
    async fn store_refuses_requests_their_rate_falls_below_its_own_and_comes_back() {
        for rate in [2.0, 5.0, 10.0, 20.0, 100.0] {
            let (pace, store) = (Arc::<Pace>::default(), Narrow::taking(rate));
            send(&pace, &store, S(60)).await;
            let (taken, refused) = (store.taken.load(Ordering::Relaxed), store.refused.load(Ordering::Relaxed));
            println!("{rate}/s: {taken} taken, {refused} refused in 60 s");
            assert!(taken as f64 >= rate * 60.0 * 0.75, "{rate}/s: {taken} taken");
            assert!(refused <= taken / 3 + 80, "{rate}/s: {refused} refused, {taken} taken");
            let wide = Narrow::taking(100_000.0);
            send(&pace, &wide, S(20)).await;
            assert!(pace.state.lock().bounded.is_none(), "nothing is bounded any more");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_broker_gets_a_few_refusals_no_request_waits() {
        let pace = Pace::default();
        for _ in 0..REFUSALS_MIN - 1 {
            pace.refused(Some(S(5)));
        }
        let began = Instant::now();
        admit(&pace, RequestKind::Read).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        // The pace stays unlimited while the store refuses no more requests than it accepts.
        tokio::time::sleep(S(2)).await;
        (0..20).for_each(|_| pace.succeeded());
        (0..20).for_each(|_| pace.refused(None));
        assert!(pace.state.lock().bounded.is_none());
        pace.refused(None);
        assert!(pace.state.lock().bounded.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn store_has_refused_everything_its_requests_come_back_within_seconds() {
        let pace = refused_for(S(30)).await;
        let store = Narrow::taking(20.0);
        send(&pace, &store, S(10)).await;
        let taken = store.taken.load(Ordering::Relaxed);
        // The pauses are random. In trials, the store accepted at least 61 requests. If the rate grew by only 5 % and
        // 0.5 requests per second each second, the store would accept only 30.
        assert!(taken >= 45, "{taken} of 200 in the first 10 s");
        send(&pace, &Narrow::taking(100_000.0), S(20)).await;
        assert!(pace.state.lock().bounded.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn store_refuses_requests_three_of_four_permits_go_to_writes() {
        let pace = refused_for(S(10)).await;
        let each = |kind| {
            let pace = Arc::clone(&pace);
            (0..40).map(move |_| {
                let pace = Arc::clone(&pace);
                tokio::spawn(async move { admit(&pace, kind).await })
            })
        };
        let reads: Vec<_> = each(RequestKind::Read).collect();
        tokio::task::yield_now().await;
        let writes: Vec<_> = each(RequestKind::Write).collect();
        let done = |of: &[tokio::task::JoinHandle<()>]| of.iter().filter(|one| one.is_finished()).count();
        while done(&writes) < 30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!((9..=11).contains(&done(&reads)), "{} reads beside 30 writes", done(&reads));
        writes.iter().for_each(tokio::task::JoinHandle::abort);
        let began = Instant::now();
        while done(&reads) < 20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(began.elapsed() < S(15), "nothing is before them any more: {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn request_waits_for_its_permit_it_is_not_silent() {
        let pace = refused_for(S(10)).await;
        for _ in 0..20 {
            tokio::spawn({
                let pace = Arc::clone(&pace);
                async move { admit(&pace, RequestKind::Write).await }
            });
        }
        tokio::task::yield_now().await;
        let (began, progress) = (Instant::now(), BodyProgress::default());
        let mut waits = pin!(pace.admit(RequestKind::Write, &progress));
        loop {
            tokio::select! {
                () = &mut waits => break,
                () = sleep(Duration::from_millis(100)) => {
                    assert!(progress.last().0.elapsed() <= WAITS_NOTED_EVERY);
                    assert!(progress.began().elapsed() <= WAITS_NOTED_EVERY);
                }
            }
        }
        assert!(began.elapsed() > S(10), "{:?}", began.elapsed());
        assert_eq!((progress.began(), progress.last().0), (Instant::now(), Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn store_wants_a_pause_requests_wait_for_a_second_of_it() {
        for (wanted, kept) in [(0, 0), (1, 1), (3600, 1)] {
            let pace = Pace::default();
            (0..REFUSALS_MIN).for_each(|_| pace.refused(Some(S(wanted))));
            let began = Instant::now();
            admit(&pace, RequestKind::Write).await;
            assert_eq!(began.elapsed(), S(kept));
        }
    }
}
