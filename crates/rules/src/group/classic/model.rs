//! A model of a classic group in which many clients act at random and time passes.
//!
//! A client of the model does what a real client may do in its state, or repeats an old request. It joins with any id
//! that it has had, syncs its last known generation, crashes, or returns under its instance id.
//!
//! The group's records are written only from time to time, and sometimes the write fails. A response that follows a
//! change waits until the change is written.
//!
//! After each event, the model checks that no request got two responses, and that all members of a generation got the
//! same protocol and leader. An assignment must be of the requested generation, and the group's counters must be
//! correct. A snapshot must show a group that was stable or empty, whenever it is taken. At the end time passes, and
//! every request must get its response.

use super::member::NEW_MEMBER_JOIN_MAX_MS;
use super::tests::{REBALANCE_MS, SESSION_MS, SETTINGS, join_request, protocol};
use super::*;
use crate::group::{Committer, Event, Joining, Snapshot};
use bytes::Bytes;
use fullbore_schedules::{Random, run_each_list};
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::join_group::JoinGroupRequest;
use fullbore_wire::apis::leave_group::MemberIdentity;
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

const CLIENTS: usize = 8;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// The client joins with its id, possibly with new metadata or another preferred protocol.
    Join {
        client: usize,
        is_new_metadata: bool,
        likes_b: bool,
        has_old_version: bool,
    },
    Sync {
        client: usize,
    },
    Heartbeat {
        client: usize,
    },
    Commit {
        client: usize,
    },
    Leave {
        client: usize,
    },
    /// An administrator removes the client by its instance id.
    Remove {
        client: usize,
    },
    /// The client loses its state and never reads the responses to its requests.
    Crash {
        client: usize,
    },
    Pass {
        ms: i64,
    },
    /// The unsaved snapshot is written.
    Write,
    /// The write of the unsaved snapshot fails.
    FailToWrite,
    /// The coordinator is killed and then restored from the last snapshot.
    Restart,
}

fn action(random: &mut Random) -> Action {
    let client = random.below(CLIENTS);
    match random.below(43) {
        0..10 => {
            let [is_new_metadata, likes_b, has_old_version] = [(); 3].map(|()| random.one_in(2));
            Action::Join { client, is_new_metadata, likes_b, has_old_version }
        }
        10..20 => Action::Sync { client },
        20..25 => Action::Heartbeat { client },
        25..27 => Action::Commit { client },
        27..29 => Action::Leave { client },
        29 => Action::Remove { client },
        30..32 => Action::Crash { client },
        32..36 => Action::Pass { ms: random.between(0, 5000) },
        36 => Action::Pass { ms: random.between(0, i64::from(REBALANCE_MS)) },
        37..41 => Action::Write,
        41 => Action::FailToWrite,
        _ => Action::Restart,
    }
}

/// The state of a client.
#[derive(Clone, Debug, Default)]
struct Client {
    id: Text,
    generation: i32,
    is_leader: bool,
    members: Vec<Text>,
    metadata: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SentRequest {
    Join(usize),
    Sync(usize, i32),
    Other,
}

/// The values that must be the same in all responses of a generation.
#[derive(Debug)]
struct Reported {
    protocol: Option<Text>,
    leader: Text,
    members: Vec<MemberId>,
}

struct World {
    group: Classic,
    now: i64,
    tickets: u64,
    requested: BTreeMap<RequestTicket, SentRequest>,
    clients: Vec<Client>,
    reported: HashMap<i32, Reported>,
    kept: Option<Snapshot>,
    /// The stable or empty state that must be written.
    owed: Option<Owed>,
    /// Responses that wait until `owed` is written.
    behind: Vec<(RequestTicket, GroupAnswer)>,
}

/// The generation and the members of a group. A static member counts by its instance id.
#[derive(Clone, Debug, PartialEq)]
struct Owed {
    generation: i32,
    members: BTreeSet<Text>,
}

impl Owed {
    fn of(group: &Classic) -> Owed {
        let name = |(id, member): (&MemberId, &ClassicGroupMember)| member.instance_id.clone().unwrap_or(id.clone());
        Owed { generation: group.generation, members: group.members.iter().map(name).collect() }
    }
}

impl World {
    fn new() -> Self {
        let clients = vec![Client::default(); CLIENTS];
        let group = Classic::new(SETTINGS, 0);
        World {
            group,
            now: 0,
            tickets: 0,
            requested: BTreeMap::new(),
            clients,
            reported: HashMap::new(),
            kept: None,
            owed: None,
            behind: Vec::new(),
        }
    }

    /// Returns the instance id of a client; None for a dynamic member. Half of the clients are static members, and each
    /// instance id is shared by two of them.
    fn instance_of(client: usize) -> Option<Text> {
        client.is_multiple_of(2).then(|| Text::from(format!("i{}", client / 4)))
    }

    fn ticket(&mut self, requested: SentRequest) -> RequestTicket {
        self.tickets += 1;
        let ticket = RequestTicket(self.tickets);
        self.requested.insert(ticket, requested);
        ticket
    }

    fn act(&mut self, action: Action) {
        let mut effects = Effects::new();
        match action {
            Action::Join { client, is_new_metadata, likes_b, has_old_version } => {
                self.clients[client].metadata += u32::from(is_new_metadata);
                self.join(client, likes_b, if has_old_version { 3 } else { 9 }, &mut effects);
            }
            Action::Sync { client } => self.sync(client, &mut effects),
            Action::Heartbeat { client } => self.heartbeat(client),
            Action::Commit { client } => {
                let Client { id, generation, .. } = &self.clients[client];
                let committer = Committer {
                    member_id: id,
                    instance_id: None,
                    generation: *generation,
                    version: 9,
                    is_transactional: false,
                };
                let is_ok = self.group.check_commit(&committer, self.now).is_ok();
                assert!(
                    !is_ok || *generation < 0 || *generation == self.group.generation,
                    "a commit of another generation"
                );
            }
            Action::Leave { client } => {
                let identity = MemberIdentity { member_id: self.clients[client].id.clone(), ..Default::default() };
                self.leave(identity, &mut effects);
            }
            Action::Remove { client } => {
                let group_instance_id = World::instance_of(client);
                self.leave(MemberIdentity { group_instance_id, ..Default::default() }, &mut effects);
            }
            Action::Crash { client } => self.clients[client] = Client::default(),
            Action::Pass { ms } => self.pass(ms),
            Action::Write => self.write(true),
            Action::FailToWrite => self.write(false),
            Action::Restart => self.restart(),
        }
        self.follow(effects);
        self.check();
    }

    fn join(&mut self, client: usize, likes_b: bool, version: i16, effects: &mut Effects) {
        let ticket = self.ticket(SentRequest::Join(client));
        let Client { id, metadata, .. } = &self.clients[client];
        let text = format!("{client}/{metadata}");
        let mut protocols = vec![protocol("a", &text), protocol("b", &text)];
        if likes_b {
            protocols.swap(0, 1);
        }
        let group_instance_id = World::instance_of(client);
        // The session of every fourth client is longer than its rebalance timeout.
        let session_timeout_ms = if client.is_multiple_of(4) { 90_000 } else { SESSION_MS };
        let request = JoinGroupRequest { protocols, group_instance_id, session_timeout_ms, ..join_request(id, "") };
        let new_member_id = Text::from(format!("m{client}-{}", ticket.0));
        let joining =
            Joining { request: &request, version, client_id: "c", client_host: "/h", new_member_id: &new_member_id };
        self.group.join(joining, ticket, self.now, effects);
    }

    fn sync(&mut self, client: usize, effects: &mut Effects) {
        let known = self.clients[client].clone();
        let ticket = self.ticket(SentRequest::Sync(client, known.generation));
        let one = |id: &Text| SyncGroupRequestAssignment {
            member_id: id.clone(),
            assignment: Bytes::from(format!("{}", known.generation)),
            ..Default::default()
        };
        let request = SyncGroupRequest {
            generation_id: known.generation,
            member_id: known.id.clone(),
            assignments: if known.is_leader { known.members.iter().map(one).collect() } else { Vec::new() },
            ..Default::default()
        };
        self.group.sync(&request, ticket, self.now, effects);
    }

    fn heartbeat(&mut self, client: usize) {
        let Client { id, generation, .. } = &self.clients[client];
        let request = HeartbeatRequest { member_id: id.clone(), generation_id: *generation, ..Default::default() };
        let code = self.group.heartbeat(&request, self.now);
        assert!(code.is_err() || *generation == self.group.generation, "two generations are in force");
    }

    fn leave(&mut self, identity: MemberIdentity, effects: &mut Effects) {
        let ticket = self.ticket(SentRequest::Other);
        self.group.leave(&[identity], ticket, self.now, effects);
    }

    /// Restarts the broker. All connections break, and clients repeat their requests later.
    fn restart(&mut self) {
        self.requested.clear();
        self.behind.clear();
        self.owed = None;
        // Generations that were never stable are not in the snapshot, and their numbers are used again.
        self.reported.clear();
        self.group = match &self.kept {
            None => Classic::new(SETTINGS, self.now),
            Some(snapshot) => {
                let group = Classic::restore(snapshot.state.slice(1..), SETTINGS, self.now);
                group.expect("ours")
            }
        };
    }

    fn pass(&mut self, ms: i64) {
        let until = self.now + ms;
        let mut at_once = 0;
        while let Some(next) = self.group.next_deadline().filter(|next| *next <= until) {
            at_once = if next > self.now { 0 } else { at_once + 1 };
            assert!(at_once < 10, "time stands still at {next}");
            self.now = self.now.max(next);
            let mut effects = Effects::new();
            self.group.tick(self.now, &mut effects);
            self.follow(effects);
            self.check();
        }
        self.now = until;
    }

    fn follow(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Keep(change) => {
                    assert!(change.is_empty() && matches!(self.group.state, GroupState::Stable | GroupState::Empty));
                    self.owed = Some(Owed::of(&self.group));
                }
                Effect::Report(Event::Replaced { old, new, .. }) => {
                    let reported = self.reported.values_mut().filter(|reported| reported.leader == old);
                    reported.for_each(|reported| reported.leader = new.clone());
                }
                Effect::Report(_) => {}
                Effect::Answer(ticket, answer) => {
                    if let GroupAnswer::Join(response) = &answer {
                        self.note_generation(response);
                    }
                    match self.owed {
                        Some(_) => self.behind.push((ticket, answer)),
                        None => self.deliver(ticket, answer),
                    }
                }
            }
        }
    }

    fn deliver(&mut self, ticket: RequestTicket, answer: GroupAnswer) {
        let requested = self.requested.remove(&ticket).expect("a ticket is answered once");
        self.answered(requested, answer);
    }

    /// Writes the unsaved snapshot, and delivers the responses that waited for the write. If the write fails, delivers
    /// COORDINATOR_NOT_AVAILABLE instead of them.
    fn write(&mut self, succeeds: bool) {
        let snapshot = self.group.take_snapshot();
        assert_eq!(snapshot.is_some(), self.owed.is_some());
        if let (Some(snapshot), Some(owed)) = (snapshot, self.owed.take()) {
            let restored = Classic::restore(snapshot.state.slice(1..), SETTINGS, self.now).expect("ours");
            assert_eq!(Owed::of(&restored), owed, "a state that was stable or empty");
            for member in restored.members.values() {
                let assigned = std::str::from_utf8(&member.assignment).expect("text");
                assert!(assigned.is_empty() || assigned == owed.generation.to_string(), "{assigned}: {owed:?}");
            }
            if succeeds {
                self.kept = Some(snapshot);
            }
        }
        for (ticket, answer) in std::mem::take(&mut self.behind) {
            let refused = GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE);
            self.deliver(ticket, if succeeds { answer } else { refused });
        }
    }

    /// Checks that a response to JoinGroup agrees with earlier ones of its generation.
    fn note_generation(&mut self, response: &JoinGroupResponse) {
        if response.error_code != ErrorCode::NONE {
            return;
        }
        // A leader that returns with an old version of JoinGroup gets its former member id as the leader's id. That id
        // is not a member's.
        let leader = match self.group.members.contains_key(&response.leader) {
            true => response.leader.clone(),
            false => self.group.leader.clone().expect("there are members"),
        };
        let reported = Reported { protocol: response.protocol_name.clone(), leader, members: Vec::new() };
        let reported = self.reported.entry(response.generation_id).or_insert(reported);
        reported.members.push(response.member_id.clone());
        assert_eq!(Some(&reported.leader), self.group.leader.as_ref(), "one leader");
        assert_eq!(reported.protocol, self.group.protocol, "one protocol");
        assert_eq!(response.generation_id, self.group.generation, "one generation");
    }

    fn answered(&mut self, requested: SentRequest, answer: GroupAnswer) {
        match (requested, answer) {
            (SentRequest::Join(client), GroupAnswer::Join(response)) => self.joined(client, *response),
            (SentRequest::Sync(client, generation), GroupAnswer::Sync(response)) => match response.error_code {
                ErrorCode::NONE => {
                    let assigned = std::str::from_utf8(&response.assignment).expect("text");
                    let is_whole = assigned.is_empty() || assigned == generation.to_string();
                    assert!(is_whole, "{assigned} for generation {generation}");
                }
                ErrorCode::REBALANCE_IN_PROGRESS => {}
                _ => self.clients[client].generation = -1,
            },
            (SentRequest::Other, GroupAnswer::Leave(_)) | (_, GroupAnswer::Refused(_)) => {}
            (requested, answer) => panic!("{requested:?} is answered {answer:?}"),
        }
    }

    fn joined(&mut self, client: usize, response: JoinGroupResponse) {
        let known = &mut self.clients[client];
        match response.error_code {
            ErrorCode::MEMBER_ID_REQUIRED => known.id = response.member_id,
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_INSTANCE_ID => known.id = Text::default(),
            ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::GROUP_MAX_SIZE_REACHED => {}
            ErrorCode::NONE => {
                known.is_leader = response.leader == response.member_id && !response.skip_assignment;
                known.id = response.member_id;
                known.generation = response.generation_id;
                known.members = response.members.into_iter().map(|member| member.member_id).collect();
            }
            code => panic!("a join is answered {code}"),
        }
    }

    fn check(&self) {
        let group = &self.group;
        let members = group.members.values();
        assert_eq!(group.joined, members.clone().filter(|member| member.joining.is_some()).count());
        let bytes: usize = group.members.iter().map(|(id, member)| member.bytes(id)).sum();
        let pending: usize = group.pending.keys().map(|id| pending_bytes(id)).sum();
        assert_eq!(group.bytes, bytes + pending);
        let mut offered: HashMap<Text, usize> = HashMap::new();
        members.clone().flat_map(|member| &member.profile.protocols).for_each(|(name, _)| {
            *offered.entry(name.clone()).or_default() += 1;
        });
        assert_eq!(group.offered, offered);
        let instances: HashMap<Text, MemberId> =
            group.members.iter().filter_map(|(id, member)| Some((member.instance_id.clone()?, id.clone()))).collect();
        assert_eq!(group.instances, instances);
        let deadlines = members.clone().map(|member| member.deadline).chain(group.pending.values().copied());
        assert!(deadlines.min().is_none_or(|first| group.sessions_from <= first));
        assert_eq!(group.join_end.is_some(), group.state == GroupState::PreparingRebalance);
        let is_settled = matches!(group.state, GroupState::Stable | GroupState::Empty);
        let is_current = matches!(group.state, GroupState::CompletingRebalance | GroupState::Stable);
        if is_current {
            let leader = group.leader.as_ref().expect("a generation has a leader");
            assert!(group.members.contains_key(leader) && group.protocol.is_some());
            let is_reported = || self.reported[&group.generation].members.contains(leader);
            assert!(group.state == GroupState::Stable || is_reported(), "the leader does not know of its generation");
            let away = members.clone().filter(|member| member.is_static()).count();
            assert!(group.members.len() <= SETTINGS.members_max + away, "over the limit");
        } else {
            assert!(members.clone().all(|member| member.syncing.is_none()), "nobody waits for a leader in vain");
        }
        assert!(is_settled || !matches!(group.unsaved, Unsaved::Newest), "the snapshot must be encoded before");
        assert!(group.state != GroupState::Empty || (group.members.is_empty() && group.protocol.is_none()));
    }

    /// Lets time pass without any requests. After that, every request must have its response, and the group must be
    /// empty.
    fn end(&mut self) {
        let long = NEW_MEMBER_JOIN_MAX_MS + 4 * i64::from(SESSION_MS + REBALANCE_MS);
        self.pass(long);
        self.write(true);
        assert!(self.requested.is_empty(), "never answered: {:?}", self.requested);
        assert_eq!((self.group.state, self.group.next_deadline()), (GroupState::Empty, None));
        assert_eq!(self.group.bytes, 0);
    }
}

#[test]
fn random_events_keep_the_groups_promises() {
    let draw = |random: &mut Random| ((), random.list(1..120, action));
    run_each_list(3000, draw, |(), actions| {
        let mut world = World::new();
        actions.iter().for_each(|action| world.act(*action));
        world.end();
        Ok(())
    });
}

/// If nothing disturbs the members, they all end up in one stable generation.
#[test]
fn undisturbed_members_become_stable() {
    for members in 1..=SETTINGS.members_max {
        let mut world = World::new();
        // Clients with odd numbers are dynamic members.
        let clients: Vec<usize> = (0..members).map(|at| 2 * at + 1).collect();
        for client in &clients {
            let has_old_version = true;
            world.act(Action::Join { client: *client, is_new_metadata: false, likes_b: false, has_old_version });
        }
        world.act(Action::Pass { ms: 10_000 });
        clients.iter().for_each(|client| world.act(Action::Sync { client: *client }));
        world.act(Action::Write);
        assert_eq!((world.group.state, world.group.generation), (GroupState::Stable, 1));
        assert_eq!(world.reported[&1].members.len(), members);
        assert!(world.requested.is_empty());
    }
}
