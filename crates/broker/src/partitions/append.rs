//! Appends the batches of a request one after the other, and waits if something blocks a batch.
//!
//! [`crate::api`] decodes the requests and encodes the responses. The module of each kind of partition appends to it.
//!
//! Invariant: a batch is passed to its partition only after all earlier batches of its request were accepted or
//! refused.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_log::Verification;
use fullbore_rules::sequence::Stamp;
use fullbore_wire::{ErrorCode, Records, Text};
use tokio::time::{timeout, timeout_at};

use super::AnyPartition;
use fullbore_config::TopicConfig;
use fullbore_diskless::{DisklessPartition, Unblocked};
use fullbore_host::fault_point::{self, FaultPoint};
use fullbore_host::files::now_ms;
use fullbore_host::long_work::LongWork;
use fullbore_host::metrics::Metrics;
use fullbore_host::task;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{Acks, AppendStep, Blocker};
use fullbore_log::partition::terms::{
    AppendTerms, AwaitedConfirmation, ConfirmationSender, EarlyBatches, VerificationTime,
};
use fullbore_log::validation::{
    Decompressing, Decompression, DecompressionBudget, Destination, Invalid, LargeBatchPermit, REPORTED_RECORDS_MAX,
    RefusedBatch, SHORT_MAX, Sender, claimed_stamp, validate, work_of,
};

/// The first version of Produce in which the broker adds partitions to the client's transaction (KIP-890 part 2).
pub const ADDS_FROM: i16 = 12;
/// Maximum wait for a verification if the request has no deadline, because no client waits for its response.
const NO_DEADLINE: Duration = Duration::from_secs(30);
/// A request with more bytes of records than this is appended in a slot for long work. An append of fewer bytes lasts a
/// millisecond or two.
const LONG_BYTES: usize = 2 << 20;
/// How long a request may keep its slot for long work before it queues for another one.
const SLOT_TIME_MAX: Duration = Duration::from_millis(50);
/// Maximum time of one wait for the coordinator's confirmation. After this time, batches of diskless partitions are
/// appended before the confirmation arrives. It may arrive late, because the coordinator waits while markers of the
/// producer's previous transaction are uploaded.
const CONFIRMATION_WAIT: Duration = Duration::from_millis(3);

/// The services of the broker that an append uses.
pub struct AppendServices {
    /// The memory budget of decompression, and the permits to decompress large batches.
    pub decompression: Decompression,
    /// Limits how much long work runs at a time.
    pub long_work: Arc<LongWork>,
    /// The counters of appends.
    pub metrics: Metrics,
    /// The coordinator of transactions.
    pub transactions: Box<dyn TransactionVerifier>,
}

/// Batches of one request, each of which may begin a transaction in its partition.
#[derive(Clone, Debug)]
pub struct BeginningTransaction {
    /// The transactional id that the request names.
    pub transactional_id: Text,
    /// The producer of the batches.
    pub producer_id: i64,
    /// The epoch of the producer.
    pub producer_epoch: i16,
    /// The version of the request. From [`ADDS_FROM`] on, the coordinator adds the partitions to the transaction. For
    /// older versions, the coordinator only checks that the client has added them.
    pub produce_version: i16,
    /// The partitions of the batches, as topic names and partition numbers.
    pub partitions: Vec<(Text, i32)>,
}

/// The outcome for each partition: its verification, or the error that its batch gets.
pub type VerifiedPartitions = Vec<Result<Verification, ErrorCode>>;

/// A running verification. It may outlast the request that started it.
pub type Verifying = Pin<Box<dyn Future<Output = VerifiedPartitions> + Send>>;

/// The operation of the transaction coordinator that appends use.
pub trait TransactionVerifier: Send + Sync {
    /// Verifies with the coordinator that a batch may begin a transaction in each partition (KIP-890).
    fn verify(&self, beginning: BeginningTransaction) -> Verifying;
}

/// The verification of one batch.
struct BatchVerification {
    outcome: Result<Verification, ErrorCode>,
    /// The partition's state right before the verification. It becomes [`AppendTerms::verified_at`].
    at: VerificationTime,
    /// Receives the coordinator's confirmation if it has not arrived yet. Until then, `outcome` is only an assumption.
    awaited: Option<AwaitedConfirmation>,
}

impl BatchVerification {
    fn refused(code: ErrorCode) -> BatchVerification {
        BatchVerification { outcome: Err(code), at: VerificationTime::default(), awaited: None }
    }
}

/// The transaction that a request names.
#[derive(Clone, Copy)]
pub struct RequestTransaction<'a> {
    /// The transactional id.
    pub transactional_id: &'a str,
    /// The version of the request.
    pub produce_version: i16,
}

/// A batch of a request.
pub struct RequestBatch<'a> {
    /// The partition of the batch. A refusal if the partition does not exist or the client must not write to it.
    pub to: Result<RequestedPartition<'a>, RefusedBatch>,
    /// The records as they were received.
    pub records: Option<&'a Records>,
}

/// The partition that a request names.
pub struct RequestedPartition<'a> {
    /// The partition.
    pub partition: AnyPartition,
    /// The name of its topic.
    pub topic: &'a str,
    /// The settings of its topic.
    pub config: &'a TopicConfig,
    /// The number of the partition in its topic.
    pub index: i32,
}

/// The terms of a request, which apply to all of its batches.
#[derive(Clone, Copy)]
pub struct RequestTerms<'a> {
    /// How durable a batch must be before it is acknowledged.
    pub acks: Acks,
    /// The sender of the request, which decides its rights.
    pub from: Sender,
    /// How to handle batches that arrive out of order.
    pub early: EarlyBatches<'a>,
    /// The transaction that the request names.
    pub transaction: Option<RequestTransaction<'a>>,
    /// The client's address.
    pub peer: SocketAddr,
    /// The time at which a wait for memory, the index or the coordinator ends. `None` if no client waits for a
    /// response.
    pub deadline: Option<tokio::time::Instant>,
    /// True if the producer has declared that it will send no further batches of the transaction to these partitions.
    /// The records of a diskless partition are then uploaded sooner.
    pub ends_transaction: bool,
}

/// The outcome of one batch of a request: it is appended, its append is pending, or it was refused.
pub type BatchResult = Result<AppendStep<Infallible>, RefusedBatch>;

/// The outcomes of all batches of a request.
pub struct AppendedBatches {
    /// The results in the order of the request.
    pub results: Vec<BatchResult>,
    /// The error of the batch that was refused last, or NONE.
    pub failed: ErrorCode,
    /// True if a batch has waited for memory, the index or the coordinator.
    pub has_waited: bool,
}

/// Checks and appends the batches in their order. When this function returns, the order of the batches in each
/// partition is final, although some appends may still be pending.
pub async fn append_each(
    services: &AppendServices,
    batches: &[RequestBatch<'_>],
    terms: RequestTerms<'_>,
) -> AppendedBatches {
    let unsettled: Vec<_> = partitions_of(batches).filter(|partition| !partition.is_settled()).cloned().collect();
    if !unsettled.is_empty() {
        AnyPartition::open_all(unsettled).await;
    }
    let mut run = AppendRun::new(services, batches, terms);
    loop {
        let progress = match run.is_long {
            true => services.long_work.run(|| run.advance()).await,
            false => run.advance(),
        };
        match progress {
            AppendProgress::Finished => break,
            AppendProgress::Yielded => {}
            AppendProgress::Blocked(blocker) => Box::pin(run.unblock(blocker)).await,
        }
    }
    AppendedBatches { results: run.results, failed: run.failed, has_waited: run.has_waited }
}

/// Returns the partitions of `batches` whose disk or store responds ([`AnyPartition::check_answers`]).
fn partitions_of<'b>(batches: &'b [RequestBatch<'_>]) -> impl Iterator<Item = &'b AnyPartition> {
    let partitions = batches.iter().filter_map(|batch| batch.to.as_ref().ok()).map(|to| &to.partition);
    partitions.filter(|partition| partition.check_answers().is_ok())
}

/// Returns the diskless partitions among [`partitions_of`].
fn diskless<'b>(batches: &'b [RequestBatch<'_>]) -> impl Iterator<Item = &'b Arc<DisklessPartition>> {
    partitions_of(batches).filter_map(|partition| match partition {
        AnyPartition::Diskless(partition) => Some(partition),
        AnyPartition::Classic(_) => None,
    })
}

/// Returns true if the request needs a slot for long work: its batches are large or slow to decompress, or a log must
/// be created or opened first.
fn is_long(batches: &[RequestBatch<'_>]) -> bool {
    let (mut bytes, mut work) = (0, 0_usize);
    for batch in batches {
        if let (Ok(to), Some(records)) = (&batch.to, batch.records.and_then(Records::memory)) {
            bytes += records.len();
            work = work.saturating_add(work_of(records, to.config));
        }
    }
    bytes > LONG_BYTES || work > SHORT_MAX || partitions_of(batches).any(AnyPartition::is_unwritten)
}

/// The result of [`AppendRun::advance`].
enum AppendProgress {
    Finished,
    /// The request has used its slot for long work for [`SLOT_TIME_MAX`], and must queue for another one.
    Yielded,
    /// The next batch is blocked. The caller must wait for the blocker and then try again.
    Blocked(Blocker),
}

/// The state of a request while its batches are appended.
struct AppendRun<'a> {
    services: &'a AppendServices,
    batches: &'a [RequestBatch<'a>],
    terms: RequestTerms<'a>,
    /// The results of the batches that were accepted or refused so far. Their number is the index of the next batch.
    results: Vec<BatchResult>,
    failed: ErrorCode,
    /// How many more records with errors the response may list. Limiting each batch is not enough, because a request of
    /// one megabyte may contain ten thousand batches of a thousand records.
    reports_left: usize,
    /// How many bytes of this request may still be decompressed.
    budget: DecompressionBudget,
    is_long: bool,
    /// The permit to decompress the next batch, if that batch is large.
    permit: Option<LargeBatchPermit<'a>>,
    unblocked: Unblocked,
    /// The verifications of batches that were not appended yet, by their index in the request.
    verifications: HashMap<usize, BatchVerification>,
    has_waited: bool,
}

impl<'a> AppendRun<'a> {
    fn new(services: &'a AppendServices, batches: &'a [RequestBatch<'a>], terms: RequestTerms<'a>) -> AppendRun<'a> {
        let is_long = is_long(batches);
        AppendRun {
            services,
            batches,
            terms,
            results: Vec::with_capacity(batches.len()),
            failed: ErrorCode::NONE,
            reports_left: REPORTED_RECORDS_MAX,
            budget: if is_long { DecompressionBudget::long() } else { DecompressionBudget::short() },
            is_long,
            permit: None,
            unblocked: Unblocked::default(),
            verifications: HashMap::new(),
            has_waited: false,
        }
    }

    /// Checks and appends batches one after the other. If the request has a slot for long work, returns `Yielded` after
    /// [`SLOT_TIME_MAX`], but handles at least one batch.
    fn advance(&mut self) -> AppendProgress {
        let until = self.is_long.then(|| Instant::now() + SLOT_TIME_MAX);
        while let Some(batch) = self.batches.get(self.results.len()) {
            let result = match self.offer(batch) {
                Ok(AppendStep::Done(appended)) => Ok(AppendStep::Done(appended)),
                Ok(AppendStep::Pending(ticket)) => Ok(AppendStep::Pending(ticket)),
                Ok(AppendStep::Blocked(blocker)) => return AppendProgress::Blocked(blocker),
                Err(Invalid::Large) => return AppendProgress::Blocked(Blocker::DecompressPermit),
                Err(Invalid::Long) => return AppendProgress::Blocked(Blocker::LongWork),
                Err(Invalid::Refused(why)) => Err(self.refused(why)),
            };
            self.results.push(result);
            self.unblocked.release_memory();
            if until.is_some_and(|until| Instant::now() > until) && self.results.len() < self.batches.len() {
                return AppendProgress::Yielded;
            }
        }
        AppendProgress::Finished
    }

    fn offer(&mut self, batch: &'a RequestBatch<'a>) -> Result<AppendStep, Invalid> {
        let permit = self.permit.take();
        let RequestedPartition { partition, topic, config, index } = batch.to.as_ref().map_err(Clone::clone)?;
        partition.check_writable().inspect_err(|code| {
            // The batch is not validated yet, so its stamp may be wrong. That does little harm: the producer named in a
            // wrong stamp may get `code` for an out-of-order batch.
            if let Some(stamp) = batch.records.and_then(Records::memory).and_then(|bytes| claimed_stamp(bytes)) {
                partition.turned_away(&stamp, *code);
            }
        })?;
        let RequestTerms { acks, from, early, ends_transaction, .. } = self.terms;
        let now_ms = now_ms();
        let to = Destination { topic, partition: *index, config, now_ms };
        let decompression = &self.services.decompression;
        let decompressing = Decompressing { decompression, permit: permit.as_ref(), budget: &mut self.budget };
        let batch = validate(batch.records, from, to, decompressing)?;
        let verified = self.verifications.get(&self.results.len());
        let verification = verified.and_then(|of| of.outcome.ok()).unwrap_or(Verification::Unknown);
        let verified_at = verified.map_or(VerificationTime::default(), |of| of.at);
        let epoch_stays = self.terms.transaction.is_some_and(|transaction| transaction.produce_version < ADDS_FROM);
        let awaited = verified.and_then(|of| of.awaited.as_ref());
        let terms = AppendTerms {
            acks,
            now_ms,
            early,
            leader_epoch: None,
            verification,
            epoch_stays,
            verified_at,
            awaited,
            ends_transaction,
        };
        let step = match partition {
            AnyPartition::Classic(replica) => replica.append(&batch, terms),
            AnyPartition::Diskless(partition) => self.unblocked.append(partition, &batch, terms, self.terms.peer),
        };
        let step = step.map_err(refusal_of)?;
        if let (AppendStep::Blocked(Blocker::Verification), Some(&BatchVerification { outcome: Err(code), .. })) =
            (&step, verified)
        {
            partition.turned_away(&batch.stamp(), code);
            return Err(unverified(code).into());
        }
        if step.is_written() {
            let view = batch.view();
            self.services.metrics.appended(view.size(), view.record_count());
            if batch.is_transactional() {
                fault_point::reached(FaultPoint::Appended);
            }
        }
        Ok(step)
    }

    fn refused(&mut self, mut why: RefusedBatch) -> RefusedBatch {
        why.keep_at_most(self.reports_left);
        self.reports_left -= why.records.len();
        self.services.metrics.produce_failed(why.code);
        self.failed = why.code;
        why
    }

    /// Waits for `blocker`, so that the next batch can be tried again.
    async fn unblock(&mut self, blocker: Blocker) {
        match blocker {
            Blocker::DecompressPermit => self.permit = Some(self.services.decompression.permit().await),
            Blocker::LongWork => {
                self.is_long = true;
                self.budget = DecompressionBudget::long();
            }
            Blocker::StaleState(_) | Blocker::Memory(..) => {
                self.has_waited = true;
                let partitions = self.blocked_by(blocker);
                self.unblocked.wait_for(&partitions, blocker, self.terms.deadline).await;
            }
            Blocker::Verification => self.verify().await,
        }
    }

    /// Verifies with the coordinator that the next batch may begin a transaction. Later batches of the same producer
    /// are verified together with it.
    async fn verify(&mut self) {
        let first = self.results.len();
        self.has_waited = true;
        if self.await_confirmation(first).await {
            return;
        }
        let stamp_of = |batch: &RequestBatch<'_>| claimed_stamp(batch.records.and_then(Records::memory)?);
        let (Some(transaction), Some(of)) = (self.terms.transaction, self.batches.get(first).and_then(stamp_of)) else {
            self.verifications.insert(first, BatchVerification::refused(ErrorCode::INVALID_TXN_STATE));
            return;
        };
        let is_same = |stamp: Stamp| (stamp.producer_id, stamp.producer_epoch) == (of.producer_id, of.producer_epoch);
        let next = self.batches.iter().enumerate().skip(first);
        let next = next.filter(|(_, batch)| stamp_of(batch).is_some_and(is_same));
        let requested: Vec<_> =
            next.filter_map(|(position, batch)| Some((position, batch.to.as_ref().ok()?))).collect();
        if transaction.produce_version < ADDS_FROM {
            // The append compares the offset of the last marker with the log end that is recorded below
            // (`verification_time`). It assumes that a marker from this log end on has ended the verified transaction.
            // Refresh the log end first, because another broker may have written the marker of the previous
            // transaction.
            let partitions: Vec<_> = requested.iter().map(|(_, to)| to.partition.clone()).collect();
            let refreshed = AnyPartition::refresh(&partitions);
            let _ = match self.terms.deadline {
                Some(deadline) => timeout_at(deadline, refreshed).await.unwrap_or(Ok(())),
                None => refreshed.await,
            };
        }
        let at = |(position, to): &(usize, &RequestedPartition<'_>)| {
            (*position, to.partition.verification_time(of.producer_id))
        };
        let positions: Vec<_> = requested.iter().map(at).collect();
        let is_diskless = |(_, to): &(_, &RequestedPartition<'_>)| matches!(to.partition, AnyPartition::Diskless(_));
        let may_go_ahead = transaction.produce_version >= ADDS_FROM && requested.iter().all(is_diskless);
        let partitions = requested.iter().map(|(_, to)| (Text::from(to.topic), to.index)).collect();
        let beginning = BeginningTransaction {
            transactional_id: Text::from(transaction.transactional_id),
            producer_id: of.producer_id,
            producer_epoch: of.producer_epoch,
            produce_version: transaction.produce_version,
            partitions,
        };
        let mut verifying = self.services.transactions.verify(beginning);
        let until = self.terms.deadline.unwrap_or_else(|| tokio::time::Instant::now() + NO_DEADLINE);
        let go_ahead_at = if may_go_ahead { until.min(tokio::time::Instant::now() + CONFIRMATION_WAIT) } else { until };
        match timeout_at(go_ahead_at, &mut verifying).await {
            Ok(outcomes) => {
                let outcomes = positions.into_iter().zip(outcomes);
                let known = outcomes
                    .map(|((position, at), outcome)| (position, BatchVerification { outcome, at, awaited: None }));
                self.verifications.extend(known);
            }
            Err(_) if go_ahead_at < until => self.go_ahead(positions, verifying),
            Err(_) => {
                let late = positions
                    .into_iter()
                    .map(|(position, _)| (position, BatchVerification::refused(ErrorCode::REQUEST_TIMED_OUT)));
                self.verifications.extend(late);
            }
        }
        // Without an outcome, the next batch would be verified again and again.
        self.verifications.entry(first).or_insert(BatchVerification::refused(ErrorCode::INVALID_TXN_STATE));
    }

    /// Allows the batches at `positions` to be appended before the coordinator's confirmation arrives. A task waits for
    /// the confirmation and passes it to these appends.
    fn go_ahead(&mut self, positions: Vec<(usize, VerificationTime)>, verifying: Verifying) {
        let mut senders: Vec<ConfirmationSender> = Vec::with_capacity(positions.len());
        for (position, at) in positions {
            let (sender, awaited) = AwaitedConfirmation::new();
            senders.push(sender);
            self.verifications
                .insert(position, BatchVerification { outcome: Ok(Verification::Added), at, awaited: Some(awaited) });
        }
        task::spawn(async move {
            for (sender, outcome) in senders.into_iter().zip(verifying.await) {
                sender.give(outcome.map(drop));
            }
        });
    }

    /// Waits at most [`CONFIRMATION_WAIT`] for the coordinator's confirmation of the batch at `position`, which the
    /// partition refused to append without it. Refuses the batch if the deadline has passed. Returns false if the batch
    /// awaits no confirmation.
    async fn await_confirmation(&mut self, position: usize) -> bool {
        let Some(verification) = self.verifications.get_mut(&position) else { return false };
        let Some(awaited) = &mut verification.awaited else { return false };
        let given = timeout(CONFIRMATION_WAIT, awaited.given()).await;
        let is_late = self.terms.deadline.is_some_and(|deadline| deadline <= tokio::time::Instant::now());
        match given {
            Ok(confirmation) => {
                (verification.outcome, verification.awaited) = (confirmation.map(|()| Verification::Added), None)
            }
            Err(_) if is_late => *verification = BatchVerification::refused(ErrorCode::REQUEST_TIMED_OUT),
            Err(_) => {}
        }
        true
    }

    /// Returns the partition of the next batch. Before the request's first refresh, also returns the partitions of
    /// later batches that need a refresh for this producer. A single refresh then serves all of them.
    fn blocked_by(&self, blocker: Blocker) -> Vec<Arc<DisklessPartition>> {
        let mut left = diskless(self.batches.get(self.results.len()..).unwrap_or_default());
        let mut partitions: Vec<_> = left.next().map(Arc::clone).into_iter().collect();
        if let Blocker::StaleState(producer_id) = blocker
            && !self.unblocked.has_refreshed()
        {
            partitions.extend(left.filter(|partition| partition.is_stale_for(producer_id)).map(Arc::clone));
        }
        partitions
    }
}

/// Returns the refusal of a batch that must not begin a transaction, with the message for `code`.
fn unverified(code: ErrorCode) -> RefusedBatch {
    let why = match code {
        ErrorCode::NOT_ENOUGH_REPLICAS => {
            "The coordinator cannot confirm yet that the partition is in the transaction."
        }
        ErrorCode::INVALID_TXN_STATE | ErrorCode::TRANSACTION_ABORTABLE => "The partition is not in the transaction.",
        code => code.message(),
    };
    RefusedBatch::new(code, why)
}

/// Converts the error of an append into the refusal that the client gets.
pub fn refusal_of(error: AppendError) -> RefusedBatch {
    let refused = RefusedBatch::new(error.code(), error.to_string());
    match error {
        AppendError::UnknownProducer { log_start_offset } => RefusedBatch { log_start_offset, ..refused },
        _ => refused,
    }
}
