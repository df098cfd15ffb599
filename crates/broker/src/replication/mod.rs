//! Replication between brokers: fetches as a follower, and ISR changes as a leader.
//!
//! - `assign`: assigns followed partitions to fetchers, at each new metadata image.
//! - `leader_fetcher`: a connection to a leader, the partitions fetched over it, their session, and several fetches in
//!   flight.
//! - `followed`: one followed partition: its entries in fetches, and its handling of responses.
//! - `context`: state that the modules share.
//! - `lags`: lags of the followed partitions.
//! - `isr`: ISR changes that this broker requests as a leader, gathered into commands.
//! - `resign`: withdrawal from the ISRs of partitions that this broker cannot write or read.
//!
//! Not here: the responses of a leader (`api/fetch/replica`), and changes of a log (`replica/`).
//! [`fullbore_rules::replica`] decides.
//!
//! Invariant: one fetcher at a time fetches a partition. Late records of an earlier fetcher are refused, because the
//! log does not end where they begin.

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

/// Fetches of this broker as a follower, and changes of ISRs as a leader.
pub struct Replication {
    isr: Arc<IsrChanges>,
    lags: Arc<Lags>,
}

impl Replication {
    /// Starts the tasks, which end once the broker stops. Needs a tokio runtime.
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

    /// Returns the queue of ISR changes that this broker requests as a leader.
    pub fn isr(&self) -> &Arc<IsrChanges> {
        &self.isr
    }

    /// Returns the largest lag of a followed partition, in records.
    pub fn max_lag(&self) -> u64 {
        self.lags.max()
    }
}
