//! Sends requests to a coordinator and repeats them until a response is final.
//!
//! Invariant: a retriable error is never returned, unless the caller gives up.

use crate::backoff::backoff;
use crate::core::Core;
use crate::error::{TransactionError, answer};
use crate::ledger::TransactionLedger;
use fullbore_client::tokio::{Connection, CoordinatorKind};
use fullbore_client::{ConnectionError, MetadataError};
use fullbore_wire::api::Request;
use fullbore_wire::{ErrorCode, Text};
use std::sync::Arc;
use std::time::Duration;

/// The feature whose finalized level selects the protocol of transactions (KIP-890).
const TRANSACTION_VERSION: &str = "transaction.version";
/// The level of [`TRANSACTION_VERSION`] at which Produce adds partitions and EndTxn raises the epoch.
const ADDS_PARTITIONS: i16 = 2;
/// The first pause if the coordinator is still completing the previous transaction (Kafka's
/// `ADD_PARTITIONS_RETRY_BACKOFF_MS`).
const CONCURRENT_BACKOFF: Duration = Duration::from_millis(20);

/// The final error of a request. Another attempt would not change it.
#[derive(Debug)]
pub(super) struct Refusal {
    code: ErrorCode,
    message: String,
    /// True if an attempt got no response, so that the coordinator may have carried it out.
    pub(super) is_lost: bool,
}

impl Refusal {
    /// Returns the error for the application.
    pub(super) fn into_error(self, action: &'static str, possibly_committed: bool) -> TransactionError {
        TransactionError::Coordinator { action, code: self.code, message: self.message, possibly_committed }
    }
}

/// The next step after an error code.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The request has succeeded.
    Done,
    /// Send the request to the same coordinator again.
    Again,
    /// Look up the coordinator again, then retry.
    Find,
    /// Give up, because the error is final.
    Refused,
}

/// Returns the next step after an error code, as in Kafka 4.3's `TransactionManager`.
fn step(code: ErrorCode) -> Step {
    match code {
        ErrorCode::NONE => Step::Done,
        ErrorCode::COORDINATOR_NOT_AVAILABLE | ErrorCode::NOT_COORDINATOR | ErrorCode::REQUEST_TIMED_OUT => Step::Find,
        code if code.is_retriable() => Step::Again,
        _ => Step::Refused,
    }
}

/// Returns true if a broker that no longer is the coordinator, but does not know this, may return this error. It does
/// not know the newest epoch of the producer, or what the producer has done since.
fn may_be_former(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::PRODUCER_FENCED
            | ErrorCode::INVALID_PRODUCER_EPOCH
            | ErrorCode::INVALID_TXN_STATE
            | ErrorCode::INVALID_PRODUCER_ID_MAPPING
    )
}

/// Returns the error code that decides about the request, if a response has several. A final error takes precedence
/// over a retriable one. OPERATION_NOT_ATTEMPTED only means that another entry of the response failed, so that entry's
/// final error takes precedence.
pub(super) fn worst(codes: impl Iterator<Item = ErrorCode>) -> ErrorCode {
    let weight = |code: &ErrorCode| match step(*code) {
        Step::Done => 0,
        Step::Again => 1,
        Step::Find => 2,
        Step::Refused if *code == ErrorCode::OPERATION_NOT_ATTEMPTED => 3,
        Step::Refused => 4,
    };
    codes.max_by_key(weight).unwrap_or(ErrorCode::NONE)
}

/// The coordinator of a transactional id or a group.
pub(super) struct Coordinator {
    core: Arc<Core>,
    ledger: Arc<TransactionLedger>,
    kind: CoordinatorKind,
    pub(super) key: Text,
    connection: Option<Connection>,
    /// The address of the coordinator for the next connection, if the caller knows it.
    directed: Option<String>,
    /// The address of the broker that was the last coordinator, or empty. The next look-up queries other brokers first,
    /// because this one may not know that it no longer is the coordinator.
    doubted: String,
}

impl Coordinator {
    pub(super) fn new(core: Arc<Core>, ledger: Arc<TransactionLedger>, kind: CoordinatorKind, key: &Text) -> Self {
        Coordinator { core, ledger, kind, key: key.clone(), connection: None, directed: None, doubted: String::new() }
    }

    /// Makes the next request go to the coordinator at `address`. If this broker is no longer the coordinator, the
    /// request is repeated after a look-up.
    pub(super) fn turn_to(&mut self, address: &str) {
        let connected = self.connection.take().filter(|connection| connection.address() == address);
        self.directed = connected.is_none().then(|| address.to_owned());
        self.connection = connected;
    }

    /// Returns true if the cluster's `transaction.version` is 2 or higher. Returns `None` without a connection.
    pub(super) fn adds_partitions(&self) -> Option<bool> {
        let connection = self.connection.as_ref()?;
        Some(connection.feature(TRANSACTION_VERSION) >= ADDS_PARTITIONS)
    }

    /// Sends a request in version `max` at most. Repeats it until the response is final, or until `gives_up` returns
    /// true after a failed attempt.
    ///
    /// # Errors
    /// Returns [`Refusal`] with the final error, or with TRANSACTION_ABORTABLE if the caller gave up.
    pub(super) async fn call<R: Request>(
        &mut self,
        request: &R,
        max: i16,
        gives_up: impl Fn() -> bool,
        code_of: impl Fn(&R::Response) -> ErrorCode,
    ) -> Result<R::Response, Refusal> {
        let (mut failures, mut is_lost, mut is_confirmed) = (0, false, false);
        loop {
            let (code, message) = match self.attempt(request, max).await {
                Ok(response) => match code_of(&response) {
                    ErrorCode::NONE => {
                        self.ledger.set_trouble(String::new());
                        return Ok(response);
                    }
                    code => (code, String::new()),
                },
                Err(MetadataError::Connection(error)) => {
                    is_lost |= error.may_have_been_received();
                    (code_of_failure(&error), error.to_string())
                }
                Err(MetadataError::Coordinator { code, message }) => (code, message),
                Err(MetadataError::Broker(code)) => (code, String::new()),
                Err(error @ MetadataError::UnknownBroker(_)) => {
                    (ErrorCode::COORDINATOR_NOT_AVAILABLE, error.to_string())
                }
            };
            let step = step(code);
            tracing::debug!(key = %self.key, api = R::KEY.name(), %code, message, ?step, "response of the coordinator");
            if step == Step::Refused && may_be_former(code) && !is_confirmed {
                is_confirmed = true;
                if self.finds_another().await {
                    continue;
                }
            }
            if step == Step::Refused {
                return Err(Refusal { code, message, is_lost });
            }
            if gives_up() {
                // The caller gives up only because the transaction is being aborted, so this error is not fatal for the
                // producer.
                let message = format!(
                    "the producer stopped trying because the transaction is being aborted; the last error: {}",
                    answer(code, &message)
                );
                return Err(Refusal { code: ErrorCode::TRANSACTION_ABORTABLE, message, is_lost });
            }
            self.note_trouble(&answer(code, &message));
            if step == Step::Find
                && let Some(former) = self.connection.take()
            {
                former.address().clone_into(&mut self.doubted);
            }
            tokio::time::sleep(self.pause(code, failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn attempt<R: Request>(&mut self, request: &R, max: i16) -> Result<R::Response, MetadataError> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => match self.directed.take() {
                Some(address) => self.core.cluster.another_at(&address).await?,
                None => self.core.cluster.coordinator(self.kind, &self.key, &self.doubted).await?,
            },
        };
        let connection = self.connection.insert(connection);
        let version = connection.version::<R>()?.min(max);
        Ok(connection.call_version(request, version).await?)
    }

    /// Looks up the coordinator at another broker than the present coordinator. Returns true if it is another one,
    /// which gets the next request. Returns false if this is not known.
    async fn finds_another(&mut self) -> bool {
        let Some(present) = self.connection.as_ref().map(|connection| connection.address().to_owned()) else {
            return false;
        };
        match self.core.cluster.coordinator(self.kind, &self.key, &present).await {
            Ok(found) if found.address() != present => {
                self.connection = Some(found);
                true
            }
            _ => false,
        }
    }

    /// Remembers why requests fail. Calls and records that time out meanwhile have this reason in their errors.
    fn note_trouble(&self, why: &str) {
        self.ledger.set_trouble(why.to_owned());
        let why = format!("the records wait for their transaction: {why}");
        self.core.partitions().iter().for_each(|partition| partition.hindered(&why));
    }

    fn pause(&self, code: ErrorCode, failures: u32) -> Duration {
        let config = &self.core.config;
        let first = match code {
            ErrorCode::CONCURRENT_TRANSACTIONS => config.retry_backoff.min(CONCURRENT_BACKOFF),
            _ => config.retry_backoff,
        };
        backoff(first, config.retry_backoff_max, failures)
    }
}

/// Returns an error code that stands for the missing response of a request: a retriable one, or UNSUPPORTED_VERSION if
/// no retry can succeed.
fn code_of_failure(error: &ConnectionError) -> ErrorCode {
    match error.is_retryable() || error.may_have_been_received() {
        true => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        false => ErrorCode::UNSUPPORTED_VERSION,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_coordinator_is_found_again_and_a_loading_one_gets_the_request_again() {
        for code in [ErrorCode::NOT_COORDINATOR, ErrorCode::COORDINATOR_NOT_AVAILABLE] {
            assert_eq!(step(code), Step::Find, "{code}");
        }
        for code in [ErrorCode::CONCURRENT_TRANSACTIONS, ErrorCode::COORDINATOR_LOAD_IN_PROGRESS] {
            assert_eq!(step(code), Step::Again, "{code}");
        }
        for code in [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_TXN_STATE, ErrorCode::TRANSACTION_ABORTABLE] {
            assert_eq!(step(code), Step::Refused, "{code}");
        }
    }

    #[test]
    fn final_error_decides_before_one_that_passes_and_a_cause_before_its_consequence() {
        let of = |codes: &[ErrorCode]| worst(codes.iter().copied());
        let (not_attempted, denied) = (ErrorCode::OPERATION_NOT_ATTEMPTED, ErrorCode::TOPIC_AUTHORIZATION_FAILED);
        assert_eq!(of(&[]), ErrorCode::NONE);
        assert_eq!(of(&[ErrorCode::NONE, ErrorCode::CONCURRENT_TRANSACTIONS]), ErrorCode::CONCURRENT_TRANSACTIONS);
        assert_eq!(of(&[denied, not_attempted, ErrorCode::CONCURRENT_TRANSACTIONS]), denied);
    }
}
