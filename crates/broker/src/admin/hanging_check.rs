//! Runs checks that hang if the disk hangs, without blocking the admin page.

use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Duration, timeout};

/// Maximum time that a caller waits for a check. It is below one second, the usual timeout of probes.
const CHECK_MAX: Duration = Duration::from_millis(500);

/// Runs checks of one kind on a blocking thread, one at a time. If the disk hangs, only one thread hangs with it.
pub struct HangingCheck<T> {
    under_way: Mutex<Option<JoinHandle<T>>>,
}

impl<T> Default for HangingCheck<T> {
    fn default() -> Self {
        HangingCheck { under_way: Mutex::new(None) }
    }
}

impl<T: Send + 'static> HangingCheck<T> {
    /// Runs `check` and returns its result. If an earlier check is still running, waits for the result of that check
    /// instead.
    ///
    /// Returns `None` if the result takes longer than [`CHECK_MAX`], or if the check has panicked.
    pub async fn run(&self, check: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let running = async {
            let mut under_way = self.under_way.lock().await;
            // The earlier check has finished after its caller had given up waiting. Its result is old, so it is dropped
            // and a new check is started.
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
