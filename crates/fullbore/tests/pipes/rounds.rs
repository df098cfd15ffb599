//! Tests of how many round trips a command needs before it has written or read its first record. No test measures their
//! duration.
//!
//! A round is a group of requests that a command must send without waiting for a response. A relay forwards them, and
//! holds their responses back until the last request of the round has arrived. If a command needs more rounds than
//! planned, the relay counts a request that belongs to no round.

use crate::hangs::{ended, spawn};
use fullbore_tests::{Broker, stable_ports};
use fullbore_wire::api::ApiKey::{self, *};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::spawn as begin;

/// A relay between a command and its broker.
struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    rounds: Vec<Vec<ApiKey>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many rounds are complete, which means that all their requests have arrived.
    done: usize,
    /// The requests of the current round that have arrived.
    came: Vec<ApiKey>,
    /// The requests that were in none of the planned rounds.
    others: Vec<String>,
    connections: usize,
}

impl Shared {
    /// Counts a request. Returns how many rounds must be complete before the relay may forward its response.
    fn take(&self, key: ApiKey) -> usize {
        let mut state = self.state.lock().expect("not poisoned");
        let round = state.done;
        let Some(wanted) = self.rounds.get(round) else { return 0 };
        let count = |keys: &[ApiKey]| keys.iter().filter(|known| **known == key).count();
        if count(wanted) == count(&state.came) {
            if [Heartbeat, ConsumerGroupHeartbeat].contains(&key) {
                // Heartbeats are sent at intervals, so they belong to no round.
                return 0;
            }
            state.others.push(format!("{} in round {round}", key.name()));
            return 0;
        }
        state.came.push(key);
        if state.came.len() == wanted.len() {
            (state.done, state.came) = (round + 1, Vec::new());
            self.changed.notify_all();
        }
        round + 1
    }

    /// Waits until `rounds` rounds are complete.
    fn wait(&self, rounds: usize) {
        let state = self.state.lock().expect("not poisoned");
        drop(self.changed.wait_while(state, |state| state.done < rounds).expect("not poisoned"));
    }
}

/// Returns the next frame with its length prefix, or `None` at the end of the stream.
fn frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).ok()?;
    frame.resize(4 + u32::from_be_bytes(frame[..4].try_into().expect("four")) as usize, 0);
    from.read_exact(&mut frame[4..]).ok()?;
    Some(frame)
}

impl Relay {
    /// Starts a relay, and a broker that advertises the relay's address.
    fn start(rounds: &[&[ApiKey]], sets: &[&str], prepare: &[&[&str]]) -> (Broker, Relay) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let advertised = format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}");
        // The relay must know on which port the broker listens. The broker prints only the advertised address, so the
        // test chooses the port.
        let own = SocketAddr::from(([127, 0, 0, 1], stable_ports(1)[0]));
        let listeners = format!("listeners=PLAINTEXT://{own}");
        let broker = Broker::start(&[&[listeners.as_str(), &advertised], sets].concat());
        let shared = Shared {
            rounds: rounds.iter().map(|round| round.to_vec()).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let relay = Relay { port, shared: Arc::new(shared) };
        // The test's own requests, which prepare the topic, are not counted.
        let open = Arc::new(Shared { rounds: Vec::new(), state: Mutex::default(), changed: Condvar::new() });
        let (target, counted) = (own, relay.shared.clone());
        let is_prepared = Arc::new(Mutex::new(false));
        let prepared = is_prepared.clone();
        begin(move || {
            for client in listener.incoming().flatten() {
                let shared = if *prepared.lock().expect("not poisoned") { counted.clone() } else { open.clone() };
                shared.state.lock().expect("not poisoned").connections += 1;
                let server = TcpStream::connect(target).expect("the broker listens");
                begin(move || serve(&shared, client, server));
            }
        });
        for arguments in prepare {
            let (status, complaint) = ended(spawn(arguments, &relay.address()), "to prepare");
            assert_eq!(status, Some(0), "{arguments:?}: {complaint}");
        }
        *is_prepared.lock().expect("not poisoned") = true;
        (broker, relay)
    }

    /// Returns the address of the relay with a host name that differs from the advertised one.
    fn address(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// Checks that the command succeeds after the planned rounds and opens `connections` connections.
    fn check(&self, command: &[&str], connections: usize) {
        let child = spawn(command, &self.address());
        let shared = self.shared.clone();
        let reported = || {
            let state = shared.state.lock().expect("not poisoned");
            let missing = shared.rounds.get(state.done).map(|round| (round.clone(), state.came.clone()));
            (state.done, missing, state.others.clone(), state.connections)
        };
        let (status, complaint) = ended(child, &format!("{command:?}"));
        assert_eq!(status, Some(0), "{command:?}: {complaint}; rounds, what is missing of the next: {:?}", reported());
        assert_eq!(reported(), (self.shared.rounds.len(), None, Vec::new(), connections), "{command:?}");
    }
}

fn serve(shared: &Arc<Shared>, mut client: TcpStream, mut server: TcpStream) {
    // With Nagle's algorithm, a short response would wait for an acknowledgement.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let copy = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
    let (mut answers, mut requester) = (copy(&server), copy(&client));
    let (reports, reported) = std::sync::mpsc::channel();
    let of_answers = shared.clone();
    begin(move || {
        while let Some(answer) = frame(&mut answers) {
            let Ok(rounds) = reported.recv() else { break };
            of_answers.wait(rounds);
            if requester.write_all(&answer).is_err() {
                break;
            }
        }
        let _ = requester.shutdown(Shutdown::Both);
    });
    while let Some(request) = frame(&mut client) {
        let key = ApiKey::from_code(i16::from_be_bytes([request[4], request[5]])).expect("an API of Kafka's");
        // The send fails if the broker has closed the connection.
        let _ = reports.send(shared.take(key));
        if server.write_all(&request).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

const RECORD: &[&str] =
    &["perf", "produce", "--topic", "t", "--num-records", "1", "--record-size", "1", "--throughput", "-1"];
const TOPIC: &[&str] = &["topics", "create", "--topic", "t"];

#[test]
fn a_first_record_is_acknowledged_after_a_connection_and_three_rounds() {
    let rounds: [&[ApiKey]; 3] = [&[ApiVersions], &[Metadata, InitProducerId], &[Produce]];
    let (_broker, relay) = Relay::start(&rounds, &[], &[TOPIC]);
    relay.check(RECORD, 1);
}

#[test]
fn a_first_record_is_read_after_a_connection_and_four_rounds() {
    let rounds: [&[ApiKey]; 4] = [&[ApiVersions], &[Metadata], &[ListOffsets, ListOffsets], &[Fetch]];
    let (_broker, relay) = Relay::start(&rounds, &[], &[TOPIC, RECORD]);
    relay.check(&["consume", "-t", "t", "--from-beginning", "--exit"], 1);
}

#[test]
fn a_classic_group_reads_its_first_record_after_two_connections_and_five_rounds() {
    // The command uses three connections, for its membership, for committed offsets, and for leaders and start offsets.
    // At the same time it opens a fourth one for fetches.
    let rounds: [&[ApiKey]; 5] = [
        &[ApiVersions, ApiVersions, ApiVersions],
        &[FindCoordinator, JoinGroup, FindCoordinator, Metadata, ApiVersions],
        &[JoinGroup, Metadata, ListOffsets],
        &[SyncGroup, OffsetFetch],
        &[Fetch],
    ];
    let at_once = ["group.initial.rebalance.delay.ms=0"];
    let (_broker, relay) = Relay::start(&rounds, &at_once, &[TOPIC, RECORD]);
    relay.check(&["consume", "-t", "t", "--group", "g", "--from-beginning", "--max-messages", "1"], 4);
}

#[test]
fn a_group_of_the_consumer_protocol_reads_its_first_record_after_five_rounds() {
    let rounds: [&[ApiKey]; 5] = [
        &[ApiVersions, ApiVersions, ApiVersions],
        &[FindCoordinator, FindCoordinator, Metadata, ApiVersions],
        &[ConsumerGroupHeartbeat, Metadata, ListOffsets],
        &[OffsetFetch],
        &[Fetch],
    ];
    let (_broker, relay) = Relay::start(&rounds, &[], &[TOPIC, RECORD]);
    let member = ["--group", "g", "--group-protocol", "consumer", "--from-beginning", "--max-messages", "1"];
    relay.check(&[&["consume", "-t", "t"], &member[..]].concat(), 4);
}
