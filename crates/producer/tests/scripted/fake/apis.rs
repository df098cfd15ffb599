//! The fake's APIs: ApiVersions, Metadata, InitProducerId, Produce.

use super::{Fake, State};
use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, Request, RequestHeader};
use fullbore_wire::apis::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::apis::metadata::{
    MetadataRequest, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse};
use fullbore_wire::{ErrorCode, Frame, Reader, Text, Version};

const TOPIC: &str = "t";

impl Fake {
    /// The response to one request; `None` ends the connection, an empty frame is no answer at all (acks=0).
    pub(super) fn answer(&self, broker: i32, frame: Bytes) -> Option<Frame> {
        let mut state = self.lock();
        let mut r = api::request_reader(frame);
        let header = RequestHeader::decode(&mut r).unwrap();
        if state.old && header.api_key == ApiKey::ApiVersions.code() && header.api_version > 2 {
            return Some(refuse_version(&header));
        }
        let (key, v) = header.api().unwrap();
        match key {
            ApiKey::ApiVersions => reply::<ApiVersionsRequest>(&header, v, &mut r, |_| Some(versions(state.old))),
            ApiKey::Metadata => reply::<MetadataRequest>(&header, v, &mut r, |_| {
                state.metadata_asked += 1;
                Some(metadata(&state))
            }),
            ApiKey::InitProducerId => reply::<InitProducerIdRequest>(&header, v, &mut r, |_| {
                state.next_producer_id += 1;
                Some(InitProducerIdResponse { producer_id: state.next_producer_id, ..Default::default() })
            }),
            ApiKey::Produce => {
                let mut acks = -1;
                let frame = reply::<ProduceRequest>(&header, v, &mut r, |request| {
                    acks = request.acks;
                    produce(&mut state, broker, v, &request)
                })?;
                Some(if acks == 0 { Frame::default() } else { frame })
            }
            other => panic!("the fake does not serve {other:?}"),
        }
    }
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

/// What a broker that does not know the version answers: the list, in version 0 (KIP-511).
fn refuse_version(header: &RequestHeader) -> Frame {
    let response = ApiVersionsResponse { error_code: ErrorCode::UNSUPPORTED_VERSION, ..versions(true) };
    let v0 = ApiKey::ApiVersions.version(0).unwrap();
    api::encode_response::<ApiVersionsRequest>(&response, v0, header.correlation_id).unwrap()
}

fn versions(old: bool) -> ApiVersionsResponse {
    let range = |key: ApiKey| {
        let newest = *key.versions().end();
        let max_version = match key {
            ApiKey::ApiVersions if old => 2,
            ApiKey::Produce if old => 7,
            ApiKey::Metadata if old => 7,
            ApiKey::InitProducerId if old => 1,
            _ => newest,
        };
        let mut version = ApiVersion::default();
        (version.api_key, version.min_version, version.max_version) =
            (key.code(), *key.versions().start(), max_version);
        version
    };
    let keys = [ApiKey::Produce, ApiKey::Metadata, ApiKey::ApiVersions, ApiKey::InitProducerId];
    ApiVersionsResponse { api_keys: keys.into_iter().map(range).collect(), ..Default::default() }
}

fn metadata(state: &State) -> MetadataResponse {
    let broker = |(id, port): (usize, &u16)| MetadataResponseBroker {
        node_id: id as i32,
        host: Text::from("127.0.0.1"),
        port: i32::from(*port),
        ..Default::default()
    };
    let partition = |(index, leader): (usize, &i32)| MetadataResponsePartition {
        partition_index: index as i32,
        leader_id: *leader,
        leader_epoch: state.leader_epoch,
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

fn produce(state: &mut State, broker: i32, v: Version, request: &ProduceRequest) -> Option<ProduceResponse> {
    let says = state.says[broker as usize];
    let mut response = ProduceResponse {
        max_idempotence_batches_to_retain: says.retain,
        reorder_batches: says.reorder,
        ..Default::default()
    };
    state.requests += 1;
    for topic in &request.topic_data {
        let mut answers = TopicProduceResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            producer_state_batches_to_retain: says.retain_of_topic,
            ..Default::default()
        };
        for data in &topic.partition_data {
            let bytes = data.records.as_ref().and_then(|records| records.memory()).unwrap();
            let (base_offset, error_code) = if v.number >= 13 && topic.topic_id != state.topic_id {
                (-1, ErrorCode::UNKNOWN_TOPIC_ID)
            } else {
                state.produce(broker, data.index, bytes)?
            };
            let answer = PartitionProduceResponse { index: data.index, error_code, base_offset, ..Default::default() };
            answers.partition_responses.push(answer);
        }
        response.responses.push(answers);
    }
    Some(response)
}
