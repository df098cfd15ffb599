//! Watches the object store, and reports to the control plane if this broker cannot reach it any more. Other brokers
//! then serve the diskless partitions. This broker reports again once the store answers, or once no other broker serves
//! diskless partitions.
//!
//! [`fullbore_rules::cluster::store`] decides when to report. `diskless/health.rs` detects the loss.
//! [`fullbore_log::partition::left_out`] refuses requests while other brokers serve the partitions.

use std::sync::Arc;
use std::time::Instant;

use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_rules::cluster::store::{StoreReport, StoreWatch};

use fullbore_control::{BrokerChange, Control, Image};
use fullbore_diskless::StoreHealth;

/// Reports to the control plane when a broker of diskless topics loses the object store, and when it may serve these
/// topics again.
pub struct LostStoreWatch {
    store: Arc<StoreHealth>,
    rule: StoreWatch,
    began: Instant,
    refused: LogRateLimit,
}

impl LostStoreWatch {
    /// Creates the state of a broker that has not reported a loss of the store.
    pub fn new(store: Arc<StoreHealth>) -> LostStoreWatch {
        LostStoreWatch { store, rule: StoreWatch::default(), began: Instant::now(), refused: LogRateLimit::default() }
    }

    /// Checks the store. Reports to the control plane if this broker cannot reach it any more, or will serve diskless
    /// topics again.
    pub async fn check(&mut self, control: &Control, image: &Image) {
        let own = control.broker_state();
        let Some(node) = image.node(own.broker_id) else { return };
        let now_ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let is_left_out = !node.serves_diskless;
        let (store, others_serve) = (self.store.state(is_left_out), image.others_serve_diskless(own.broker_id));
        let Some(report) = self.rule.report(now_ms, store, is_left_out, others_serve) else { return };
        let change = match report {
            StoreReport::Lost => BrokerChange::StoreLost,
            StoreReport::Back => BrokerChange::StoreBack,
        };
        match control.change_broker(own, change, [].into()).await {
            Ok(()) if report == StoreReport::Lost => {
                let error =
                    self.store.reported_lost().map_or_else(|| "no answer".to_owned(), |error| error.to_string());
                tracing::warn!(
                    error,
                    "cannot reach the object store: other brokers serve diskless topics; compare this broker's \
                     network path to the store, and its credentials, with those of the other brokers"
                );
            }
            Ok(()) if others_serve => {
                tracing::warn!("the object store has answered for a while: this broker serves diskless topics again");
            }
            Ok(()) => {
                tracing::warn!(
                    "no other broker serves diskless topics: this broker serves them again, although the store does not answer"
                );
            }
            Err(refusal) => {
                if let Some(left_out) = self.refused.due() {
                    tracing::warn!(
                        %refusal,
                        left_out,
                        "cannot report the state of the object store: other brokers rely on the last report; the next \
                         heartbeat retries"
                    );
                }
            }
        }
    }
}
