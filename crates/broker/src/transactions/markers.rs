//! Writes the markers that end a decided transaction. If this broker leads a partition, it appends the marker itself.
//! Otherwise it sends the marker to the partition's leader. It also writes the markers of diskless partitions itself,
//! unless it has no object store.
//!
//! A classic partition counts as marked once all in-sync replicas have its marker, and a diskless one once the index
//! has it. A partition also counts as marked if it was deleted, or if it has refused the epoch of the marker.

use super::Transactions;
use super::entry::Entry;
use super::peers::MarkerRoute;
use crate::coordinator::{MarkerOutcome, PendingWrite};
use crate::partitions::{AnyPartition, AppendError, Replica, WrittenBatch};
use fullbore_control::{CONSUMER_OFFSETS, Image, Topic};
use fullbore_diskless::DisklessPartition;
use fullbore_host::fault_point::{self, FaultPoint};
use fullbore_host::files::now_ms;
use fullbore_host::task;
use fullbore_rules::sequence::{Marker, SequenceRefusal};
use fullbore_rules::transaction::{Markers, TopicPartition};
use fullbore_wire::ErrorCode;
use futures_util::FutureExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the broker waits after its first failure to write a marker. Each further failure doubles this time.
const AGAIN_FIRST: Duration = Duration::from_millis(20);
/// Maximum wait before the broker tries to write a marker again.
const AGAIN_MOST: Duration = Duration::from_secs(1);
/// How long a marker waits for its replicas before it is written again.
const REPLICATED_WITHIN: Duration = Duration::from_secs(30);
/// Like [`REPLICATED_WITHIN`], for a marker that another broker has requested. It is shorter because that broker sends
/// no further markers before the response.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How many markers a task writes before it lets other tasks run.
pub const TURN: usize = 64;

/// The outcome of an attempt to write a marker.
enum Marked {
    /// The marker is written to all in-sync replicas, or to the index.
    Done,
    /// The partition was deleted.
    Gone,
    /// The marker is in the log, but not yet flushed or replicated.
    Written(Box<WrittenBatch>),
    /// The marker is queued for `__consumer_offsets` in the coordinator of groups, or is written there and waits for
    /// replicas.
    Queued(PendingWrite<MarkerOutcome>),
    /// The partition's log is not open yet.
    Closed,
    /// The marker waits for a slot in the queue, or for the object store and the index.
    Committing(Pin<Box<dyn Future<Output = Result<(), AppendError>> + Send>>),
    /// The coordinator of groups is still loading this partition of `__consumer_offsets`.
    Loading,
    /// Another broker must write the marker.
    Elsewhere(MarkerRoute),
    /// The marker could not be written.
    Not(AppendError),
}

impl Marked {
    /// Returns true if the transaction has ended in the partition. This is also true if the partition refuses the epoch
    /// of the marker, because the producer has already continued there in a later epoch. The marker was then written
    /// before, or is not needed.
    fn is_over(&self) -> bool {
        let is_past = |error: &AppendError| *error == AppendError::Sequence(SequenceRefusal::InvalidProducerEpoch);
        match self {
            Marked::Done | Marked::Gone => true,
            Marked::Not(error) => is_past(error),
            Marked::Written(_)
            | Marked::Queued(_)
            | Marked::Committing(_)
            | Marked::Closed
            | Marked::Loading
            | Marked::Elsewhere(_) => false,
        }
    }
}

/// The way to handle a log that is not open when a marker must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosedLog {
    /// Open the log, which blocks the caller's thread.
    Open,
    /// Request that another thread opens the log, and append nothing.
    Pass,
}

impl Transactions {
    /// Writes the markers of a decision. Returns the partitions that already count as marked. For each of the others, a
    /// task writes the marker and then passes an event to the id's state machine.
    pub(super) async fn write_markers(self: &Arc<Self>, entry: &Arc<Entry>, markers: &Markers) -> Vec<TopicPartition> {
        let marker = Marker {
            producer_id: markers.producer_id,
            producer_epoch: markers.producer_epoch,
            coordinator_epoch: markers.decision.coordinator_epoch,
            is_commit: markers.is_commit,
        };
        let version = i8::try_from(markers.transaction_version.level()).unwrap_or(i8::MAX);
        let mut done = Vec::new();
        for (count, partition) in markers.partitions.iter().enumerate() {
            if count % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            match self.append_marker(partition, &marker, version, ClosedLog::Pass) {
                marked if marked.is_over() => done.push(partition.clone()),
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

    /// Writes one marker, and retries after each failure. Returns once the transaction has ended in the partition
    /// ([`Marked::is_over`]) or the id is out of service.
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
            let why = match marked {
                marked if marked.is_over() => return,
                Marked::Done | Marked::Gone | Marked::Closed => None,
                Marked::Written(written) => match replicated(*written, REPLICATED_WITHIN).await {
                    Ok(()) => return,
                    Err(error) => Some(error.to_string()),
                },
                Marked::Queued(pending) => match kept_outcome(pending).await {
                    marked if marked.is_over() => return,
                    Marked::Not(error) => Some(error.to_string()),
                    _ => None,
                },
                Marked::Committing(pending) => match committed(pending).await {
                    marked if marked.is_over() => return,
                    Marked::Not(error) => Some(error.to_string()),
                    _ => None,
                },
                Marked::Loading => {
                    sleep(AGAIN_FIRST).await;
                    None
                }
                Marked::Elsewhere(route) => match self.mark_at(route, partition, marker, version).await {
                    Ok(()) => return,
                    Err(why) => Some(why),
                },
                Marked::Not(error) => Some(error.to_string()),
            };
            if entry.lock().is_gone {
                return;
            }
            if let Some(why) = why {
                if let Some(left_out) = self.unmarked.due() {
                    let TopicPartition { topic, partition } = partition;
                    tracing::warn!(id = &*entry.id, topic = &**topic, partition, %why, left_out, "cannot write the marker of a transaction: the broker retries");
                }
                sleep(pause).await;
                pause = (pause * 2).min(AGAIN_MOST);
            }
            marked = self.append_blocking(partition, marker, version).await;
        }
    }

    /// Sends a marker to the broker that writes to its partition.
    ///
    /// # Errors
    /// Returns the reason why the write is not confirmed, as a text for the log. The marker may have been written even
    /// so.
    pub(super) async fn mark_at(
        &self,
        route: MarkerRoute,
        partition: &TopicPartition,
        marker: &Marker,
        version: i8,
    ) -> Result<(), String> {
        let code = tokio::select! {
            code = self.peers.mark(route, *marker, version, partition.clone()) => code?,
            () = self.peers.replaced(route, &partition.topic, partition.partition) => {
                return Err(format!("broker {} does not lead the partition any more", route.broker));
            }
        };
        match code {
            // These codes confirm the write. `Marked::is_over` must accept the same codes.
            ErrorCode::NONE | ErrorCode::INVALID_PRODUCER_EPOCH => Ok(()),
            code => Err(format!("broker {}: {}", route.broker, code.message())),
        }
    }

    /// Writes a marker on behalf of another broker, of a tool, or of an abort of a transaction without an id. Waits
    /// until all in-sync replicas or the index have the marker. Returns NOT_LEADER_OR_FOLLOWER if another broker must
    /// write it.
    pub async fn write_marker(self: &Arc<Self>, partition: &TopicPartition, marker: &Marker, version: i8) -> ErrorCode {
        let marked = match self.append_marker(partition, marker, version, ClosedLog::Pass) {
            Marked::Closed => match self.append_blocking(partition, marker, version).await {
                Marked::Queued(pending) => kept_outcome(pending).await,
                marked => marked,
            },
            Marked::Queued(pending) => kept_outcome(pending).await,
            Marked::Committing(pending) => committed(pending).await,
            marked => marked,
        };
        match marked {
            Marked::Done => ErrorCode::NONE,
            Marked::Gone => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            Marked::Written(written) => {
                let replicated = replicated(*written, ANSWERED_WITHIN).await;
                replicated.map_or_else(|error| error.code(), |()| ErrorCode::NONE)
            }
            Marked::Loading => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
            Marked::Closed | Marked::Queued(_) | Marked::Committing(_) | Marked::Elsewhere(_) => {
                ErrorCode::NOT_LEADER_OR_FOLLOWER
            }
            Marked::Not(error) => error.code(),
        }
    }

    async fn append_blocking(self: &Arc<Self>, partition: &TopicPartition, marker: &Marker, version: i8) -> Marked {
        let (this, partition, marker) = (Arc::clone(self), partition.clone(), *marker);
        let append = move || this.append_marker(&partition, &marker, version, ClosedLog::Open);
        tokio::task::spawn_blocking(append).await.unwrap_or(Marked::Not(AppendError::Storage))
    }

    /// Appends a marker to `__consumer_offsets`. The coordinator of groups then applies or drops the offsets of the
    /// transaction.
    fn append_offsets_marker(&self, partition: i32, marker: &Marker, version: i8) -> Marked {
        match Arc::clone(&self.offsets).write_marker(partition, *marker, version) {
            Ok(write) => write.kept_now().map_or_else(Marked::Queued, of_outcome),
            Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) => Marked::Loading,
            Err(code) => Marked::Not(AppendError::Role(code)),
        }
    }

    /// Appends a marker, if this broker leads the partition.
    fn append_marker(&self, partition: &TopicPartition, marker: &Marker, version: i8, closed: ClosedLog) -> Marked {
        let image = self.control.image();
        let topic = image.topic(&partition.topic);
        let Some((topic, registered)) = topic.and_then(|topic| Some((topic, topic.partition(partition.partition)?)))
        else {
            return Marked::Gone;
        };
        if topic.config.diskless {
            return self.append_diskless_marker(&image, topic, partition.partition, marker, version);
        }
        match (self.logs.find_any(&topic.id, partition.partition), registered.leader) {
            (Some(AnyPartition::Classic(replica)), _) if replica.leads_in().is_some() => {
                if closed == ClosedLog::Pass && !replica.phase().is_open() {
                    replica.request_open();
                    return Marked::Closed;
                }
                match *partition.topic == *CONSUMER_OFFSETS {
                    true => self.append_offsets_marker(partition.partition, marker, version),
                    false => append_to(&replica, marker, version),
                }
            }
            (_, Some(broker)) if broker != self.node_id => {
                Marked::Elsewhere(MarkerRoute { broker, is_diskless: false })
            }
            _ => Marked::Not(AppendError::Role(ErrorCode::LEADER_NOT_AVAILABLE)),
        }
    }

    /// Queues the marker of a diskless partition for the next object. If this broker has no object store at present,
    /// another broker must write the marker.
    fn append_diskless_marker(
        &self,
        image: &Image,
        topic: &Topic,
        partition: i32,
        marker: &Marker,
        version: i8,
    ) -> Marked {
        match self.logs.find_any(&topic.id, partition) {
            Some(AnyPartition::Diskless(partition)) if partition.left_out().check().is_ok() => {
                commit_to(partition, *marker, version)
            }
            _ => match self.broker_with_store(image, marker.producer_id) {
                Some(broker) => Marked::Elsewhere(MarkerRoute { broker, is_diskless: true }),
                None => Marked::Not(AppendError::Role(ErrorCode::LEADER_NOT_AVAILABLE)),
            },
        }
    }

    /// Returns another broker that serves diskless partitions, or `None` if there is none. While the set of these
    /// brokers does not change, all markers of a producer are sent to the same one.
    fn broker_with_store(&self, image: &Image, producer_id: i64) -> Option<i32> {
        let brokers = image.nodes().iter().filter(|(id, node)| {
            let registration = &node.registration;
            **id != self.node_id && node.serves_diskless && !registration.is_fenced && !registration.is_shutting_down
        });
        let ids: Vec<_> = brokers.map(|(id, _)| *id).collect();
        let at = usize::try_from(producer_id).unwrap_or(0).checked_rem(ids.len())?;
        ids.get(at).copied()
    }
}

/// Queues the marker of a diskless partition.
fn commit_to(partition: Arc<DisklessPartition>, marker: Marker, version: i8) -> Marked {
    let mut written: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(async move { partition.write_marker(&marker, version).await });
    match (&mut written).now_or_never() {
        Some(outcome) => of_outcome(outcome),
        None => Marked::Committing(written),
    }
}

/// Appends a marker to a partition that this broker leads.
fn append_to(replica: &Arc<Replica>, marker: &Marker, version: i8) -> Marked {
    let appended = replica.append_marker(marker, version, None, now_ms());
    if appended.is_ok() {
        fault_point::reached(FaultPoint::Marked);
    }
    match appended {
        Ok(written) if written.durability.is_nothing() => Marked::Done,
        Ok(written) => Marked::Written(Box::new(written)),
        Err(error) => Marked::Not(error),
    }
}

async fn replicated(written: WrittenBatch, within: Duration) -> Result<(), AppendError> {
    written.durability.wait(Instant::now() + within).await
}

/// Waits until the marker of a diskless partition is written.
async fn committed(pending: Pin<Box<dyn Future<Output = Result<(), AppendError>> + Send>>) -> Marked {
    let outcome = pending.await;
    if outcome.is_ok() {
        fault_point::reached(FaultPoint::Marked);
    }
    of_outcome(outcome)
}

/// Waits until the coordinator of groups has written a marker.
async fn kept_outcome(pending: PendingWrite<MarkerOutcome>) -> Marked {
    of_outcome(pending.kept().await.and_then(|kept| kept))
}

fn of_outcome(outcome: MarkerOutcome) -> Marked {
    outcome.map_or_else(Marked::Not, |()| Marked::Done)
}
