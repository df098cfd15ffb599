//! Topics with Kafka's own state. No client may write to them, or create them by a metadata request.

use fullbore_tests::{Batch, Broker, Client, produce_request};
use fullbore_wire::api::encode_request;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use fullbore_wire::apis::describe_topic_partitions::DescribeTopicPartitionsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponseTopic};
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceRequest};
use fullbore_wire::{ErrorCode, Text};

const INTERNAL: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

fn metadata(client: &mut Client, name: &str, create: bool, version: i16) -> MetadataResponseTopic {
    let topics = Some(vec![MetadataRequestTopic { name: Some(Text::from(name)), ..Default::default() }]);
    let request = MetadataRequest { topics, allow_auto_topic_creation: create, ..Default::default() };
    client.call(&request, version).topics.remove(0)
}

#[test]
fn metadata_request_does_not_create_an_internal_topic() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for name in INTERNAL {
        for version in [1, 4, 9, 13] {
            let reported = metadata(&mut client, name, true, version);
            assert_eq!(reported.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, "{name}, version {version}");
            assert!(reported.is_internal && reported.partitions.is_empty(), "{name}, version {version}");
        }
    }
    let all = client.call(&MetadataRequest { topics: None, ..Default::default() }, 9).topics;
    assert_eq!(all, [], "none was made");
    // The name only begins like that of an internal topic, so the topic is an ordinary one.
    let made = metadata(&mut client, "__consumer_offsets_of_mine", true, 9);
    assert!(!made.is_internal, "{made:?}");
}

#[test]
fn creation_of_the_metadata_topic_is_refused() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let name = "__cluster_metadata";
    assert_eq!(metadata(&mut client, name, true, 9).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let topic = CreatableTopic { name: name.into(), num_partitions: 1, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let refused = client.call(&request, 7).topics.remove(0);
    assert_eq!(refused.error_code, ErrorCode::INVALID_REQUEST);
    let why = "Creation of internal topic __cluster_metadata is prohibited.";
    assert_eq!(refused.error_message.as_deref(), Some(why));
}

/// Produces one record with the given client id. Returns the response of the partition.
fn produce(client: &mut Client, client_id: &str, topic: &str) -> PartitionProduceResponse {
    let request = produce_request(topic, 0, Batch::of(&["x"]).bytes());
    let frame = encode_request(&request, 9, 0, Some(&Text::from(client_id))).expect("a request of this version");
    client.send_bytes(&fullbore_tests::bytes_of(&frame));
    client.receive::<ProduceRequest>(9).1.responses[0].partition_responses[0].clone()
}

#[test]
fn created_internal_topic_is_marked_internal_and_refuses_writes() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("ordinary", 1, &[]);
    for name in INTERNAL {
        // In Kafka an administrator may create an internal topic, and Kafka itself creates it at its first use.
        if metadata(&mut client, name, false, 9).error_code.is_err() {
            client.create_topic(name, 1, &[]);
        }
        let before = client.list_offset(name, 0, -1).offset;
        assert!(metadata(&mut client, name, false, 9).is_internal);
        let refused = produce(&mut client, "somebody", name);
        assert_eq!(refused.error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
        assert_eq!(client.list_offset(name, 0, -1).offset, before, "nothing was written");
        let cut = DeleteRecordsPartition { partition_index: 0, offset: 0, ..Default::default() };
        let topics = vec![DeleteRecordsTopic { name: name.into(), partitions: vec![cut], ..Default::default() }];
        let answer = client.call(&DeleteRecordsRequest { topics, timeout_ms: 30_000, ..Default::default() }, 2);
        assert_eq!(answer.topics[0].partitions[0].error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
        // Kafka's own tools use this client id.
        assert_ne!(produce(&mut client, "__admin_client", name).error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    assert_eq!(produce(&mut client, "somebody", "ordinary").error_code, ErrorCode::NONE);
    let request = DescribeTopicPartitionsRequest { response_partition_limit: 100, ..Default::default() };
    let mut reported: Vec<_> = client.call(&request, 0).topics.into_iter().filter(|topic| topic.is_internal).collect();
    reported.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(reported.iter().filter_map(|topic| topic.name.as_deref()).collect::<Vec<_>>(), {
        let mut names = INTERNAL;
        names.sort_unstable();
        names
    });
}
