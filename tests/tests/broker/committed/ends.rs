//! How committed offsets end: by OffsetDelete, DeleteGroups, the deletion of their topic, or retention.

use super::*;

#[test]
fn offsets_of_partitions_without_a_consumer_are_deleted() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let mut client = broker.client();
    let (read, unread, group) = (unique("read"), unique("unread"), unique("forget"));
    client.create_topic(&read, 1, &[]);
    client.create_topic(&unread, 1, &[]);
    let none: (ErrorCode, Vec<ErrorCode>) = (ErrorCode::GROUP_ID_NOT_FOUND, vec![]);
    assert_eq!(delete_offsets(&mut client, &group, &[(&read, 0)]), none);
    assert_eq!(delete_offsets(&mut client, "", &[(&read, 0)]).0, ErrorCode::INVALID_GROUP_ID);
    for name in [&read, &unread] {
        assert_eq!(commit(&mut client, &group, name, 1), OK);
    }
    let member = join(&mut client, &group, "consumer", None, &[&read]);
    sync(&mut client, &group, &member);
    let mut found = delete_offsets(&mut client, &group, &[(&read, 0), (&unread, 0), ("nowhere", 0)]);
    found.1.sort();
    assert_eq!(found, (OK, vec![OK, UNKNOWN, ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC]));
    assert_eq!((committed(&mut client, &group, &read), committed(&mut client, &group, &unread)), (1, -1));
    leave(&mut client, &group, &member);
    assert_eq!(delete_offsets(&mut client, &group, &[(&read, 0)]), (OK, vec![OK]));
    assert_eq!(committed(&mut client, &group, &read), -1);
    assert_eq!(delete_offsets(&mut client, &group, &[(&read, 0)]), (OK, vec![OK]), "nothing to delete is no error");

    let connect = unique("connect");
    let member = join(&mut client, &connect, "connect", None, &[]);
    sync(&mut client, &connect, &member);
    assert_eq!(delete_offsets(&mut client, &connect, &[(&read, 0)]), (ErrorCode::NON_EMPTY_GROUP, vec![]));
}

#[test]
fn groups_without_members_are_deleted_with_their_offsets() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let mut client = broker.client();
    let name = unique("gone");
    client.create_topic(&name, 1, &[]);
    let missing = ErrorCode::GROUP_ID_NOT_FOUND;
    for version in 0..=2 {
        let (group, other) = (unique("a-gone"), unique("b-gone"));
        assert_eq!(commit(&mut client, &group, &name, 1), OK);
        let member = join(&mut client, &other, "consumer", None, &[&name]);
        let results = delete_groups(&mut client, &[&group, &other, "c-nobody"], version);
        assert_eq!(
            results,
            [(group.clone(), OK), (other.clone(), ErrorCode::NON_EMPTY_GROUP), ("c-nobody".to_owned(), missing)]
        );
        assert_eq!(committed(&mut client, &group, &name), -1);
        leave(&mut client, &other, &member);
        assert_eq!(delete_groups(&mut client, &[&group, &other], version), [(group, missing), (other, OK)]);
    }
}

#[test]
fn a_topic_created_again_has_no_old_offsets() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (name, group) = (unique("again"), unique("again"));
    client.create_topic(&name, 1, &[]);
    assert_eq!(commit(&mut client, &group, &name, 9), OK);
    client.delete_topic(&name);
    // Kafka responds before it has deleted the offsets. Fullbore would not need this wait.
    wait_until("the offsets are gone", DONE_MAX, || committed(&mut client, &group, &name) == -1);
    assert_eq!(commit(&mut client, &group, &name, 9), UNKNOWN);
    client.create_topic(&name, 1, &[]);
    assert_eq!(committed(&mut client, &group, &name), -1);
    assert_eq!(all(&mut client, &group, 9), []);
    assert_eq!(commit(&mut client, &group, &name, 2), OK);
    assert_eq!(committed(&mut client, &group, &name), 2);
}

/// Commits an offset with a retention time in the request, as old clients do.
fn commit_for(client: &mut Client, group: &str, name: &str, index: i32, retention_time_ms: i64) {
    let topics = vec![topic(name, Uuid::ZERO, vec![partition(index, 1, None)])];
    let response = client.call(&OffsetCommitRequest { retention_time_ms, ..commit_request(group, topics) }, 3);
    assert_eq!(codes(&response), [[OK]]);
}

#[test]
fn offsets_expire_after_the_retention_of_the_client() {
    let mut broker = Broker::start(&["offsets.retention.check.interval.ms=20"]);
    let mut client = broker.client();
    client.create_topic("t", 3, &[]);
    for group in ["short", "both"] {
        commit_for(&mut client, group, "t", 0, 1);
    }
    for (group, retention) in [("both", 3_600_000), ("brokers", -1)] {
        commit_for(&mut client, group, "t", 1, retention);
    }
    let partitions = |client: &mut Client, group: &str| -> Vec<i32> {
        all(client, group, 9).into_iter().map(|(_, partition, ..)| partition).collect()
    };
    wait_until("the short ones have expired", DONE_MAX, || {
        partitions(&mut client, "short").is_empty() && partitions(&mut client, "both") == [1]
    });
    assert_eq!(partitions(&mut client, "brokers"), [1]);
    wait_until("a group with nothing left is gone", DONE_MAX, || {
        delete_offsets(&mut client, "short", &[]).0 == ErrorCode::GROUP_ID_NOT_FOUND
    });
    commit_for(&mut client, "short", "t", 2, -1);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(["short", "both", "brokers"].map(|group| partitions(&mut client, group)), [[2], [1], [1]]);
}

/// The groups commit again while the broker is still deleting their former offsets.
#[test]
fn commits_to_a_topic_created_again_survive_a_restart() {
    const GROUPS: usize = 300;
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("again", 1, &[]);
    let commit_all = |client: &mut Client, offset: i64| {
        for group in 0..GROUPS {
            let partitions = vec![partition(0, offset, None)];
            client.send(&commit_request(&format!("g{group}"), vec![topic("again", Uuid::ZERO, partitions)]), COMMIT);
        }
        for _ in 0..GROUPS {
            assert_eq!(codes(&client.receive::<OffsetCommitRequest>(COMMIT).1), [[OK]]);
        }
    };
    for round in 0..4 {
        commit_all(&mut client, 2 * round);
        client.delete_topic("again");
        client.create_topic("again", 1, &[]);
        commit_all(&mut client, 2 * round + 1);
        broker.kill();
        broker.restart();
        client = broker.client();
        for group in 0..GROUPS {
            assert_eq!(committed(&mut client, &format!("g{group}"), "again"), 2 * round + 1, "g{group}");
        }
    }
}
