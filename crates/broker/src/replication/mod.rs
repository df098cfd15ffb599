//! Replication between brokers: what this one follows, and what it asks for as a leader.
//!
//! - `assign`: from each image, which partitions follow which leader over which lane.
//! - `lane`: a connection to a leader with the partitions that are fetched over it: the session, several fetches under way.
//! - `followed`: one of these partitions: what is asked for, and what is done with an answer.
//! - `isr`: the changes of ISRs that leaders ask for, gathered into commands.
//!
//! Not here: what a leader answers (`api/fetch/replica`), nor what is done to a log (`replica/`). The rules are
//! [`fullbore_rules::replica`]'s.
//!
//! Invariant: a partition is fetched over one lane at a time, or what the other still brings finds that the log does not end there.

mod assign;
mod followed;
mod isr;
mod lags;
mod lane;
#[cfg(test)]
mod tests;

pub use isr::IsrChanges;

use crate::config::{BrokerConfig, ListenerTls};
use crate::control::Control;
use crate::long_work::LongWork;
use crate::metrics::Metrics;
use crate::partitions::Partitions;
use fullbore_client::config::ClientConfig;
use fullbore_client::security::Security;
use lags::Lags;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Beside records, an answer has a few bytes for each partition.
const ANSWER_EXTRA_BYTES: usize = 16 << 20;

/// What this broker follows, and asks for as a leader.
pub struct Replication {
    isr: Arc<IsrChanges>,
    lags: Arc<Lags>,
}

/// What the parts of replication share.
struct Context {
    config: Arc<BrokerConfig>,
    control: Control,
    partitions: Arc<Partitions>,
    metrics: Metrics,
    /// Connections to other brokers.
    client: ClientConfig,
    /// Where appends are that may take long.
    long_work: LongWork,
    lags: Arc<Lags>,
    stop: watch::Receiver<bool>,
}

impl Replication {
    /// Starts its tasks, which end once the broker stops. Needs a runtime.
    pub fn start(
        config: &Arc<BrokerConfig>,
        control: &Control,
        partitions: &Arc<Partitions>,
        metrics: &Metrics,
        stop: watch::Receiver<bool>,
    ) -> Replication {
        let isr = Arc::new(IsrChanges::default());
        let lags = Arc::<Lags>::default();
        let context = Arc::new(Context {
            client: client(config),
            config: Arc::clone(config),
            control: control.clone(),
            partitions: Arc::clone(partitions),
            metrics: metrics.clone(),
            long_work: LongWork::default(),
            lags: Arc::clone(&lags),
            stop,
        });
        tokio::spawn(assign::run(Arc::clone(&context)));
        tokio::spawn(isr::carry(Arc::clone(&context), Arc::clone(&isr)));
        tokio::spawn(isr::tick(context, Arc::clone(&isr)));
        Replication { isr, lags }
    }

    /// Where leaders ask for ISRs.
    pub fn isr(&self) -> &Arc<IsrChanges> {
        &self.isr
    }

    /// The most records that a partition is behind its leader, of those that this broker follows.
    pub fn max_lag(&self) -> u64 {
        self.lags.max()
    }
}

impl Context {
    /// Waits until the broker stops.
    async fn stopping(&self) {
        // An error says that the broker is gone.
        let _ = self.stop.clone().wait_for(|stopping| *stopping).await;
    }
}

fn client(config: &BrokerConfig) -> ClientConfig {
    let replication = &config.replication;
    let wait_max = Duration::from_millis(u64::try_from(replication.wait_max_ms).unwrap_or(0));
    let tls = config.listeners.get(replication.listener).and_then(|listener| listener.tls.as_ref());
    let response_max = usize::try_from(replication.response_max_bytes).unwrap_or(0);
    ClientConfig {
        client_id: format!("broker-{}-fetcher", config.node_id),
        request_timeout: Duration::from_millis(replication.socket_timeout_ms).max(2 * wait_max),
        connections_max_idle: Duration::MAX,
        response_bytes_max: response_max.max(config.socket_request_max_bytes).saturating_add(ANSWER_EXTRA_BYTES),
        security: tls.map_or_else(Security::default, |ListenerTls { settings, .. }| Security::tls(settings.clone())),
        ..ClientConfig::default()
    }
}
