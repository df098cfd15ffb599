//! What begins with the broker: the groups are loaded, and what is due is done until it stops.

use super::take_over::TakeOverError;
use super::{Groups, due};
use fullbore_config::BrokerConfig;
use fullbore_host::task;
use std::sync::Arc;
use tokio::sync::watch;

impl Groups {
    /// Begins to load the groups, takes over what an older version kept elsewhere, and does what is due until the broker stops.
    ///
    /// # Errors
    /// [`TakeOverError`]; nothing is lost then.
    pub async fn start(
        self: &Arc<Self>,
        config: &BrokerConfig,
        stop: &watch::Sender<bool>,
    ) -> Result<(), TakeOverError> {
        self.adopt();
        self.take_over().await?;
        task::spawn(Arc::clone(self).run_topics(stop.subscribe()));
        task::spawn(due::run(Arc::clone(self), stop.subscribe()));
        let (retention, every) = (config.offsets_retention_ms, config.offsets_retention_check_interval_ms);
        task::spawn(Arc::clone(self).run_expiry(retention, every, stop.subscribe()));
        Ok(())
    }
}
