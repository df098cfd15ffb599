//! The broker must serve every offered version of every API, and no other version.

use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::api::{ApiKey, Request, Visit};
use fullbore_wire::apis::api_versions::ApiVersionsRequest;
use fullbore_wire::apis::describe_cluster::DescribeClusterRequest;
use fullbore_wire::apis::describe_topic_partitions::{DescribeTopicPartitionsRequest, TopicRequest};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use fullbore_wire::{ErrorCode, Text};

/// Sends an empty request of an API that is known only at run time, and reads the response in the same version.
struct Ask<'a> {
    client: &'a mut Client,
    version: i16,
}

impl Visit for Ask<'_> {
    type Output = ();
    fn visit<R: Request>(self) {
        self.client.call(&R::default(), self.version);
    }
}

#[test]
fn every_version_of_every_api_is_answered_in_its_own_layout() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    // An empty produce request has acks=0 and therefore gets no response. All versions of Produce are tested in
    // `produce`.
    for key in client.offered().into_iter().filter(|key| *key != ApiKey::Produce) {
        for version in key.versions() {
            key.visit(Ask { client: &mut client, version });
        }
    }
}

/// APIs that the broker does not serve: SaslHandshake, CreateDelegationToken, AlterUserScramCredentials, ShareFetch,
/// and an unknown key.
const NOT_SERVED: [i16; 5] = [17, 38, 51, 78, 1000];

#[test]
fn unserved_apis_are_not_offered_and_close_the_connection() {
    let broker = Broker::start(&[]);
    let offered = broker.client().offered();
    assert!(offered.is_sorted() && offered.contains(&ApiKey::Produce), "{offered:?}");
    for key in NOT_SERVED {
        assert!(offered.iter().all(|offered| offered.code() != key), "{key}");
        let mut client = broker.client();
        // The fields are the length, API key, version 0, correlation id, and a null client id.
        let header = [&10_i32.to_be_bytes()[..], &key.to_be_bytes(), &[0; 6], &[0xff; 2]].concat();
        client.send_bytes(&header);
        assert_eq!(client.wait_for_close(), 0, "{key}");
    }
}

#[test]
fn offered_versions_equal_served_versions() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for version in 0..=4 {
        let name = "fullbore-tests".into();
        let request = ApiVersionsRequest {
            client_software_name: name,
            client_software_version: "1".into(),
            ..Default::default()
        };
        let response = client.call(&request, version);
        assert_eq!(response.error_code, ErrorCode::NONE, "version {version}");
        for offered in &response.api_keys {
            let key = ApiKey::from_code(offered.api_key).expect("an API of ours");
            let served = key.versions();
            assert_eq!(offered.max_version, *served.end());
            // The broker must claim to serve Produce from version 0 on (KAFKA-18659).
            let floor = if key == ApiKey::Produce { 0 } else { *served.start() };
            assert_eq!(offered.min_version, floor);
        }
        assert_eq!(response.api_keys.len(), client.offered().len(), "version {version}");
    }
}

#[test]
fn invalid_client_software_name_is_refused() {
    let broker = Broker::start(&[]);
    let response = broker.client().call(&ApiVersionsRequest::default(), 3);
    assert_eq!(response.error_code, ErrorCode::INVALID_REQUEST);
}

#[test]
fn described_cluster_is_this_broker_with_its_advertised_address() {
    let mut broker = Broker::start(&["node.id=42", "broker.rack=attic"]);
    let describe = |broker: &Broker| {
        let request = DescribeClusterRequest { endpoint_type: 1, ..Default::default() };
        broker.client().call(&request, 1)
    };
    let before = describe(&broker);
    let node = &before.brokers[0];
    assert_eq!((node.broker_id, node.host.as_str(), node.rack.as_deref()), (42, "127.0.0.1", Some("attic")));
    assert_eq!(node.port, i32::from(broker.addr().port()));
    assert_eq!((before.brokers.len(), before.controller_id, before.cluster_id.len()), (1, 42, 22));
    broker.kill();
    broker.restart();
    assert_eq!(describe(&broker).cluster_id, before.cluster_id, "a cluster keeps its id");
}

/// Sends FindCoordinator for a key of the given type. The layout of the messages depends on the version.
fn coordinator(client: &mut Client, key_type: i8, version: i16) -> Coordinator {
    let several = version >= 4;
    let request = FindCoordinatorRequest {
        key: if several { Text::default() } else { "key".into() },
        coordinator_keys: if several { vec!["key".into()] } else { Vec::new() },
        key_type,
        ..Default::default()
    };
    let mut answer = client.call(&request, version);
    if several {
        return answer.coordinators.remove(0);
    }
    let FindCoordinatorResponse { error_code, error_message, node_id, host, port, .. } = answer;
    Coordinator { error_code, error_message, node_id, host, port, ..Default::default() }
}

#[test]
fn coordinator_of_groups_is_this_broker_and_unknown_key_types_are_refused() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for version in 0..=6 {
        let of_group = coordinator(&mut client, 0, version);
        let here = (ErrorCode::NONE, 1, i32::from(broker.addr().port()));
        assert_eq!((of_group.error_code, of_group.node_id, of_group.port), here, "version {version}");
    }
    for key_type in [2, 3, -1] {
        assert_eq!(coordinator(&mut client, key_type, 6).error_code, ErrorCode::INVALID_REQUEST, "type {key_type}");
    }
}

#[test]
fn topics_are_described_a_page_at_a_time() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("a", 3, &[]);
    client.create_topic("b", 3, &[]);
    let (mut cursor, mut seen) = (None, Vec::new());
    loop {
        let request = DescribeTopicPartitionsRequest { response_partition_limit: 2, cursor, ..Default::default() };
        let response = client.call(&request, 0);
        for topic in &response.topics {
            let name = topic.name.as_ref().expect("named").to_string();
            seen.extend(topic.partitions.iter().map(|partition| (name.clone(), partition.partition_index)));
        }
        cursor = response.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let expected: Vec<_> = ["a", "b"].into_iter().flat_map(|name| (0..3).map(move |p| (name.to_owned(), p))).collect();
    assert_eq!(seen, expected);
    let unknown = TopicRequest { name: "nowhere".into(), ..Default::default() };
    let request =
        DescribeTopicPartitionsRequest { topics: vec![unknown], response_partition_limit: 10, ..Default::default() };
    assert_eq!(client.call(&request, 0).topics[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(client.produced("b", 2, &Batch::of(&["x"])), 0);
}
