//! Bugs that were found by attacking the cluster, with one test for each.

use bytes::BytesMut;
use fullbore_tests::{Batch, Client, Cluster, produce_request};
use fullbore_wire::ErrorCode;
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

const TOPIC: &str = "hunted";

#[test]
fn kill_of_the_leader_restores_no_deleted_record() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.create(TOPIC, 1, 3, &["min.insync.replicas=2"]);
    (1..=3).for_each(|id| cluster.wait_for_isr(id, TOPIC, 3));
    let leader = cluster.partitions(1, TOPIC)[0].leader_id;
    let mut client = Client::connect(cluster.address(leader));
    for _ in 0..20 {
        client.produced(TOPIC, 0, &Batch::of(&["v"]));
    }
    client.delete_records(TOPIC, 0, 15);
    cluster.broker(leader).kill();
    let other = leader % 3 + 1;
    cluster.wait_for_isr(other, TOPIC, 2);
    let new_leader = cluster.wait_for_leader(other, TOPIC, 0, leader);
    assert_eq!(Client::connect(cluster.address(new_leader)).earliest(TOPIC, 0), 15);
}

/// The topic stores batches without compression, so a request of kilobytes leaves a batch that is larger than any
/// request. The other partition has the same leader, so followers fetch both partitions over the same connection.
#[test]
fn batch_larger_than_any_request_is_replicated_and_stops_no_other_partition() {
    let sets = ["socket.request.max.bytes=2000000", "replica.fetch.response.max.bytes=2000000"];
    let cluster = Cluster::start(3, &sets);
    cluster.create(
        TOPIC,
        1,
        3,
        &["min.insync.replicas=3", "max.message.bytes=30000000", "compression.type=uncompressed"],
    );
    cluster.create("beside", 6, 3, &["min.insync.replicas=3"]);
    (1..=3).for_each(|id| cluster.wait_for_isr(id, TOPIC, 3));
    (1..=3).for_each(|id| cluster.wait_for_isr(id, "beside", 3));
    let leader = cluster.partitions(1, TOPIC)[0].leader_id;
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::Zstd, None);
    builder.append(1, None, Some(&vec![0; 25_000_000]), &[]);
    let batch = builder.seal(Stamp::NONE).expect("sealed").0.freeze();
    let mut client = Client::connect(cluster.address(leader));
    let response = client.call(&produce_request(TOPIC, 0, batch), 9);
    assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
    let beside = cluster.partitions(1, "beside");
    let beside = beside.iter().find(|of| of.leader_id == leader).expect("each broker leads two");
    client.produced("beside", beside.partition_index, &Batch::of(&["v"]));
}
