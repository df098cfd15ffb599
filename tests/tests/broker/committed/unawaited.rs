//! Commits whose committer sends on before it is answered, as `commitAsync` does, or hangs up.

use super::*;

fn one(group: &str, offset: i64) -> OffsetCommitRequest {
    commit_request(group, vec![topic("unawaited", Uuid::ZERO, vec![partition(0, offset, None)])])
}

fn fetch(group: &str) -> OffsetFetchRequest {
    OffsetFetchRequest { groups: vec![fetch_group(group)], ..Default::default() }
}

#[test]
fn what_is_asked_after_a_commit_on_its_connection_sees_it() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("unawaited", 1, &[]);
    let groups = [unique("a"), unique("b")];
    for round in 0..50 {
        // Ten for each, in turn, and after each of the last a look.
        for offset in round * 10..round * 10 + 10 {
            groups.iter().for_each(|group| _ = client.send(&one(group, offset), COMMIT));
        }
        groups.iter().for_each(|group| _ = client.send(&fetch(group), FETCH));
        for _ in 0..20 {
            assert_eq!(codes(&client.receive::<OffsetCommitRequest>(COMMIT).1), [[OK]]);
        }
        for _ in &groups {
            let found = client.receive::<OffsetFetchRequest>(FETCH).1;
            assert_eq!(found.groups[0].topics[0].partitions[0].committed_offset, round * 10 + 9);
        }
    }
}

#[test]
fn a_commit_is_written_although_its_committer_hangs_up() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("unawaited", 1, &[]);
    let group = unique("gone");
    for offset in 0..20 {
        let mut gone = broker.client();
        gone.send(&one(&group, offset), COMMIT);
        gone.finish();
        drop(gone);
        // Nobody else asks anything of the queue meanwhile: a fetch only looks.
        wait_until("the offset is there", DONE_MAX, || committed(&mut client, &group, "unawaited") == offset);
    }
}
