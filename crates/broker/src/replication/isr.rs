//! Requests ISR changes for the partitions that this broker leads. One task sends all waiting changes in one command,
//! and reports the outcome of each change to its partition. Then it sends the next command.
//!
//! Invariant: each requested change gets its outcome. If the outcome is unknown, the partition requests the change
//! again.

use super::context::Context;
use crate::partitions::Replica;
use fullbore_control::{Image, Refusal};
use fullbore_host::task;
use fullbore_rules::replica::{AlterPartition, PartitionRegistration};
use fullbore_wire::ErrorCode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long to wait before a change with an unknown outcome is checked again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Maximum number of changes in one command.
const GATHERED_MAX: usize = 10_000;
/// Minimum interval between two periodic checks.
const ROUND_MIN: Duration = Duration::from_millis(10);

/// An ISR change that a partition requests.
struct Proposal {
    replica: Arc<Replica>,
    proposal: AlterPartition,
    /// The size of the ISR before the change.
    before: usize,
}

/// The changes that were requested but not sent yet. Each partition has at most one.
#[derive(Default)]
pub struct IsrChanges {
    waiting: Mutex<Vec<Proposal>>,
    requested: Notify,
}

impl IsrChanges {
    /// Requests a change. [`Replica::altered`] receives its outcome.
    pub fn request(&self, replica: Arc<Replica>, proposal: AlterPartition) {
        let before = replica.registered().isr.len();
        self.waiting.lock().push(Proposal { replica, proposal, before });
        self.requested.notify_one();
    }

    async fn next(&self) -> Vec<Proposal> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if !waiting.is_empty() {
                    let gathered = waiting.len().min(GATHERED_MAX);
                    return waiting.drain(..gathered).collect();
                }
            }
            self.requested.notified().await;
        }
    }
}

/// Sends the requested changes to the control plane.
pub(super) async fn carry(context: Arc<Context>, isr: Arc<IsrChanges>) {
    loop {
        let wanted = tokio::select! {
            wanted = isr.next() => wanted,
            () = context.stopping() => return,
        };
        let requested = wanted.iter().map(|of| (of.replica.topic_id(), of.replica.index(), of.proposal.clone()));
        let outcomes = context.control.alter_isr(requested.collect()).await;
        let mut unknown = Vec::new();
        for (wanted, outcome) in wanted.into_iter().zip(outcomes) {
            if is_unknown(&outcome) {
                unknown.push(Arc::clone(&wanted.replica));
            }
            pass_on(&context, &wanted, outcome);
        }
        if !unknown.is_empty() {
            task::spawn(request_again(Arc::clone(&isr), unknown));
        }
    }
}

fn is_unknown(outcome: &Result<Arc<PartitionRegistration>, Refusal>) -> bool {
    let unknown = [ErrorCode::REQUEST_TIMED_OUT, ErrorCode::KAFKA_STORAGE_ERROR];
    matches!(outcome, Err(refusal) if unknown.contains(&refusal.code))
}

fn pass_on(context: &Context, wanted: &Proposal, outcome: Result<Arc<PartitionRegistration>, Refusal>) {
    let Proposal { replica, proposal, before } = wanted;
    let (topic, partition) = (replica.topic(), replica.index());
    match &outcome {
        Ok(now) => {
            if now.partition_epoch != proposal.partition_epoch {
                context.metrics.isr_changed(*before, now.isr.len());
                tracing::info!(topic, partition, isr = ?now.isr, "the ISR has changed");
            }
        }
        Err(refusal) => tracing::debug!(topic, partition, %refusal, "cannot change the ISR: it stays as it is"),
    }
    let answer = outcome.as_ref().map(|now| now.as_ref()).map_err(|refusal| refusal.code);
    replica.altered(proposal, answer);
}

async fn request_again(isr: Arc<IsrChanges>, unknown: Vec<Arc<Replica>>) {
    tokio::time::sleep(AGAIN_AFTER).await;
    check(&isr, unknown).await;
}

/// Checks all partitions that this broker leads: a follower may lag too far, or may now join the ISR. Runs at
/// intervals, and when the registered brokers change.
pub(super) async fn tick(context: Arc<Context>, isr: Arc<IsrChanges>) {
    let every = (context.config.replication.lag_time_max / 2).max(ROUND_MIN);
    let mut images = context.control.watch();
    loop {
        let brokers = Arc::clone(images.borrow_and_update().registrations());
        let is_other = |image: &Arc<Image>| !Arc::ptr_eq(image.registrations(), &brokers);
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            changed = images.wait_for(is_other) => if changed.is_err() {
                return;
            },
            () = context.stopping() => return,
        }
        check(&isr, context.partitions.partitions()).await;
    }
}

/// Checks `partitions` on a blocking thread, because the lock of a partition may be held while the disk is slow.
async fn check(isr: &Arc<IsrChanges>, partitions: Vec<Arc<Replica>>) {
    let isr = Arc::clone(isr);
    let checked = tokio::task::spawn_blocking(move || {
        for replica in partitions {
            if let Some(proposal) = replica.tick() {
                isr.request(replica, proposal);
            }
        }
    });
    if checked.await.is_err() {
        tracing::error!("cannot check for changes of ISRs: the check has panicked");
    }
}
