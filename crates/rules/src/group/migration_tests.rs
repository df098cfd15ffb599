//! Tests of migrations in both directions, member by member. The members' assignments are checked.

use super::compacted_log::CompactedLog;
use super::consumer::{Call, JOINING, LEAVING, Migration, TopicIdPartition};
use super::*;
use bytes::Bytes;
use fullbore_wire::Text;
use fullbore_wire::Uuid;
use fullbore_wire::apis::consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use fullbore_wire::apis::sync_group::{SyncGroupRequestAssignment, SyncGroupResponse};
use fullbore_wire::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};

const T: Uuid = Uuid([7; 16]);

/// A cluster with a single topic, `t`, that has four partitions.
struct OneTopic;

impl Topics for OneTopic {
    fn version(&self) -> u64 {
        1
    }
    fn find(&self, name: &str) -> Option<(Uuid, i32)> {
        (name == "t").then_some((T, 4))
    }
}

struct Bench {
    group: Group,
    settings: GroupSettings,
    now: i64,
    tickets: u64,
    log: CompactedLog,
}

impl Bench {
    fn new(migration: Migration) -> Bench {
        let classic = classic::ClassicGroupSettings {
            session_timeout_min_ms: 1_000,
            session_timeout_max_ms: 60_000,
            initial_rebalance_delay_ms: 0,
            members_max: 10,
        };
        let consumer = consumer::ConsumerGroupSettings { assignment_interval_ms: 0, migration, ..Default::default() };
        let settings = GroupSettings { classic, consumer };
        Bench { group: Group::new(settings, 0), settings, now: 0, tickets: 0, log: CompactedLog::default() }
    }

    /// Writes the records to the log. Checks that the log then has no parts of any other group, and that a replay
    /// restores the group.
    fn written(&mut self, effects: Effects) -> Effects {
        for effect in &effects {
            if let Effect::Keep(change) = effect {
                self.log.write(change.clone());
            }
        }
        if let Some(snapshot) = self.group.take_snapshot() {
            self.log.write(Change::whole(snapshot));
        }
        assert_eq!(self.log.parts_len(), self.log.parts().len());
        if self.group.protocol() == Protocol::Consumer {
            assert_eq!(self.log.records(), self.group.records());
            assert_eq!(self.restored(&self.log.records()).records(), self.group.records());
        }
        effects
    }

    /// Returns the group that a replay of these records gives.
    fn restored(&self, records: &Change) -> Group {
        let parts = records.parts.iter().filter_map(|(key, value)| Some((*key, value.clone()?))).collect();
        let (topics, settings, now) = (&OneTopic, self.settings, self.now);
        let restoring = Restoring { topics, settings, fresh_parts_id: Uuid([8; 16]), now };
        Group::restore(records.group.as_ref().expect("a record"), &parts, &restoring).expect("ours")
    }

    fn ticket(&mut self) -> RequestTicket {
        self.tickets += 1;
        RequestTicket(self.tickets)
    }

    fn join_later(&mut self, id: &str, version: i16, owned: &[i32]) -> (RequestTicket, Effects) {
        let nth = if self.tickets == 0 { String::new() } else { self.tickets.to_string() };
        self.join_anew(id, &Text::from(format!("new{nth}")), version, owned)
    }

    /// Sends a JoinGroup. A member without an id is given `new_member_id`.
    fn join_anew(&mut self, id: &str, new_member_id: &Text, version: i16, owned: &[i32]) -> (RequestTicket, Effects) {
        let subscription = ConsumerProtocolSubscription {
            topics: vec![Text::from("t")],
            owned_partitions: of_t(owned),
            ..Default::default()
        };
        let protocol = JoinGroupRequestProtocol {
            name: Text::from("range"),
            metadata: consumer_protocol::encode(&subscription, 1).expect("small"),
            ..Default::default()
        };
        let request = JoinGroupRequest {
            group_id: Text::from("g"),
            member_id: Text::from(id),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 20_000,
            protocol_type: Text::from("consumer"),
            protocols: vec![protocol],
            ..Default::default()
        };
        let (client_id, client_host) = ("c", "/h");
        let joining = Joining { request: &request, version, client_id, client_host, new_member_id };
        let (ticket, mut effects) = (self.ticket(), Effects::new());
        self.group.join(joining, &OneTopic, ticket, self.now, &mut effects);
        (ticket, self.written(effects))
    }

    /// Sends a JoinGroup that must get its response at once.
    fn join(&mut self, id: &str, owned: &[i32]) -> JoinGroupResponse {
        let (ticket, effects) = self.join_later(id, 3, owned);
        match answer(effects, ticket) {
            Some(GroupAnswer::Join(response)) => *response,
            other => panic!("{other:?}"),
        }
    }

    fn sync(&mut self, id: &str, generation: i32, assign: &[(&str, &[i32])]) -> SyncGroupResponse {
        let assignment = |(id, partitions): &(&str, &[i32])| SyncGroupRequestAssignment {
            member_id: Text::from(*id),
            assignment: assignment(partitions),
            ..Default::default()
        };
        let request = SyncGroupRequest {
            group_id: Text::from("g"),
            generation_id: generation,
            member_id: Text::from(id),
            assignments: assign.iter().map(assignment).collect(),
            ..Default::default()
        };
        let (ticket, mut effects) = (self.ticket(), Effects::new());
        self.group.sync(&request, ticket, self.now, &mut effects);
        match answer(self.written(effects), ticket) {
            Some(GroupAnswer::Sync(response)) => *response,
            other => panic!("{other:?}"),
        }
    }

    fn alive(&mut self, id: &str, generation: i32) -> ErrorCode {
        let request = HeartbeatRequest {
            group_id: Text::from("g"),
            generation_id: generation,
            member_id: Text::from(id),
            ..Default::default()
        };
        let (ticket, mut effects) = (self.ticket(), Effects::new());
        self.group.heartbeat(&request, ticket, self.now, &mut effects);
        match answer(effects, ticket) {
            Some(GroupAnswer::Heartbeat(code)) => code,
            other => panic!("{other:?}"),
        }
    }

    fn heartbeat(&mut self, id: &str, epoch: i32) -> ConsumerGroupHeartbeatResponse {
        let joins = epoch == JOINING;
        let request = ConsumerGroupHeartbeatRequest {
            group_id: Text::from("g"),
            member_id: Text::from(id),
            member_epoch: epoch,
            rebalance_timeout_ms: if joins { 10_000 } else { -1 },
            subscribed_topic_names: joins.then(|| vec![Text::from("t")]),
            topic_partitions: joins.then(Vec::new),
            ..Default::default()
        };
        let call = Call {
            request: &request,
            fresh_id: Text::default(),
            fresh_parts_id: Uuid([9; 16]),
            client_id: "c",
            client_host: "/h",
            resolved: Vec::new(),
            resolved_version: 1,
        };
        let (ticket, mut effects) = (self.ticket(), Effects::new());
        self.group.consumer_heartbeat(call, &OneTopic, self.settings, ticket, self.now, &mut effects);
        match answer(self.written(effects), ticket) {
            Some(GroupAnswer::ConsumerHeartbeat(response)) => *response,
            other => panic!("{other:?}"),
        }
    }

    fn tick(&mut self) -> Effects {
        let mut effects = Effects::new();
        self.group.tick(self.now, &mut effects);
        self.written(effects)
    }

    /// Returns a classic group whose only member, `new`, has all partitions of the topic.
    fn classic(migration: Migration) -> Bench {
        let mut bench = Bench::new(migration);
        let (ticket, effects) = bench.join_later("", 3, &[]);
        assert!(answer(effects, ticket).is_none(), "it waits for others");
        let effects = bench.tick();
        let Some(GroupAnswer::Join(joined)) = answer(effects, ticket) else { panic!("alone, it is joined") };
        let id = joined.member_id.to_string();
        assert_eq!(id, "new");
        let synced = bench.sync(&id, 1, &[("new", &[0, 1, 2, 3])]);
        assert_eq!(synced.error_code, ErrorCode::NONE);
        bench
    }

    fn commit(&mut self, id: &str, generation: i32) -> Result<(), ErrorCode> {
        let committer = Committer { member_id: id, instance_id: None, generation, version: 9, is_transactional: false };
        self.group.check_commit(&committer, self.now)?;
        self.group.check_commit_of(&committer, &TopicIdPartition { topic: T, index: 0 })
    }
}

fn answer(effects: Effects, requested: RequestTicket) -> Option<GroupAnswer> {
    effects.into_iter().find_map(|effect| match effect {
        Effect::Answer(ticket, answer) if ticket == requested => Some(answer),
        _ => None,
    })
}

fn of_t(partitions: &[i32]) -> Vec<TopicPartition> {
    vec![TopicPartition { topic: Text::from("t"), partitions: partitions.to_vec(), ..Default::default() }]
}

fn assignment(partitions: &[i32]) -> Bytes {
    let message = ConsumerProtocolAssignment { assigned_partitions: of_t(partitions), ..Default::default() };
    consumer_protocol::encode(&message, 1).expect("small")
}

fn assigned(bytes: Bytes) -> Vec<i32> {
    let (_, message) = consumer_protocol::decode::<ConsumerProtocolAssignment>(bytes).expect("one of ours");
    message.assigned_partitions.into_iter().flat_map(|topic| topic.partitions).collect()
}

fn given(response: &ConsumerGroupHeartbeatResponse) -> Option<Vec<i32>> {
    let assignment = response.assignment.as_ref()?;
    Some(assignment.topic_partitions.iter().flat_map(|topic| topic.partitions.clone()).collect())
}

#[test]
fn group_migrates_and_returns_no_partition_is_read_twice() {
    let mut bench = Bench::classic(Migration::Bidirectional);
    let joined = bench.heartbeat("k1", JOINING);
    assert_eq!((joined.error_code, joined.member_epoch), (ErrorCode::NONE, 2));
    assert_eq!(given(&joined), Some(vec![]), "the classic member has it all");
    assert_eq!(bench.group.protocol(), Protocol::Consumer);
    assert_eq!(bench.commit("new", 1), Ok(()), "it may commit in its generation");
    assert_eq!(bench.alive("new", 1), ErrorCode::REBALANCE_IN_PROGRESS);

    // The classic member rejoins and claims all partitions. It must give up two of them, so it stays in its generation
    // for now.
    let again = bench.join("new", &[0, 1, 2, 3]);
    assert_eq!((again.error_code, again.generation_id), (ErrorCode::NONE, 1));
    assert_eq!((again.protocol_name.as_deref(), &*again.leader), (Some("range"), ""));
    assert_eq!(assigned(bench.sync("new", 1, &[]).assignment), [0, 1]);
    assert_eq!(given(&bench.heartbeat("k1", 2)), None, "nothing is free yet");
    assert_eq!(bench.alive("new", 1), ErrorCode::REBALANCE_IN_PROGRESS, "it has to say that it gave them up");
    let done = bench.join("new", &[0, 1]);
    assert_eq!(done.generation_id, 2);
    assert_eq!(assigned(bench.sync("new", 2, &[]).assignment), [0, 1]);
    assert_eq!(given(&bench.heartbeat("k1", 2)), Some(vec![2, 3]));
    assert_eq!(bench.alive("new", 2), ErrorCode::NONE);
    assert_eq!(bench.group.state(), GroupState::Stable);
    assert_eq!(bench.alive("new", 1), ErrorCode::ILLEGAL_GENERATION);
    assert_eq!(bench.alive("k1", 2), ErrorCode::UNKNOWN_MEMBER_ID, "it does not speak the classic protocol");

    // The last member that uses the consumer protocol leaves. The group becomes classic again, in the generation that
    // the remaining member knows.
    bench.heartbeat("k1", LEAVING);
    assert_eq!((bench.group.protocol(), bench.group.state()), (Protocol::Classic, GroupState::PreparingRebalance));
    assert_eq!(bench.log.parts_len(), 0, "a classic group has a single record");
    assert_eq!(bench.commit("new", 2), Ok(()), "it may commit what it has before it joins again");
    assert_eq!(bench.alive("new", 2), ErrorCode::REBALANCE_IN_PROGRESS);
    assert_eq!(bench.join("new", &[0, 1]).generation_id, 3);
}

#[test]
fn classic_member_that_does_not_rejoin_is_fenced() {
    let mut bench = Bench::classic(Migration::Bidirectional);
    bench.heartbeat("k1", JOINING);
    for second in 1..=20 {
        bench.now = second * 1_000;
        bench.alive("new", 1);
    }
    bench.now = 21_001;
    bench.tick();
    assert_eq!(bench.alive("new", 1), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(given(&bench.heartbeat("k1", 2)), Some(vec![0, 1, 2, 3]));
}

#[test]
fn migration_policy_allows_or_refuses_the_migration() {
    let mut bench = Bench::classic(Migration::Downgrade);
    let refused = bench.heartbeat("k1", JOINING);
    assert_eq!(refused.error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    assert!(refused.error_message.is_some_and(|why| why.contains("online upgrade is disabled")));
    assert_eq!(bench.alive("new", 1), ErrorCode::NONE, "nothing has happened to the classic group");

    let mut bench = Bench::classic(Migration::Upgrade);
    bench.heartbeat("k1", JOINING);
    bench.heartbeat("k1", LEAVING);
    assert_eq!(bench.group.protocol(), Protocol::Consumer, "it does not go back");

    let mut bench = Bench::new(Migration::Disabled);
    bench.heartbeat("k1", JOINING);
    assert_eq!(bench.join("", &[]).error_code, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
}

#[test]
fn empty_group_takes_the_protocol_of_its_first_member() {
    let mut bench = Bench::new(Migration::Disabled);
    let joined = bench.heartbeat("k1", JOINING);
    assert_eq!(given(&joined), Some(vec![0, 1, 2, 3]));
    bench.heartbeat("k1", LEAVING);
    let (ticket, _) = bench.join_later("", 3, &[]);
    let effects = bench.tick();
    let Some(GroupAnswer::Join(joined)) = answer(effects, ticket) else { panic!("it is joined") };
    assert_eq!(bench.group.protocol(), Protocol::Classic);
    assert!(joined.generation_id > 2, "generations go on after the epochs");
}

#[test]
fn member_that_waits_in_a_migration_rejoins() {
    let mut bench = Bench::classic(Migration::Bidirectional);
    let (ticket, effects) = bench.join_later("", 3, &[]);
    assert!(answer(effects, ticket).is_none(), "it waits for the first member");
    let (waiting, mut effects) = (ticket, Effects::new());
    let request = ConsumerGroupHeartbeatRequest {
        group_id: Text::from("g"),
        member_id: Text::from("k1"),
        rebalance_timeout_ms: 1,
        subscribed_topic_names: Some(vec![Text::from("t")]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let call = Call {
        request: &request,
        fresh_id: Text::default(),
        fresh_parts_id: Uuid([9; 16]),
        client_id: "",
        client_host: "",
        resolved: Vec::new(),
        resolved_version: 1,
    };
    bench.group.consumer_heartbeat(call, &OneTopic, bench.settings, RequestTicket(99), 0, &mut effects);
    let Some(GroupAnswer::Join(refused)) = answer(effects, waiting) else { panic!("it is answered") };
    assert_eq!(refused.error_code, ErrorCode::REBALANCE_IN_PROGRESS);
}

/// Clients choose their own names, and an id may be longer than any text in a response. The group must still be
/// restored.
#[test]
fn group_with_a_long_member_id_is_restored_from_its_records() {
    let long = Text::from("i".repeat(40_000));
    let mut bench = Bench::new(Migration::Bidirectional);
    bench.settings.consumer.session_timeout_ms = 5_000;
    bench.heartbeat("k1", JOINING);
    let (ticket, effects) = bench.join_anew("", &long, 3, &[]);
    assert!(matches!(answer(effects, ticket), Some(GroupAnswer::Join(joined)) if joined.member_id == long));
    let is_read_again = |bench: &Bench| {
        assert_eq!(bench.restored(&bench.group.records()).records(), bench.group.records());
    };
    is_read_again(&bench);
    bench.now = 6_000;
    bench.tick();
    assert_eq!(
        bench.group.protocol(),
        Protocol::Classic,
        "the member of the consumer protocol was silent for too long"
    );
    is_read_again(&bench);
}
