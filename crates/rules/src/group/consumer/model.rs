//! A model of a group whose members join, leave, die, change their subscriptions, and lose requests and responses.
//!
//! A client *reads* a partition from the response that assigns it, until it sends a heartbeat that does not list the
//! partition, or is fenced. After every step, no two clients may read the same partition. When nothing changes any
//! more, the clients together must read all subscribed partitions, in even shares.
//!
//! The model processes a member's heartbeats in the order in which they were sent. This is also true of a real broker:
//! a client has only one heartbeat in flight, and a connection keeps the order.

use super::assignor::Assignor;
use super::*;
use crate::group::compacted_log::CompactedLog;
use fullbore_schedules::{Random, run_each_list};
use fullbore_wire::apis::consumer_group_heartbeat::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};

const CLIENTS: usize = 5;
const TOPICS: [&str; 3] = ["a1", "a2", "b1"];
const SESSION_MS: i32 = 1_000;
const REBALANCE_MS: i32 = 600;

#[derive(Clone, Debug)]
enum Step {
    Join {
        client: usize,
    },
    Heartbeat {
        client: usize,
        fate: Fate,
        full: bool,
    },
    /// The client gives up the partitions that are no longer assigned to it.
    Revoke {
        client: usize,
    },
    Leave {
        client: usize,
        to_return: bool,
    },
    Die {
        client: usize,
    },
    Subscribe {
        client: usize,
        topics: u8,
        regex: Option<u8>,
    },
    Grow {
        topic: usize,
    },
    Delete {
        topic: usize,
    },
    Pass {
        ms: i64,
    },
    Restart,
    /// The broker is replaced, and the new one restores the group from a snapshot in the layout of 0.1.0.
    Upgrade,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Arrives,
    RequestLost,
    AnswerLost,
    /// The connection breaks, and the client sends its heartbeat again, so the broker processes it twice. The second
    /// response arrives. The client's next heartbeat has all fields, because it has noticed the break.
    Twice,
}

fn step(random: &mut Random) -> Step {
    let client = random.below(CLIENTS);
    match random.below(37) {
        0..4 => Step::Join { client },
        4..18 => {
            let fate = match random.below(12) {
                0..8 => Fate::Arrives,
                8 => Fate::RequestLost,
                9..11 => Fate::AnswerLost,
                _ => Fate::Twice,
            };
            Step::Heartbeat { client, fate, full: random.one_in(2) }
        }
        18..26 => Step::Revoke { client },
        26 => Step::Leave { client, to_return: random.one_in(2) },
        27 => Step::Die { client },
        28..30 => {
            let regex = (random.below(10) < 3).then(|| random.between(0, 2));
            Step::Subscribe { client, topics: random.between(0, 8), regex }
        }
        30 => Step::Grow { topic: random.below(TOPICS.len()) },
        31 => Step::Delete { topic: random.below(TOPICS.len()) },
        32..35 => Step::Pass { ms: random.between(1, 400) },
        35 => Step::Restart,
        _ => Step::Upgrade,
    }
}

#[derive(Clone, Debug)]
struct Table {
    version: u64,
    topics: BTreeMap<String, (Uuid, i32)>,
}

impl Topics for Table {
    fn version(&self) -> u64 {
        self.version
    }
    fn find(&self, name: &str) -> Option<(Uuid, i32)> {
        self.topics.get(name).copied()
    }
}

#[derive(Clone, Debug, Default)]
struct Client {
    id: Text,
    instance_id: Option<Text>,
    /// True if the client wants to be in the group.
    joined: bool,
    epoch: i32,
    topics: Vec<Text>,
    regex: Option<Text>,
    /// The partitions that the client reads.
    reads: PartitionSet,
    /// The partitions in the last assignment.
    assigned: PartitionSet,
    /// The owned partitions in the last heartbeat that listed them and got a response.
    reported: Option<PartitionSet>,
    /// True if the client's next heartbeat must have all fields.
    full: bool,
    lives: u64,
}

impl Client {
    /// Drops all partitions. Used when a response refuses the client as a member, and when the client starts again.
    fn start_over(&mut self) {
        self.epoch = JOINING;
        self.reads.clear();
        self.assigned.clear();
        self.reported = None;
        self.full = true;
    }

    fn request(&mut self, full: bool) -> ConsumerGroupHeartbeatRequest {
        let full = full || self.full || self.epoch == JOINING;
        let report = full || self.reported.as_ref() != Some(&self.reads);
        ConsumerGroupHeartbeatRequest {
            group_id: Text::from("g"),
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            instance_id: self.instance_id.clone(),
            rebalance_timeout_ms: if full { REBALANCE_MS } else { -1 },
            subscribed_topic_names: full.then(|| self.topics.clone()),
            subscribed_topic_regex: full.then(|| self.regex.clone().unwrap_or_default()),
            topic_partitions: report.then(|| owned(&self.reads)),
            ..ConsumerGroupHeartbeatRequest::default()
        }
    }

    fn answered(&mut self, request: &ConsumerGroupHeartbeatRequest, answer: &ConsumerGroupHeartbeatResponse) {
        self.epoch = answer.member_epoch;
        self.full = false;
        if request.topic_partitions.is_some() {
            self.reported = Some(self.reads.clone());
        }
        if let Some(assignment) = &answer.assignment {
            self.assigned = assignment
                .topic_partitions
                .iter()
                .flat_map(|topic| {
                    topic.partitions.iter().map(|&index| TopicIdPartition { topic: topic.topic_id, index })
                })
                .collect();
            self.reads.extend(self.assigned.iter().copied());
        }
    }
}

fn owned(partitions: &PartitionSet) -> Vec<TopicPartitions> {
    super::heartbeat::by_topic(partitions.iter())
}

struct World {
    group: ConsumerGroup,
    /// The written records, from which a restart restores the group.
    log: CompactedLog,
    table: Table,
    clients: Vec<Client>,
    now: i64,
    settings: ConsumerGroupSettings,
    next_topic: u8,
}

impl World {
    fn new(assignors: &'static [Assignor], interval_ms: i32) -> World {
        let topics = TOPICS.iter().zip(1..).map(|(&name, n)| (name.to_owned(), (Uuid([n; 16]), i32::from(n) + 1)));
        let client = |n: usize| Client {
            id: Text::from(format!("m{n}-0")),
            instance_id: (n < 2).then(|| Text::from(format!("s{n}"))),
            topics: vec![Text::from("a1"), Text::from("b1")],
            ..Client::default()
        };
        let group = ConsumerGroup::new(0, Uuid([9; 16]), 0);
        World {
            log: CompactedLog::default(),
            group,
            table: Table { version: 1, topics: topics.collect() },
            clients: (0..CLIENTS).map(client).collect(),
            now: 1_000_000,
            settings: ConsumerGroupSettings {
                session_timeout_ms: SESSION_MS,
                heartbeat_interval_ms: 100,
                unsettled_interval_ms: 10,
                assignment_interval_ms: interval_ms,
                members_max: 4,
                assignors,
                is_enabled: true,
                migration: Migration::Bidirectional,
                regex_refresh_ms: 10_000,
            },
            next_topic: 100,
        }
    }

    /// Writes the records that must be written before a response is sent. Afterwards the log must give the same group,
    /// unless it still has a snapshot of 0.1.0.
    fn keep(&mut self) {
        if let Some(change) = self.group.take_change() {
            self.log.write(change);
        }
        if self.log.group.as_ref().is_some_and(|group| group.parts_id().is_some()) {
            assert_eq!(self.log.records(), self.group.records(), "the log has the group and nothing else");
            assert_eq!(self.log.parts_len(), self.log.parts().len());
            assert_eq!(self.restored().records(), self.group.records());
        }
    }

    /// Returns the group as a restart restores it.
    fn restored(&self) -> ConsumerGroup {
        let Some(snapshot) = &self.log.group else { return ConsumerGroup::new(0, Uuid([9; 16]), 0) };
        let state = snapshot.state.slice(1..);
        let restored = match snapshot.parts_id() {
            Some(_) => ConsumerGroup::restore(state, &self.log.parts(), &self.table, &self.settings, self.now),
            None => ConsumerGroup::restore_whole(state, Uuid([8; 16]), &self.settings, self.now),
        };
        restored.expect("our own records")
    }

    fn matching(&self, regex: &Text) -> (Text, BTreeSet<Text>) {
        let prefix = regex.trim_end_matches(".*");
        let topics = self.table.topics.keys().filter(|name| name.starts_with(prefix));
        (regex.clone(), topics.map(|name| Text::from(name.as_str())).collect())
    }

    fn process(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<ConsumerGroupHeartbeatResponse, GroupRefusal> {
        check_request(request, 1, &self.settings)?;
        let mut resolve: Vec<Text> = Vec::new();
        if self.group.regexes_are_due(self.table.version, &self.settings, self.now) {
            resolve.extend(self.group.regexes().cloned());
        }
        resolve.extend(request.subscribed_topic_regex.iter().filter(|regex| !regex.is_empty()).cloned());
        let call = Call {
            request,
            fresh_id: Text::from("fresh"),
            fresh_parts_id: Uuid::ZERO,
            client_id: "c",
            client_host: "/h",
            resolved: resolve.iter().map(|regex| self.matching(regex)).collect(),
            resolved_version: self.table.version,
        };
        let answer = self.group.heartbeat(call, &self.table, &self.settings, self.now);
        self.keep();
        answer
    }

    fn heartbeat(&mut self, n: usize, fate: Fate, full: bool) {
        if !self.clients[n].joined {
            return;
        }
        let request = self.clients[n].request(full);
        if fate == Fate::RequestLost {
            self.clients[n].full = true;
            return;
        }
        let mut answer = self.process(&request);
        if fate == Fate::Twice {
            answer = self.process(&request);
        }
        if fate == Fate::AnswerLost {
            self.clients[n].full = true;
            return;
        }
        match answer {
            Ok(answer) => {
                let reported = answer.heartbeat_interval_ms;
                assert!(
                    (self.settings.unsettled_interval_ms..=self.settings.heartbeat_interval_ms).contains(&reported)
                );
                self.clients[n].answered(&request, &answer);
                self.clients[n].full = fate == Fate::Twice;
            }
            Err(refusal) => match refusal.code {
                ErrorCode::FENCED_MEMBER_EPOCH | ErrorCode::UNKNOWN_MEMBER_ID => self.clients[n].start_over(),
                ErrorCode::GROUP_MAX_SIZE_REACHED
                | ErrorCode::UNRELEASED_INSTANCE_ID
                | ErrorCode::FENCED_INSTANCE_ID => {
                    self.clients[n].start_over();
                    self.clients[n].joined = false;
                }
                other => panic!("{other}: {}", refusal.message),
            },
        }
    }

    /// Starts a new process of the client, with a new member id.
    fn join(&mut self, n: usize) {
        let client = &mut self.clients[n];
        if !client.joined {
            client.lives += 1;
            client.id = Text::from(format!("m{n}-{}", client.lives));
            client.joined = true;
            client.start_over();
            self.heartbeat(n, Fate::Arrives, true);
        }
    }

    fn leave(&mut self, n: usize, to_return: bool) {
        let client = &mut self.clients[n];
        if !client.joined {
            return;
        }
        client.joined = false;
        client.reads.clear();
        let to_return = to_return && client.instance_id.is_some();
        let request = ConsumerGroupHeartbeatRequest {
            group_id: Text::from("g"),
            member_id: client.id.clone(),
            instance_id: client.instance_id.clone(),
            member_epoch: if to_return { LEAVING_TO_RETURN } else { LEAVING },
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let _ = self.process(&request);
    }

    fn pass(&mut self, ms: i64) {
        self.now += ms;
        let fenced = self.group.tick(self.now);
        self.keep();
        assert!(self.group.next_deadline().is_none_or(|next| next > self.now), "what was due is done");
        for fenced in fenced {
            for client in self.clients.iter_mut().filter(|client| client.id == fenced.member_id) {
                // A fenced client no longer counts as a reader, although it learns that it was fenced only with its
                // next heartbeat.
                client.reads.clear();
                client.assigned.clear();
            }
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Join { client } => self.join(client),
            Step::Heartbeat { client, fate, full } => self.heartbeat(client, fate, full),
            Step::Revoke { client } => {
                let client = &mut self.clients[client];
                let assigned = client.assigned.clone();
                client.reads.retain(|partition| assigned.contains(partition));
            }
            Step::Leave { client, to_return } => self.leave(client, to_return),
            Step::Die { client } => self.clients[client].joined = false,
            Step::Subscribe { client, topics, regex } => {
                let client = &mut self.clients[client];
                let names = TOPICS.iter().enumerate().filter(|(n, _)| topics >> n & 1 == 1);
                client.topics = names.map(|(_, &name)| Text::from(name)).collect();
                client.regex = regex.map(|regex| Text::from(["a.*", "b.*"][usize::from(regex)]));
                client.full = true;
            }
            Step::Grow { topic } => {
                self.table.version += 1;
                let id = Uuid([self.next_topic; 16]);
                let entry = self.table.topics.entry(TOPICS[topic].to_owned()).or_insert((id, 0));
                entry.1 += 1;
                self.next_topic += u8::from(entry.0 == id);
            }
            Step::Delete { topic } => {
                self.table.version += 1;
                self.table.topics.remove(TOPICS[topic]);
            }
            Step::Pass { ms } => self.pass(ms),
            Step::Restart => {
                let restored = self.restored();
                assert!(restored.group_epoch() >= self.group.group_epoch(), "epochs never go back");
                self.group = restored;
            }
            Step::Upgrade => {
                self.log = CompactedLog::of(self.group.snapshot_whole());
                self.group = self.restored();
            }
        }
        self.check();
    }

    fn check(&self) {
        let mut readers: BTreeMap<TopicIdPartition, usize> = BTreeMap::new();
        for (n, client) in self.clients.iter().enumerate() {
            for partition in &client.reads {
                let other = readers.insert(*partition, n);
                assert_eq!(other, None, "{partition:?} is read by two: the other is {n}");
            }
        }
        let group = &self.group;
        assert!(group.assignment_epoch <= group.group_epoch);
        let mut holders = BTreeMap::new();
        for member in group.members() {
            assert!(member.epoch <= group.assignment_epoch && member.previous_epoch <= group.assignment_epoch);
            assert!(member.revoking.keys().all(|partition| !member.assigned.contains_key(partition)));
            assert_eq!(
                member.revoke_by.is_some(),
                member.state == MemberState::UnrevokedPartitions && member.epoch >= 0
            );
            holders.extend(member.holds().map(|(&partition, _)| (partition, member.id.clone())));
        }
        assert_eq!(holders, group.holders, "the books are right");
        let named: BTreeMap<_, _> =
            group.members().filter_map(|m| Some((m.instance_id.clone()?, m.id.clone()))).collect();
        assert_eq!(named, group.statics);
        let mut names: BTreeMap<Text, usize> = BTreeMap::new();
        let listed = group.members().flat_map(|member| &member.topics);
        let matched = group.regexes.values().flat_map(|matched| &matched.topics);
        listed.chain(matched).for_each(|name| *names.entry(name.clone()).or_default() += 1);
        assert_eq!(names, group.subscriptions.names);
    }

    /// Lets all clients continue without disturbances until nothing changes any more.
    fn calm_down(&mut self) {
        for _ in 0..40 {
            for n in 0..CLIENTS {
                self.heartbeat(n, Fate::Arrives, false);
                self.check();
                self.apply(&Step::Revoke { client: n });
            }
            self.pass(90);
            self.check();
        }
        if self.group.members().len() == 0 {
            assert_eq!(self.group.state(), GroupState::Empty);
            return;
        }
        assert_eq!(self.group.state(), GroupState::Stable, "{:#?}", self.group);
        self.now += super::interval::GRACE_MS;
        let settled = self.group.settled_interval_ms(&self.settings, self.now);
        assert_eq!(settled, self.settings.heartbeat_interval_ms, "who is settled comes as seldom as configured");
        let mut shared = PartitionSet::new();
        for client in self.clients.iter().filter(|client| client.joined) {
            let member = self.group.member(&client.id).expect("who is there is a member");
            assert_eq!(client.reads, member.target);
            assert!(member.assigned.keys().eq(member.target.iter()));
            shared.extend(client.reads.iter());
        }
        let wants = |client: &Client, name: &str| {
            let matches = |regex: &Text| name.starts_with(regex.trim_end_matches(".*"));
            client.topics.iter().any(|topic| topic == name) || client.regex.as_ref().is_some_and(matches)
        };
        let wanted: PartitionSet = self
            .table
            .topics
            .iter()
            .filter(|(name, _)| self.clients.iter().any(|client| client.joined && wants(client, name)))
            .flat_map(|(_, &(topic, count))| (0..count).map(move |index| TopicIdPartition { topic, index }))
            .collect();
        assert_eq!(shared, wanted, "everything somebody subscribes to is read");
        self.check_balance();
    }

    /// Checks that loads differ by at most one if all members have the same subscription. With `range`, this holds for
    /// each topic.
    fn check_balance(&self) {
        let wants = |member: &ConsumerGroupMember| {
            let topics: BTreeSet<Text> = self.group.subscribed(member).cloned().collect();
            topics.into_iter().filter(|name| self.table.find(name).is_some()).collect::<Vec<_>>()
        };
        let members: Vec<&ConsumerGroupMember> = self.group.members().collect();
        if members.iter().any(|member| wants(member) != wants(members[0])) {
            return;
        }
        let loads: Vec<usize> = members.iter().map(|member| member.assigned.len()).collect();
        let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
        let most = if self.settings.assignors == [Assignor::Range] { TOPICS.len() } else { 1 };
        assert!(spread <= most, "{loads:?}");
    }
}

#[test]
fn random_steps_no_two_clients_read_one_partition() {
    let draw = |random: &mut Random| {
        let assignors: &[Assignor] = if random.one_in(2) { &[Assignor::Range] } else { &[Assignor::Uniform] };
        ((assignors, [0, 300][random.below(2)]), random.list(1..150, step))
    };
    run_each_list(256, draw, |(assignors, interval_ms), steps| {
        let mut world = World::new(assignors, *interval_ms);
        steps.iter().for_each(|step| world.apply(step));
        world.calm_down();
        Ok(())
    });
}
