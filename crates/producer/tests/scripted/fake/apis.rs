//! The fake's APIs: ApiVersions, Metadata, InitProducerId, Produce, DescribeConfigs.

use super::{Connection, Fake, Judged, Seen, State, TransactionFate, Transactions};
use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, Request, RequestHeader};
use fullbore_wire::apis::add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use fullbore_wire::apis::add_partitions_to_txn::AddPartitionsToTxnRequest;
use fullbore_wire::apis::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey};
use fullbore_wire::apis::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
};
use fullbore_wire::apis::end_txn::{EndTxnRequest, EndTxnResponse};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::apis::metadata::{
    MetadataRequest, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use fullbore_wire::apis::produce::{
    LeaderIdAndEpoch, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse,
};
use fullbore_wire::apis::txn_offset_commit::TxnOffsetCommitRequest;
use fullbore_wire::{ErrorCode, Frame, Reader, Text, Version};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const TOPIC: &str = "t";
/// How long an out-of-order batch waits for earlier batches.
const PARKED: Duration = Duration::from_secs(60);
const PARKED_IN_TRANSACTION: Duration = Duration::from_millis(50);

/// The answer to a request: a frame with its response (empty for acks=0, which has none), or a response that waits for
/// other batches.
pub(super) enum Answer {
    Frame(Frame),
    Parked(Parked),
}

/// A Produce request with batches that are out of order.
pub(super) struct Parked {
    header: RequestHeader,
    version: Version,
    response: ProduceResponse,
    restarts: usize,
    /// The batches that are out of order, each with the indexes of its topic and partition in the response.
    early: Vec<(usize, usize, Seen)>,
}

impl Fake {
    /// Returns the response to one request. `None` ends the connection, and an empty frame means that there is no
    /// response (acks=0).
    pub(super) fn answer(&self, from: Connection, frame: Bytes) -> Option<Answer> {
        let mut state = self.lock();
        let mut r = api::request_reader(frame);
        let header = RequestHeader::decode(&mut r).unwrap();
        if state.old && header.api_key == ApiKey::ApiVersions.code() && header.api_version > 2 {
            return Some(Answer::Frame(refuse_version(&header, &state)));
        }
        let (key, v) = header.api().unwrap();
        if key == ApiKey::Produce {
            let request = api::decode_request::<ProduceRequest>(&mut r, v).unwrap();
            let (response, early) = produce(&mut state, from, v, &request)?;
            return Some(match (request.acks, early.is_empty()) {
                (0, _) => Answer::Frame(Frame::default()),
                (_, true) => Answer::Frame(respond(&header, v, &response)),
                (_, false) => Answer::Parked(Parked { header, version: v, response, restarts: state.restarts, early }),
            });
        }
        if state.transactions.is_some() && key != ApiKey::ApiVersions && key != ApiKey::Metadata {
            return self.answer_transactional(&mut state, from, &header, v, &mut r).map(Answer::Frame);
        }
        let frame = match key {
            ApiKey::ApiVersions => reply::<ApiVersionsRequest>(&header, v, &mut r, |_| Some(versions(&state))),
            ApiKey::Metadata => reply::<MetadataRequest>(&header, v, &mut r, |_| {
                state.metadata_requested += 1;
                Some(metadata(&state, from.broker))
            }),
            ApiKey::InitProducerId => reply::<InitProducerIdRequest>(&header, v, &mut r, |_| {
                state.next_producer_id += 1;
                Some(InitProducerIdResponse { producer_id: state.next_producer_id, ..Default::default() })
            }),
            ApiKey::DescribeConfigs => reply::<DescribeConfigsRequest>(&header, v, &mut r, |_| {
                state.configs_requested += 1;
                state.topic_limit.map(configs)
            }),
            other => panic!("the fake does not serve {other:?}"),
        };
        frame.map(Answer::Frame)
    }

    /// Returns the response to a request about transactions, or `None` to end the connection.
    fn answer_transactional(
        &self,
        state: &mut State,
        from: Connection,
        header: &RequestHeader,
        v: Version,
        r: &mut Reader,
    ) -> Option<Frame> {
        let key = header.api().unwrap().0;
        if key == ApiKey::FindCoordinator {
            return reply::<FindCoordinatorRequest>(header, v, r, |requested| Some(state.find_coordinator(&requested)));
        }
        let (misdirected, new_id) = (state.misdirected(from), state.next_producer_id + 1);
        state.next_producer_id = new_id;
        let transactions = state.transactions.as_mut()?;
        let fate = transactions.fate(key);
        let refused = match fate {
            TransactionFate::Dropped => return None,
            _ if misdirected.is_err() => misdirected,
            TransactionFate::Refused(code) => code,
            TransactionFate::Normal | TransactionFate::ResponseLost => ErrorCode::NONE,
        };
        let is_refused = refused.is_err();
        let response = match key {
            ApiKey::InitProducerId => reply::<InitProducerIdRequest>(header, v, r, |requested| {
                let refusal = InitProducerIdResponse { error_code: refused, ..Default::default() };
                Some(if is_refused { refusal } else { transactions.init(&requested, new_id) })
            }),
            ApiKey::AddPartitionsToTxn => reply::<AddPartitionsToTxnRequest>(header, v, r, |requested| {
                Some(transactions.add_partitions(&requested, refused))
            }),
            ApiKey::AddOffsetsToTxn => reply::<AddOffsetsToTxnRequest>(header, v, r, |requested| {
                let refusal = AddOffsetsToTxnResponse { error_code: refused, ..Default::default() };
                Some(if is_refused { refusal } else { transactions.add_offsets(&requested) })
            }),
            ApiKey::TxnOffsetCommit => reply::<TxnOffsetCommitRequest>(header, v, r, |requested| {
                Some(transactions.commit_offsets(&requested, refused))
            }),
            ApiKey::EndTxn => reply::<EndTxnRequest>(header, v, r, |requested| {
                let refusal = EndTxnResponse { error_code: refused, ..Default::default() };
                Some(if is_refused { refusal } else { transactions.end(&requested) })
            }),
            other => panic!("the fake does not serve {other:?} with transactions"),
        };
        if fate == TransactionFate::ResponseLost { None } else { response }
    }

    /// Sends the response when each out-of-order batch is appended or has waited for the time limit.
    pub(super) async fn unpark(self, mut parked: Parked, answer: oneshot::Sender<Frame>) {
        // A real broker answers parked batches at once if it refuses the batch before them. The fake answers them only
        // after the time limit, which is therefore short with transactions.
        let is_transactional = self.lock().transactions.is_some();
        let deadline = Instant::now() + if is_transactional { PARKED_IN_TRANSACTION } else { PARKED };
        while !parked.early.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut state = self.lock();
            let is_late = Instant::now() >= deadline || state.restarts > parked.restarts;
            parked.early.retain(|(topic, at, seen)| {
                let (offset, code) = match state.leaders[seen.partition as usize] == seen.broker {
                    _ if state.restarts > parked.restarts => (-1, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER),
                    true => state.append(seen),
                    false => (-1, ErrorCode::NOT_LEADER_OR_FOLLOWER),
                };
                let is_early = code == ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;
                let of_partition = &mut parked.response.responses[*topic].partition_responses[*at];
                (of_partition.base_offset, of_partition.error_code) = (offset, code);
                is_early && !is_late
            });
        }
        drop(answer.send(respond(&parked.header, parked.version, &parked.response)));
    }
}

fn respond(header: &RequestHeader, v: Version, response: &ProduceResponse) -> Frame {
    api::encode_response::<ProduceRequest>(response, v, header.correlation_id).unwrap()
}

fn reply<R: Request>(
    header: &RequestHeader,
    v: Version,
    r: &mut Reader,
    handle: impl FnOnce(R) -> Option<R::Response>,
) -> Option<Frame> {
    let request = api::decode_request::<R>(r, v).unwrap();
    Some(api::encode_response::<R>(&handle(request)?, v, header.correlation_id).unwrap())
}

/// Returns the response of a broker that does not know the request's version of ApiVersions: its own versions, in
/// version 0 (KIP-511).
fn refuse_version(header: &RequestHeader, state: &State) -> Frame {
    let response = ApiVersionsResponse { error_code: ErrorCode::UNSUPPORTED_VERSION, ..versions(state) };
    let v0 = ApiKey::ApiVersions.version(0).unwrap();
    api::encode_response::<ApiVersionsRequest>(&response, v0, header.correlation_id).unwrap()
}

fn versions(state: &State) -> ApiVersionsResponse {
    let range = |key: ApiKey| {
        let newest = *key.versions().end();
        let max_version = match key {
            ApiKey::ApiVersions if state.old => 2,
            ApiKey::Produce if state.old => 7,
            ApiKey::Produce if state.names_topics => 12,
            ApiKey::Metadata if state.old => 7,
            ApiKey::InitProducerId if state.old => 1,
            _ => newest,
        };
        let mut version = ApiVersion::default();
        (version.api_key, version.min_version, version.max_version) =
            (key.code(), *key.versions().start(), max_version);
        version
    };
    let keys = [ApiKey::Produce, ApiKey::Metadata, ApiKey::ApiVersions, ApiKey::InitProducerId];
    let transactional = [
        ApiKey::FindCoordinator,
        ApiKey::AddPartitionsToTxn,
        ApiKey::AddOffsetsToTxn,
        ApiKey::TxnOffsetCommit,
        ApiKey::EndTxn,
    ];
    let transactional = transactional.into_iter().filter(|_| state.transactions.is_some());
    let feature = |transactions: &Transactions| FinalizedFeatureKey {
        name: "transaction.version".into(),
        max_version_level: transactions.version,
        ..Default::default()
    };
    let finalized_features = state.transactions.iter().map(feature).collect();
    let keys = keys.into_iter().chain(transactional).chain(state.topic_limit.map(|_| ApiKey::DescribeConfigs));
    ApiVersionsResponse { api_keys: keys.map(range).collect(), finalized_features, ..Default::default() }
}

fn configs(limit: Result<usize, ErrorCode>) -> DescribeConfigsResponse {
    let config = |limit: usize| DescribeConfigsResourceResult {
        name: "max.message.bytes".into(),
        value: Some(limit.to_string().as_str().into()),
        ..Default::default()
    };
    let result = DescribeConfigsResult {
        error_code: limit.err().unwrap_or(ErrorCode::NONE),
        resource_type: 2,
        resource_name: "t".into(),
        configs: limit.ok().into_iter().map(config).collect(),
        ..Default::default()
    };
    DescribeConfigsResponse { results: vec![result], ..Default::default() }
}

fn metadata(state: &State, from: i32) -> MetadataResponse {
    let broker = |(id, port): (usize, &u16)| MetadataResponseBroker {
        node_id: id as i32,
        host: Text::from("127.0.0.1"),
        port: i32::from(*port),
        ..Default::default()
    };
    let is_behind = state.behind == Some(from);
    let partition = |(index, leader): (usize, &i32)| MetadataResponsePartition {
        partition_index: index as i32,
        leader_id: if is_behind { from } else { *leader },
        leader_epoch: if is_behind { 0 } else { state.leader_epoch },
        ..Default::default()
    };
    let error_code = state.topic_error.unwrap_or_default();
    let known = !error_code.is_err();
    let topic = MetadataResponseTopic {
        error_code,
        name: Some(Text::from(TOPIC)),
        topic_id: if known { state.topic_id } else { Default::default() },
        partitions: state.leaders.iter().enumerate().filter(|_| known).map(partition).collect(),
        ..Default::default()
    };
    let brokers = state.ports.iter().enumerate().map(broker).collect();
    MetadataResponse { brokers, topics: vec![topic], ..Default::default() }
}

/// Returns the response, and the parked batches whose results are still missing in it. Returns `None` to end the
/// connection.
#[expect(clippy::type_complexity)]
fn produce(
    state: &mut State,
    from: Connection,
    v: Version,
    request: &ProduceRequest,
) -> Option<(ProduceResponse, Vec<(usize, usize, Seen)>)> {
    let announced = state.announced[from.broker as usize];
    let mut response = ProduceResponse {
        max_idempotence_batches_to_retain: announced.retain,
        reorder_batches: announced.reorder,
        ..Default::default()
    };
    state.requests += 1;
    if let Some(transactions) = &state.transactions {
        assert!(request.transactional_id.is_some());
        assert_eq!(transactions.adds_partitions(), v.number >= 12, "Produce adds partitions from version 12 on");
    }
    let mut early = Vec::new();
    for topic in &request.topic_data {
        let mut answers = TopicProduceResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            producer_state_batches_to_retain: announced.retain_of_topic,
            ..Default::default()
        };
        for data in &topic.partition_data {
            let bytes = data.records.as_ref().and_then(|records| records.memory()).unwrap();
            let judged = if v.number >= 13 && topic.topic_id != state.topic_id {
                Judged::Done(-1, ErrorCode::UNKNOWN_TOPIC_ID)
            } else {
                state.produce(from, request.reorder && announced.reorder > 0, data.index, bytes)?
            };
            let (base_offset, error_code) = match judged {
                Judged::Done(offset, code) => (offset, code),
                Judged::Early(seen) => {
                    early.push((response.responses.len(), answers.partition_responses.len(), seen));
                    Default::default()
                }
            };
            let mut answer =
                PartitionProduceResponse { index: data.index, error_code, base_offset, ..Default::default() };
            if let (ErrorCode::NOT_LEADER_OR_FOLLOWER, Some((leader_id, leader_epoch))) =
                (error_code, state.names_leader)
            {
                answer.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch, ..Default::default() };
            }
            answers.partition_responses.push(answer);
        }
        response.responses.push(answers);
    }
    Some((response, early))
}
