//! Notices to the producer's user about settings that do not fit the settings of topics and brokers. Each notice is
//! sent once.
//!
//! Invariant: a producer has at most [`NOTICES_MAX`] notices, however many topics there are.

use tokio::sync::watch;

/// Maximum number of notices of a producer.
const NOTICES_MAX: usize = 16;

/// All notices since the start.
pub(crate) struct Notices(watch::Sender<Vec<String>>);

impl Notices {
    pub(crate) fn new() -> Self {
        Notices(watch::Sender::new(Vec::new()))
    }

    /// Logs a notice and passes it to every reader.
    pub(crate) fn add(&self, notice: String) {
        self.0.send_if_modified(|notices| {
            let has_room = notices.len() < NOTICES_MAX;
            if has_room {
                tracing::warn!("{notice}");
                notices.push(notice);
            }
            has_room
        });
    }

    /// Calls `report` with each notice, including earlier ones, until the producer is dropped.
    pub(crate) fn each(
        &self,
        mut report: impl FnMut(&str) + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let mut notices = self.0.subscribe();
        notices.mark_changed();
        async move {
            let mut reported = 0;
            while notices.changed().await.is_ok() {
                let all = notices.borrow_and_update().clone();
                all.iter().skip(reported).for_each(|notice| report(notice));
                reported = all.len();
            }
        }
    }
}
