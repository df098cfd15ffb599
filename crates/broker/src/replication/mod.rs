//! Replication between brokers: what this one follows, and what it asks for as a leader.
//!
//! - `assign`: from each image, which partitions follow which leader over which lane.
//! - `leader_fetcher`: a connection to a leader with the partitions that are fetched over it: the session, several
//!   fetches under way.
//! - `followed`: one of these partitions: what is asked for, and what is done with an answer.
//! - `context`: what these share.
//! - `lags`: how far partitions are behind.
//! - `isr`: the changes of ISRs that leaders ask for, gathered into commands.
//! - `resign`: leaderships given up, where the disk fails.
//!
//! Not here: what a leader answers (`api/fetch/replica`), nor what is done to a log (`replica/`). The rules are
//! [`fullbore_rules::replica`]'s.
//!
//! Invariant: a partition is fetched over one lane at a time, or what the other still brings finds that the log does
//! not end there.

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

    /// Returns the changes of ISRs that leaders ask for.
    pub fn isr(&self) -> &Arc<IsrChanges> {
        &self.isr
    }

    /// The most records that a partition is behind its leader, of those that this broker follows.
    pub fn max_lag(&self) -> u64 {
        self.lags.max()
    }
}
