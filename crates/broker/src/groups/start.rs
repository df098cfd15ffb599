//! Starts the coordinator of groups together with the broker.

use super::{Groups, due};
use crate::coordinator::CoordinatorTopic;
use fullbore_config::BrokerConfig;
use fullbore_host::task::{self, Rounds};
use std::sync::Arc;
use tokio::sync::watch;

impl Groups {
    /// Starts to load the groups and spawns the coordinator's tasks, which run until the broker stops.
    pub fn start(self: &Arc<Self>, config: &BrokerConfig, stop: &watch::Sender<bool>) {
        CoordinatorTopic::adopt(self);
        task::spawn(Arc::clone(self).run_topics(stop.subscribe()));
        task::spawn(due::run(Arc::clone(self), stop.subscribe()));
        let rounds = Rounds::every(config.groups.offsets.check_interval_ms, stop.subscribe());
        task::spawn(Arc::clone(self).run_expiry(config.groups.offsets.retention_ms, rounds));
    }
}
