//! Requests of tools to which every broker of a cluster gives the same response: the quorum, and moves of replicas.

use fullbore_tests::{Client, Cluster};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use fullbore_wire::apis::alter_replica_log_dirs::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::describe_quorum::{DescribeQuorumRequest, PartitionRequest, TopicRequest};

/// Returns the leader, voters and observers of the quorum according to the broker `id`.
fn quorum(cluster: &Cluster, id: i32) -> (i32, Vec<i32>, Vec<i32>) {
    let partitions = vec![PartitionRequest { partition_index: 0, ..Default::default() }];
    let topics = vec![TopicRequest { topic_name: "__cluster_metadata".into(), partitions, ..Default::default() }];
    let request = DescribeQuorumRequest { topics, ..Default::default() };
    let mut response = Client::connect(cluster.address(id)).call(&request, 2);
    let partition = response.topics.remove(0).partitions.remove(0);
    let voters = partition.current_voters.iter().map(|voter| voter.replica_id).collect();
    (partition.leader_id, voters, response.nodes.iter().map(|node| node.node_id).collect())
}

#[test]
fn every_broker_names_the_same_quorum() {
    let mut cluster = Cluster::start(3, &[]);
    for id in 1..=3 {
        assert_eq!(quorum(&cluster, id), (1, vec![1, 2, 3], vec![1, 2, 3]), "as broker {id} tells");
    }
    cluster.broker(1).kill();
    cluster.wait_for_brokers(&[2, 3]);
    for id in 2..=3 {
        assert_eq!(quorum(&cluster, id), (2, vec![2, 3], vec![2, 3]), "as broker {id} tells");
    }
}

#[test]
fn a_move_to_other_brokers_is_refused_with_the_reason() {
    let cluster = Cluster::start(3, &[]);
    cluster.create("t", 1, 2, &[]);
    let has = cluster.partitions(1, "t").remove(0).replica_nodes;
    let other = (1..=3).find(|id| !has.contains(id)).expect("one is left");
    let request = |replicas: Vec<i32>| {
        let partition = ReassignablePartition { partition_index: 0, replicas: Some(replicas), ..Default::default() };
        let topic = ReassignableTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
        let request =
            AlterPartitionReassignmentsRequest { timeout_ms: 30_000, topics: vec![topic], ..Default::default() };
        let mut response = Client::connect(cluster.address(1)).call(&request, 1);
        let answer = response.responses.remove(0).partitions.remove(0);
        (answer.error_code, answer.error_message.map(|message| message.to_string()).unwrap_or_default())
    };
    assert_eq!(request(has.clone()), (ErrorCode::NONE, String::new()));
    for moved in [vec![has[0], other], vec![has[1], has[0]], vec![has[0]], vec![1, 2, 3]] {
        let (code, message) = request(moved.clone());
        assert_eq!(code, ErrorCode::INVALID_REPLICA_ASSIGNMENT, "{moved:?}");
        assert!(message.contains("does not move partitions between brokers yet"), "{message}");
    }
    let message = request(vec![has[0], 9]).1;
    assert!(message.contains("no such broker"), "{message}");
    assert_eq!(cluster.partitions(1, "t").remove(0).replica_nodes, has);
}

#[test]
fn a_replica_moves_only_to_a_directory_of_its_broker() {
    let cluster = Cluster::start(3, &[]);
    cluster.create("t", 1, 2, &[]);
    let has = cluster.partitions(1, "t").remove(0).replica_nodes;
    for id in 1..=3 {
        cluster.wait_for_isr(id, "t", 2);
        let mut client = Client::connect(cluster.address(id));
        let path = client.call(&DescribeLogDirsRequest::default(), 4).results.remove(0).log_dir;
        let topics = vec![AlterReplicaLogDirTopic { name: "t".into(), partitions: vec![0], ..Default::default() }];
        let dirs = vec![AlterReplicaLogDir { path, topics, ..Default::default() }];
        let request = AlterReplicaLogDirsRequest { dirs, ..Default::default() };
        let code = client.call(&request, 2).results.remove(0).partitions.remove(0).error_code;
        let expected = if has.contains(&id) { ErrorCode::NONE } else { ErrorCode::REPLICA_NOT_AVAILABLE };
        assert_eq!(code, expected, "broker {id} of {has:?}");
    }
}
