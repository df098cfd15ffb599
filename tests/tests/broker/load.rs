//! Many idle clients, slow consumers and group members, and one consumer that is far behind, all at the same time. The
//! broker must serve all of them within a fixed amount of memory ([`GROWN_MAX`]). When they leave, none of their memory
//! and descriptors may remain. `bench/load` measures the speed.

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
/// How many responses of about 1 MiB a slow consumer requests at once. Together they exceed the kernel's buffers.
const ANSWERS: usize = 12;
const GROUPS: usize = 200;
/// How many of the groups have a member that vanishes without leaving. Until then this member sends heartbeats.
const VANISHING: usize = 10;
const SESSION_MS: i32 = 6_000;
const ROUNDS: usize = 3;
/// The number of batches in the topic from which clients read.
const BATCHES: usize = 64;
/// The size of each of these batches, in bytes.
const BATCH: usize = 1_000_000;
const FETCH: i16 = 12;
/// How many logs store the groups (`offsets.topic.num.partitions`).
const LOGS_OF_GROUPS: usize = 50;

/// Maximum memory that all clients may add in any round, which is the sum of:
/// - 32 KiB per connection. Slow consumers need no more, because their responses are ranges of files.
/// - 4 KiB per group and round, because empty groups remain.
/// - 8 MiB that the allocator and the database keep.
/// - 20 MiB for parts of files that are no longer in the page cache.
const GROWN_MAX: u64 = (IDLE + SLOW + GROUPS) as u64 * 32 * KIB + (ROUNDS * GROUPS) as u64 * 4 * KIB + 28 * MIB;

struct Crowd {
    idle: Vec<Client>,
    slow: Vec<Client>,
    members: Vec<Member>,
}

impl Crowd {
    fn gather(broker: &Broker, round: usize) -> Crowd {
        let mut idle: Vec<Client> = (0..IDLE).map(|_| broker.client()).collect();
        idle.iter_mut().for_each(request_metadata);
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
        // The members that will vanish join last, because they cannot send heartbeats while the others join.
        let mut members: Vec<Member> = (VANISHING..GROUPS).chain(0..VANISHING).map(member).collect();
        members.rotate_right(VANISHING);
        Crowd { idle, slow, members }
    }

    /// Checks that the members, the idle clients and five of the slow consumers are served.
    fn assert_served(&mut self) {
        for member in &mut self.members {
            assert_eq!(member.heartbeat(), ErrorCode::NONE, "{}", member.group);
        }
        self.idle.iter_mut().for_each(request_metadata);
        for reader in self.slow.iter_mut().take(5) {
            for _ in 0..ANSWERS {
                let (_, response) = reader.receive::<FetchRequest>(FETCH);
                assert_eq!(first_batch(response.responses[0].partitions[0].records.as_ref()), 0);
            }
        }
    }

    /// Ends the clients. Most members leave their groups first. All others disconnect without notice, and the slow
    /// consumers do so in the middle of a response.
    fn go(mut self) {
        for member in self.members.iter_mut().skip(VANISHING) {
            assert_eq!(member.leave().error_code, ErrorCode::NONE);
        }
    }
}

fn request_metadata(client: &mut Client) {
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
        // The logs in which the groups are stored stay open, with a descriptor each.
        wait_until("every connection is closed", SOON, || broker.descriptors() <= descriptors + LOGS_OF_GROUPS + 8);
        wait_until("every group is empty", SOON, || {
            let mut state = |number| describe(&mut client, &format!("group-{round}-{number}"), 5).group_state;
            (0..GROUPS).all(|number| &*state(number) == "Empty")
        });
    }
    assert_eq!(client.call(&ListGroupsRequest::default(), 5).groups.len(), ROUNDS * GROUPS);
    assert_eq!(client.fetch_records("honest", 0).len(), 1 + ROUNDS * BATCHES);
}
