//! Replication between brokers: this broker fetches from leaders as a follower, and changes ISRs as a leader.
//!
//! - `assign`: assigns the followed partitions to fetchers whenever the metadata changes.
//! - `leader_fetcher`: the connection to a leader and the partitions that are fetched over it, with several fetches in
//!   flight.
//! - `followed`: a followed partition. It makes the partition's entries in fetches and handles the responses.
//! - `context`: the state that these modules share.
//! - `lags`: how far the followed partitions are behind their leaders.
//! - `isr`: sends the ISR changes that this broker requests as a leader.
//! - `resign`: withdraws this broker from the ISRs of partitions that it cannot write or read.
//!
//! A leader's responses are in `api/fetch/replica`, and the changes of a follower's log in `replica/`.
//! [`fullbore_rules::replica`] makes the decisions.
//!
//! Invariant: only one fetcher at a time fetches a partition. The log refuses records that still arrive for an earlier
//! fetcher, because they no longer begin at the log end.

mod assign;
mod context;
mod followed;
mod isr;
mod lags;
mod leader_fetcher;
mod resign;
#[cfg(test)]
mod tests;

pub use isr::IsrChanges;

use crate::partitions::Partitions;
use context::Context;
pub use context::client;
use fullbore_config::BrokerConfig;
use fullbore_control::Control;
use fullbore_host::long_work::LongWork;
use fullbore_host::metrics::Metrics;
use fullbore_host::task;
use lags::Lags;
use std::sync::Arc;
use tokio::sync::watch;

/// Replicates the partitions that this broker follows, and changes the ISRs of those that it leads.
pub struct Replication {
    isr: Arc<IsrChanges>,
    lags: Arc<Lags>,
}

impl Replication {
    /// Starts the tasks, which end when the broker stops. Must be called in a tokio runtime.
    pub fn start(
        config: &Arc<BrokerConfig>,
        control: &Control,
        partitions: &Arc<Partitions>,
        metrics: &Metrics,
        stop: watch::Receiver<bool>,
    ) -> Replication {
        let isr = Arc::new(IsrChanges::default());
        let lags = Arc::<Lags>::default();
        let context = Context {
            client: client(config),
            config: Arc::clone(config),
            control: control.clone(),
            partitions: Arc::clone(partitions),
            metrics: metrics.clone(),
            long_work: LongWork::default(),
            lags: Arc::clone(&lags),
            stop,
        };
        let context = Arc::new(context);
        task::spawn(assign::run(Arc::clone(&context)));
        task::spawn(isr::carry(Arc::clone(&context), Arc::clone(&isr)));
        task::spawn(isr::tick(Arc::clone(&context), Arc::clone(&isr)));
        task::spawn(resign::run(context));
        Replication { isr, lags }
    }

    /// Returns the queue for ISR changes that this broker requests as a leader.
    pub fn isr(&self) -> &Arc<IsrChanges> {
        &self.isr
    }

    /// Returns the lag of the followed partition that lags most, in records.
    pub fn max_lag(&self) -> u64 {
        self.lags.max()
    }
}
