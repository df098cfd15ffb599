//! Sends *questions* to coordinators on other brokers before a batch begins a transaction in its partition
//! (AddPartitionsToTxn 4 and 5, KIP-890).
//!
//! Questions for the same broker share a request. Each queue has one request in flight. The next one contains questions
//! that were queued meanwhile, as many as its limits allow. If the previous transaction of a producer has not ended,
//! the response to the whole request is delayed. The next question about this producer is therefore put into a separate
//! queue, so that it does not delay questions about other producers.
//!
//! Each question whose sender still waits gets an answer: the one in the response, or the reason why the request has
//! failed.

use super::peer_queue::PeerQueue;
use super::peers::{MarkerRoute, Peers};
use super::verify::CoordinatorAnswer;
use fullbore_host::task;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, AddPartitionsToTxnResult, AddPartitionsToTxnTransaction,
};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum number of transactions in one request. A coordinator handles this many at the same time.
pub const TRANSACTIONS_MAX: usize = 256;
/// Maximum time to wait for a coordinator's response, in which the client's connection waits as well. A coordinator
/// responds within a second ([`super::BATCH_ANSWER_MS`]).
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of partitions in one request, unless a single transaction has more.
const PARTITIONS_MAX: usize = 10_000;
/// Number of queues to a broker, among which the producers are divided.
const QUEUES: usize = 4;
/// Maximum number of producers in `Verifications::unfinished`. A full set is emptied before the next insertion.
const UNFINISHED_MAX: usize = 10_000;

/// The questions to the coordinators on one other broker, which wait to be sent.
#[derive(Default)]
pub(super) struct Verifications {
    queues: [PeerQueue<Question>; QUEUES],
    /// The separate queue for the producers in `unfinished`.
    slow: PeerQueue<Question>,
    /// The producers whose last question the coordinator could not answer yet.
    unfinished: Mutex<HashSet<i64>>,
}

struct Question {
    transaction: AddPartitionsToTxnTransaction,
    answer: oneshot::Sender<Result<CoordinatorAnswer, String>>,
}

impl Verifications {
    fn queue(&self, place: Option<usize>) -> &PeerQueue<Question> {
        place.and_then(|place| self.queues.get(place)).unwrap_or(&self.slow)
    }

    /// Returns the index of a producer's queue. `None` stands for the separate queue of unfinished producers.
    fn place(&self, producer_id: i64) -> Option<usize> {
        let is_unfinished = self.unfinished.lock().contains(&producer_id);
        (!is_unfinished).then(|| usize::try_from(producer_id.rem_euclid(QUEUES as i64)).unwrap_or(0))
    }

    fn note(&self, producer_id: i64, codes: &[ErrorCode]) {
        let cannot_say = |code: &ErrorCode| {
            matches!(*code, ErrorCode::CONCURRENT_TRANSACTIONS | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)
        };
        let mut unfinished = self.unfinished.lock();
        if !codes.iter().any(cannot_say) {
            unfinished.remove(&producer_id);
            return;
        }
        if unfinished.len() >= UNFINISHED_MAX {
            unfinished.clear();
        }
        unfinished.insert(producer_id);
    }
}

impl Peers {
    /// Requests that the coordinator checks or adds the partitions of a transaction. Returns its code for each
    /// partition, in the order of the request.
    ///
    /// # Errors
    /// Returns the reason why there is no response. The partitions may have been added even so.
    pub async fn verify(
        self: &Arc<Self>,
        broker: i32,
        transaction: AddPartitionsToTxnTransaction,
    ) -> Result<CoordinatorAnswer, String> {
        let (answer, pending) = oneshot::channel();
        let producer_id = transaction.producer_id;
        let peer = self.peer(MarkerRoute::classic(broker));
        let place = peer.verifications.place(producer_id);
        if peer.verifications.queue(place).put(Question { transaction, answer }) {
            task::spawn(Arc::clone(self).send_questions(broker, place));
        }
        let answer = pending.await.unwrap_or_else(|_| Err("the broker is stopping".to_owned()))?;
        peer.verifications.note(producer_id, &answer.codes);
        Ok(answer)
    }

    /// Sends the questions of a queue, one request after another, until the queue is empty.
    async fn send_questions(self: Arc<Self>, broker: i32, place: Option<usize>) {
        let peer = self.peer(MarkerRoute::classic(broker));
        let queue = peer.verifications.queue(place);
        let size_of = |question: &Question| size(&question.transaction);
        while let Some(mut questions) = queue.take(TRANSACTIONS_MAX, PARTITIONS_MAX, size_of, Question::is_wanted) {
            let answered = self.call(broker, queue, || request_of_wanted(&mut questions), ANSWER_WITHIN).await;
            let sizes: Vec<usize> = questions.iter().map(size_of).collect();
            let answers = questions.into_iter().map(|question| question.answer);
            match answered.and_then(|response| each_answer(response, &sizes)) {
                Ok(found) => answers.zip(found).for_each(|(answer, found)| _ = answer.send(Ok(found))),
                Err(why) => answers.for_each(|answer| _ = answer.send(Err(why.clone()))),
            }
        }
    }
}

impl Question {
    /// Returns false if the client has disconnected, or if another broker now coordinates the transaction.
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }
}

/// Drops questions that are no longer wanted, and returns the request for the others. `None` if there are none.
fn request_of_wanted(questions: &mut Vec<Question>) -> Option<AddPartitionsToTxnRequest> {
    questions.retain(Question::is_wanted);
    let transactions = questions.iter().map(|question| question.transaction.clone()).collect();
    (!questions.is_empty()).then(|| AddPartitionsToTxnRequest { transactions, ..Default::default() })
}

fn size(transaction: &AddPartitionsToTxnTransaction) -> usize {
    transaction.topics.iter().map(|topic| topic.partitions.len()).sum()
}

/// Returns the answer for each transaction, in the order of the request. `sizes` has the number of partitions of each
/// transaction.
///
/// # Errors
/// Returns an error if the response is about other partitions.
fn each_answer(response: AddPartitionsToTxnResponse, sizes: &[usize]) -> Result<Vec<CoordinatorAnswer>, String> {
    if response.error_code.is_err() {
        let refused =
            |size: &usize| CoordinatorAnswer { codes: vec![response.error_code; *size], coordinator_epoch: None };
        return Ok(sizes.iter().map(refused).collect());
    }
    let of_transaction = |result: AddPartitionsToTxnResult| {
        let partitions = result.topic_results.into_iter().flat_map(|topic| topic.results_by_partition);
        CoordinatorAnswer {
            codes: partitions.map(|partition| partition.partition_error_code).collect(),
            coordinator_epoch: Some(result.coordinator_epoch).filter(|epoch| *epoch >= 0),
        }
    };
    let found: Vec<CoordinatorAnswer> = response.results_by_transaction.into_iter().map(of_transaction).collect();
    match found.iter().map(|answer| answer.codes.len()).eq(sizes.iter().copied()) {
        true => Ok(found),
        false => Err("the response is about other partitions".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::apis::add_partitions_to_txn::{
        AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
    };

    fn result(of: &[ErrorCode]) -> AddPartitionsToTxnResult {
        let partition =
            |code: &ErrorCode| AddPartitionsToTxnPartitionResult { partition_error_code: *code, ..Default::default() };
        let topic = AddPartitionsToTxnTopicResult {
            results_by_partition: of.iter().map(partition).collect(),
            ..Default::default()
        };
        AddPartitionsToTxnResult { topic_results: vec![topic], coordinator_epoch: 3, ..Default::default() }
    }

    fn answer(codes: Vec<ErrorCode>, coordinator_epoch: Option<i32>) -> CoordinatorAnswer {
        CoordinatorAnswer { codes, coordinator_epoch }
    }

    #[test]
    fn response_about_several_transactions_gives_each_the_errors_of_its_partitions() {
        let good = vec![ErrorCode::NONE; 2];
        let bad = vec![ErrorCode::CONCURRENT_TRANSACTIONS];
        let response = || AddPartitionsToTxnResponse {
            results_by_transaction: vec![result(&good), result(&bad)],
            ..Default::default()
        };
        let expected = vec![answer(good.clone(), Some(3)), answer(bad.clone(), Some(3))];
        assert_eq!(each_answer(response(), &[2, 1]), Ok(expected));
        assert!(each_answer(response(), &[1, 2]).is_err(), "it is about other partitions");
        assert!(each_answer(response(), &[2]).is_err());
        let refused =
            AddPartitionsToTxnResponse { error_code: ErrorCode::CLUSTER_AUTHORIZATION_FAILED, ..Default::default() };
        let expected = vec![answer(vec![ErrorCode::CLUSTER_AUTHORIZATION_FAILED], None)];
        assert_eq!(each_answer(refused, &[1]), Ok(expected));
    }

    #[test]
    fn unfinished_producer_has_a_queue_of_its_own_until_it_is_finished() {
        let verifications = Verifications::default();
        assert_eq!([5, 6].map(|producer| verifications.place(producer)), [Some(1), Some(2)]);
        verifications.note(5, &[ErrorCode::CONCURRENT_TRANSACTIONS]);
        assert_eq!([5, 6].map(|producer| verifications.place(producer)), [None, Some(2)]);
        verifications.note(5, &[ErrorCode::NONE]);
        assert_eq!(verifications.place(5), Some(1));
        (0..=UNFINISHED_MAX as i64).for_each(|id| verifications.note(id, &[ErrorCode::CONCURRENT_TRANSACTIONS]));
        assert!(verifications.unfinished.lock().len() <= UNFINISHED_MAX);
    }
}
