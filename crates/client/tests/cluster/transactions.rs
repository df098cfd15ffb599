//! Tests with scripted coordinators that load, move or end a transaction.

use super::groups::coordinator;
use super::several::{cluster, listeners, metadata, serve};
use fullbore_client::ClientError;
use fullbore_client::admin::{self, Termination, describe_producers, describe_transaction, fence, force_terminate};
use fullbore_wire::ErrorCode;
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::describe_producers::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, TopicResponse,
};
use fullbore_wire::apis::describe_transactions::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, TransactionState,
};
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::apis::list_transactions::{self, ListTransactionsRequest, ListTransactionsResponse};
use fullbore_wire::apis::metadata::MetadataRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// A patience that ends soon, but not before a busy machine has answered.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// Fences an id at a coordinator that answers with these codes one after another and then repeats the last one. Returns
/// the outcome and the number of requests.
fn fenced(codes: &'static [ErrorCode], patience: Duration) -> (Result<(), ClientError>, usize) {
    let requested = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requested);
    let port = coordinator(move |_, requested| {
        let error_code = codes[counted.fetch_add(1, SeqCst).min(codes.len() - 1)];
        Some(requested.answer::<InitProducerIdRequest>(|_| InitProducerIdResponse { error_code, ..Default::default() }))
    });
    let outcome = fence(&mut cluster(port).patient(patience), "id");
    (outcome, requested.load(SeqCst))
}

#[test]
fn fence_is_retried_while_the_coordinator_ends_the_transaction() {
    let passing = &[
        ErrorCode::CONCURRENT_TRANSACTIONS,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode::NOT_COORDINATOR,
        ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ErrorCode::NONE,
    ];
    let (outcome, requested) = fenced(passing, Duration::from_secs(600));
    outcome.expect("the last answer");
    assert_eq!(requested, 5);
}

#[test]
fn fence_returns_the_coordinators_error_when_patience_ends() {
    let (outcome, requested) = fenced(&[ErrorCode::CONCURRENT_TRANSACTIONS], SHORT_PATIENCE);
    let error = outcome.expect_err("it never ends").to_string();
    assert!(error.starts_with("cannot end the transaction of 'id': "), "{error}");
    assert!(requested >= 1);
}

#[test]
fn fence_is_not_retried_after_a_lasting_error() {
    let (outcome, requested) = fenced(&[ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED], Duration::from_secs(600));
    outcome.expect_err("refused");
    assert_eq!(requested, 1);
}

/// Terminates the transaction of an id, whose coordinator first describes `before` as its state and then `after`. The
/// coordinator answers each request to fence with CONCURRENT_TRANSACTIONS.
fn terminated(before: &'static str, after: &'static str) -> Result<Termination, ClientError> {
    let described = AtomicUsize::new(0);
    let port = coordinator(move |key, request| {
        Some(match key {
            ApiKey::DescribeTransactions => request.answer::<DescribeTransactionsRequest>(|_| {
                let state = if described.fetch_add(1, SeqCst) == 0 { before } else { after };
                let state = TransactionState { transaction_state: state.into(), ..Default::default() };
                DescribeTransactionsResponse { transaction_states: vec![state], ..Default::default() }
            }),
            _ => request.answer::<InitProducerIdRequest>(|_| InitProducerIdResponse {
                error_code: ErrorCode::CONCURRENT_TRANSACTIONS,
                ..Default::default()
            }),
        })
    });
    force_terminate(&mut cluster(port).patient(SHORT_PATIENCE), "id")
}

#[test]
fn abort_is_decided_but_not_complete_the_termination_is_ending() {
    assert_eq!(terminated("Ongoing", "PrepareAbort").expect("decided"), Termination::Ending);
    assert_eq!(terminated("Ongoing", "CompleteAbort").expect("complete"), Termination::Ended);
    for state in ["PrepareAbort", "PrepareCommit"] {
        let error = terminated(state, state).expect_err("the producer is not fenced").to_string();
        let reported =
            format!("cannot end the transaction of 'id': the coordinator is already ending the transaction ({state})");
        assert!(error.starts_with(&reported), "{error}");
    }
}

#[test]
fn one_broker_does_not_answer_the_transactions_of_the_others_are_listed() {
    let ([first, second], mut ports) = listeners();
    // No broker listens on this port.
    ports.push(1);
    for (listener, id) in [(first, "b"), (second, "a")] {
        let known = ports.clone();
        serve(listener, move |key, requested| {
            Some(match key {
                ApiKey::Metadata => requested.answer::<MetadataRequest>(|_| metadata(&known, 1)),
                _ => requested.answer::<ListTransactionsRequest>(|_| {
                    let state =
                        list_transactions::TransactionState { transactional_id: id.into(), ..Default::default() };
                    ListTransactionsResponse { transaction_states: vec![state], ..Default::default() }
                }),
            })
        });
    }
    let listed = admin::list_transactions(&mut cluster(ports[0]), -1, None).expect("most answer");
    let found: Vec<_> = listed.found.iter().map(|found| (&*found.transactional_id, found.coordinator)).collect();
    assert_eq!(found, [("a", 2), ("b", 1)]);
    let failed = listed.failed.expect("one does not answer").to_string();
    assert!(failed.starts_with("cannot connect to 127.0.0.1:1: "), "{failed}");
}

#[test]
fn describe_is_retried_while_the_coordinator_loads_and_names_an_unknown_id() {
    let codes = [ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, ErrorCode::TRANSACTIONAL_ID_NOT_FOUND];
    let requested = AtomicUsize::new(0);
    let port = coordinator(move |_, request| {
        let error_code = codes[requested.fetch_add(1, SeqCst).min(1)];
        Some(request.answer::<DescribeTransactionsRequest>(|_| {
            let transaction_states = vec![TransactionState { error_code, ..Default::default() }];
            DescribeTransactionsResponse { transaction_states, ..Default::default() }
        }))
    });
    let error =
        describe_transaction(&mut cluster(port).patient(Duration::from_secs(600)), "gone").expect_err("unknown");
    assert!(matches!(&error, ClientError::NoTransactionalId(id) if id == "gone"), "{error}");
}

#[test]
fn producers_are_requested_again_after_a_move_and_a_missing_partition_is_named() {
    let ([listener], ports) = listeners();
    let (known, requested) = (ports.clone(), AtomicUsize::new(0));
    serve(listener, move |key, request| match key {
        ApiKey::Metadata => Some(request.answer::<MetadataRequest>(|_| metadata(&known, 1))),
        _ => Some(request.answer::<DescribeProducersRequest>(|_| {
            let error_code =
                [ErrorCode::NOT_LEADER_OR_FOLLOWER, ErrorCode::NONE][requested.fetch_add(1, SeqCst).min(1)];
            let partitions = vec![PartitionResponse { error_code, ..Default::default() }];
            let topics = vec![TopicResponse { name: "t".into(), partitions, ..Default::default() }];
            DescribeProducersResponse { topics, ..Default::default() }
        })),
    });
    let mut cluster = cluster(ports[0]).patient(Duration::from_secs(600));
    assert_eq!(describe_producers(&mut cluster, "t", 0, None).expect("the second answer"), []);
    let error = describe_producers(&mut cluster, "t", 3, None).expect_err("absent").to_string();
    assert_eq!(error, "topic 't' has no partition 3; it has 0 to 0");
}
