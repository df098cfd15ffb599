//! One request of the object store, and the same beside it where it takes too long: the first that succeeds counts.
//!
//! A try takes too long while its bytes do not move, or trickle, not because a link is slow. Who has not answered in an outage may
//! never do, and what is sent after it is answered soon: a second try is given up for a third one every 5 s, and the first
//! goes on. Few requests have a second try: [`Hedging`] counts them.
//!
//! Invariant: at most two tries of a request are under way.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::hedge::{Hedging, USUAL_OF_WAIT};
use super::objects::{AnyProgress, BodyProgress, ObjectError};
use crate::seldom::Seldom;
use crate::task;

/// Time without progress after which a request is silent: a second try is due, whatever is usual.
pub const SILENT_MAX: Duration = Duration::from_secs(5);
/// Time without progress after which a request is given up.
pub const GIVEN_UP_AFTER: Duration = Duration::from_secs(40);
/// Bytes of a PUT that the system takes and has not sent, at most (`tcp_wmem`), and the bytes a second at which they leave at
/// least: meanwhile nothing is seen to move.
pub const BUFFERED_MAX: u64 = 4 << 20;
const BUFFER_LEAVES: u64 = 256 << 10;
/// Pause after a second try was due and none was left.
const CREDIT_PAUSE: Duration = Duration::from_secs(1);

/// The requests of one kind.
#[derive(Debug)]
pub struct Tries {
    /// As log lines name one of them.
    name: &'static str,
    hedging: Mutex<Hedging>,
    silences: Seldom,
    /// Bytes of a body that may have moved into a buffer only.
    buffered_max: u64,
    any: AnyProgress,
    began: Instant,
}

/// One try that is under way.
struct Try {
    progress: BodyProgress,
    handle: AbortHandle,
}

impl Tries {
    /// No request was made yet. `buffered_max` bytes of a body may be seen to move before they leave.
    pub fn new(name: &'static str, buffered_max: u64) -> Tries {
        let (hedging, silences, any) = (Mutex::default(), Seldom::default(), AnyProgress::default());
        Tries { name, hedging, silences, buffered_max, any, began: Instant::now() }
    }

    /// Runs a request with a body of this many bytes until one of its tries succeeds, or the last one fails. `second` is called for each try but the first.
    /// Dropping the future gives all of them up.
    ///
    /// # Errors
    /// The last try's, or no progress for [`GIVEN_UP_AFTER`].
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
        let mut under_way = JoinSet::new();
        let begin = |under_way: &mut JoinSet<_>| {
            let progress = BodyProgress::of(self.any.clone());
            let handle = under_way.spawn(task::boxed(start(progress.clone())));
            Try { progress, handle }
        };
        let wait = |has_second: bool| if has_second { None } else { self.hedging.lock().wait(bytes) };
        let first = begin(&mut under_way);
        let mut newest = None;
        let mut not_before = first.progress.began();
        loop {
            let watched = newest.as_ref().unwrap_or(&first);
            let due = self.second_due(&watched.progress, wait(newest.is_some())).max(not_before);
            let end = moved_last(&first, watched) + GIVEN_UP_AFTER;
            tokio::select! {
                biased;
                Some(done) = under_way.join_next() => match done {
                    Ok(Ok(done)) => return Ok(done),
                    Ok(Err(error)) if under_way.is_empty() => return Err(error),
                    // The other try may succeed; one that was given up says nothing.
                    _ => {}
                },
                () = sleep_until(due.min(end)) => {
                    if moved_last(&first, watched) + GIVEN_UP_AFTER <= Instant::now() {
                        let (name, seconds) = (self.name, GIVEN_UP_AFTER.as_secs());
                        return Err(ObjectError::Unavailable(format!("no progress of a {name} for {seconds} s")));
                    }
                    if self.second_due(&watched.progress, wait(newest.is_some())) > Instant::now() {
                        continue;
                    }
                    let is_silent = self.any.last().elapsed() >= SILENT_MAX;
                    if !self.hedging.lock().take(self.began.elapsed(), is_silent) {
                        not_before = Instant::now() + CREDIT_PAUSE;
                        continue;
                    }
                    self.report_silence(&watched.progress);
                    if let Some(given_up) = newest.take().filter(|_| under_way.len() > 1) {
                        given_up.handle.abort();
                    }
                    newest = Some(begin(&mut under_way));
                    second();
                }
            }
        }
    }

    /// Notes the time that a request of this many bytes took from its first try on.
    pub fn note(&self, took: Duration, bytes: u64) {
        self.any.moved();
        self.hedging.lock().note(took, bytes);
    }

    /// The time at which a second try is due, if no byte moves until then. `wait` is the time after which a request takes too
    /// long, where that is known. It counts from the start. Bytes in the system's buffer take about as long again as those
    /// before them took.
    fn second_due(&self, progress: &BodyProgress, wait: Option<Duration>) -> Instant {
        let (began, (last, bytes)) = (progress.began(), progress.last());
        let buffered = Duration::from_millis(bytes.min(self.buffered_max) * 1000 / BUFFER_LEAVES);
        let silent = last + SILENT_MAX + buffered;
        // A store that usually takes seconds is slow, and a second try would make it slower.
        let late = wait.filter(|wait| *wait < SILENT_MAX).map(|wait| {
            let quiet = wait.mul_f64(USUAL_OF_WAIT).max((last - began) * 3 / 2);
            (began + wait).max(last + quiet)
        });
        late.map_or(silent, |late| late.min(silent))
    }

    fn report_silence(&self, progress: &BodyProgress) {
        if progress.last().0.elapsed() >= SILENT_MAX
            && let Some(left_out) = self.silences.due()
        {
            tracing::warn!(request = self.name, left_out, "the object store is silent: a request is sent again");
        }
    }
}

/// The last time that bytes moved. Those that a second try hands to the system at its start say nothing.
fn moved_last(first: &Try, second: &Try) -> Instant {
    let (began, (first, _), (last, _)) = (second.progress.began(), first.progress.last(), second.progress.last());
    if last - began >= SILENT_MAX { last.max(first) } else { first }
}

#[cfg(test)]
mod tests {
    use super::super::hedge::{BURST, ONE_IN};
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const S: fn(u64) -> Duration = Duration::from_secs;

    /// Runs a request whose bytes move each `step` for `takes`, and then answers; the number of its tries.
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

    /// Returns the time until the second try of a request that hangs once its body was sent, which takes `sent`.
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
    async fn store_is_wide_second_try_comes_after_the_usual_time_from_the_start() {
        let ms = Duration::from_millis;
        assert_eq!(second_after(ms(0)).await, ms(375));
        assert_eq!(second_after(ms(150)).await, ms(375), "the body took the usual time");
        assert_eq!(second_after(ms(2000)).await, ms(5000), "the link is slow");
    }

    /// A byte a second is no progress: its reader would wait for days.
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
}
