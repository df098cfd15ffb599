//! Requests of cluster tools to a single broker: elections, reassignments, the quorum.

use fullbore_tests::{Broker, Client};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignablePartitionResponse, ReassignableTopic,
};
use fullbore_wire::apis::api_versions::{ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey};
use fullbore_wire::apis::describe_quorum::{DescribeQuorumRequest, PartitionRequest, TopicRequest};
use fullbore_wire::apis::elect_leaders::{ElectLeadersRequest, ElectLeadersResponse, TopicPartitions};
use fullbore_wire::apis::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsTopics,
};
use fullbore_wire::apis::update_features::{FeatureUpdateKey, UpdateFeaturesRequest};

const TOPIC: &str = "led";

fn broker_with_topic() -> (Broker, Client) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    (broker, client)
}

fn elect(
    client: &mut Client,
    election_type: i8,
    requested: Option<&[(&str, &[i32])]>,
    version: i16,
) -> ElectLeadersResponse {
    let topic = |(name, partitions): &(&str, &[i32])| TopicPartitions {
        topic: (*name).into(),
        partitions: partitions.to_vec(),
        ..Default::default()
    };
    let topic_partitions = requested.map(|requested| requested.iter().map(topic).collect());
    let request = ElectLeadersRequest { election_type, topic_partitions, timeout_ms: 30_000, ..Default::default() };
    client.call(&request, version)
}

#[test]
fn no_partition_needs_an_election() {
    let (_broker, mut client) = broker_with_topic();
    for (version, election_type) in [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)] {
        let requested: &[(&str, &[i32])] = &[(TOPIC, &[0, 1, 7]), ("nowhere", &[0])];
        let response = elect(&mut client, election_type, Some(requested), version);
        assert_eq!(response.error_code, ErrorCode::NONE);
        let mut codes: Vec<_> = response
            .replica_election_results
            .iter()
            .flat_map(|topic| {
                topic.partition_result.iter().map(|p| (topic.topic.to_string(), p.partition_id, p.error_code))
            })
            .collect();
        codes.sort();
        let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        let expected = [
            (TOPIC.into(), 0, ErrorCode::ELECTION_NOT_NEEDED),
            (TOPIC.into(), 1, ErrorCode::ELECTION_NOT_NEEDED),
            (TOPIC.into(), 7, unknown),
            ("nowhere".into(), 0, unknown),
        ];
        assert_eq!(codes, expected, "version {version}, type {election_type}");
        let all = elect(&mut client, election_type, None, version);
        assert_eq!((all.error_code, all.replica_election_results.len()), (ErrorCode::NONE, 0));
    }
    let unknown_type = elect(&mut client, 9, None, 2);
    assert_eq!(unknown_type.error_code, ErrorCode::INVALID_REQUEST);
}

fn reassign(
    client: &mut Client,
    name: &str,
    partition_index: i32,
    replicas: Option<Vec<i32>>,
    version: i16,
) -> ReassignablePartitionResponse {
    let partition = ReassignablePartition { partition_index, replicas, ..Default::default() };
    let topic = ReassignableTopic { name: name.into(), partitions: vec![partition], ..Default::default() };
    let request = AlterPartitionReassignmentsRequest { timeout_ms: 30_000, topics: vec![topic], ..Default::default() };
    let mut response = client.call(&request, version);
    assert_eq!(response.error_code, ErrorCode::NONE);
    response.responses.remove(0).partitions.remove(0)
}

#[test]
fn a_reassignment_to_this_broker_is_done_and_any_other_refused() {
    let (_broker, mut client) = broker_with_topic();
    for version in 0..=1 {
        for (name, partition, replicas, expected) in [
            (TOPIC, 0, Some(vec![1]), ErrorCode::NONE),
            (TOPIC, 0, Some(vec![2]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 1, Some(vec![1, 2]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 1, Some(vec![1, 1]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 1, Some(vec![]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 1, None, ErrorCode::NO_REASSIGNMENT_IN_PROGRESS),
            (TOPIC, 2, Some(vec![1]), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, 2, None, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            ("nowhere", 0, Some(vec![1]), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        ] {
            let shown = format!("{name}-{partition} to {replicas:?}, version {version}");
            assert_eq!(reassign(&mut client, name, partition, replicas, version).error_code, expected, "{shown}");
        }
    }
    let named =
        ListPartitionReassignmentsTopics { name: TOPIC.into(), partition_indexes: vec![0, 1, 7], ..Default::default() };
    for topics in [None, Some(vec![named])] {
        let request = ListPartitionReassignmentsRequest { timeout_ms: 30_000, topics, ..Default::default() };
        let listed = client.call(&request, 0);
        assert_eq!((listed.error_code, listed.topics.len()), (ErrorCode::NONE, 0));
    }
}

#[test]
fn the_quorum_is_this_node_and_its_epoch_and_offset_go_up() {
    let (mut broker, mut client) = broker_with_topic();
    let request = |client: &mut Client, topic: &str, partition_index: i32, version: i16| {
        let partitions = vec![PartitionRequest { partition_index, ..Default::default() }];
        let topics = vec![TopicRequest { topic_name: topic.into(), partitions, ..Default::default() }];
        let mut response = client.call(&DescribeQuorumRequest { topics, ..Default::default() }, version);
        assert_eq!(response.error_code, ErrorCode::NONE);
        (response.topics.remove(0).partitions.remove(0), response.nodes)
    };
    for version in 0..=2 {
        let (quorum, nodes) = request(&mut client, "__cluster_metadata", 0, version);
        assert_eq!((quorum.error_code, quorum.leader_id), (ErrorCode::NONE, 1));
        let [voter] = &quorum.current_voters[..] else { panic!("one voter") };
        assert_eq!((voter.replica_id, voter.log_end_offset), (1, quorum.high_watermark));
        assert!(quorum.observers.is_empty());
        assert_eq!(voter.last_fetch_timestamp > 0, version >= 1);
        assert_eq!(nodes.len(), usize::from(version >= 2));
        for (topic, partition) in [("__cluster_metadata", 1), (TOPIC, 0)] {
            let (unknown, _) = request(&mut client, topic, partition, version);
            assert_eq!(unknown.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        }
    }
    let (before, _) = request(&mut client, "__cluster_metadata", 0, 2);
    client.create_topic("another", 1, &[]);
    broker.stop();
    broker.restart();
    let (after, nodes) = request(&mut broker.client(), "__cluster_metadata", 0, 2);
    assert!(after.leader_epoch > before.leader_epoch && after.high_watermark > before.high_watermark);
    assert_eq!(nodes[0].listeners[0].port, broker.addr().port());
}

#[test]
fn features_and_their_epoch_are_returned_and_the_epoch_grows() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let request = |client: &mut Client, version| -> ApiVersionsResponse {
        let software = ("test".into(), "1".into());
        let (client_software_name, client_software_version) = software;
        let request = ApiVersionsRequest { client_software_name, client_software_version, ..Default::default() };
        client.call(&request, version)
    };
    assert!(request(&mut client, 2).supported_features.is_empty());
    for version in 3..=4 {
        let response = request(&mut client, version);
        let finalized: Vec<_> = response
            .finalized_features
            .iter()
            .map(|feature| (feature.name.as_str(), feature.max_version_level))
            .collect();
        assert!(finalized.contains(&("metadata.version", 30)), "{finalized:?}");
        assert!(finalized.contains(&("transaction.version", 2)), "{finalized:?}");
        let unreported = ["share.version", "streams.version"];
        assert!(finalized.iter().all(|(name, _)| !unreported.contains(name)), "{finalized:?}");
        for (name, level) in finalized {
            let supports = |feature: &&SupportedFeatureKey| feature.name == *name;
            let supported = response.supported_features.iter().find(supports);
            if version == 3 && name == "transaction.version" {
                assert_eq!(supported, None, "clients of version 3 cannot read a lowest level of 0");
                continue;
            }
            let supported = supported.expect("what is in use is supported");
            assert!((supported.min_version..=supported.max_version).contains(&level));
        }
    }
    let before = request(&mut client, 4).finalized_features_epoch;
    assert!(before >= 0);
    client.create_topic(TOPIC, 1, &[]);
    assert!(request(&mut client, 4).finalized_features_epoch > before);
}

/// Sends UpdateFeatures for one feature. Returns the error code and message.
fn update(
    client: &mut Client,
    (feature, max_version_level): (&str, i16),
    upgrade_type: i8,
    (version, validate_only): (i16, bool),
) -> (ErrorCode, String) {
    let allow_downgrade = version == 0 && upgrade_type > 1;
    let upgrade_type = if version == 0 { 1 } else { upgrade_type };
    let update = FeatureUpdateKey {
        feature: feature.into(),
        max_version_level,
        allow_downgrade,
        upgrade_type,
        ..Default::default()
    };
    let request = UpdateFeaturesRequest { feature_updates: vec![update], validate_only, ..Default::default() };
    let response = client.call(&request, version);
    let are_reported = version < 2 && !response.error_code.is_err();
    assert_eq!(response.results.len(), usize::from(are_reported), "version {version}");
    (response.error_code, response.error_message.map(|words| words.to_string()).unwrap_or_default())
}

/// Returns the finalized level of a feature, or 0 if it has none.
fn level(client: &mut Client, feature: &str) -> i16 {
    let request = ApiVersionsRequest {
        client_software_name: "test".into(),
        client_software_version: "1".into(),
        ..Default::default()
    };
    let finalized = client.call(&request, 4).finalized_features;
    finalized.iter().find(|known| known.name == *feature).map_or(0, |known| known.max_version_level)
}

#[test]
fn updated_feature_level_survives_a_kill_and_other_features_are_refused() {
    const UPGRADE: i8 = 1;
    const SAFE: i8 = 2;
    const UNSAFE: i8 = 3;
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    for version in 0..=2 {
        for (feature, wanted, kind, is_accepted) in [
            ("metadata.version", 30, UPGRADE, true),
            ("metadata.version", 29, SAFE, false),
            ("metadata.version", 31, UPGRADE, false),
            ("share.version", 1, UPGRADE, false),
            ("transaction.version", 2, UPGRADE, true),
            ("transaction.version", 3, UPGRADE, false),
            ("transaction.version", 1, UPGRADE, false),
            ("transaction.version", 1, SAFE, true),
            ("transaction.version", 2, SAFE, false),
            ("transaction.version", 0, if version == 0 { SAFE } else { UNSAFE }, true),
            ("transaction.version", 2, UPGRADE, true),
        ] {
            let (code, words) = update(&mut client, (feature, wanted), kind, (version, false));
            let expected = if is_accepted { ErrorCode::NONE } else { ErrorCode::INVALID_UPDATE_VERSION };
            assert_eq!(code, expected, "{feature} to {wanted} ({kind}), version {version}: {words}");
            if is_accepted {
                assert_eq!(level(&mut client, feature), wanted);
            } else {
                let of = format!("Invalid update version {wanted} for feature {feature}. ");
                assert!(
                    words.starts_with("The update failed for all features since ") && words.contains(&of),
                    "{words}"
                );
            }
        }
    }
    let name = "transaction.version";
    assert_eq!(update(&mut client, (name, 0), SAFE, (2, true)).0, ErrorCode::NONE);
    assert_eq!(level(&mut client, name), 2, "only checked");
    assert_eq!(update(&mut client, (name, 1), SAFE, (2, false)).0, ErrorCode::NONE);
    broker.kill();
    broker.restart();
    assert_eq!(level(&mut broker.client(), name), 1);
}
