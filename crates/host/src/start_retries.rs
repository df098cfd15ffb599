//! Retries of a starting broker, while the cluster's database cannot be used for a moment.
//!
//! The caller decides which errors may pass. Invariants: the retries end after a time limit, and soon after a request
//! to stop the start. The first failure is logged at once, and later ones at most once a minute. The error at the end
//! of the time contains the time.

use crate::backoff::Backoff;
use crate::log_rate_limit::LogRateLimit;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest first pause. Each later pause is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The setting for the time of the retries.
const SETTING: &str = "initial.broker.registration.timeout.ms";

/// A request to stop a start. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct StartStop(Arc<(Mutex<bool>, Condvar)>);

impl StartStop {
    /// Makes the request.
    pub fn request(&self) {
        let (requested, changed) = &*self.0;
        *requested.lock() = true;
        changed.notify_all();
    }

    /// Returns true if the request was made.
    pub fn is_requested(&self) -> bool {
        *self.0.0.lock()
    }

    /// Waits for the length of `pause`, or until the request is made. Returns true if it was made.
    fn is_requested_within(&self, pause: Duration) -> bool {
        let (requested, changed) = &*self.0;
        let until = Instant::now() + pause;
        let mut requested = requested.lock();
        while !*requested && !changed.wait_until(&mut requested, until).timed_out() {}
        *requested
    }
}

/// An error of a call that a start retries.
pub trait Retried: fmt::Display {
    /// Returns the text to which the time of the retries is added, or `None` if the error is always lasting.
    fn reason_mut(&mut self) -> Option<&mut String>;
}

/// The time that a start has left for retries. Clones share the time and the limit of log lines.
#[derive(Debug, Clone)]
pub struct StartRetries {
    began: Instant,
    until: Instant,
    stop: StartStop,
    reported: Arc<LogRateLimit>,
}

impl StartRetries {
    /// Allows retries for `limit` from now on, or until `stop` is requested.
    pub fn new(limit: Duration, stop: StartStop) -> StartRetries {
        let began = Instant::now();
        StartRetries { began, until: began + limit, stop, reported: Arc::default() }
    }

    /// Waits for the length of `pause`, or until the stop of the start is requested. Returns true if it was requested.
    pub fn is_stopped_within(&self, pause: Duration) -> bool {
        self.stop.is_requested_within(pause)
    }

    /// Calls `attempt` until it succeeds, until its error is not transient, or until the time is over. Blocks the
    /// thread during the pauses between the attempts.
    ///
    /// # Errors
    /// Returns the error of the last attempt. If the time is over, the error contains how long the start has tried.
    pub fn run<T, E: Retried>(
        &self,
        is_transient: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut has_failed = false;
        loop {
            let mut error = match attempt() {
                Ok(done) => {
                    if has_failed {
                        tracing::info!("the cluster's database can be used again: the start continues");
                    }
                    return Ok(done);
                }
                Err(error) => error,
            };
            let left = self.until.saturating_duration_since(Instant::now());
            if !is_transient(&error) {
                return Err(error);
            }
            if left.is_zero() {
                if let Some(reason) = error.reason_mut().filter(|_| has_failed) {
                    let tried_s = self.began.elapsed().as_secs();
                    *reason += &format!("; the start has tried for {tried_s} s ({SETTING})");
                }
                return Err(error);
            }
            has_failed = true;
            if let Some(left_out) = self.reported.due() {
                let left_s = left.as_secs();
                tracing::warn!(%error, left_s, left_out, "cannot use the cluster's database yet: the start retries until initial.broker.registration.timeout.ms is over; see the error");
            }
            if self.is_stopped_within(backoff.length().min(left)) {
                return Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(120);

    impl Retried for &str {
        fn reason_mut(&mut self) -> Option<&mut String> {
            None
        }
    }

    impl Retried for String {
        fn reason_mut(&mut self) -> Option<&mut String> {
            Some(self)
        }
    }

    #[test]
    fn transient_failure_is_retried_until_an_attempt_succeeds() {
        let (retries, mut attempts) = (StartRetries::new(LONG, StartStop::default()), 0);
        let done = retries.run(
            |_: &&str| true,
            || {
                attempts += 1;
                if attempts < 3 { Err("away") } else { Ok(attempts) }
            },
        );
        assert_eq!(done, Ok(3));
    }

    #[test]
    fn lasting_failure_and_the_end_of_the_time_end_the_retries() {
        for (limit, is_transient) in [(LONG, false), (Duration::ZERO, true)] {
            let (retries, mut attempts) = (StartRetries::new(limit, StartStop::default()), 0);
            let ended = retries.run(
                |_: &&str| is_transient,
                || {
                    attempts += 1;
                    Err::<(), _>("away")
                },
            );
            assert_eq!((ended, attempts), (Err("away"), 1), "{limit:?}");
        }
    }

    #[test]
    fn retries_are_over_the_error_contains_how_long_the_start_has_tried() {
        let limit = Duration::from_secs(1);
        let (retries, mut attempts) = (StartRetries::new(limit, StartStop::default()), 0);
        let ended = retries.run(
            |_: &String| true,
            || {
                attempts += 1;
                Err::<(), _>("away".to_owned())
            },
        );
        let ended = ended.expect_err("each attempt fails");
        let (reason, tried) = ended.split_once("; the start has tried for ").unwrap_or((&ended, ""));
        // On a very slow machine, the time is over at the first attempt, which is then not a retry.
        let is_named = tried.ends_with(" s (initial.broker.registration.timeout.ms)");
        assert!(reason == "away" && is_named == (attempts > 1) && !tried.starts_with("0 s"), "{ended}");
    }

    #[test]
    fn request_to_stop_the_start_ends_the_retries() {
        let stop = StartStop::default();
        let (retries, requested) = (StartRetries::new(LONG, stop.clone()), stop.clone());
        let ended = retries.run(
            |_: &&str| true,
            || {
                requested.request();
                Err::<(), _>("away")
            },
        );
        assert!(ended == Err("away") && stop.is_requested());
    }
}
