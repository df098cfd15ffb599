//! Looks at what may hang: the disk, and locks that a write holds which does not come back.

use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Duration, timeout};

/// The longest wait for a look. A probe's own time-out is seldom shorter.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// Looks of one kind, on threads made for waiting: one at a time, so that those that hang take one thread.
pub struct Looks<T> {
    under_way: Mutex<Option<JoinHandle<T>>>,
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Looks { under_way: Mutex::new(None) }
    }
}

impl<T: Send + 'static> Looks<T> {
    /// Returns what `look` found. None if it takes too long, or has panicked: while one is under way no other begins.
    pub async fn take(&self, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let looking = async {
            let mut under_way = self.under_way.lock().await;
            // One that hung, and has come back since nobody waited for it, has seen what was then.
            let is_old = under_way.as_ref().is_some_and(JoinHandle::is_finished);
            let looking = match under_way.take() {
                Some(looking) if !is_old => looking,
                _ => spawn_blocking(look),
            };
            let found = under_way.insert(looking).await;
            *under_way = None;
            found.ok()
        };
        timeout(LOOK_MAX, looking).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn look_hangs_no_other_begins_until_it_has_come_back() {
        let looks = Looks::default();
        assert_eq!(looks.take(|| 1).await, Some(1));
        let (go_on, goes_on) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = goes_on.recv();
            2
        };
        assert_eq!(looks.take(hangs).await, None);
        assert_eq!(looks.take(|| panic!("a second thread would hang")).await, None);
        drop(go_on);
        while !looks.under_way.lock().await.as_ref().is_none_or(JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(looks.take(|| 3).await, Some(3), "what it saw is old");
    }
}
