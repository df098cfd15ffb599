//! Fullbore has no access control, quotas or users. To requests about them it must respond like a Kafka broker on which
//! they are not configured.

use fullbore_tests::{Broker, Client};
use fullbore_wire::apis::alter_replica_log_dirs::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use fullbore_wire::apis::create_acls::{AclCreation, CreateAclsRequest};
use fullbore_wire::apis::delete_acls::{DeleteAclsFilter, DeleteAclsRequest};
use fullbore_wire::apis::describe_acls::DescribeAclsRequest;
use fullbore_wire::apis::describe_client_quotas::{ComponentData, DescribeClientQuotasRequest};
use fullbore_wire::apis::describe_cluster::DescribeClusterRequest;
use fullbore_wire::apis::describe_groups::DescribeGroupsRequest;
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::describe_topic_partitions::{DescribeTopicPartitionsRequest, TopicRequest};
use fullbore_wire::apis::describe_user_scram_credentials::{DescribeUserScramCredentialsRequest, UserName};
use fullbore_wire::apis::list_transactions::ListTransactionsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use fullbore_wire::{ErrorCode, Text, Uuid};

/// The bits of Kafka's AclOperation for topics: read, write, create, delete, alter, describe, describe_configs,
/// alter_configs.
const OF_TOPICS: i32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// The bits for the cluster: create, alter, describe, cluster_action, describe_configs, alter_configs,
/// idempotent_write.
const OF_THE_CLUSTER: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;
/// The bits for groups: read, delete, describe, describe_configs, alter_configs.
const OF_GROUPS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;
const NOT_ASKED: i32 = i32::MIN;

#[test]
fn access_control_lists_are_answered_security_disabled() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for version in 1..=3 {
        let described = client
            .call(&DescribeAclsRequest { resource_type_filter: 1, operation: 1, permission_type: 1, ..any() }, version);
        assert_eq!(described.error_code, ErrorCode::SECURITY_DISABLED);
        assert_eq!(described.error_message.as_deref(), Some("No Authorizer is configured on the broker"));
        assert_eq!(described.resources, []);
        let creation = || AclCreation {
            resource_type: 2,
            resource_name: "topic".into(),
            principal: "User:somebody".into(),
            host: "*".into(),
            operation: 3,
            permission_type: 3,
            ..Default::default()
        };
        let created =
            client.call(&CreateAclsRequest { creations: vec![creation(), creation()], ..Default::default() }, version);
        let outcomes: Vec<_> =
            created.results.iter().map(|one| (one.error_code, one.error_message.as_deref())).collect();
        assert_eq!(outcomes, [(ErrorCode::SECURITY_DISABLED, Some("No Authorizer is configured.")); 2]);
        let filter =
            DeleteAclsFilter { resource_type_filter: 1, operation: 1, permission_type: 1, ..Default::default() };
        let deleted = client.call(&DeleteAclsRequest { filters: vec![filter], ..Default::default() }, version);
        let outcomes: Vec<_> =
            deleted.filter_results.iter().map(|one| (one.error_code, one.error_message.as_deref())).collect();
        assert_eq!(outcomes, [(ErrorCode::SECURITY_DISABLED, Some("No Authorizer is configured."))]);
    }
}

/// Returns a filter that matches every name.
fn any() -> DescribeAclsRequest {
    DescribeAclsRequest { pattern_type_filter: 1, ..Default::default() }
}

/// Returns the message. Kafka sends an empty one instead of none, so an empty message becomes `None`.
fn words(message: Option<Text>) -> Option<String> {
    message.map(|message| message.to_string()).filter(|message| !message.is_empty())
}

fn quotas(client: &mut Client, components: &[(&str, i8, Option<&str>)]) -> (ErrorCode, Option<String>, Option<usize>) {
    let component = |&(entity_type, match_type, name): &(&str, i8, Option<&str>)| ComponentData {
        entity_type: entity_type.into(),
        match_type,
        r#match: name.map(Text::from),
        ..Default::default()
    };
    let request =
        DescribeClientQuotasRequest { components: components.iter().map(component).collect(), ..Default::default() };
    let answer = client.call(&request, 1);
    assert_eq!(client.call(&request, 0).error_code, answer.error_code);
    (answer.error_code, words(answer.error_message), answer.entries.map(|entries| entries.len()))
}

#[test]
fn client_quotas_are_an_empty_list_and_a_bad_filter_is_refused() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let none = (ErrorCode::NONE, None, Some(0));
    for filter in [&[][..], &[("user", 0, Some("u")), ("client-id", 1, None)], &[("ip", 2, None)]] {
        assert_eq!(quotas(&mut client, filter), none, "{filter:?}");
    }
    let refused = [
        (&[("", 2, None)][..], ErrorCode::INVALID_REQUEST, "Invalid empty entity type."),
        (
            &[("user", 2, None), ("user", 1, None)],
            ErrorCode::INVALID_REQUEST,
            "Entity type user cannot appear more than once in the filter.",
        ),
        (&[("planet", 2, None)], ErrorCode::UNSUPPORTED_VERSION, "Unsupported entity type planet"),
        (
            &[("user", 0, None)],
            ErrorCode::INVALID_REQUEST,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            &[("user", 1, Some("u"))],
            ErrorCode::INVALID_REQUEST,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            &[("user", 2, Some("u"))],
            ErrorCode::INVALID_REQUEST,
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        (&[("user", 3, None)], ErrorCode::INVALID_REQUEST, "Unknown match type 3"),
        (
            &[("ip", 2, None), ("user", 2, None)],
            ErrorCode::INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter component.",
        ),
    ];
    for (filter, code, message) in refused {
        assert_eq!(quotas(&mut client, filter), (code, Some(message.to_owned()), None), "{filter:?}");
    }
}

#[test]
fn users_with_credentials_are_an_empty_list_and_a_named_one_is_not_found() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let mut describe = |users: Option<&[&str]>| {
        let user = |name: &&str| UserName { name: Text::from(*name), ..Default::default() };
        let users = users.map(|names| names.iter().map(user).collect());
        let answer = client.call(&DescribeUserScramCredentialsRequest { users, ..Default::default() }, 0);
        assert_eq!((answer.error_code, words(answer.error_message)), (ErrorCode::NONE, None));
        let mut results: Vec<_> = answer.results;
        results.sort_by(|a, b| a.user.cmp(&b.user));
        let reported = results.into_iter().map(|one| (one.user.to_string(), one.error_code, words(one.error_message)));
        reported.collect::<Vec<_>>()
    };
    assert_eq!(describe(None), []);
    assert_eq!(describe(Some(&[])), []);
    let absent = "Attempt to describe a user credential that does not exist: alice";
    let twice = "Cannot describe SCRAM credentials for the same user twice in a single request: bob";
    let expected = [
        ("alice".to_owned(), ErrorCode::RESOURCE_NOT_FOUND, Some(absent.to_owned())),
        ("bob".to_owned(), ErrorCode::DUPLICATE_RESOURCE, Some(twice.to_owned())),
    ];
    assert_eq!(describe(Some(&["bob", "alice", "bob"])), expected);
}

#[test]
fn transactions_are_an_empty_list_and_unknown_states_and_patterns_are_errors() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for version in 0..=2 {
        let answer = client.call(&ListTransactionsRequest::default(), version);
        assert_eq!(
            (answer.error_code, answer.transaction_states, answer.unknown_state_filters),
            (ErrorCode::NONE, vec![], vec![])
        );
        let states = ["Ongoing", "Empty", "CompleteCommit", "Dead", "Asleep", "ongoing"].map(Text::from).to_vec();
        let answer = client.call(&ListTransactionsRequest { state_filters: states, ..Default::default() }, version);
        let mut unknown = answer.unknown_state_filters;
        unknown.sort();
        assert_eq!((answer.error_code, answer.transaction_states), (ErrorCode::NONE, vec![]));
        assert_eq!(unknown, ["Asleep", "ongoing"].map(Text::from));
    }
    let mut by_pattern = |pattern: &str| {
        let transactional_id_pattern = Some(Text::from(pattern));
        client.call(&ListTransactionsRequest { transactional_id_pattern, ..Default::default() }, 2).error_code
    };
    assert_eq!(by_pattern("tx-.*"), ErrorCode::NONE);
    assert_eq!(by_pattern("tx-("), ErrorCode::INVALID_REGULAR_EXPRESSION);
}

/// Returns the only data directory in the response to DescribeLogDirs.
fn directory(client: &mut Client) -> Text {
    let answer = client.call(&DescribeLogDirsRequest { topics: Some(Vec::new()), ..Default::default() }, 4);
    answer.results[0].log_dir.clone()
}

#[test]
fn partition_may_be_moved_only_to_its_own_directory() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("moved", 2, &[]);
    let here = directory(&mut client);
    let mut alter = |path: &Text, topic: &str, partitions: &[i32]| {
        let topics =
            vec![AlterReplicaLogDirTopic { name: topic.into(), partitions: partitions.to_vec(), ..Default::default() }];
        let dir = AlterReplicaLogDir { path: path.clone(), topics, ..Default::default() };
        let request = AlterReplicaLogDirsRequest { dirs: vec![dir], ..Default::default() };
        let answers = [1, 2].map(|version| {
            let mut answer = client.call(&request, version);
            assert_eq!((answer.results.len(), answer.results[0].topic_name.as_str()), (1, topic));
            let mut partitions = answer.results.remove(0).partitions;
            partitions.sort_by_key(|partition| partition.partition_index);
            partitions.into_iter().map(|one| (one.partition_index, one.error_code)).collect::<Vec<_>>()
        });
        assert_eq!(answers[0], answers[1]);
        answers[0].clone()
    };
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    assert_eq!(alter(&here, "moved", &[0, 1, 2, 0]), [(0, ErrorCode::NONE), (1, ErrorCode::NONE), (2, unknown)]);
    assert_eq!(alter(&here, "absent", &[0]), [(0, unknown)]);
    assert_eq!(alter(&"/nowhere".into(), "moved", &[0]), [(0, ErrorCode::LOG_DIR_NOT_FOUND)]);
    assert_eq!(alter(&"/nowhere".into(), "absent", &[0]), [(0, ErrorCode::LOG_DIR_NOT_FOUND)]);
}

#[test]
fn authorized_operations_on_request_are_all_operations() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("there", 1, &[]);
    for requested in [true, false] {
        let expected = |every| if requested { every } else { NOT_ASKED };
        for version in 0..=2 {
            let request =
                DescribeClusterRequest { include_cluster_authorized_operations: requested, ..Default::default() };
            assert_eq!(
                client.call(&request, version).cluster_authorized_operations,
                expected(OF_THE_CLUSTER),
                "version {version}"
            );
        }
        for version in 8..=13 {
            let topic = |name: &str| MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
            let request = MetadataRequest {
                topics: Some(vec![topic("there"), topic("absent")]),
                allow_auto_topic_creation: false,
                include_cluster_authorized_operations: requested && version <= 10,
                include_topic_authorized_operations: requested,
                ..Default::default()
            };
            let answer = client.call(&request, version);
            let of_cluster = if version <= 10 { expected(OF_THE_CLUSTER) } else { NOT_ASKED };
            assert_eq!(answer.cluster_authorized_operations, of_cluster, "version {version}");
            let of_topics: Vec<_> = answer.topics.iter().map(|topic| topic.topic_authorized_operations).collect();
            assert_eq!(of_topics, [expected(OF_TOPICS); 2], "version {version}");
        }
        // From version 6 on, describing a group that does not exist is an error.
        for version in 3..=6 {
            let expected = |every| if version < 6 { expected(every) } else { NOT_ASKED };
            let groups = vec!["nobody".into()];
            let request =
                DescribeGroupsRequest { groups, include_authorized_operations: requested, ..Default::default() };
            assert_eq!(
                client.call(&request, version).groups[0].authorized_operations,
                expected(OF_GROUPS),
                "version {version}"
            );
        }
    }
    let unknown = MetadataRequestTopic { topic_id: Uuid([7; 16]), name: None, ..Default::default() };
    let request = MetadataRequest {
        topics: Some(vec![unknown]),
        include_topic_authorized_operations: true,
        ..Default::default()
    };
    let reported = client.call(&request, 13).topics.remove(0);
    assert_eq!((reported.error_code, reported.topic_authorized_operations), (ErrorCode::UNKNOWN_TOPIC_ID, NOT_ASKED));
    // The request has no flag for the authorized operations, so the response always has them.
    let topics = ["absent", "there"].map(|name| TopicRequest { name: name.into(), ..Default::default() }).to_vec();
    let request = DescribeTopicPartitionsRequest { topics, response_partition_limit: 10, ..Default::default() };
    let of_topics: Vec<_> =
        client.call(&request, 0).topics.iter().map(|topic| topic.topic_authorized_operations).collect();
    assert_eq!(of_topics, [OF_TOPICS; 2]);
}
