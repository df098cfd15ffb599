//! Measures how long a classic group of any Kafka broker needs to become stable again after its members change.
//!
//! Each member is one thread with one connection and without a client library. It joins, syncs, and sends heartbeats at
//! a fixed interval, but fetches and commits nothing. Four changes are timed. First all members join an empty group.
//! Then all join again at once, as after a change of their subscription. Then one more joins, and finally one leaves. A
//! change ends when every member has an assignment of one generation with exactly the expected members. In all but the
//! second change, members notice the change by their next heartbeat, which depends on the interval and not on the
//! broker.
//!
//! `cargo run --release -p fullbore-bench --example rebalance -- HOST:PORT [MEMBERS [ROUNDS [HEARTBEAT_MS]]]` runs this
//! example. `bench/compare rebalance` runs it against two brokers in turn.

use fullbore_client::ClientError;
use fullbore_client::Security;
use fullbore_client::blocking::Connection;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, MemberIdentity};
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use fullbore_wire::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a change may take before it counts as failed.
const CHANGE_MAX: Duration = Duration::from_secs(120);
/// The pause between two changes, so that heartbeats of the first change have responses before the second one begins.
const SETTLE: Duration = Duration::from_millis(200);
const CHANGES: [&str; 4] = ["all join", "all rejoin", "one joins", "one leaves"];
/// The user data that each member adds to its subscription and assignment.
const USER_DATA: [u8; 32] = [7; 32];

/// The state that members share with the measuring thread.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
    /// Notified when members must act before their next heartbeat.
    ordered: Condvar,
}

#[derive(Default)]
struct State {
    /// The generation of each member's assignment. A member that is joining has none.
    stable: HashMap<usize, i32>,
    /// The number of members of each generation, as the broker sent it to the generation's leader.
    sizes: HashMap<i32, usize>,
    leaving: Option<usize>,
    /// How many times all members were ordered to join again.
    rejoins: u8,
    failed: Option<String>,
    is_over: bool,
}

impl Board {
    /// Waits until `members` members are in the same generation, and that generation is later than `after`. Returns the
    /// time at which the wait ended.
    fn wait_until_stable(&self, members: usize, after: Option<i32>) -> Result<Instant, String> {
        let deadline = Instant::now() + CHANGE_MAX;
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let mut generations = state.stable.values();
            if let Some(first) = generations.next()
                && state.stable.len() == members
                && after.is_none_or(|after| *first > after)
                && generations.all(|generation| generation == first)
                && state.sizes.get(first) == Some(&members)
            {
                return Ok(Instant::now());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("not stable within {CHANGE_MAX:?}: {:?}", state.stable));
            }
            state = self.changed.wait_timeout(state, left).expect("no holder panics").0;
        }
    }

    /// Returns the newest generation of any member, or `None` if none has an assignment.
    fn generation(&self) -> Option<i32> {
        self.state.lock().expect("no holder panics").stable.values().max().copied()
    }

    /// Applies `order` to the state, and wakes the members so that they act on it at once.
    fn order(&self, order: impl FnOnce(&mut State)) {
        order(&mut self.state.lock().expect("no holder panics"));
        self.ordered.notify_all();
    }

    fn report(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("no holder panics"));
        self.changed.notify_all();
    }
}

struct Member {
    number: usize,
    group: Text,
    id: Text,
    connection: Connection,
    board: Arc<Board>,
    heartbeat: Duration,
    /// How many orders to join again this member has followed.
    rejoins: u8,
}

impl Member {
    /// Runs until the member leaves or the round is over.
    fn run(mut self) -> Result<(), ClientError> {
        self.rejoins = self.board.state.lock().expect("no holder panics").rejoins;
        loop {
            self.board.report(|state| _ = state.stable.remove(&self.number));
            let joined = self.join()?;
            let generation = joined.generation_id;
            if joined.error_code.is_err() || !self.sync(&joined)? {
                continue;
            }
            let size = joined.members.len();
            self.board.report(|state| {
                if size > 0 {
                    state.sizes.insert(generation, size);
                }
                state.stable.insert(self.number, generation);
            });
            if self.stay(generation)? {
                return Ok(());
            }
        }
    }

    fn join(&mut self) -> Result<JoinGroupResponse, ClientError> {
        // The subscription has Kafka's format. If Kafka's broker could not parse it, a changed subscription would not
        // start a rebalance.
        let subscription = ConsumerProtocolSubscription {
            topics: vec![Text::from("rebalance")],
            user_data: Some([&[self.rejoins], &USER_DATA[..]].concat().into()),
            ..Default::default()
        };
        let metadata = consumer_protocol::encode(&subscription, 0).expect("small");
        let protocol = JoinGroupRequestProtocol { name: Text::from("range"), metadata, ..Default::default() };
        let request = JoinGroupRequest {
            group_id: self.group.clone(),
            session_timeout_ms: 30_000,
            rebalance_timeout_ms: 60_000,
            member_id: self.id.clone(),
            protocol_type: Text::from("consumer"),
            protocols: vec![protocol],
            ..Default::default()
        };
        let joined = self.connection.call(&request)?;
        // If the group has removed the member, the member begins again, without an id.
        let is_unknown = joined.error_code == ErrorCode::UNKNOWN_MEMBER_ID;
        self.id = if is_unknown { Text::default() } else { joined.member_id.clone() };
        Ok(joined)
    }

    /// Returns true if the member has an assignment.
    fn sync(&mut self, joined: &JoinGroupResponse) -> Result<bool, ClientError> {
        let partitions =
            vec![TopicPartition { topic: Text::from("rebalance"), partitions: vec![0], ..Default::default() }];
        let user_data = Some(USER_DATA.to_vec().into());
        let assignment =
            ConsumerProtocolAssignment { assigned_partitions: partitions, user_data, ..Default::default() };
        let assignment = consumer_protocol::encode(&assignment, 0).expect("small");
        let one = |id: &Text| SyncGroupRequestAssignment {
            member_id: id.clone(),
            assignment: assignment.clone(),
            ..Default::default()
        };
        let request = SyncGroupRequest {
            group_id: self.group.clone(),
            generation_id: joined.generation_id,
            member_id: self.id.clone(),
            protocol_type: Some(Text::from("consumer")),
            protocol_name: joined.protocol_name.clone(),
            assignments: joined.members.iter().map(|member| one(&member.member_id)).collect(),
            ..Default::default()
        };
        Ok(self.connection.call(&request)?.error_code == ErrorCode::NONE)
    }

    /// Sends heartbeats as long as the generation lasts. Returns true once the member has left.
    fn stay(&mut self, generation_id: i32) -> Result<bool, ClientError> {
        loop {
            let state = self.board.state.lock().expect("no holder panics");
            let nothing = |state: &mut State| {
                state.leaving != Some(self.number) && !state.is_over && state.rejoins == self.rejoins
            };
            let waited = self.board.ordered.wait_timeout_while(state, self.heartbeat, nothing);
            let state = waited.expect("no holder panics").0;
            let (is_leaving, is_over) = (state.leaving == Some(self.number), state.is_over);
            let rejoins = std::mem::replace(&mut self.rejoins, state.rejoins);
            drop(state);
            if rejoins != self.rejoins {
                return Ok(false);
            }
            if is_leaving || is_over {
                self.board.report(|state| _ = state.stable.remove(&self.number));
                let members = vec![MemberIdentity { member_id: self.id.clone(), ..Default::default() }];
                self.connection.call(&LeaveGroupRequest {
                    group_id: self.group.clone(),
                    members,
                    ..Default::default()
                })?;
                return Ok(true);
            }
            let request = HeartbeatRequest {
                group_id: self.group.clone(),
                generation_id,
                member_id: self.id.clone(),
                ..Default::default()
            };
            if self.connection.call(&request)?.error_code.is_err() {
                return Ok(false);
            }
        }
    }
}

struct Plan {
    address: String,
    members: usize,
    rounds: usize,
    heartbeat: Duration,
}

impl Plan {
    fn from_args() -> Result<Plan, String> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let number = |at: usize, default: usize| match args.get(at) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("{text} is not a number")),
        };
        let address = args.first().ok_or("usage: rebalance HOST:PORT [MEMBERS [ROUNDS [HEARTBEAT_MS]]]")?.clone();
        let heartbeat = Duration::from_millis(number(3, 10)? as u64);
        Ok(Plan { address, members: number(1, 50)?, rounds: number(2, 10)?, heartbeat })
    }

    fn start(&self, number: usize, group: &Text, board: &Arc<Board>) -> Result<Member, ClientError> {
        let connection = Connection::connect(&self.address, "rebalance", &Security::default())?;
        let (group, board) = (group.clone(), Arc::clone(board));
        Ok(Member { number, group, id: Text::default(), connection, board, heartbeat: self.heartbeat, rejoins: 0 })
    }

    /// Waits until the group has a coordinator. The first responses may be errors, because Kafka's broker creates the
    /// internal topic of groups only at the first request.
    fn wait_for_coordinator(&self, group: &Text) -> Result<(), String> {
        let deadline = Instant::now() + CHANGE_MAX;
        let mut connection = Connection::connect(&self.address, "rebalance", &Security::default()).map_err(words)?;
        let request = FindCoordinatorRequest { coordinator_keys: vec![group.clone()], ..Default::default() };
        loop {
            let response = connection.call(&request).map_err(words)?;
            match response.coordinators.first().map_or(response.error_code, |found| found.error_code) {
                ErrorCode::NONE => return Ok(()),
                code if Instant::now() > deadline => return Err(format!("no coordinator: {code}")),
                _ => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Returns how many milliseconds the group needed to become stable after each of the changes.
    fn round(&self, round: usize) -> Result<[f64; CHANGES.len()], String> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let group = Text::from(format!("rebalance-{since}-{round}"));
        let board = Arc::new(Board::default());
        let member = |number| self.start(number, &group, &board).map_err(words);
        self.wait_for_coordinator(&group)?;
        // All connections are opened before the clock starts.
        let first: Vec<Member> = (0..self.members).map(member).collect::<Result<_, _>>()?;
        let last = member(self.members)?;
        let mut threads = Vec::new();
        let mut run = |member: Member| {
            let board = Arc::clone(&board);
            threads.push(thread::spawn(move || {
                if let Err(error) = member.run() {
                    board.report(|state| state.failed = Some(error.to_string()));
                }
            }));
        };
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let begun = Instant::now();
        first.into_iter().for_each(&mut run);
        let all_join = ms(begun, board.wait_until_stable(self.members, None)?);
        thread::sleep(SETTLE);
        let (begun, before) = (Instant::now(), board.generation());
        board.order(|state| state.rejoins += 1);
        let all_rejoin = ms(begun, board.wait_until_stable(self.members, before)?);
        thread::sleep(SETTLE);
        let (begun, before) = (Instant::now(), board.generation());
        run(last);
        let one_joins = ms(begun, board.wait_until_stable(self.members + 1, before)?);
        thread::sleep(SETTLE);
        let (begun, before) = (Instant::now(), board.generation());
        board.order(|state| state.leaving = Some(self.members));
        let one_leaves = ms(begun, board.wait_until_stable(self.members, before)?);
        board.order(|state| state.is_over = true);
        for thread in threads {
            thread.join().map_err(|_| "a member panicked")?;
        }
        Ok([all_join, all_rejoin, one_joins, one_leaves])
    }
}

fn words(error: ClientError) -> String {
    error.to_string()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), String> {
    let plan = Plan::from_args()?;
    println!("{} members, a heartbeat each {:?}, milliseconds until stable", plan.members, plan.heartbeat);
    let line = |first: &str, values: &[String]| {
        let columns: String = values.iter().map(|value| format!(" {value:>10}")).collect();
        println!("{first:>6}{columns}");
    };
    line("round", &CHANGES.map(str::to_owned));
    let mut rounds = Vec::new();
    for round in 1..=plan.rounds {
        let times = plan.round(round)?;
        line(&round.to_string(), &times.map(|ms| format!("{ms:.1}")));
        rounds.push(times);
    }
    let of = |at: usize| median(rounds.iter().map(|times| times[at]).collect());
    line("median", &std::array::from_fn::<_, { CHANGES.len() }, _>(|at| format!("{:.1}", of(at))));
    Ok(())
}
