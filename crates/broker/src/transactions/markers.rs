//! Markers of decided transactions, in the partitions that this broker leads.
//!
//! Invariant: a partition counts as marked once its marker is on all replicas in sync, or the partition is gone.

use super::Transactions;
use super::entry::Entry;
use crate::partitions::{AnyPartition, AppendError, Replica, WrittenBatch};
use fullbore_host::files::now_ms;
use fullbore_host::task;
use fullbore_rules::sequence::{Marker, SequenceRefusal};
use fullbore_rules::transaction::{Markers, TopicPartition};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pauses before a marker that could not be written is tried again.
const AGAIN_FIRST: Duration = Duration::from_millis(20);
const AGAIN_MOST: Duration = Duration::from_secs(1);

/// The longest wait for replicas before a marker is written once more.
const REPLICATED_WITHIN: Duration = Duration::from_secs(30);

/// Outcome of the append of a marker.
enum Marked {
    /// The marker is on all replicas in sync, or the partition is gone.
    Done,
    /// The marker is in the log, and waits for flush or replicas.
    Written(Box<WrittenBatch>),
    /// The log is not open, and is not waited for here.
    Closed,
    /// The marker is to be written again.
    Not(AppendError),
}

impl Transactions {
    /// Appends the markers of one decision at once where that is possible, and returns the partitions that have theirs on all replicas in
    /// sync. A task sees to the others.
    pub(super) fn write_markers(self: &Arc<Self>, entry: &Arc<Entry>, markers: &Markers) -> Vec<TopicPartition> {
        let marker = Marker {
            producer_id: markers.producer_id,
            producer_epoch: markers.producer_epoch,
            coordinator_epoch: markers.decision.coordinator_epoch,
            is_commit: markers.is_commit,
        };
        let version = i8::try_from(markers.transaction_version.level()).unwrap_or(i8::MAX);
        let mut done = Vec::new();
        for partition in &markers.partitions {
            match self.append_marker(partition, &marker, version, false) {
                Marked::Done => done.push(partition.clone()),
                marked => {
                    let (this, entry) = (Arc::clone(self), Arc::clone(entry));
                    let (partition, decision) = (partition.clone(), markers.decision);
                    task::spawn(async move {
                        this.mark(&entry, &partition, &marker, version, marked).await;
                        this.happen(&entry, |transaction, turn| {
                            transaction.markers_written(decision, [&partition], turn);
                        });
                    });
                }
            }
        }
        done
    }

    /// Writes one marker again and again until it is on all replicas in sync, its partition is gone, or the id is out of service.
    async fn mark(
        self: &Arc<Self>,
        entry: &Entry,
        partition: &TopicPartition,
        marker: &Marker,
        version: i8,
        mut marked: Marked,
    ) {
        let mut pause = AGAIN_FIRST;
        loop {
            let failed = match marked {
                Marked::Done => return,
                Marked::Written(written) => match written.durability.wait(Instant::now() + REPLICATED_WITHIN).await {
                    Ok(()) => return,
                    Err(error) => Some(error),
                },
                Marked::Closed => None,
                Marked::Not(error) => Some(error),
            };
            if entry.lock().is_gone {
                return;
            }
            if let Some(error) = failed {
                if let Some(left_out) = self.unmarked.due() {
                    let TopicPartition { topic, partition } = partition;
                    tracing::warn!(id = &*entry.id, topic = &**topic, partition, %error, left_out, "cannot write the marker of a transaction: it is tried again");
                }
                sleep(pause).await;
                pause = (pause * 2).min(AGAIN_MOST);
            }
            let (this, partition, marker) = (Arc::clone(self), partition.clone(), *marker);
            let append = move || this.append_marker(&partition, &marker, version, true);
            marked = tokio::task::spawn_blocking(append).await.unwrap_or(Marked::Not(AppendError::Storage));
        }
    }

    /// Appends one marker. A log that is not open is opened first only if the caller may block.
    fn append_marker(&self, partition: &TopicPartition, marker: &Marker, version: i8, may_block: bool) -> Marked {
        match self.partition(partition) {
            None => Marked::Done,
            Some(AnyPartition::Diskless(_)) => Marked::Done,
            Some(AnyPartition::Classic(replica)) if !may_block && !replica.phase().is_open() => {
                replica.ask_to_open();
                Marked::Closed
            }
            Some(AnyPartition::Classic(replica)) => append_to(&replica, marker, version),
        }
    }

    fn partition(&self, of: &TopicPartition) -> Option<AnyPartition> {
        let topic = self.control.image().topic(&of.topic).map(|topic| topic.id)?;
        self.logs.find_any(&topic, of.partition)
    }
}

/// Appends a marker to a replica whose log is open.
fn append_to(replica: &Arc<Replica>, marker: &Marker, version: i8) -> Marked {
    match replica.append_marker(marker, version, now_ms()) {
        Ok(written) if written.durability.is_nothing() => Marked::Done,
        Ok(written) => Marked::Written(Box::new(written)),
        // The producer has gone on, or another coordinator has: the partition has a marker of this decision, or needs none.
        Err(AppendError::Sequence(SequenceRefusal::InvalidProducerEpoch)) => Marked::Done,
        Err(error) => Marked::Not(error),
    }
}
