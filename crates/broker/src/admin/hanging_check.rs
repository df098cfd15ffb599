//! Checks that may hang: of the disk, and of locks held by a hanging write.

use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Duration, timeout};

/// Longest wait for a check: shorter than the usual timeout of a probe.
const CHECK_MAX: Duration = Duration::from_millis(500);

/// Checks of one kind on the blocking threads: one at a time, so that hanging checks occupy one thread.
pub struct HangingCheck<T> {
    under_way: Mutex<Option<JoinHandle<T>>>,
}

impl<T> Default for HangingCheck<T> {
    fn default() -> Self {
        HangingCheck { under_way: Mutex::new(None) }
    }
}

impl<T: Send + 'static> HangingCheck<T> {
    /// Returns the result of `check`, or of an earlier check that is still running, because no two may run at a time.
    /// None if the result takes longer than [`CHECK_MAX`], or the check has panicked.
    pub async fn run(&self, check: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let running = async {
            let mut under_way = self.under_way.lock().await;
            // A check that has finished here is left from a caller that no longer waited. Its result is old, and is
            // dropped.
            let is_old = under_way.as_ref().is_some_and(JoinHandle::is_finished);
            let running = match under_way.take() {
                Some(running) if !is_old => running,
                _ => spawn_blocking(check),
            };
            let found = under_way.insert(running).await;
            *under_way = None;
            found.ok()
        };
        timeout(CHECK_MAX, running).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn no_check_begins_while_another_hangs() {
        let check = HangingCheck::default();
        assert_eq!(check.run(|| 1).await, Some(1));
        let (go_on, goes_on) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = goes_on.recv();
            2
        };
        assert_eq!(check.run(hangs).await, None);
        assert_eq!(check.run(|| panic!("a second thread would hang")).await, None);
        drop(go_on);
        while !check.under_way.lock().await.as_ref().is_none_or(JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(check.run(|| 3).await, Some(3), "what it saw is old");
    }
}
