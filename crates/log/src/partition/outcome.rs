//! Outcome of a batch that is offered to a partition, classic or diskless, from the offer to the response to its
//! client.
//!
//! A batch is done, or pending with a ticket, or blocked. The caller of a blocked batch waits for the missing thing,
//! and offers the batch again. The request keeps the ticket, the batch keeps the [`AppendAnswer`]; both are consumed by
//! their use.
//!
//! Invariant: each ticket is resolved once, whatever happens to the batch.

use fullbore_host::metrics::Metrics;
use fullbore_wire::ErrorCode;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::durability::Durability;
use super::error::AppendError;
use super::left_out::LeftOut;
use super::memory_budget::ProducerKey;

/// Most copies of one batch that wait for its answer at a time. All but the last belong to lost connections, or to
/// clients that do not wait for responses.
const COPIES_MAX: usize = 4;

/// Batch in the log, appended now or by an earlier sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the batch's first record.
    pub base_offset: i64,
    /// Broker's time of the append in ms; -1 if the producer's timestamps count.
    pub log_append_time_ms: i64,
    /// First offset of the partition.
    pub log_start_offset: i64,
    /// Number of batches remembered of each producer, as configured at the append.
    pub batches_retained: usize,
}

/// Durability that a batch must reach before its append is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// In the leader's log.
    Leader,
    /// In the logs of all in-sync replicas, of which there are at least min.insync.replicas.
    All,
}

/// Batch in the leader's log, with the conditions for its answer.
#[derive(Debug, Clone)]
pub struct WrittenBatch {
    /// Offset and times of the batch.
    pub appended: Appended,
    /// Conditions for the batch's answer.
    pub durability: Durability,
}

impl From<Appended> for WrittenBatch {
    /// Returns a batch whose answer waits for nothing.
    fn from(appended: Appended) -> WrittenBatch {
        WrittenBatch { appended, durability: Durability::default() }
    }
}

/// Outcome of an offer.
#[derive(Debug)]
#[must_use]
pub enum AppendStep<B = Blocker> {
    /// The batch has its offset, and its answer waits for nothing.
    Done(Appended),
    /// The batch is accepted. Its answer comes by the ticket, whether or not the caller waits for it.
    Pending(AppendTicket),
    /// The batch is not accepted. The caller offers it again once it has the missing thing; until then the connection
    /// reads no further request.
    Blocked(B),
}

impl AppendStep {
    /// Returns true if the batch is in the leader's log, or found in the partition.
    pub fn is_written(&self) -> bool {
        match self {
            AppendStep::Done(_) => true,
            AppendStep::Pending(ticket) => ticket.is_written(),
            AppendStep::Blocked(_) => false,
        }
    }

    /// Returns the batch with the conditions for its answer; None if it is not in the leader's log.
    pub fn into_written(self) -> Option<WrittenBatch> {
        match self {
            AppendStep::Done(appended) => Some(appended.into()),
            AppendStep::Pending(AppendTicket(Stage::Written(written))) => Some(written),
            AppendStep::Pending(_) | AppendStep::Blocked(_) => None,
        }
    }
}

impl From<WrittenBatch> for AppendStep {
    fn from(written: WrittenBatch) -> AppendStep {
        match written.durability.is_nothing() {
            true => AppendStep::Done(written.appended),
            false => AppendStep::Pending(AppendTicket(Stage::Written(written))),
        }
    }
}

/// The one missing thing without which a batch is not accepted.
#[derive(Debug, Clone, Copy)]
pub enum Blocker {
    /// Permit to decompress the batch, which becomes large.
    DecompressPermit,
    /// Permit for long work, since the batch takes longer than other connections should wait.
    LongWork,
    /// State of batches that other brokers may have committed for this producer id.
    StaleState(i64),
    /// Memory for a batch of this producer, in bytes.
    Memory(ProducerKey, usize),
    /// Verification that the partition is in the producer's transaction (KIP-890).
    Verification,
}

/// Ticket for the answer of an accepted batch. Dropping it does not affect the batch.
#[derive(Debug)]
#[must_use]
pub struct AppendTicket(Stage);

/// Stage of a ticket's batch.
#[derive(Debug)]
enum Stage {
    /// In the leader's log.
    Written(WrittenBatch),
    /// In the reorder buffer, until the batches before it are appended. On a diskless partition, the batch leaves the
    /// buffer by the given instant or never, and is then committed.
    OutOfOrder(Receiver, Option<(Instant, LeftOut)>),
    /// Being uploaded to the object store and committed to the index.
    Committing(Receiver, LeftOut),
}

type BatchAnswer = Result<WrittenBatch, AppendError>;
type Receiver = oneshot::Receiver<BatchAnswer>;

const LATE: AppendError = AppendError::Role(ErrorCode::REQUEST_TIMED_OUT);

impl AppendTicket {
    /// Creates the ticket of a batch in the reorder buffer of a classic partition.
    pub fn out_of_order(answer: AwaitedAnswer) -> AppendTicket {
        AppendTicket(Stage::OutOfOrder(answer.0, None))
    }

    /// Creates the ticket of a batch in the reorder buffer of a diskless partition, which leaves the buffer by `turn`
    /// or never.
    pub fn out_of_order_commit(answer: AwaitedAnswer, turn: Instant, left_out: LeftOut) -> AppendTicket {
        AppendTicket(Stage::OutOfOrder(answer.0, Some((turn, left_out))))
    }

    /// Creates the ticket of a batch that is being uploaded and committed.
    pub fn committing(answer: AwaitedAnswer, left_out: LeftOut) -> AppendTicket {
        AppendTicket(Stage::Committing(answer.0, left_out))
    }

    /// Returns true if the batch is in the leader's log. If false, the bytes of the request are no longer needed.
    pub fn is_written(&self) -> bool {
        matches!(self.0, Stage::Written(_))
    }

    /// Waits for the answer: for the store and the replicas until `deadline`, for the reorder buffer until
    /// `others_are_held_up` ends. Counts a failure to become durable.
    ///
    /// # Errors
    /// [`AppendError`]. A batch that is in the leader's log may be lost. After REQUEST_TIMED_OUT and
    /// NOT_LEADER_OR_FOLLOWER, any other batch may still be stored later. If the client sends it again, it is
    /// recognised.
    pub async fn wait(
        self,
        deadline: Instant,
        others_are_held_up: impl Future<Output = ()>,
        metrics: &Metrics,
    ) -> Result<Appended, AppendError> {
        let WrittenBatch { appended, durability } = match self.0 {
            Stage::Written(written) => written,
            Stage::Committing(answer, left_out) => received_by(answer, deadline, &left_out).await?,
            Stage::OutOfOrder(answer, commit) => {
                let answered = async {
                    match commit {
                        Some((turn, left_out)) => received_by(answer, deadline.max(turn), &left_out).await,
                        None => received(answer).await,
                    }
                };
                tokio::select! {
                    biased;
                    answered = answered => answered?,
                    () = others_are_held_up => return Err(LATE),
                }
            }
        };
        match durability.wait(deadline).await {
            Ok(()) => Ok(appended),
            Err(error) => {
                metrics.produce_failed(error.code());
                Err(error)
            }
        }
    }
}

async fn received(answer: Receiver) -> BatchAnswer {
    answer.await.unwrap_or(Err(AppendError::Gone))
}

async fn received_by(answer: Receiver, deadline: Instant, left_out: &LeftOut) -> BatchAnswer {
    match left_out.unless(timeout_at(deadline, received(answer))).await {
        Ok(answer) => answer.unwrap_or(Err(LATE)),
        Err(moved) => Err(AppendError::Role(moved)),
    }
}

/// Future answer of one copy of a batch.
#[derive(Debug)]
pub struct AwaitedAnswer(Receiver);

/// Sending end of the tickets of a batch and its copies. It goes with the batch, and is consumed by the answer.
#[derive(Debug)]
#[must_use]
pub struct AppendAnswer {
    copies: Vec<oneshot::Sender<BatchAnswer>>,
    /// Bytes of the batch.
    size: usize,
    record_count: i32,
    metrics: Metrics,
}

impl AppendAnswer {
    /// Creates the answer of a batch of `size` bytes, and the receiver of its first copy.
    pub fn new(size: usize, record_count: i32, metrics: &Metrics) -> (AppendAnswer, AwaitedAnswer) {
        let mut answer = AppendAnswer { copies: Vec::new(), size, record_count, metrics: metrics.clone() };
        let awaited = answer.add();
        (answer, awaited)
    }

    /// Adds a copy, which awaits the same answer. Past [`COPIES_MAX`] copies the oldest is refused with `of_oldest`,
    /// since the connection of the newest copy is the one that is alive.
    pub fn join(&mut self, of_oldest: AppendError) -> AwaitedAnswer {
        self.copies.retain(|copy| !copy.is_closed());
        if self.copies.len() >= COPIES_MAX {
            let oldest = self.copies.remove(0);
            self.refuse(oldest, of_oldest);
        }
        self.add()
    }

    fn add(&mut self) -> AwaitedAnswer {
        let (copy, awaited) = oneshot::channel();
        self.copies.push(copy);
        AwaitedAnswer(awaited)
    }

    fn refuse(&self, copy: oneshot::Sender<BatchAnswer>, error: AppendError) {
        self.metrics.produce_failed(error.code());
        let _ = copy.send(Err(error));
    }

    /// Returns true while a copy waits.
    pub fn is_awaited(&self) -> bool {
        self.copies.iter().any(|copy| !copy.is_closed())
    }

    /// Answers that the batch is written, and counts it.
    pub fn written(self, batch: &WrittenBatch) {
        self.metrics.appended(self.size, self.record_count);
        self.send(&Ok(batch.clone()));
    }

    /// Answers that the batch was appended before.
    pub fn was_appended(self, appended: Appended) {
        self.send(&Ok(appended.into()));
    }

    /// Refuses each copy, and counts them.
    pub fn failed(mut self, error: AppendError) {
        for copy in std::mem::take(&mut self.copies) {
            self.refuse(copy, error);
        }
    }

    fn send(self, answer: &BatchAnswer) {
        for copy in self.copies {
            // A client that no longer waits sends the batch again, and the partition then recognises it.
            let _ = copy.send(answer.clone());
        }
    }
}
