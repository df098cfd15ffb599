//! The state that the modules of replication share.

use super::lags::Lags;
use crate::partitions::Partitions;
use fullbore_client::config::ClientConfig;
use fullbore_client::security::Security;
use fullbore_config::{BrokerConfig, ListenerTls};
use fullbore_control::Control;
use fullbore_host::long_work::LongWork;
use fullbore_host::metrics::Metrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Maximum size in bytes of a leader's response, which is the maximum size of a frame. A smaller limit is not possible,
/// because a response contains at least one complete batch of any size. With `compression.type=uncompressed`, a request
/// of kilobytes can become a batch of a hundred megabytes. A follower that refused such a batch would close its
/// connection to the leader, which would stop the replication of all other partitions.
const RESPONSE_BYTES_MAX: usize = i32::MAX as usize;

pub struct Context {
    pub config: Arc<BrokerConfig>,
    pub control: Control,
    pub partitions: Arc<Partitions>,
    pub metrics: Metrics,
    /// The settings for connections to other brokers.
    pub client: ClientConfig,
    /// Limits the number of long appends that run at the same time.
    pub long_work: LongWork,
    pub lags: Arc<Lags>,
    pub stop: watch::Receiver<bool>,
}

impl Context {
    /// Waits until the broker stops.
    pub async fn stopping(&self) {
        // An error means that the sender was dropped, so the broker has stopped.
        let _ = self.stop.clone().wait_for(|stopping| *stopping).await;
    }
}

/// Returns the settings for connections to other brokers.
pub fn client(config: &BrokerConfig) -> ClientConfig {
    let replication = &config.replication;
    let wait_max = Duration::from_millis(u64::try_from(replication.wait_max_ms).unwrap_or(0));
    let tls = config.network.listeners.get(replication.listener).and_then(|listener| listener.tls.as_ref());
    ClientConfig {
        client_id: format!("broker-{}-fetcher", config.node.id),
        request_timeout: Duration::from_millis(replication.socket_timeout_ms).max(2 * wait_max),
        connections_max_idle: Duration::MAX,
        response_bytes_max: RESPONSE_BYTES_MAX,
        security: tls.map_or_else(Security::default, |ListenerTls { settings, .. }| {
            Security::tls(settings.clone(), replication.compares_names)
        }),
        ..ClientConfig::default()
    }
}
