//! Many idle clients, many slow consumers, many group members and one consumer far behind, all at the same time. All
//! are served, memory stays within a stated sum, and no memory or descriptor of theirs remains when they leave.
//! `bench/load` measures the speed.

use super::groups::{Member, QUICK, SOON, describe, stable};
use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, wait_until};
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::list_groups::ListGroupsRequest;
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::{ErrorCode, Records};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
const IDLE: usize = 500;
const SLOW: usize = 50;
/// Number of responses of about 1 MiB that a slow consumer requests at the same time, more than the kernel's buffers
/// hold.
const ANSWERS: usize = 12;
const GROUPS: usize = 200;
/// Number of groups whose members vanish. They send heartbeats until then.
const VANISHING: usize = 10;
const SESSION_MS: i32 = 6_000;
const ROUNDS: usize = 3;
/// Number of batches in the topic that clients read.
const BATCHES: usize = 64;
/// Bytes of each of these batches.
const BATCH: usize = 1_000_000;
const FETCH: i16 = 12;
/// Number of logs of groups (`offsets.topic.num.partitions`).
const LOGS_OF_GROUPS: usize = 50;

/// Most memory that all clients may add in any round:
/// - 32 KiB a connection; slow consumers need no more, since their responses are ranges of files;
/// - 4 KiB for each group of each round, since empty groups stay;
/// - 8 MiB that the allocator and the database keep;
/// - 20 MiB for pieces of files that the system has evicted from the page cache.
const GROWN_MAX: u64 = (IDLE + SLOW + GROUPS) as u64 * 32 * KIB + (ROUNDS * GROUPS) as u64 * 4 * KIB + 28 * MIB;

struct Crowd {
    idle: Vec<Client>,
    slow: Vec<Client>,
    members: Vec<Member>,
}

impl Crowd {
    fn gather(broker: &Broker, round: usize) -> Crowd {
        let mut idle: Vec<Client> = (0..IDLE).map(|_| broker.client()).collect();
        idle.iter_mut().for_each(ask_metadata);
        let mut slow: Vec<Client> = (0..SLOW).map(|_| broker.client()).collect();
        for reader in &mut slow {
            (0..ANSWERS).for_each(|_| _ = reader.send(&from_start("large"), FETCH));
        }
        slow.iter_mut().for_each(Client::wait_for_answer);
        let member = |number| {
            let mut member = [Member::new(broker, &format!("group-{round}-{number}"))];
            member[0].session_ms = if number < VANISHING { SESSION_MS } else { 60_000 };
            stable(&mut member);
            let [member] = member;
            member
        };
        // Members that will vanish join last, because they would send no heartbeats while the others join.
        let mut members: Vec<Member> = (VANISHING..GROUPS).chain(0..VANISHING).map(member).collect();
        members.rotate_right(VANISHING);
        Crowd { idle, slow, members }
    }

    /// Checks that each client is served. Slow clients must be served as soon as they read.
    fn assert_served(&mut self) {
        for member in &mut self.members {
            assert_eq!(member.heartbeat(), ErrorCode::NONE, "{}", member.group);
        }
        self.idle.iter_mut().for_each(ask_metadata);
        for reader in self.slow.iter_mut().take(5) {
            for _ in 0..ANSWERS {
                let (_, response) = reader.receive::<FetchRequest>(FETCH);
                assert_eq!(first_batch(response.responses[0].partitions[0].records.as_ref()), 0);
            }
        }
    }

    /// Lets most members leave their groups. All other members and connections close without notice, slow ones in the
    /// middle of a response.
    fn go(mut self) {
        for member in self.members.iter_mut().skip(VANISHING) {
            assert_eq!(member.leave().error_code, ErrorCode::NONE);
        }
    }
}

fn ask_metadata(client: &mut Client) {
    client.call(&MetadataRequest { topics: Some(Vec::new()), ..Default::default() }, 9);
}

fn from_start(topic: &str) -> FetchRequest {
    fetch_request(&[FetchFrom { topic, partition: 0, offset: 0 }], 1, 500)
}

fn first_batch(records: Option<&Records>) -> i64 {
    let bytes = records.and_then(Records::memory).expect("records read from a socket");
    i64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[test]
fn crowd_of_clients_is_served_and_leaves_nothing_behind() {
    let broker = Broker::start(QUICK);
    let mut client = broker.client();
    client.create_topic("large", 1, &[("segment.bytes", "16777216")]);
    client.create_topic("honest", 1, &[]);
    let batch = Batch::of(&[vec![b'x'; BATCH]]);
    (0..BATCHES).for_each(|_| _ = client.produced("large", 0, &batch));
    client.produced("honest", 0, &Batch::of(&["first"]));
    let (rss, descriptors) = (broker.rss(), broker.descriptors());
    for round in 0..ROUNDS {
        let mut crowd = Crowd::gather(&broker, round);
        let mut behind = broker.client();
        for n in 0..BATCHES {
            assert_eq!(crowd.members[n % VANISHING].heartbeat(), ErrorCode::NONE);
            let offset = i64::try_from(n).expect("few");
            assert_eq!(first_batch(behind.fetch("large", 0, offset).records.as_ref()), offset);
            assert_eq!(client.produced("honest", 0, &Batch::of(&[format!("{n}")])) as usize, 1 + round * BATCHES + n);
        }
        let grown = broker.rss().saturating_sub(rss);
        assert!(grown < GROWN_MAX, "{} of {} KiB in round {round}", grown / KIB, GROWN_MAX / KIB);
        crowd.assert_served();
        crowd.go();
        drop(behind);
        // The state of groups is in this number of logs, each with an open file.
        wait_until("every connection is closed", SOON, || broker.descriptors() <= descriptors + LOGS_OF_GROUPS + 8);
        wait_until("every group is empty", SOON, || {
            let mut state = |number| describe(&mut client, &format!("group-{round}-{number}"), 5).group_state;
            (0..GROUPS).all(|number| &*state(number) == "Empty")
        });
    }
    assert_eq!(client.call(&ListGroupsRequest::default(), 5).groups.len(), ROUNDS * GROUPS);
    assert_eq!(client.fetch_records("honest", 0).len(), 1 + ROUNDS * BATCHES);
}
