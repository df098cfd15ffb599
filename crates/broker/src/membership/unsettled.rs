//! Finishes failovers that another broker began. That broker may have ended, or lost its database, after it had decided
//! about only some of the partitions. The other partitions then still lack a leader, or have failed brokers in their
//! ISRs.
//!
//! Normally the broker that fences another one also completes the failover. The other brokers watch its progress. If
//! there is none for a while, one of them completes the failover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fullbore_rules::replica::Brokers;
use fullbore_wire::Uuid;

use fullbore_control::{Control, Image, Urgent, first_unsettled};
use fullbore_host::backoff::Backoff;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::task;

/// How long a broker waits for progress before it completes the failover itself. The wait doubles with each attempt.
const PATIENCE_MIN: Duration = Duration::from_secs(2);
/// Maximum time that a broker waits between two attempts.
const PATIENCE_MAX: Duration = Duration::from_secs(16);

/// Finds partitions of an unfinished failover, and has their leaders elected.
pub struct UnsettledWatch {
    control: Control,
    /// The brokers' registrations at the time of a check that found no unfinished failover. Until the registrations
    /// change, no check is needed.
    settled_for: Option<Arc<Brokers>>,
    /// The first partition that needed a decision at the last check. A failover decides about the partitions in order,
    /// so this field changes while another broker's failover makes progress.
    left: Option<(Uuid, usize)>,
    patience: Backoff,
    is_electing: Arc<AtomicBool>,
    refused: Arc<LogRateLimit>,
}

impl UnsettledWatch {
    /// Creates the state before the first check.
    pub fn new(control: Control) -> UnsettledWatch {
        UnsettledWatch {
            control,
            settled_for: None,
            left: None,
            patience: Backoff::new(PATIENCE_MIN, PATIENCE_MAX),
            is_electing: Arc::default(),
            refused: Arc::default(),
        }
    }

    /// Checks the partitions. If the first one that needs a decision has been the same for a while, starts a task that
    /// elects the missing leaders. Does not block.
    pub fn check(&mut self, image: &Image, now: Instant, urgent: impl FnOnce() -> Urgent) {
        let brokers = image.registrations();
        if self.settled_for.as_ref().is_some_and(|settled_for| Arc::ptr_eq(settled_for, brokers)) {
            return;
        }
        let left = first_unsettled(image);
        if left.is_none() {
            self.settled_for = Some(Arc::clone(brokers));
        }
        if left != self.left {
            self.left = left;
            self.patience.reset();
            self.patience.pause(now);
        } else if left.is_some() && self.patience.is_due(now) && !self.is_electing.swap(true, Ordering::AcqRel) {
            self.patience.pause(now);
            self.elect(urgent());
        }
    }

    fn elect(&self, urgent: Urgent) {
        let control = self.control.clone();
        let (is_electing, refused) = (Arc::clone(&self.is_electing), Arc::clone(&self.refused));
        task::spawn(async move {
            match control.settle_partitions(urgent).await {
                Ok(()) => tracing::info!("elected leaders for partitions whose leader another broker has removed"),
                Err(refusal) => {
                    if let Some(left_out) = refused.due() {
                        tracing::warn!(%refusal, left_out, "cannot elect leaders: partitions stay offline until a retry succeeds");
                    }
                }
            }
            is_electing.store(false, Ordering::Release);
        });
    }
}
