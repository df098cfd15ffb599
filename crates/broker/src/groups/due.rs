//! The task that handles the deadlines of groups.

use super::Groups;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Maximum sleep of the task, after which it reads the clock again.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Handles deadlines until the broker stops.
pub(super) async fn run(groups: Arc<Groups>, mut stop: watch::Receiver<bool>) {
    loop {
        let now = groups.now_ms();
        let next = match groups.timer.due(now) {
            Ok(alarm) => {
                groups.fire(&alarm);
                // Lets other requests run in between, because thousands of deadlines may pass at once.
                tokio::task::yield_now().await;
                continue;
            }
            Err(next) => next,
        };
        let wait = next.and_then(|next| u64::try_from(next - now).ok()).map_or(SLEEP_MAX, Duration::from_millis);
        tokio::select! {
            _ = stop.wait_for(|stopping| *stopping) => return,
            _ = timeout(wait.min(SLEEP_MAX), groups.timer.sooner()) => {}
        }
    }
}
