//! Static members of a classic group that return at the same time, on real logs.

use super::joins::TWO_IN_SYNC;
use super::*;
use fullbore_wire::apis::join_group::JoinGroupResponse;
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

const ONE_PARTITION: &str = "offsets.topic.num.partitions=1";
const MEMBERS: usize = 40;
const METADATA_BYTES: usize = 4096;

impl Opened {
    /// Sends the JoinGroup of the static member with this number, as after its restart.
    fn come(&self, number: usize) -> PendingAnswer {
        let request = JoinGroupRequest {
            group_instance_id: Some(Text::from(format!("i{number}"))),
            protocols: vec![JoinGroupRequestProtocol {
                name: "range".into(),
                metadata: vec![0; METADATA_BYTES].into(),
                ..Default::default()
            }],
            ..join_request("consumer")
        };
        let member_id = Text::from(format!("m{number}-{}", uuid::Uuid::new_v4()));
        let image = self.control.image();
        self.groups.put_to(&"g".into(), Missing::Create, |group, ticket, now, effects| {
            group.join(joining(&request, &member_id), &*image, ticket, now, effects);
        })
    }

    /// Makes the group `g` stable with static members, and returns the id of the last one.
    async fn make_stable(&self) {
        let joins: Vec<_> = (0..MEMBERS).map(|number| self.come(number)).collect();
        self.end_join();
        let mut ids = Vec::new();
        let mut leader = Text::default();
        for join in joins {
            let response = joined(join.answer().await).expect("joined");
            leader = response.leader;
            ids.push(response.member_id);
        }
        let assign = |id: &Text| SyncGroupRequestAssignment { member_id: id.clone(), ..Default::default() };
        let request = SyncGroupRequest {
            generation_id: 1,
            member_id: leader,
            assignments: ids.iter().map(assign).collect(),
            ..Default::default()
        };
        let synced = self.groups.put_to(&"g".into(), Missing::Create, |group, ticket, now, effects| {
            group.sync(&request, ticket, now, effects);
        });
        assert!(matches!(synced.answer().await, GroupAnswer::Sync(response) if response.error_code == ErrorCode::NONE));
    }

    /// Ends the group's wait for other members, as if its deadline had passed.
    fn end_join(&self) {
        let entry = self.groups.find("g").expect("there");
        let mut inner = entry.lock();
        let mut effects = Effects::new();
        while inner.group.state() == GroupState::PreparingRebalance {
            let deadline = inner.group.next_deadline().expect("it waits for members");
            inner.group.tick(deadline, &mut effects);
        }
        self.groups.follow(&entry, inner, effects);
    }

    fn queued_bytes(&self) -> usize {
        self.groups.find("g").map_or(0, |entry| entry.lock().queued_bytes())
    }

    /// Returns the size of the log of the group's shard.
    fn log_bytes(&self) -> u64 {
        self.groups.serving("g").expect("it serves").partition().size().expect("open")
    }
}

fn joined(answer: GroupAnswer) -> Result<JoinGroupResponse, ErrorCode> {
    match answer {
        GroupAnswer::Join(response) if response.error_code == ErrorCode::NONE => Ok(*response),
        GroupAnswer::Join(response) => Err(response.error_code),
        GroupAnswer::Refused(code) => Err(code),
        answer => panic!("{answer:?}"),
    }
}

/// Each of 1,000 joins used to write the whole group, which has 3 KB per member. Together they wrote 3 GB.
#[tokio::test]
async fn static_members_returning_together_the_group_is_written_once() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), ONE_PARTITION).await;
    opened.make_stable().await;
    let (before, whole) = (opened.log_bytes(), MEMBERS * METADATA_BYTES);
    assert!(before > whole as u64, "the group has been written");
    let mut most = 0;
    let joins: Vec<_> = (0..MEMBERS)
        .map(|number| {
            let join = opened.come(number);
            most = most.max(opened.queued_bytes());
            join
        })
        .collect();
    for join in joins {
        let response = joined(join.answer().await).expect("joined");
        assert_eq!(response.generation_id, 1, "no rebalance");
    }
    let written = opened.log_bytes() - before;
    assert!(most < 2 * whole, "{most} bytes queued, the group has {whole}");
    assert!((whole as u64..2 * whole as u64).contains(&written), "{written} bytes written, the group has {whole}");
    let records = opened.records();
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(opened.records(), records, "the record has every new member id");
    opened.close();
}

#[tokio::test]
async fn static_joins_whose_write_failed_are_refused_and_the_next_write_has_them() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), TWO_IN_SYNC).await;
    opened.make_stable().await;
    opened.fail_writes();
    let (before, end) = (opened.records(), opened.log_bytes());
    let joins: Vec<_> = (1..MEMBERS).map(|number| opened.come(number)).collect();
    for join in joins {
        assert_eq!(joined(join.answer().await), Err(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    }
    assert_eq!(opened.log_bytes(), end);
    opened.allow_writes();
    joined(opened.come(0).answer().await).expect("joined");
    let after = opened.records();
    assert_ne!(after, before);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(opened.records(), after);
    opened.close();
}

/// A group that is rebalancing must not be written, because a broker that restores it would find members without
/// partitions.
#[tokio::test]
async fn stable_group_that_rebalances_before_the_write_is_written_as_it_was() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), ONE_PARTITION).await;
    opened.make_stable().await;
    let join = opened.come(1);
    let stable = opened.records();
    let leaving = MemberIdentity { group_instance_id: Some("i2".into()), ..Default::default() };
    let left = opened.groups.put_to(&"g".into(), Missing::Create, |group, ticket, now, effects| {
        group.leave(&[leaving], ticket, now, effects);
    });
    joined(join.answer().await).expect("joined");
    left.answer().await;
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(opened.records(), stable);
    opened.close();
}
