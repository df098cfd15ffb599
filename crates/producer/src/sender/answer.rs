//! Handles a response or its absence. Each batch of the request is completed, sent again, split, or failed.
//!
//! The meaning of errors is defined in `verdict`, and batches that are too large are handled in `oversize`. Invariant:
//! every batch of a request returns to its partition exactly once.

use super::verdict::{self, Verdict};
use crate::backoff::backoff;
use crate::broker::Broker;
use crate::core::Core;
use crate::delivery::Written;
use crate::error::{self, ProduceError};
use crate::partition::{Outgoing, Partition};
use crate::window::{Setback, WINDOW_DEFAULT, WINDOW_MAX};
use fullbore_client::ConnectionError;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceResponse, TopicProduceResponse};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first pause before a retry if the coordinator is still completing the previous transaction.
const CONCURRENT_BACKOFF: Duration = Duration::from_millis(20);

impl Broker {
    /// Applies the grants in a response, and notes whether a batch was written.
    fn learn(&self, response: &ProduceResponse, batches: &[Outgoing]) {
        let mut grants = self.grants.lock();
        let mut nonsense = grants.learn(response).then_some(response.max_idempotence_batches_to_retain);
        for outgoing in batches {
            let Some((topic, answer)) = find(response, outgoing) else { continue };
            if grants.learn_topic(&outgoing.partition.topic, topic) {
                nonsense = nonsense.or(Some(topic.producer_state_batches_to_retain));
            }
            grants.proven |= verdict::of(answer.error_code, false) == Verdict::Written;
        }
        if let Some(batches) = nonsense {
            let (low, high) = (WINDOW_DEFAULT, WINDOW_MAX);
            tracing::warn!(
                broker = self.id,
                batches,
                "cannot use the window that the broker reports: the producer limits it to {low} to {high} batches"
            );
        }
    }
}

impl Core {
    pub(super) fn resolve(
        self: &Arc<Self>,
        broker: &Broker,
        batches: Vec<Outgoing>,
        result: Result<ProduceResponse, ConnectionError>,
    ) {
        match result {
            Ok(response) => {
                broker.learn(&response, &batches);
                self.resolve_answered(broker.id, batches, &response);
            }
            Err(error) => self.resolve_unsent(batches, &error),
        }
    }

    fn resolve_answered(self: &Arc<Self>, broker: i32, batches: Vec<Outgoing>, response: &ProduceResponse) {
        for node in &response.node_endpoints {
            self.cluster.learn_broker(node.node_id, &node.host, node.port);
        }
        let now = Instant::now();
        for outgoing in batches {
            match find(response, &outgoing) {
                Some((_, answer)) => {
                    if verdict::may_be_of_former_leader(answer.error_code, outgoing.batch.attempts) {
                        self.cluster.doubt(broker);
                        self.want_metadata();
                    }
                    self.act(outgoing, answer, now);
                }
                None => {
                    self.set_back(outgoing, Setback::Retry { maybe: true }, "the response lacks the partition", now)
                }
            }
        }
    }

    /// Handles a request that got no response and may or may not have reached the broker.
    pub(super) fn resolve_unsent(self: &Arc<Self>, batches: Vec<Outgoing>, error: &ConnectionError) {
        let now = Instant::now();
        self.want_metadata();
        for outgoing in batches {
            let maybe = error.may_have_been_received();
            if error.is_retryable() || maybe {
                self.set_back(outgoing, Setback::Retry { maybe }, &error.to_string(), now);
            } else {
                self.fail(outgoing, false, ErrorCode::UNSUPPORTED_VERSION, &error.to_string());
            }
        }
    }

    pub(super) fn resolve_unanswered(self: &Arc<Self>, batches: Vec<Outgoing>, written: Result<(), ConnectionError>) {
        match written {
            Ok(()) => {
                let now = Instant::now();
                for Outgoing { partition, ticket, batch, .. } in batches {
                    partition.acked(ticket, batch, Written::NOWHERE, now);
                }
            }
            Err(error) => self.resolve_unsent(batches, &error),
        }
    }

    fn act(self: &Arc<Self>, mut outgoing: Outgoing, answer: &PartitionProduceResponse, now: Instant) {
        let message = answer.error_message.as_deref().unwrap_or_default();
        let verdict = match verdict::of(answer.error_code, outgoing.batch.ambiguous) {
            // The batch would need a new epoch. None can begin within a transaction, so the batch fails.
            Verdict::SetBack(Setback::Fenced) if self.ledger.is_some() => Verdict::Failed { maybe: false },
            verdict => verdict,
        };
        if verdict::is_stale_metadata(answer.error_code) {
            self.follow(&outgoing, answer);
        }
        if verdict::is_stale_topic(answer.error_code) {
            self.doubt_topic(&outgoing.partition.topic, outgoing.topic_id);
            // The broker did not know the topic, so this attempt cannot be in any topic that is created later under
            // this name.
            outgoing.by_name = false;
        }
        match verdict {
            Verdict::Written => {
                let written = Written { base_offset: answer.base_offset, log_append_time: answer.log_append_time_ms };
                let Outgoing { partition, ticket, batch, .. } = outgoing;
                partition.acked(ticket, batch, written, now);
            }
            Verdict::SetBack(setback) => {
                let why = format!("the broker answered {}", error::answer(answer.error_code, message));
                let is_short = answer.error_code == ErrorCode::CONCURRENT_TRANSACTIONS;
                let first = self.config.retry_backoff.min(if is_short { CONCURRENT_BACKOFF } else { Duration::MAX });
                self.set_back_for(outgoing, setback, &why, first, now);
            }
            Verdict::TooLarge => {
                self.refused(outgoing, answer.error_code, message, now);
            }
            Verdict::Unresolved => {
                let Outgoing { partition, ticket, batch, .. } = outgoing;
                partition.failed(ticket, batch, true, ProduceError::Unresolved(answer.error_code), now);
            }
            Verdict::Failed { maybe } => self.fail(outgoing, maybe, answer.error_code, message),
        }
    }

    pub(super) fn fail(&self, outgoing: Outgoing, maybe: bool, code: ErrorCode, message: &str) {
        let Outgoing { partition, ticket, batch, .. } = outgoing;
        let possibly_written = maybe || batch.ambiguous;
        let error = ProduceError::Broker { code, message: message.to_owned(), possibly_written };
        partition.failed(ticket, batch, possibly_written, error, Instant::now());
    }

    fn set_back(&self, outgoing: Outgoing, setback: Setback, why: &str, now: Instant) {
        self.set_back_for(outgoing, setback, why, self.config.retry_backoff, now);
    }

    /// Takes a batch back for another attempt. The batch fails instead if no retries are left, or if its records
    /// already have their results. The first pause before a retry is about `first`. It grows with each failure in a
    /// row.
    fn set_back_for(&self, mut outgoing: Outgoing, setback: Setback, why: &str, first: Duration, now: Instant) {
        let batch = &mut outgoing.batch;
        batch.note_attempt(setback == Setback::Retry { maybe: true });
        let finished = batch.outcome.is_finished();
        if finished || batch.attempts > self.config.retries {
            let (waited, possibly_written) = (now.duration_since(batch.outcome.opened_at), batch.ambiguous);
            let error = ProduceError::Timeout { waited, last: why.to_owned(), possibly_written };
            let Outgoing { partition, ticket, batch, .. } = outgoing;
            return partition.failed(ticket, batch, possibly_written, error, now);
        }
        let partition = outgoing.partition.clone();
        tracing::debug!(topic = %partition.topic, partition = partition.index, why, "batch will be sent again");
        let max = self.config.retry_backoff_max;
        partition.set_back(outgoing, setback, why, |failures| backoff(first, max, failures), now);
    }

    /// Moves the partition to the leader that the response names (KIP-951). Fetches metadata if that is not possible,
    /// or if the named leader is the broker that has just refused the batches. Such a broker may have stale metadata
    /// for long.
    fn follow(self: &Arc<Self>, outgoing: &Outgoing, answer: &PartitionProduceResponse) {
        let named = &answer.current_leader;
        let is_known = named.leader_id >= 0 && self.cluster.address(named.leader_id).is_some();
        let leader = is_known.then(|| self.broker(named.leader_id).work.clone());
        let follows = leader
            .is_some_and(|leader| outgoing.partition.set_leader(outgoing.topic_id, Some(leader), named.leader_epoch));
        if !follows {
            self.want_metadata();
        }
    }
}

/// Finds the result of a batch in the response, by the topic's name or id depending on the version.
fn find<'a>(
    response: &'a ProduceResponse,
    outgoing: &Outgoing,
) -> Option<(&'a TopicProduceResponse, &'a PartitionProduceResponse)> {
    let (Partition { topic: name, index, .. }, id) = (&*outgoing.partition, outgoing.topic_id);
    let is_its = |t: &&TopicProduceResponse| if outgoing.by_name { t.name == *name } else { t.topic_id == id };
    let mut topics = response.responses.iter().filter(is_its);
    topics.find_map(|topic| Some((topic, topic.partition_responses.iter().find(|p| p.index == *index)?)))
}
