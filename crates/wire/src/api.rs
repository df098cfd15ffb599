//! The table of APIs, and the headers around every request and response.
//!
//! Invariant: this crate implements every API of the table in both directions, at every version in it. The broker
//! decides which APIs and versions it serves.

use crate::StructSpec;
use crate::codec::{Codec, NullCodec, Reader, Version};
use crate::frame::{Frame, Writer};
use crate::{DecodeError, EncodeError};
use crate::{REQUEST_ELEMENTS_MAX, RESPONSE_ELEMENTS_MAX, TaggedFields, Text, apis};
use bytes::Bytes;
use std::fmt::Debug;
use std::ops::RangeInclusive;

/// A request type of an API. It identifies the API and the type of the response.
pub trait Request: Codec + Default + Debug {
    /// The API that the request belongs to.
    const KEY: ApiKey;
    /// The type of the response.
    type Response: Codec + Default + Debug;
}

/// An operation on the request and response types of an API that is chosen at run time.
pub trait Visit {
    /// The result of the operation.
    type Output;
    /// Runs the operation with the types of the API `R`.
    fn visit<R: Request>(self) -> Self::Output;
}

/// The first flexible version of an API that has no flexible version.
pub const NEVER: i16 = i16::MAX;

macro_rules! api_table {
    ($( $key:literal $name:ident, $versions:expr, flexible $flexible:expr, $module:ident :: $request:ident => $response:ident; )*) => {
        /// The APIs that this crate implements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $( #[doc = concat!(stringify!($name), ", key ", $key, ".")] $name = $key, )*
        }

        impl ApiKey {
            /// All APIs, in the order of their keys.
            pub const ALL: &[ApiKey] = &[$( ApiKey::$name, )*];

            /// Returns the API with this key; None if this crate does not know the key.
            pub const fn from_code(code: i16) -> Option<ApiKey> {
                match code {
                    $( $key => Some(ApiKey::$name), )*
                    _ => None,
                }
            }

            /// Returns the versions that this crate can encode and decode.
            pub const fn versions(self) -> RangeInclusive<i16> {
                match self {
                    $( ApiKey::$name => $versions, )*
                }
            }

            /// Returns the first flexible version (KIP-482), or [`NEVER`].
            pub const fn flexible_from(self) -> i16 {
                match self {
                    $( ApiKey::$name => $flexible, )*
                }
            }

            /// Returns the name that Kafka gives the API.
            pub const fn name(self) -> &'static str {
                match self {
                    $( ApiKey::$name => stringify!($name), )*
                }
            }

            /// Calls `visit` with the types of this API.
            pub fn visit<V: Visit>(self, visit: V) -> V::Output {
                match self {
                    $( ApiKey::$name => visit.visit::<apis::$module::$request>(), )*
                }
            }
        }

        $(
            impl Request for apis::$module::$request {
                const KEY: ApiKey = ApiKey::$name;
                type Response = apis::$module::$response;
            }
        )*
    };
}

api_table! {
    0 Produce, 3..=14, flexible 9, produce::ProduceRequest => ProduceResponse;
    1 Fetch, 4..=18, flexible 12, fetch::FetchRequest => FetchResponse;
    2 ListOffsets, 1..=11, flexible 6, list_offsets::ListOffsetsRequest => ListOffsetsResponse;
    3 Metadata, 0..=13, flexible 9, metadata::MetadataRequest => MetadataResponse;
    8 OffsetCommit, 2..=10, flexible 8, offset_commit::OffsetCommitRequest => OffsetCommitResponse;
    9 OffsetFetch, 1..=10, flexible 6, offset_fetch::OffsetFetchRequest => OffsetFetchResponse;
    10 FindCoordinator, 0..=6, flexible 3, find_coordinator::FindCoordinatorRequest => FindCoordinatorResponse;
    11 JoinGroup, 0..=9, flexible 6, join_group::JoinGroupRequest => JoinGroupResponse;
    12 Heartbeat, 0..=4, flexible 4, heartbeat::HeartbeatRequest => HeartbeatResponse;
    13 LeaveGroup, 0..=5, flexible 4, leave_group::LeaveGroupRequest => LeaveGroupResponse;
    14 SyncGroup, 0..=5, flexible 4, sync_group::SyncGroupRequest => SyncGroupResponse;
    15 DescribeGroups, 0..=6, flexible 5, describe_groups::DescribeGroupsRequest => DescribeGroupsResponse;
    16 ListGroups, 0..=5, flexible 3, list_groups::ListGroupsRequest => ListGroupsResponse;
    18 ApiVersions, 0..=4, flexible 3, api_versions::ApiVersionsRequest => ApiVersionsResponse;
    19 CreateTopics, 2..=7, flexible 5, create_topics::CreateTopicsRequest => CreateTopicsResponse;
    20 DeleteTopics, 1..=6, flexible 4, delete_topics::DeleteTopicsRequest => DeleteTopicsResponse;
    21 DeleteRecords, 0..=2, flexible 2, delete_records::DeleteRecordsRequest => DeleteRecordsResponse;
    22 InitProducerId, 0..=5, flexible 2, init_producer_id::InitProducerIdRequest => InitProducerIdResponse;
    23 OffsetForLeaderEpoch, 2..=4, flexible 4, offset_for_leader_epoch::OffsetForLeaderEpochRequest => OffsetForLeaderEpochResponse;
    24 AddPartitionsToTxn, 0..=5, flexible 3, add_partitions_to_txn::AddPartitionsToTxnRequest => AddPartitionsToTxnResponse;
    25 AddOffsetsToTxn, 0..=4, flexible 3, add_offsets_to_txn::AddOffsetsToTxnRequest => AddOffsetsToTxnResponse;
    26 EndTxn, 0..=5, flexible 3, end_txn::EndTxnRequest => EndTxnResponse;
    27 WriteTxnMarkers, 1..=2, flexible 1, write_txn_markers::WriteTxnMarkersRequest => WriteTxnMarkersResponse;
    28 TxnOffsetCommit, 0..=5, flexible 3, txn_offset_commit::TxnOffsetCommitRequest => TxnOffsetCommitResponse;
    29 DescribeAcls, 1..=3, flexible 2, describe_acls::DescribeAclsRequest => DescribeAclsResponse;
    30 CreateAcls, 1..=3, flexible 2, create_acls::CreateAclsRequest => CreateAclsResponse;
    31 DeleteAcls, 1..=3, flexible 2, delete_acls::DeleteAclsRequest => DeleteAclsResponse;
    32 DescribeConfigs, 1..=4, flexible 4, describe_configs::DescribeConfigsRequest => DescribeConfigsResponse;
    33 AlterConfigs, 0..=2, flexible 2, alter_configs::AlterConfigsRequest => AlterConfigsResponse;
    34 AlterReplicaLogDirs, 1..=2, flexible 2, alter_replica_log_dirs::AlterReplicaLogDirsRequest => AlterReplicaLogDirsResponse;
    35 DescribeLogDirs, 1..=5, flexible 2, describe_log_dirs::DescribeLogDirsRequest => DescribeLogDirsResponse;
    37 CreatePartitions, 0..=3, flexible 2, create_partitions::CreatePartitionsRequest => CreatePartitionsResponse;
    42 DeleteGroups, 0..=3, flexible 2, delete_groups::DeleteGroupsRequest => DeleteGroupsResponse;
    43 ElectLeaders, 0..=2, flexible 2, elect_leaders::ElectLeadersRequest => ElectLeadersResponse;
    44 IncrementalAlterConfigs, 0..=1, flexible 1, incremental_alter_configs::IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse;
    45 AlterPartitionReassignments, 0..=1, flexible 0, alter_partition_reassignments::AlterPartitionReassignmentsRequest => AlterPartitionReassignmentsResponse;
    46 ListPartitionReassignments, 0..=0, flexible 0, list_partition_reassignments::ListPartitionReassignmentsRequest => ListPartitionReassignmentsResponse;
    47 OffsetDelete, 0..=0, flexible NEVER, offset_delete::OffsetDeleteRequest => OffsetDeleteResponse;
    48 DescribeClientQuotas, 0..=1, flexible 1, describe_client_quotas::DescribeClientQuotasRequest => DescribeClientQuotasResponse;
    50 DescribeUserScramCredentials, 0..=0, flexible 0, describe_user_scram_credentials::DescribeUserScramCredentialsRequest => DescribeUserScramCredentialsResponse;
    55 DescribeQuorum, 0..=2, flexible 0, describe_quorum::DescribeQuorumRequest => DescribeQuorumResponse;
    57 UpdateFeatures, 0..=2, flexible 0, update_features::UpdateFeaturesRequest => UpdateFeaturesResponse;
    60 DescribeCluster, 0..=2, flexible 0, describe_cluster::DescribeClusterRequest => DescribeClusterResponse;
    61 DescribeProducers, 0..=0, flexible 0, describe_producers::DescribeProducersRequest => DescribeProducersResponse;
    65 DescribeTransactions, 0..=0, flexible 0, describe_transactions::DescribeTransactionsRequest => DescribeTransactionsResponse;
    66 ListTransactions, 0..=2, flexible 0, list_transactions::ListTransactionsRequest => ListTransactionsResponse;
    68 ConsumerGroupHeartbeat, 0..=1, flexible 0, consumer_group_heartbeat::ConsumerGroupHeartbeatRequest => ConsumerGroupHeartbeatResponse;
    69 ConsumerGroupDescribe, 0..=1, flexible 0, consumer_group_describe::ConsumerGroupDescribeRequest => ConsumerGroupDescribeResponse;
    71 GetTelemetrySubscriptions, 0..=0, flexible 0, get_telemetry_subscriptions::GetTelemetrySubscriptionsRequest => GetTelemetrySubscriptionsResponse;
    72 PushTelemetry, 0..=0, flexible 0, push_telemetry::PushTelemetryRequest => PushTelemetryResponse;
    74 ListConfigResources, 0..=1, flexible 0, list_config_resources::ListConfigResourcesRequest => ListConfigResourcesResponse;
    75 DescribeTopicPartitions, 0..=0, flexible 0, describe_topic_partitions::DescribeTopicPartitionsRequest => DescribeTopicPartitionsResponse;
}

impl ApiKey {
    /// Returns the API's key on the wire.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// Returns `number` as a version of this API; None if the API has no such version.
    pub fn version(self, number: i16) -> Option<Version> {
        self.versions().contains(&number).then(|| Version { number, flexible: number >= self.flexible_from() })
    }
}

/// The declarations of all structs in an API's messages.
#[derive(Clone, Debug)]
pub struct ApiSpec {
    /// The struct of the request, followed by the structs that it contains.
    pub request: Vec<StructSpec>,
    /// The struct of the response, followed by the structs that it contains.
    pub response: Vec<StructSpec>,
}

struct Specs;

impl Visit for Specs {
    type Output = ApiSpec;
    fn visit<R: Request>(self) -> ApiSpec {
        let mut spec = ApiSpec { request: Vec::new(), response: Vec::new() };
        R::specs(&mut spec.request);
        R::Response::specs(&mut spec.response);
        spec
    }
}

impl ApiKey {
    /// Returns the declarations of the API, for crates/broker/PROTOCOL.md and for tests.
    pub fn spec(self) -> ApiSpec {
        self.visit(Specs)
    }
}

/// The header of every request. This is request header v1, or v2 if the API version is flexible.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestHeader {
    /// The API's key, which this crate might not know.
    pub api_key: i16,
    /// The API's version, which may be outside the range of the API.
    pub api_version: i16,
    /// The id of the request, which the response repeats.
    pub correlation_id: i32,
    /// The name that the client gives itself.
    pub client_id: Option<Text>,
    /// The tagged fields of header v2.
    pub tagged: TaggedFields,
}

/// The form of a header's fixed fields, which is not flexible even in header v2.
const CLASSIC: Version = Version { number: 0, flexible: false };
const FLEXIBLE: Version = Version { number: 0, flexible: true };

impl RequestHeader {
    /// Returns the API and the version in this header; None if this crate does not know them.
    pub fn api(&self) -> Option<(ApiKey, Version)> {
        let key = ApiKey::from_code(self.api_key)?;
        Some((key, key.version(self.api_version)?))
    }

    /// Reads a header, and leaves the reader at the first field of the request.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the bytes are not a header.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let mut header = RequestHeader {
            api_key: Codec::decode(r, CLASSIC)?,
            api_version: Codec::decode(r, CLASSIC)?,
            correlation_id: Codec::decode(r, CLASSIC)?,
            client_id: Codec::decode(r, CLASSIC)?,
            tagged: TaggedFields::default(),
        };
        if header.api().is_some_and(|(_, v)| v.flexible) {
            header.tagged = r.unknown_tagged_fields()?;
        }
        Ok(header)
    }
}

/// Writes the whole frame of a request.
///
/// # Errors
/// Returns [`EncodeError`] if the request cannot be written in this version.
pub fn encode_request<R: Request>(
    request: &R,
    version: i16,
    correlation_id: i32,
    client_id: Option<&Text>,
) -> Result<Frame, EncodeError> {
    let v = R::KEY.version(version).ok_or(EncodeError::Version(version))?;
    let mut w = Writer::with_capacity(256);
    R::KEY.code().encode(&mut w, CLASSIC)?;
    version.encode(&mut w, CLASSIC)?;
    correlation_id.encode(&mut w, CLASSIC)?;
    Text::encode_nullable(client_id, &mut w, CLASSIC)?;
    if v.flexible {
        w.put_uvarint(0);
    }
    request.encode(&mut w, v)?;
    w.finish()
}

/// Reads the body of a request. `v` is the version of the API in the request's header.
///
/// Bytes after the body are ignored, as in Kafka. librdkafka 2.16 sends three bytes too many when it requests all
/// topics.
///
/// # Errors
/// Returns [`DecodeError`] if the bytes do not begin with a whole request.
pub fn decode_request<R: Request>(r: &mut Reader, v: Version) -> Result<R, DecodeError> {
    R::decode(r, v)
}

/// The cost of decoding a request, apart from its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSize {
    /// Number of elements in all arrays of the request.
    pub elements: usize,
    /// How many bytes of memory these arrays take when they are decoded.
    pub bytes: usize,
}

struct Measure {
    reader: Reader,
    version: Version,
}

impl Visit for Measure {
    type Output = Result<RequestSize, DecodeError>;
    fn visit<R: Request>(mut self) -> Self::Output {
        let before = self.reader.elements_left();
        R::decode(&mut self.reader, self.version)?;
        Ok(RequestSize { elements: before - self.reader.elements_left(), bytes: self.reader.measured() })
    }
}

/// Measures the body of a request without storing its arrays. This takes only a fraction of the time of decoding. The
/// reader's position does not change.
///
/// # Errors
/// Fails like [`decode_request`], and with [`DecodeError::Count`] if there are more than `elements_max` elements.
pub fn measure_request(
    key: ApiKey,
    r: &Reader,
    version: Version,
    elements_max: Option<usize>,
) -> Result<RequestSize, DecodeError> {
    key.visit(Measure { reader: r.measuring(elements_max), version })
}

/// Returns the version that decides the form of a response header. ApiVersions always has header v0, so that a client
/// can read the response before it knows the broker's versions.
fn response_header(key: ApiKey, v: Version) -> Version {
    if v.flexible && key != ApiKey::ApiVersions { FLEXIBLE } else { CLASSIC }
}

/// Writes the whole frame of a response.
///
/// # Errors
/// Returns [`EncodeError`] if the response cannot be written in this version.
pub fn encode_response<R: Request>(
    response: &R::Response,
    v: Version,
    correlation_id: i32,
) -> Result<Frame, EncodeError> {
    encode_response_with::<R>(v, correlation_id, |w| response.encode(w, v))
}

/// Writes the whole frame of a response. `put` writes the body.
///
/// # Errors
/// Fails if `put` fails.
pub fn encode_response_with<R: Request>(
    v: Version,
    correlation_id: i32,
    put: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
) -> Result<Frame, EncodeError> {
    let mut w = Writer::with_capacity(256);
    correlation_id.encode(&mut w, CLASSIC)?;
    if response_header(R::KEY, v).flexible {
        w.put_uvarint(0);
    }
    put(&mut w)?;
    w.finish()
}

/// Reads the frame of a response, without its length prefix. Returns the correlation id and the body.
///
/// # Errors
/// Returns [`DecodeError`] if the bytes are not exactly one response.
pub fn decode_response<R: Request>(frame: Bytes, version: i16) -> Result<(i32, R::Response), DecodeError> {
    let v = R::KEY.version(version).ok_or(DecodeError::Version(version))?;
    let mut r = Reader::new(frame, RESPONSE_ELEMENTS_MAX);
    let correlation_id = i32::decode(&mut r, CLASSIC)?;
    if response_header(R::KEY, v).flexible {
        r.unknown_tagged_fields()?;
    }
    let response = R::Response::decode(&mut r, v)?;
    r.finish()?;
    Ok((correlation_id, response))
}

/// Returns a reader for the frame of a request, without its length prefix.
pub fn request_reader(frame: Bytes) -> Reader {
    Reader::new(frame, REQUEST_ELEMENTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
    use crate::apis::metadata::MetadataRequest;
    use crate::{ErrorCode, Part};

    #[test]
    fn the_table_is_in_key_order_and_finds_what_it_holds() {
        assert!(ApiKey::ALL.is_sorted());
        for key in ApiKey::ALL {
            assert_eq!(ApiKey::from_code(key.code()), Some(*key));
            let flexible_from = key.flexible_from();
            assert!(!key.versions().is_empty());
            assert!(key.versions().contains(&flexible_from) || flexible_from == NEVER, "{key:?}");
            assert_eq!(key.version(key.versions().end() + 1), None);
        }
        assert_eq!(ApiKey::from_code(-1), None);
    }

    #[test]
    fn bytes_after_a_request_of_librdkafka_are_ignored() {
        let v = ApiKey::Metadata.version(13).expect("a version of Metadata");
        let mut reader = request_reader(Bytes::from_static(&[0, 0, 0, 0, 1, 0, 0]));
        let request = decode_request::<MetadataRequest>(&mut reader, v).expect("a request");
        assert_eq!((request.topics, request.allow_auto_topic_creation), (None, false));
    }

    #[test]
    fn api_versions_answers_with_the_old_header_even_when_flexible() {
        let v = ApiKey::ApiVersions.version(3).expect("a version of ApiVersions");
        let answer = ApiVersionsResponse { error_code: ErrorCode::UNSUPPORTED_VERSION, ..Default::default() };
        let frame = encode_response::<ApiVersionsRequest>(&answer, v, 7).expect("a small response");
        let [Part::Bytes(bytes)] = &frame.parts[..] else { panic!("one part") };
        assert_eq!(bytes[..], [0, 0, 0, 12, 0, 0, 0, 7, 0, 35, 1, 0, 0, 0, 0, 0]);
        assert_eq!(decode_response::<ApiVersionsRequest>(bytes.slice(4..), 3), Ok((7, answer)));
    }

    #[test]
    fn the_client_id_is_in_the_old_form_and_tags_follow_in_flexible_requests() {
        let header = |tags: &[u8]| Bytes::from([&[0, 3, 0, 9, 0, 0, 0, 5, 0, 1, b'c'][..], tags].concat());
        let mut reader = request_reader(header(&[1, 9, 1, 0xaa, 0xff]));
        let header = RequestHeader::decode(&mut reader).expect("a header");
        assert_eq!((header.client_id.as_deref(), header.correlation_id), (Some("c"), 5));
        assert_eq!(header.tagged.fields(), [(9, Bytes::from_static(&[0xaa]))]);
        assert_eq!(reader.remaining(), 1);
    }
}
