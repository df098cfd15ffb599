//! The task that runs a producer's transactions. It gets the producer id, adds partitions and offsets to the
//! transaction, and ends one transaction after another.
//!
//! The senders send the batches, once the ledger permits it. Invariant: at most one request to a coordinator is in
//! flight. A transaction ends only when none of its batches is in flight, or with an abort whose new epoch fences these
//! batches.
//!
//! With `transaction.version` 2 (KIP-890), Produce adds partitions to the transaction, and the response to EndTxn
//! contains the producer id and epoch of the next transaction. Before that version, AddPartitionsToTxn precedes the
//! first batch of each partition, and the producer id and epoch stay the same. If an aborted transaction left a gap in
//! a partition's sequences, this task raises the epoch with InitProducerId (KIP-360).

mod call;
mod offsets;

use crate::core::Core;
use crate::error::TransactionError;
use crate::ledger::{Phase, TransactionLedger};
use crate::partition::Partition;
use crate::scope::{TransactionScope, Wish};
use crate::transaction_pass::TransactionPass;
use crate::window::ProducerIdAndEpoch;
use call::{Coordinator, Refusal, worst};
use fullbore_client::tokio::CoordinatorKind;
use fullbore_wire::apis::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use fullbore_wire::apis::end_txn::EndTxnRequest;
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use std::sync::Arc;
use std::time::Instant;

/// The identity that a producer sends in InitProducerId as long as it has none.
const NO_IDENTITY: ProducerIdAndEpoch = ProducerIdAndEpoch { producer_id: -1, epoch: -1 };
/// The newest version of AddPartitionsToTxn that clients may send. Only brokers may send later versions.
const ADD_PARTITIONS_MAX: i16 = 3;
/// The newest version of InitProducerId without two-phase commit.
const INIT_MAX: i16 = 5;
/// The newest version of EndTxn whose response does not contain a producer id and epoch.
const END_KEEPS_IDENTITY_MAX: i16 = 4;
/// The newest version of EndTxn that this producer sends.
const END_MAX: i16 = 5;

/// The task that runs a producer's transactions.
struct TransactionTask {
    core: Arc<Core>,
    ledger: Arc<TransactionLedger>,
    coordinator: Coordinator,
    /// The coordinator of the group whose offsets were committed last.
    group: Option<Coordinator>,
    identity: ProducerIdAndEpoch,
    /// True if Produce adds partitions to the transaction (`transaction.version` 2).
    adds_partitions: bool,
    /// True if the response to a request was lost. The coordinator may then have added a partition or offsets to the
    /// present transaction.
    is_uncertain: bool,
}

/// Runs until the producer closes or a fatal error occurs.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(ledger) = core.ledger.clone() else { return };
    let coordinator = Coordinator::new(core.clone(), ledger.clone(), CoordinatorKind::Transaction, &ledger.id);
    let mut task = TransactionTask {
        core: core.clone(),
        ledger,
        coordinator,
        group: None,
        identity: NO_IDENTITY,
        adds_partitions: false,
        is_uncertain: false,
    };
    tokio::select! {
        error = task.serve_all() => task.end_all(&error),
        () = core.stopped() => {}
    }
}

impl TransactionTask {
    /// Runs one transaction after another until a fatal error, and returns this error.
    async fn serve_all(&mut self) -> TransactionError {
        self.initialise().await;
        loop {
            let Some(scope) = self.ledger.oldest() else {
                self.ledger.wake.notified().await;
                continue;
            };
            let (number, identity, adds_partitions) = (scope.number, self.identity, self.adds_partitions);
            self.is_uncertain = false;
            self.ledger.set_pass(Some(TransactionPass { number, identity, adds_partitions }));
            self.core.wake_all();
            let wish = match self.serve(&scope).await {
                Ok(wish) => wish,
                Err(fatal) => return fatal,
            };
            let outcome = match self.end(&scope, wish).await {
                Err(fatal) if fatal.is_fatal() => return fatal,
                outcome => outcome,
            };
            let (wanted, failure) = (scope.wish(), scope.failure());
            let takes_next = wanted == Some(Wish::Commit);
            let outcome = outcome.and(if takes_next { failure.map_or(Ok(()), Err) } else { Ok(()) });
            self.ledger.finish_oldest(outcome, takes_next);
        }
    }

    /// Ends every transaction with `error`, which is fatal for the producer.
    fn end_all(&self, error: &TransactionError) {
        tracing::warn!(%error, "this producer cannot continue: every further call fails; create a new producer");
        self.ledger.end(|possibly_committed| error.clone().with_possibly_committed(possibly_committed));
        self.abandon(u64::MAX);
    }

    /// Gets the first producer id. Makes one attempt each time that the application requests the id.
    async fn initialise(&mut self) {
        loop {
            match self.ledger.phase() {
                Phase::Ready => return,
                Phase::Initialising => {
                    let phase = match self.init(None).await {
                        Ok(()) => Phase::Ready,
                        Err(error) => Phase::New(Some(error)),
                    };
                    self.adds_partitions = self.coordinator.adds_partitions().unwrap_or(false);
                    self.ledger.set_phase(phase);
                }
                Phase::New(_) | Phase::Fatal(_) => self.ledger.wake.notified().await,
            }
        }
    }

    /// Carries out the requests of an open transaction until it can end. Returns how to end it: with a commit or with
    /// an abort.
    ///
    /// # Errors
    /// Returns [`TransactionError`] if an error ends the producer.
    async fn serve(&mut self, scope: &Arc<TransactionScope>) -> Result<Wish, TransactionError> {
        let core = self.core.clone();
        let (mut hurry, mut is_abandoned) = (None, false);
        loop {
            let (failure, wish) = (scope.failure(), scope.wish());
            if let Some(fatal) = failure.as_ref().filter(|failure| failure.is_fatal()) {
                return Err(fatal.clone());
            }
            let is_over = failure.is_some() || wish == Some(Wish::Abort);
            if is_over && (wish.is_some() || !is_abandoned) {
                is_abandoned = true;
                self.abandon(scope.number);
            }
            if is_over {
                self.refuse_offsets(scope);
            } else if self.serve_requests(scope).await {
                continue;
            }
            if wish.is_some() {
                hurry.get_or_insert_with(|| core.flushing());
                // An abort that raises the epoch fences the batches in flight, so it need not wait for them. It must
                // not wait either, because a broker may hold them for an earlier batch that never arrives.
                let is_fenced = is_over && self.adds_partitions;
                if is_fenced || self.is_done_with(scope.number) {
                    // A record may have failed since `is_over` was computed. The transaction must then be aborted.
                    let is_over = is_over || scope.has_failed();
                    return Ok(if is_over { Wish::Abort } else { Wish::Commit });
                }
            }
            self.ledger.wake.notified().await;
        }
    }

    /// Carries out the next queued request to a coordinator. Returns false if none is queued.
    async fn serve_requests(&mut self, scope: &Arc<TransactionScope>) -> bool {
        let joining = self.ledger.take_joining();
        if !joining.is_empty() {
            if let Err(refusal) = self.add_partitions(scope, &joining).await {
                self.note_refusal(scope, "add partitions to the transaction", refusal);
            }
            return true;
        }
        let Some(request) = self.ledger.take_offsets(scope.number) else { return false };
        let committed = self.commit_offsets(scope, &request).await;
        let answer = committed.map_err(|refusal| self.note_refusal(scope, "commit offsets", refusal));
        drop(request.answer.send(answer));
        true
    }

    /// Marks the transaction as failed because a coordinator refused a request. Returns the error of the transaction.
    fn note_refusal(&mut self, scope: &TransactionScope, action: &'static str, refusal: Refusal) -> TransactionError {
        self.is_uncertain |= refusal.is_lost;
        let error = refusal.into_error(action, false);
        scope.fail(error.clone());
        scope.failure().unwrap_or(error)
    }

    fn refuse_offsets(&self, scope: &TransactionScope) {
        while let Some(request) = self.ledger.take_offsets(scope.number) {
            let aborted = TransactionError::State("the transaction is aborted");
            drop(request.answer.send(Err(scope.failure().unwrap_or(aborted))));
        }
    }

    async fn add_partitions(&mut self, scope: &TransactionScope, joining: &[Arc<Partition>]) -> Result<(), Refusal> {
        let mut topics: Vec<AddPartitionsToTxnTopic> = Vec::new();
        for partition in joining {
            match topics.iter_mut().find(|topic| topic.name == partition.topic) {
                Some(topic) => topic.partitions.push(partition.index),
                None => topics.push(AddPartitionsToTxnTopic {
                    name: partition.topic.clone(),
                    partitions: vec![partition.index],
                    ..Default::default()
                }),
            }
        }
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: self.ledger.id.clone(),
            v3_and_below_producer_id: self.identity.producer_id,
            v3_and_below_producer_epoch: self.identity.epoch,
            v3_and_below_topics: topics,
            ..Default::default()
        };
        let gives_up = || scope.has_failed() || scope.wish() == Some(Wish::Abort);
        let requested = self.coordinator.call(&request, ADD_PARTITIONS_MAX, gives_up, |answer| {
            let topics = answer.results_by_topic_v3_and_below.iter();
            worst(topics.flat_map(|topic| &topic.results_by_partition).map(|of| of.partition_error_code))
        });
        requested.await?;
        scope.start();
        joining.iter().for_each(|partition| partition.joined(scope.number));
        Ok(())
    }

    /// Commits or aborts a transaction, according to `wish`. Aborts it if it cannot be committed.
    ///
    /// # Errors
    /// Returns the [`TransactionError`] that explains why the transaction is not committed. The error is fatal if the
    /// transaction could not be aborted either. Also returns an error if the producer cannot get the new epoch that it
    /// needs after the end.
    async fn end(&mut self, scope: &TransactionScope, wish: Wish) -> Result<(), TransactionError> {
        let is_known = scope.is_started() || self.is_uncertain;
        let ended = match wish {
            _ if !is_known => Ok(()),
            Wish::Abort => self.abort(scope).await,
            Wish::Commit => match self.end_txn(scope, true).await {
                Err(error) if !error.is_fatal() => {
                    scope.fail(error.clone());
                    self.abort(scope).await.and(Err(error))
                }
                committed => committed,
            },
        };
        let adds_partitions = self.coordinator.adds_partitions().unwrap_or(self.adds_partitions);
        if adds_partitions != self.adds_partitions && !ended.as_ref().is_err_and(TransactionError::is_fatal) {
            // The cluster's `transaction.version` has changed. The old and the new protocol must not share an epoch, so
            // a new epoch begins.
            self.adds_partitions = adds_partitions;
            self.init(Some(self.identity)).await?;
        }
        ended
    }

    /// Aborts a transaction that may be open at the coordinator.
    ///
    /// # Errors
    /// Returns [`TransactionError`] if an error ends the producer.
    async fn abort(&mut self, scope: &TransactionScope) -> Result<(), TransactionError> {
        let is_clean = self.core.partitions().iter().all(|partition| partition.is_clean());
        if self.is_uncertain && !self.adds_partitions {
            // If the coordinator has added nothing to the transaction, it refuses EndTxn. InitProducerId aborts the
            // transaction in either case.
            return self.init(Some(self.identity)).await;
        }
        match self.end_txn(scope, false).await {
            Ok(()) if is_clean || self.adds_partitions => Ok(()),
            Err(error) if error.is_fatal() => Err(error),
            Ok(()) | Err(_) => self.init(Some(self.identity)).await,
        }
    }

    async fn end_txn(&mut self, scope: &TransactionScope, committed: bool) -> Result<(), TransactionError> {
        let ProducerIdAndEpoch { producer_id, epoch: producer_epoch } = self.identity;
        let transactional_id = self.ledger.id.clone();
        let request = EndTxnRequest { transactional_id, producer_id, producer_epoch, committed, ..Default::default() };
        let max = if self.adds_partitions { END_MAX } else { END_KEEPS_IDENTITY_MAX };
        if committed {
            scope.set_possibly_committed(true);
        }
        let action = if committed { "commit the transaction" } else { "abort the transaction" };
        let answer = self.coordinator.call(&request, max, || false, |answer| answer.error_code).await;
        let answer = answer.map_err(|refusal| {
            scope.set_possibly_committed(committed && refusal.is_lost);
            let possibly_committed = scope.is_possibly_committed();
            refusal.into_error(action, possibly_committed)
        })?;
        if answer.producer_id >= 0 {
            self.identity = ProducerIdAndEpoch { producer_id: answer.producer_id, epoch: answer.producer_epoch };
        }
        Ok(())
    }

    /// Gets a producer id and epoch with InitProducerId, which also aborts an open transaction. With `present`, the
    /// producer keeps this id and gets the next epoch.
    async fn init(&mut self, present: Option<ProducerIdAndEpoch>) -> Result<(), TransactionError> {
        let present = present.unwrap_or(NO_IDENTITY);
        let timeout = self.core.config.transaction_timeout.as_millis();
        let request = InitProducerIdRequest {
            transactional_id: Some(self.ledger.id.clone()),
            transaction_timeout_ms: i32::try_from(timeout).unwrap_or(i32::MAX),
            producer_id: present.producer_id,
            producer_epoch: present.epoch,
            ..Default::default()
        };
        let answer = self.coordinator.call(&request, INIT_MAX, || false, |answer| answer.error_code).await;
        let answer = answer.map_err(|refusal| refusal.into_error("get a producer id", false))?;
        self.identity = ProducerIdAndEpoch { producer_id: answer.producer_id, epoch: answer.producer_epoch };
        Ok(())
    }

    fn abandon(&self, number: u64) {
        let now = Instant::now();
        self.core.partitions().iter().for_each(|partition| partition.abandon(number, now));
    }

    fn is_done_with(&self, number: u64) -> bool {
        self.core.partitions().iter().all(|partition| partition.is_done_with(number))
    }
}
