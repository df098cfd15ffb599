//! Group offsets in transactions (KIP-447, KIP-890): both protocols, stable reads, fencing and kills.

use super::groups::{Member, QUICK};
use fullbore_tests::{Broker, Client, Protocol, Transactional, wait_until};
use fullbore_wire::apis::add_offsets_to_txn::AddOffsetsToTxnRequest;
use fullbore_wire::apis::delete_groups::DeleteGroupsRequest;
use fullbore_wire::apis::list_groups::ListGroupsRequest;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use fullbore_wire::apis::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use fullbore_wire::{ErrorCode, Text};
use std::time::Duration;

const OK: ErrorCode = ErrorCode::NONE;
const TOPIC: &str = "t";
const SOON: Duration = Duration::from_secs(30);
/// The last version of TxnOffsetCommit in which the client must add the group itself.
const OLD: i16 = 4;
/// The first version of TxnOffsetCommit in which the broker adds the group.
const NEW: i16 = 5;

/// A producer with a transactional id.
#[derive(Clone, Copy)]
struct Producer {
    transactional_id: &'static str,
    id: i64,
    epoch: i16,
    version: i16,
}

impl Producer {
    fn begin(client: &mut Client, transactional_id: &'static str, version: i16) -> Producer {
        let begun = Transactional::begin(client, transactional_id, protocol(version));
        Producer { transactional_id, id: begun.id, epoch: begun.epoch, version }
    }

    fn add(&self, client: &mut Client, group: &str) -> ErrorCode {
        let request = AddOffsetsToTxnRequest {
            transactional_id: Text::from(self.transactional_id),
            producer_id: self.id,
            producer_epoch: self.epoch,
            group_id: Text::from(group),
            ..Default::default()
        };
        client.call(&request, 3).error_code
    }

    fn request(&self, group: &str, offsets: &[(i32, i64)]) -> TxnOffsetCommitRequest {
        let partition = |&(partition_index, committed_offset): &(i32, i64)| TxnOffsetCommitRequestPartition {
            partition_index,
            committed_offset,
            committed_metadata: Some(Text::from("m")),
            ..Default::default()
        };
        TxnOffsetCommitRequest {
            transactional_id: Text::from(self.transactional_id),
            group_id: Text::from(group),
            producer_id: self.id,
            producer_epoch: self.epoch,
            topics: vec![TxnOffsetCommitRequestTopic {
                name: Text::from(TOPIC),
                partitions: offsets.iter().map(partition).collect(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn send(&self, client: &mut Client, request: &TxnOffsetCommitRequest) -> ErrorCode {
        client.call(request, self.version).topics[0].partitions[0].error_code
    }

    /// Commits offsets as part of the transaction. An old client first adds the group to the transaction.
    fn commit(&self, client: &mut Client, group: &str, offsets: &[(i32, i64)]) {
        if self.version == OLD {
            assert_eq!(self.add(client, group), OK);
        }
        assert_eq!(self.send(client, &self.request(group, offsets)), OK);
    }

    fn end(&mut self, client: &mut Client, committed: bool) {
        let mut ending = Transactional::resume(self.transactional_id, protocol(self.version), self.id, self.epoch);
        ending.end(client, committed);
        (self.id, self.epoch) = ending.producer();
    }
}

/// Returns the protocol of clients that use this version of TxnOffsetCommit.
fn protocol(version: i16) -> Protocol {
    if version >= NEW { Protocol::New } else { Protocol::Old }
}

fn fetch(client: &mut Client, group: &str, partition: i32, require_stable: bool) -> (ErrorCode, i64) {
    let topic =
        OffsetFetchRequestTopics { name: Text::from(TOPIC), partition_indexes: vec![partition], ..Default::default() };
    let requested = OffsetFetchRequestGroup {
        group_id: Text::from(group),
        member_epoch: -1,
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = OffsetFetchRequest { groups: vec![requested], require_stable, ..Default::default() };
    let found = client.call(&request, 8).groups.remove(0);
    assert_eq!(found.error_code, OK);
    let partition = &found.topics[0].partitions[0];
    (partition.error_code, partition.committed_offset)
}

fn stable(client: &mut Client, group: &str, partition: i32) -> (ErrorCode, i64) {
    fetch(client, group, partition, true)
}

fn commit_plain(client: &mut Client, group: &str, committed_offset: i64) -> ErrorCode {
    let partition = OffsetCommitRequestPartition { partition_index: 0, committed_offset, ..Default::default() };
    let topic = OffsetCommitRequestTopic { name: Text::from(TOPIC), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: Text::from(group),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    client.call(&request, 8).topics[0].partitions[0].error_code
}

fn started(sets: &[&str]) -> (Broker, Client) {
    let broker = Broker::start(sets);
    let mut client = broker.client();
    client.create_topic(TOPIC, 3, &[]);
    (broker, client)
}

const UNSTABLE: (ErrorCode, i64) = (ErrorCode::UNSTABLE_OFFSET_COMMIT, -1);

#[test]
fn offsets_of_an_open_transaction_are_unstable_until_its_end() {
    let (_broker, mut client) = started(&[]);
    for (version, id, group) in [(OLD, "old", "g-old"), (NEW, "new", "g-new")] {
        let mut producer = Producer::begin(&mut client, id, version);
        producer.commit(&mut client, group, &[(0, 5), (1, 6)]);
        assert_eq!((stable(&mut client, group, 0), stable(&mut client, group, 2)), (UNSTABLE, (OK, -1)));
        assert_eq!(fetch(&mut client, group, 0, false), (OK, -1), "without `require_stable`");
        producer.end(&mut client, true);
        assert_eq!([0, 1].map(|at| stable(&mut client, group, at)), [(OK, 5), (OK, 6)], "as of the answer");
        producer.commit(&mut client, group, &[(0, 7)]);
        assert_eq!((stable(&mut client, group, 0), stable(&mut client, group, 1)), (UNSTABLE, (OK, 6)));
        producer.end(&mut client, false);
        assert_eq!(stable(&mut client, group, 0), (OK, 5));
    }
}

#[test]
fn offsets_of_an_old_client_for_an_unadded_group_are_refused() {
    let (_broker, mut client) = started(&[]);
    let mut producer = Producer::begin(&mut client, "id", OLD);
    let request = producer.request("g", &[(0, 5)]);
    for (version, code) in [(2, ErrorCode::INVALID_TXN_STATE), (4, ErrorCode::TRANSACTION_ABORTABLE)] {
        assert_eq!(Producer { version, ..producer }.send(&mut client, &request), code);
    }
    assert_eq!(producer.add(&mut client, "g"), OK);
    let stale = Producer { epoch: producer.epoch + 1, ..producer };
    assert_eq!(stale.add(&mut client, "g"), ErrorCode::PRODUCER_FENCED);
    assert_eq!(stale.send(&mut client, &stale.request("g", &[(0, 5)])), ErrorCode::INVALID_PRODUCER_EPOCH);
    let other = Producer { id: producer.id + 1, ..producer };
    assert_eq!(other.send(&mut client, &other.request("g", &[(0, 5)])), ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    assert_eq!(producer.send(&mut client, &producer.request("", &[(0, 5)])), ErrorCode::INVALID_GROUP_ID);
    let unknown = producer.request("g", &[(9, 5)]);
    assert_eq!(producer.send(&mut client, &unknown), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(producer.send(&mut client, &request), OK);
    producer.end(&mut client, false);
    // A new producer with the same id fences the first producer, whose request is then refused.
    let next = Producer::begin(&mut client, "id", NEW);
    let zombie = Producer { version: NEW, ..producer };
    assert_eq!(zombie.send(&mut client, &request), ErrorCode::INVALID_PRODUCER_EPOCH);
    next.commit(&mut client, "g", &[(0, 6)]);
}

#[test]
fn commit_with_too_much_metadata_creates_no_group() {
    let (_broker, mut client) = started(&["fullbore.groups.max=1"]);
    let too_large = Some(Text::from("m".repeat(5_000).as_str()));
    let partition = OffsetCommitRequestPartition { committed_metadata: too_large.clone(), ..Default::default() };
    let plain = OffsetCommitRequest {
        group_id: Text::from("plain"),
        generation_id_or_member_epoch: -1,
        topics: vec![OffsetCommitRequestTopic {
            name: Text::from(TOPIC),
            partitions: vec![partition],
            ..Default::default()
        }],
        ..Default::default()
    };
    for version in [2, 9] {
        let code = client.call(&plain, version).topics[0].partitions[0].error_code;
        assert_eq!(code, ErrorCode::OFFSET_METADATA_TOO_LARGE, "version {version}");
    }
    for (version, id, group) in [(OLD, "old", "g-old"), (NEW, "new", "g-new")] {
        let mut producer = Producer::begin(&mut client, id, version);
        let mut request = producer.request(group, &[(0, 5)]);
        request.topics[0].partitions[0].committed_metadata = too_large.clone();
        if version == OLD {
            assert_eq!(producer.add(&mut client, group), OK);
        }
        assert_eq!(producer.send(&mut client, &request), ErrorCode::OFFSET_METADATA_TOO_LARGE);
        producer.end(&mut client, true);
    }
    assert!(client.call(&ListGroupsRequest::default(), 5).groups.is_empty());
    assert_eq!(commit_plain(&mut client, "good", 1), OK, "no other group counts");
}

#[test]
fn named_member_is_fenced_as_in_a_plain_commit() {
    let (broker, mut client) = started(QUICK);
    let producer = Producer::begin(&mut client, "id", NEW);
    let mut member = Member::new(&broker, "g");
    member.send_join();
    assert_eq!(member.joined().error_code, OK);
    member.send_sync();
    assert_eq!(member.synced().error_code, OK);
    let unnamed = producer.request("g", &[(0, 5)]);
    let named =
        TxnOffsetCommitRequest { member_id: member.id.clone(), generation_id: member.generation, ..unnamed.clone() };
    let old = TxnOffsetCommitRequest { generation_id: member.generation - 1, ..named.clone() };
    let stranger = TxnOffsetCommitRequest { member_id: "stranger".into(), ..named.clone() };
    let instance = TxnOffsetCommitRequest { group_instance_id: Some("nobody".into()), ..named.clone() };
    let elsewhere = TxnOffsetCommitRequest { group_id: "none".into(), ..named.clone() };
    for (request, code) in [
        (&old, ErrorCode::ILLEGAL_GENERATION),
        (&stranger, ErrorCode::UNKNOWN_MEMBER_ID),
        (&instance, ErrorCode::UNKNOWN_MEMBER_ID),
        (&elsewhere, ErrorCode::ILLEGAL_GENERATION),
        (&named, OK),
        (&unnamed, OK),
    ] {
        assert_eq!(producer.send(&mut client, request), code, "{request:?}");
    }
}

#[test]
fn plain_commit_after_one_in_a_transaction_is_kept() {
    let (_broker, mut client) = started(&[]);
    let mut producer = Producer::begin(&mut client, "id", NEW);
    producer.commit(&mut client, "g", &[(0, 5), (1, 5)]);
    assert_eq!(commit_plain(&mut client, "g", 3), OK);
    assert_eq!((stable(&mut client, "g", 0), fetch(&mut client, "g", 0, false)), (UNSTABLE, (OK, 3)));
    producer.end(&mut client, true);
    assert_eq!([0, 1].map(|at| stable(&mut client, "g", at)), [(OK, 3), (OK, 5)]);
}

#[test]
fn pending_offsets_survive_a_kill_and_end_with_their_transaction() {
    let (mut broker, mut client) = started(&[]);
    let mut done = Producer::begin(&mut client, "done", NEW);
    done.commit(&mut client, "g", &[(0, 1)]);
    done.end(&mut client, true);
    let mut open = [("open-old", OLD, 1), ("open-new", NEW, 2)].map(|(id, version, partition)| {
        let producer = Producer::begin(&mut client, id, version);
        producer.commit(&mut client, "g", &[(partition, 5)]);
        producer
    });
    // The broker is killed right after it has acknowledged the commit.
    done.commit(&mut client, "h", &[(0, 8)]);
    done.end(&mut client, true);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    wait_until("the groups are loaded", SOON, || client.call(&describe("g"), 8).groups[0].error_code == OK);
    assert_eq!([0, 1, 2].map(|at| stable(&mut client, "g", at)), [(OK, 1), UNSTABLE, UNSTABLE]);
    wait_until("the decision is carried out", SOON, || stable(&mut client, "h", 0) == (OK, 8));
    open[0].end(&mut client, true);
    open[1].end(&mut client, false);
    wait_until("both ended", SOON, || [1, 2].map(|at| stable(&mut client, "g", at)) == [(OK, 5), (OK, -1)]);
}

fn describe(group: &str) -> OffsetFetchRequest {
    let requested =
        OffsetFetchRequestGroup { group_id: Text::from(group), member_epoch: -1, topics: None, ..Default::default() };
    OffsetFetchRequest { groups: vec![requested], ..Default::default() }
}

#[test]
fn next_producer_of_the_id_drops_pending_offsets() {
    let (_broker, mut client) = started(&[]);
    let first = Producer::begin(&mut client, "id", NEW);
    first.commit(&mut client, "g", &[(0, 5)]);
    assert_eq!(stable(&mut client, "g", 0), UNSTABLE);
    let mut second = Producer::begin(&mut client, "id", NEW);
    assert_eq!(stable(&mut client, "g", 0), (OK, -1));
    second.commit(&mut client, "g", &[(0, 6)]);
    second.end(&mut client, true);
    assert_eq!(stable(&mut client, "g", 0), (OK, 6));
}

#[test]
fn deleted_group_gets_no_offset_from_its_open_transaction() {
    let (_broker, mut client) = started(&[]);
    let mut producer = Producer::begin(&mut client, "id", NEW);
    producer.commit(&mut client, "g", &[(0, 5)]);
    let request = DeleteGroupsRequest { groups_names: vec!["g".into()], ..Default::default() };
    assert_eq!(client.call(&request, 2).results[0].error_code, OK);
    assert_eq!(stable(&mut client, "g", 0), (OK, -1));
    producer.end(&mut client, true);
    assert_eq!(stable(&mut client, "g", 0), (OK, -1));
}
