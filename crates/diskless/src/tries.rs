//! Hedges requests to the object store. If a request takes too long, a second try is started beside the first one, and
//! the first success counts.
//!
//! A try takes too long if its bytes move very slowly or not at all. A slow link alone is no reason for a second try. A
//! second try helps after an outage, when the old try may hang forever. If the second try takes too long as well, a new
//! try replaces it. The first replacement waits for the usual time, and each further one twice as long. The first try
//! always continues. A failed try is replaced after the same waits. Each second try costs credit, which [`Hedging`]
//! manages.
//!
//! The requests themselves are elsewhere. So are the retries after all tries of a request have failed.
//!
//! Invariant: a request has at most two tries under way.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::hedge::{Hedging, USUAL_OF_WAIT};
use super::objects::{AnyProgress, BodyProgress, ObjectError};
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::task;

/// How long a request may make no progress before it counts as silent. A second try is then due, whatever the usual
/// time of requests is.
pub const SILENT_MAX: Duration = Duration::from_secs(5);
/// How long a request may make no progress before it is given up.
pub const GIVEN_UP_AFTER: Duration = Duration::from_secs(40);
/// How many bytes of a PUT the system's send buffer (`tcp_wmem`) may have. While the system sends these bytes, the
/// broker sees no progress.
pub const BUFFERED_MAX: u64 = 4 << 20;
/// Assumed minimum rate at which the system sends its send buffer, in bytes per second.
const BUFFER_LEAVES: u64 = 256 << 10;
/// How often to check for credit if a second try is due but there is no credit.
const CREDIT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum time without progress after which a request counts as silent, or the store if no request has progressed.
const STORE_SILENT_MIN: Duration = Duration::from_secs(1);
/// The same time as a multiple of the usual wait for a second try. It is at least `STORE_SILENT_MIN` and at most
/// `SILENT_MAX`.
const WAITS_OF_SILENCE: u32 = 4;
/// Maximum number of times that the wait before a second try of the same request is doubled.
const DOUBLED_MAX: u32 = 8;

/// The state of hedging for one kind of request (PUT or GET).
#[derive(Debug)]
pub struct Tries {
    /// The kind of request in log lines: PUT or GET.
    name: &'static str,
    hedging: Mutex<Hedging>,
    silences: LogRateLimit,
    /// How many bytes of a body the system's send buffer may hold.
    buffered_max: u64,
    any: AnyProgress,
    under_way: Mutex<UnderWay>,
    began: Instant,
}

/// The requests that are under way.
#[derive(Debug)]
struct UnderWay {
    count: usize,
    /// The time since which at least one request has been under way.
    since: Instant,
}

/// A request counts as under way until this guard is dropped.
struct Counted<'t>(&'t Tries);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.under_way.lock().count -= 1;
    }
}

/// A try that is under way.
struct Try {
    progress: BodyProgress,
    handle: AbortHandle,
    is_first: bool,
}

/// A request and those of its tries that are under way, at most two. The older try is first.
struct TriedRequest {
    bytes: u64,
    /// The progress of the first try, even if that try has already failed.
    first: BodyProgress,
    tries: Vec<Try>,
    /// Number of second tries that were started. Each of them cost credit.
    seconds: u32,
    /// The next second try must not start before this time.
    not_before: Instant,
}

impl TriedRequest {
    /// Returns the try that was started last.
    fn newest(&self) -> &Try {
        &self.tries[self.tries.len() - 1]
    }

    /// Returns the factor for the wait before the next second try.
    fn doubled(&self) -> u32 {
        1 << self.seconds.saturating_sub(1).min(DOUBLED_MAX)
    }

    /// Returns the time at which the request is given up if it makes no progress until then. `buffered_max` is how many
    /// bytes of a body the system's send buffer may have.
    fn ends(&self, buffered_max: u64) -> Instant {
        moved_last(&self.first, &self.newest().progress) + GIVEN_UP_AFTER + sends_buffer(&self.first, buffered_max)
    }

    /// Removes and returns a try that has ended. Returns `None` if the try was given up before it ended.
    fn take(&mut self, id: Id) -> Option<Try> {
        let at = self.tries.iter().position(|one| one.handle.id() == id)?;
        Some(self.tries.remove(at))
    }
}

impl Tries {
    /// Creates the state before the first request. `buffered_max` is how many bytes of a body the system's send buffer
    /// may have.
    pub fn new(name: &'static str, buffered_max: u64) -> Tries {
        let (hedging, silences, any) = (Mutex::default(), LogRateLimit::default(), AnyProgress::default());
        let began = Instant::now();
        let under_way = Mutex::new(UnderWay { count: 0, since: began });
        Tries { name, hedging, silences, buffered_max, any, under_way, began }
    }

    /// Returns how long the requests have made no progress, or `None` if no request is under way. This time begins at
    /// the latest of three moments: the last progress or success, `answered`, and the moment since which requests have
    /// been under way.
    pub fn silent_for(&self, answered: Option<Instant>) -> Option<Duration> {
        let since = {
            let under_way = self.under_way.lock();
            (under_way.count > 0).then_some(under_way.since)?
        };
        Some(answered.unwrap_or(since).max(since).max(self.any.last()).elapsed())
    }

    /// Returns how long a small request may take before it gets a second try, or `None` if this is not known yet.
    pub fn usual_wait(&self) -> Option<Duration> {
        self.hedging.lock().wait(0)
    }

    /// Returns the time without progress after which a request with `bytes` bytes counts as silent. This is a multiple
    /// of the usual wait for a second try, but at most [`SILENT_MAX`].
    pub fn silence(&self, bytes: u64) -> Duration {
        let wait = self.hedging.lock().wait(bytes);
        let silence = wait.map_or(SILENT_MAX, |wait| wait.saturating_mul(WAITS_OF_SILENCE));
        silence.clamp(STORE_SILENT_MIN, SILENT_MAX)
    }

    /// Returns how many requests are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.lock().count
    }

    fn counted(&self) -> Counted<'_> {
        let mut under_way = self.under_way.lock();
        if under_way.count == 0 {
            under_way.since = Instant::now();
        }
        under_way.count += 1;
        Counted(self)
    }

    /// Runs a request with a body of `bytes` bytes until one of its tries succeeds or the last one fails. Calls `start`
    /// for each try, and `second` for each try except the first one. Dropping the future ends all tries.
    ///
    /// # Errors
    /// Returns the [`ObjectError`] of the last try, or an error if there is no progress for [`GIVEN_UP_AFTER`].
    pub async fn run<T, F>(
        &self,
        bytes: u64,
        start: impl Fn(BodyProgress) -> F,
        second: impl Fn(),
    ) -> Result<T, ObjectError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ObjectError>> + Send + 'static,
    {
        let _counted = self.counted();
        let mut under_way = JoinSet::new();
        let begin = |under_way: &mut JoinSet<_>, is_first| {
            let progress = BodyProgress::of(self.any.clone());
            let handle = under_way.spawn(task::boxed(start(progress.clone())));
            Try { progress, handle, is_first }
        };
        let first = begin(&mut under_way, true);
        let (progress, not_before) = (first.progress.clone(), Instant::now());
        let mut request = TriedRequest { bytes, first: progress, tries: vec![first], seconds: 0, not_before };
        loop {
            let due = self.second_due(&request).max(request.not_before);
            tokio::select! {
                biased;
                Some(done) = under_way.join_next_with_id() => {
                    let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
                    let ended = request.take(id);
                    match done.map(|(_, done)| done) {
                        Ok(Ok(done)) => {
                            self.succeeded(&request, ended.as_ref());
                            return Ok(done);
                        }
                        Ok(Err(error)) if request.tries.is_empty() => return Err(error),
                        Err(_) if request.tries.is_empty() => {
                            return Err(ObjectError::Unavailable(format!("a {} has ended without an answer", self.name)));
                        }
                        // The other try may still succeed. The end of a try that was given up does not matter.
                        _ if ended.is_some() => request.not_before = Instant::now() + self.pause(&request),
                        _ => {}
                    }
                }
                () = sleep_until(due.min(request.ends(self.buffered_max))) => {
                    if request.ends(self.buffered_max) <= Instant::now() {
                        let (name, seconds) = (self.name, GIVEN_UP_AFTER.as_secs());
                        return Err(ObjectError::Unavailable(format!("no progress of a {name} for {seconds} s")));
                    }
                    if self.second_due(&request) > Instant::now() {
                        continue;
                    }
                    if !self.take_credit(bytes) {
                        request.not_before = Instant::now() + CREDIT_PAUSE;
                        continue;
                    }
                    self.report_silence(&request.newest().progress);
                    request.tries.drain(1..).for_each(|given_up| given_up.handle.abort());
                    request.tries.push(begin(&mut under_way, false));
                    request.seconds += 1;
                    second();
                }
            }
        }
    }

    /// Records that the try `ended` has succeeded. `None` means that this try was given up before.
    fn succeeded(&self, request: &TriedRequest, ended: Option<&Try>) {
        let Some(ended) = ended else { return };
        self.note(ended.progress.began().elapsed(), request.bytes);
        if !ended.is_first {
            self.hedging.lock().give_back(request.seconds);
        }
    }

    /// Records that a try of a request with `bytes` bytes took `took`.
    fn note(&self, took: Duration, bytes: u64) {
        self.any.moved();
        self.hedging.lock().note(took, bytes);
    }

    /// Takes the credit for a second try of a request with `bytes` bytes. Returns false if there is not enough credit.
    ///
    /// The store counts as silent only after the time in which the system may have sent its send buffer. A narrow link
    /// moves large bodies in steps of several seconds, and second tries would take the whole link.
    fn take_credit(&self, bytes: u64) -> bool {
        let is_silent = self.any.last().elapsed() >= self.silence(bytes) + leaves(bytes.min(self.buffered_max));
        self.hedging.lock().take(self.began.elapsed(), is_silent)
    }

    /// Returns how long to wait before a new try replaces a failed one. The other try of the request continues.
    fn pause(&self, request: &TriedRequest) -> Duration {
        let wait = self.hedging.lock().wait(request.bytes).unwrap_or(STORE_SILENT_MIN);
        wait.saturating_mul(request.doubled()).min(SILENT_MAX)
    }

    /// Returns the time at which a second try is due if the newest try makes no progress until then. The wait normally
    /// begins at the start of the newest try.
    ///
    /// If the bytes of the newest try have moved slowly, the wait is longer. The last bytes may still be in the
    /// system's send buffer, and may take about as long as the bytes before them.
    fn second_due(&self, request: &TriedRequest) -> Instant {
        let progress = &request.newest().progress;
        let (began, (last, _)) = (progress.began(), progress.last());
        let silent = last + SILENT_MAX + sends_buffer(progress, self.buffered_max);
        // If the usual wait is `SILENT_MAX` or more, the whole store is slow. A second try before `SILENT_MAX` would
        // only increase its load.
        let wait = self.hedging.lock().wait(request.bytes).filter(|wait| *wait < SILENT_MAX);
        let late = wait.map(|wait| {
            let quiet = wait.mul_f64(USUAL_OF_WAIT).max((last - began) * 3 / 2);
            (began + wait.saturating_mul(request.doubled())).max(last + quiet)
        });
        late.map_or(silent, |late| late.min(silent))
    }

    fn report_silence(&self, progress: &BodyProgress) {
        if progress.last().0.elapsed() >= SILENT_MAX
            && let Some(left_out) = self.silences.due()
        {
            tracing::warn!(
                request = self.name,
                left_out,
                "a request to the object store makes no progress: the broker sends it a second time"
            );
        }
    }
}

/// Returns how long the system may take to send its send buffer, which has at most `buffered_max` bytes. The broker
/// sees no progress in this time. The bytes before the buffer show the rate of the link, if there were any.
fn sends_buffer(progress: &BodyProgress, buffered_max: u64) -> Duration {
    let (last, bytes) = progress.last();
    let buffered = bytes.min(buffered_max);
    let seen = match bytes - buffered {
        0 => Duration::ZERO,
        sent => (last - progress.began()).mul_f64(buffered as f64 / sent as f64),
    };
    seen.min(GIVEN_UP_AFTER).max(leaves(buffered))
}

/// Returns how long the system may take to send `bytes` bytes of its send buffer at the assumed minimum rate.
fn leaves(bytes: u64) -> Duration {
    Duration::from_millis(bytes * 1000 / BUFFER_LEAVES)
}

/// Returns the time of the last progress. Progress of a second try does not count within [`SILENT_MAX`] of its start,
/// because its bytes may only have filled the system's send buffer.
fn moved_last(first: &BodyProgress, newest: &BodyProgress) -> Instant {
    let (began, (first, _), (last, _)) = (newest.began(), first.last(), newest.last());
    if last - began >= SILENT_MAX { last.max(first) } else { first }
}

#[cfg(test)]
mod tests {
    use super::super::hedge::{BURST, ONE_IN};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const S: fn(u64) -> Duration = Duration::from_secs;

    /// Runs a request that succeeds after the time `takes`. Until then, bytes move once every `step`. Returns the
    /// outcome and the number of tries.
    async fn tries_of(step: Duration, takes: Duration) -> (Result<(), ObjectError>, usize) {
        let (tries, count) = (Tries::new("PUT", BUFFERED_MAX), AtomicUsize::new(1));
        let request = |progress: BodyProgress| async move {
            let until = Instant::now() + takes;
            while Instant::now() < until {
                tokio::time::sleep(step).await;
                progress.moved(1 << 20);
            }
            Ok(())
        };
        let done = tries
            .run(1 << 20, request, || {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .await;
        (done, count.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_progresses_is_tried_once_however_long_it_takes() {
        assert_eq!(tries_of(S(1), S(3600)).await, (Ok(()), 1));
        assert_eq!(tries_of(S(4), S(3600)).await, (Ok(()), 1), "a part of the system's buffer at a time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_progress_is_tried_again_and_given_up() {
        let began = Instant::now();
        let (done, tries) = tries_of(S(100_000), S(100_000)).await;
        let error = done.expect_err("it never moves");
        assert_eq!(error.to_string(), "the object store fails: no progress of a PUT for 40 s");
        assert!(error.is_retriable());
        assert_eq!(began.elapsed(), GIVEN_UP_AFTER);
        assert_eq!(tries, 8, "one each {SILENT_MAX:?}");
    }

    /// Runs a request that sends its body in the time `sent` and then hangs. Returns the time until its second try
    /// starts.
    async fn second_after(sent: Duration) -> Duration {
        let tries = Tries::new("PUT", BUFFERED_MAX);
        (0..20).for_each(|_| tries.note(Duration::from_millis(150), 1 << 20));
        let (began, second_at) = (Instant::now(), Mutex::new(None));
        let request = |progress: BodyProgress| async move {
            progress.moved(1 << 20);
            while progress.began().elapsed() < sent {
                tokio::time::sleep(Duration::from_millis(50)).await;
                progress.moved(1 << 20);
            }
            std::future::pending::<Result<(), ObjectError>>().await
        };
        let second = || {
            second_at.lock().get_or_insert_with(|| began.elapsed());
        };
        tries.run(1 << 20, request, second).await.expect_err("given up");
        second_at.into_inner().expect("there was one")
    }

    #[tokio::test(start_paused = true)]
    async fn link_is_narrow_its_send_buffer_is_no_silence() {
        const SIZE: u64 = 8 << 20;
        for bytes_per_second in [125_000, 250_000, 1_000_000] {
            let (tries, count) = (Tries::new("PUT", BUFFERED_MAX), AtomicUsize::new(1));
            let request = |progress: BodyProgress| async move {
                progress.moved(BUFFERED_MAX as usize);
                for _ in 0..(SIZE - BUFFERED_MAX) >> 16 {
                    tokio::time::sleep(Duration::from_millis((1000 << 16) / bytes_per_second)).await;
                    progress.moved(1 << 16);
                }
                tokio::time::sleep(Duration::from_millis(BUFFERED_MAX * 1000 / bytes_per_second)).await;
                Ok(())
            };
            let second = || {
                count.fetch_add(1, Ordering::Relaxed);
            };
            assert_eq!(tries.run(SIZE, request, second).await, Ok(()), "{bytes_per_second}");
            assert_eq!(count.into_inner(), 1, "{bytes_per_second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn store_is_wide_second_try_comes_after_the_usual_time_from_the_start() {
        let ms = Duration::from_millis;
        assert_eq!(second_after(ms(0)).await, ms(375));
        assert_eq!(second_after(ms(150)).await, ms(375), "the body took the usual time");
        assert_eq!(second_after(ms(2000)).await, ms(5000), "the link is slow");
    }

    /// Bytes that move at one per second do not count as progress, because a reader would wait for days.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_trickles_is_tried_again_and_given_up() {
        let (tries, count, began) = (Tries::new("GET", 0), AtomicUsize::new(1), Instant::now());
        let request = |progress: BodyProgress| async move {
            loop {
                tokio::time::sleep(S(1)).await;
                progress.moved(1);
            }
        };
        let second = || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let done: Result<(), _> = tries.run(1 << 20, request, second).await;
        assert!(done.is_err_and(|error| error.is_retriable()));
        assert_eq!((began.elapsed(), count.into_inner()), (GIVEN_UP_AFTER, 8));
    }

    /// Simulates a PUT. It hangs in `hanging` percent of the calls, and otherwise takes 10 ms.
    async fn put(store: &Mutex<u64>, hanging: u64) -> Result<(), ObjectError> {
        let drawn = {
            let mut state = store.lock();
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 33) % 100
        };
        let takes = if drawn < hanging { S(100_000) } else { Duration::from_millis(10) };
        tokio::time::sleep(takes).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn part_of_the_requests_hangs_the_others_go_on() {
        const REQUESTS: u32 = 2000;
        for hanging in [0, 10, 20, 30] {
            let (tries, store) = (Tries::new("PUT", BUFFERED_MAX), Arc::new(Mutex::new(hanging)));
            (0..20).for_each(|_| tries.note(Duration::from_millis(10), 70_000));
            let (began, mut longest) = (Instant::now(), Duration::ZERO);
            for _ in 0..REQUESTS {
                let one = Instant::now();
                let request = |_| {
                    let store = Arc::clone(&store);
                    async move { put(&store, hanging).await }
                };
                tries.run(70_000, request, || ()).await.expect("put");
                longest = longest.max(one.elapsed());
                // This is how long a producer waits for its answers before it sends the next batch.
                tokio::time::sleep(Duration::from_millis(90)).await;
            }
            let of_well = f64::from(REQUESTS) * 0.1 / began.elapsed().as_secs_f64();
            assert!(of_well >= 1.0 - 0.03 * hanging as f64 - 1e-9, "{hanging} %: {of_well}");
            assert!(longest < S(10), "{hanging} %: {longest:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn second_try_fails_at_once_the_next_follows_soon() {
        let (tries, count) = (Tries::new("PUT", BUFFERED_MAX), Arc::new(AtomicUsize::new(0)));
        (0..20).for_each(|_| tries.note(Duration::from_millis(10), 70_000));
        let began = Instant::now();
        let request = |_| {
            let count = Arc::clone(&count);
            async move {
                match count.fetch_add(1, Ordering::Relaxed) {
                    0 => std::future::pending().await,
                    1..4 => Err(ObjectError::Unavailable("503".into())),
                    _ => Ok(()),
                }
            }
        };
        assert_eq!(tries.run(70_000, request, || ()).await, Ok(()));
        assert_eq!(began.elapsed(), Duration::from_millis(25 + 25 + 50 + 100));
    }

    #[tokio::test(start_paused = true)]
    async fn tries_fail_one_after_the_other_the_request_ends() {
        let (tries, began) = (Tries::new("PUT", BUFFERED_MAX), Instant::now());
        let request = |_| async {
            tokio::time::sleep(SILENT_MAX * 3 / 2).await;
            Err::<(), _>(ObjectError::Unavailable("503".into()))
        };
        tries.run(70_000, request, || ()).await.expect_err("none succeeds");
        assert!(began.elapsed() <= GIVEN_UP_AFTER, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn store_becomes_slow_few_requests_are_sent_again() {
        let (tries, count) = (Tries::new("PUT", BUFFERED_MAX), AtomicUsize::new(0));
        (0..64).for_each(|_| tries.note(Duration::from_millis(10), 70_000));
        for _ in 0..25 {
            let request = |_| async {
                tokio::time::sleep(Duration::from_millis(400)).await;
                Ok(())
            };
            let second = || {
                count.fetch_add(1, Ordering::Relaxed);
            };
            let done = futures_util::future::join_all((0..8).map(|_| tries.run(70_000, request, second))).await;
            assert!(done.into_iter().all(|done| done.is_ok()));
        }
        let most = BURST as usize + 200 / ONE_IN as usize;
        assert!(count.load(Ordering::Relaxed) <= most, "{count:?} of at most {most}");
    }

    #[tokio::test(start_paused = true)]
    async fn many_silent_requests_have_few_second_tries() {
        let (tries, count) = (Tries::new("PUT", BUFFERED_MAX), AtomicUsize::new(0));
        let request = |_: BodyProgress| async {
            tokio::time::sleep(S(30)).await;
            Ok(())
        };
        let requests = (0..100).map(|_| {
            tries.run(1 << 20, request, || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        });
        futures_util::future::join_all(requests).await;
        let most = BURST as usize + 30 + 100 / ONE_IN as usize;
        assert!(count.load(Ordering::Relaxed) <= most, "{count:?} of at most {most}");
    }

    /// Eight PUTs at a time share a link that has just become narrow. Their bodies move in large steps, all at the same
    /// time, as the system reports them.
    #[tokio::test(start_paused = true)]
    async fn link_becomes_narrow_bodies_move_in_steps_few_are_sent_again() {
        const SIZE: u64 = 8 << 20;
        let (tries, count) = (Tries::new("PUT", BUFFERED_MAX), AtomicUsize::new(0));
        (0..64).for_each(|_| tries.note(Duration::from_millis(300), SIZE));
        for _ in 0..4 {
            let request = |progress: BodyProgress| async move {
                progress.moved(BUFFERED_MAX as usize);
                for _ in 0..8 {
                    tokio::time::sleep(S(8)).await;
                    progress.moved((SIZE - BUFFERED_MAX) as usize / 8);
                }
                Ok(())
            };
            let second = || {
                count.fetch_add(1, Ordering::Relaxed);
            };
            let done = futures_util::future::join_all((0..8).map(|_| tries.run(SIZE, request, second))).await;
            assert!(done.into_iter().all(|done| done.is_ok()));
        }
        let most = BURST as usize + 32 / ONE_IN as usize;
        assert!(count.load(Ordering::Relaxed) <= most, "{count:?} of at most {most}");
    }
}
