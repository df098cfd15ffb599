//! Follows a batch from the moment it is offered to a partition until its client gets a response.
//!
//! An offered batch is either done, pending with a ticket, or blocked. If it is blocked, the caller waits for what is
//! missing and offers the batch again. The request keeps the ticket. The batch keeps the [`AppendAnswer`], which sends
//! the answer to the ticket. Each of the two can be used only once.
//!
//! A batch in the log is answered once it is durable: on the disk if the topic requires it, and on the other replicas
//! if the client requires it.
//!
//! Invariants: every ticket gets exactly one answer, whatever happens to the batch. A wait ends once its condition is
//! met, or can no longer be met.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use fullbore_host::metrics::Metrics;
use fullbore_rules::replica::Acknowledgement;
use fullbore_wire::ErrorCode;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::error::AppendError;
use super::flushed::FlushTicket;
use super::left_out::LeftOut;
use super::waiters::Registration;

/// Maximum number of copies of a batch whose requests wait for its answer at the same time. A client sends another copy
/// when it retries. All copies but the last then belong to lost connections, or to clients that do not wait for
/// responses.
const COPIES_MAX: usize = 4;

/// A batch in the log, which was appended now or earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the batch's first record.
    pub base_offset: i64,
    /// The time of the append by the broker's clock, in ms. -1 if the producer's timestamps are used.
    pub log_append_time_ms: i64,
    /// The partition's first offset.
    pub log_start_offset: i64,
    /// How many batches the partition remembers of each producer, as configured at the append.
    pub batches_retained: usize,
}

/// The replicas that must have a batch before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// The batch must be in the leader's log.
    Leader,
    /// The batch must be in the logs of all in-sync replicas, and there must be at least min.insync.replicas of them.
    All,
}

/// A batch in the leader's log, and what its answer has to wait for.
#[derive(Debug, Clone)]
pub struct WrittenBatch {
    /// The batch's offset, and the other values for the response.
    pub appended: Appended,
    /// The conditions for the answer.
    pub durability: Durability,
}

impl From<Appended> for WrittenBatch {
    /// Creates a batch that can be answered at once.
    fn from(appended: Appended) -> WrittenBatch {
        WrittenBatch { appended, durability: Durability::default() }
    }
}

/// The result of offering a batch.
#[derive(Debug)]
#[must_use]
pub enum AppendStep<B = Blocker> {
    /// The batch is appended, and can be answered at once.
    Done(Appended),
    /// The batch is accepted. The ticket gets the answer later. The batch is stored even if the caller does not wait.
    Pending(AppendTicket),
    /// A condition is not met yet, so the batch is not accepted. The caller should wait for this condition and then
    /// offer the batch again. Until then, no further request is read from the connection.
    Blocked(B),
}

impl AppendStep {
    /// Returns true if the batch is in the leader's log. For a diskless partition, returns true if it is already
    /// committed.
    pub fn is_written(&self) -> bool {
        match self {
            AppendStep::Done(_) => true,
            AppendStep::Pending(ticket) => ticket.is_written(),
            AppendStep::Blocked(_) => false,
        }
    }

    /// Returns the batch and the conditions for its answer; `None` if it is not in the leader's log.
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

/// The one thing that is missing before a batch can be accepted.
#[derive(Debug, Clone, Copy)]
pub enum Blocker {
    /// A permit to decompress the batch, which becomes large when it is decompressed.
    DecompressPermit,
    /// A slot for long work, because the batch would keep other connections waiting.
    LongWork,
    /// The latest commits of other brokers, which may contain batches of this producer id.
    StaleState(i64),
    /// Memory for a batch from this connection, in bytes.
    Memory(SocketAddr, usize),
    /// The verification that the partition belongs to the producer's transaction (KIP-890).
    Verification,
}

/// Waits for the answer to an accepted batch. Dropping the ticket does not affect the batch.
#[derive(Debug)]
#[must_use]
pub struct AppendTicket(Stage);

/// The stage that an accepted batch has reached.
#[derive(Debug)]
enum Stage {
    /// The batch is in the leader's log.
    Written(WrittenBatch),
    /// The batch is in the reorder buffer until the batches before it are appended. In a diskless partition, it must
    /// then still be committed. The instant is the latest time at which a diskless batch can leave the buffer.
    OutOfOrder(Receiver, Option<(Instant, LeftOut)>),
    /// The batch is being uploaded to the object store and committed to the index.
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

    /// Creates the ticket of a batch in the reorder buffer of a diskless partition. `turn` is the latest time at which
    /// the batch can leave the buffer.
    pub fn out_of_order_commit(answer: AwaitedAnswer, turn: Instant, left_out: LeftOut) -> AppendTicket {
        AppendTicket(Stage::OutOfOrder(answer.0, Some((turn, left_out))))
    }

    /// Creates the ticket of a batch that is being uploaded and committed.
    pub fn committing(answer: AwaitedAnswer, left_out: LeftOut) -> AppendTicket {
        AppendTicket(Stage::Committing(answer.0, left_out))
    }

    /// Returns true if the batch is in the leader's log. Returns false if it is pending. The partition then has a copy
    /// of the batch, so the caller can free the bytes of the request.
    pub fn is_written(&self) -> bool {
        matches!(self.0, Stage::Written(_))
    }

    /// Waits until the batch is acknowledged or refused. The waits for the object store and for the replicas end at
    /// `deadline`. The wait in the reorder buffer ends early when `others_are_held_up` completes, because other
    /// requests then wait behind this one. If a written batch is not acknowledged, counts an error in `metrics`.
    ///
    /// # Errors
    /// Returns [`AppendError`] if the batch is not acknowledged. A batch that is already in the leader's log might stay
    /// there or be lost. Any other batch might be stored later, after REQUEST_TIMED_OUT or NOT_LEADER_OR_FOLLOWER. If
    /// the batch was stored and the client sends it again, the partition recognises the duplicate.
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

/// The receiver of the answer to one copy of a batch. [`AppendAnswer`] sends the answer.
#[derive(Debug)]
pub struct AwaitedAnswer(Receiver);

/// The sender of one answer to all copies of a batch. It is stored with the batch, and can be used only once.
#[derive(Debug)]
#[must_use]
pub struct AppendAnswer {
    copies: Vec<oneshot::Sender<BatchAnswer>>,
    /// The size of the batch in bytes.
    size: usize,
    record_count: i32,
    metrics: Metrics,
}

impl AppendAnswer {
    /// Creates the answer for a batch of `size` bytes, and the receiver for its first copy.
    pub fn new(size: usize, record_count: i32, metrics: &Metrics) -> (AppendAnswer, AwaitedAnswer) {
        let mut answer = AppendAnswer { copies: Vec::new(), size, record_count, metrics: metrics.clone() };
        let awaited = answer.add();
        (answer, awaited)
    }

    /// Adds another copy of the batch, whose request waits for the same answer. If there are already [`COPIES_MAX`]
    /// copies, refuses the oldest with the error `of_oldest`, because its connection is probably lost.
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

    /// Returns true while a client waits for the answer.
    pub fn is_awaited(&self) -> bool {
        self.copies.iter().any(|copy| !copy.is_closed())
    }

    /// Answers that the batch was written, and counts the batch.
    pub fn written(self, batch: &WrittenBatch) {
        self.metrics.appended(self.size, self.record_count);
        self.send(&Ok(batch.clone()));
    }

    /// Answers that the batch had been appended before.
    pub fn was_appended(self, appended: Appended) {
        self.send(&Ok(appended.into()));
    }

    /// Refuses all copies with `error`, and counts each of them as failed.
    pub fn failed(mut self, error: AppendError) {
        for copy in std::mem::take(&mut self.copies) {
            self.refuse(copy, error);
        }
    }

    fn send(self, answer: &BatchAnswer) {
        for copy in self.copies {
            // Sending fails if the request no longer waits. The client will then send the batch again, and the
            // partition will recognise the duplicate.
            let _ = copy.send(answer.clone());
        }
    }
}

/// The conditions for acknowledging a batch. The disk comes first, then the in-sync replicas.
#[derive(Debug, Clone, Default)]
pub struct Durability {
    /// The flush, if the topic requires one.
    pub flushed: Option<FlushTicket>,
    /// The replication, if the client requires it.
    pub replicated: Option<ReplicationTicket>,
}

impl Durability {
    /// Returns true if the response can be sent at once.
    pub fn is_nothing(&self) -> bool {
        self.flushed.is_none() && self.replicated.is_none()
    }

    /// Waits for the flush, without a time limit, and then for the replicas until `deadline`.
    ///
    /// # Errors
    /// Returns [`AppendError`] if a condition is not met. The batch is in the leader's log anyway, but may be lost.
    pub async fn wait(self, deadline: tokio::time::Instant) -> Result<(), AppendError> {
        if let Some(flushed) = self.flushed {
            flushed.wait().await?;
        }
        match self.replicated {
            Some(replicated) => timeout_at(deadline, replicated.wait())
                .await
                .unwrap_or(Err(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT))),
            None => Ok(()),
        }
    }
}

/// Waits until a batch is on every in-sync replica, or can no longer get there.
#[derive(Debug, Clone)]
pub struct ReplicationTicket {
    replica: Arc<dyn Acknowledges>,
    leader_epoch: i32,
    /// The offset after the batch.
    end_offset: i64,
}

/// A replica that knows which batches the other replicas have.
pub trait Acknowledges: Debug + Send + Sync {
    /// Registers a waiter, which is woken when the result of [`Acknowledges::acknowledgement`] may have changed.
    fn register(&self, waiter: &Arc<Notify>) -> Registration;

    /// Returns how far the records before `end_offset` are replicated. The leader of `leader_epoch` has appended these
    /// records. The replication is complete once all in-sync replicas have them.
    fn acknowledgement(&self, leader_epoch: i32, end_offset: i64) -> Acknowledgement;

    /// Returns true once the broker is stopping. No caller waits after that.
    fn is_stopping(&self) -> bool;
}

impl ReplicationTicket {
    /// Creates a ticket for the records before `end_offset`, which were appended in `leader_epoch`.
    pub fn new(replica: Arc<dyn Acknowledges>, leader_epoch: i32, end_offset: i64) -> ReplicationTicket {
        ReplicationTicket { replica, leader_epoch, end_offset }
    }

    /// Waits for the replicas while this broker leads.
    ///
    /// # Errors
    /// Fails with [`AppendError::Role`] if this broker no longer leads or too few replicas are in sync. Fails with
    /// [`AppendError::Gone`] if the partition is deleted or the broker is stopping. The batch is in the log anyway, but
    /// may be lost.
    pub async fn wait(self) -> Result<(), AppendError> {
        let waiter = Arc::new(Notify::new());
        let registered = self.replica.register(&waiter);
        loop {
            let is_over = registered.is_over() || self.replica.is_stopping();
            match self.replica.acknowledgement(self.leader_epoch, self.end_offset) {
                Acknowledgement::Done => return Ok(()),
                _ if is_over => return Err(AppendError::Gone),
                Acknowledgement::Wait => waiter.notified().await,
                Acknowledgement::Refused(code) => return Err(AppendError::Role(code)),
            }
        }
    }
}
