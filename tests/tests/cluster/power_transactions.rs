//! A broker has the only copy of some transactions' state (`__transaction_state` with one replica), and loses power.
//! These transactions must be aborted on all brokers, and transactions of other coordinators must continue. Skipped
//! without root.
//!
//! `FULLBORE_POWER_ROUNDS` is the number of rounds (by default 1, in `make soak` 20). Each round prints its seed when
//! it begins.

use crate::faults::{ALL, PARTITIONS, SOON, TOPIC};
use crate::power::cut_power;
use fullbore_tests::{Client, Cluster, ClusterPlan, Disk, Protocol, Random, Transactional, wait_until};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::{ErrorCode, Text};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

const IDS: usize = 12;
const CUT: i32 = 1;
const SETS: [&str; 4] = [
    "transaction.state.log.num.partitions=6",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "offsets.topic.num.partitions=1",
];

/// A producer with the records that its transactions have written.
struct Writer {
    producer: Transactional,
    coordinator: i32,
    /// All producer ids and epochs of this id's clients so far.
    known: HashSet<(i64, i16)>,
    /// The partitions and values of the records in the open transaction.
    open: Vec<(i32, String)>,
    committed: Vec<(i32, String)>,
}

/// A client of each broker, by the broker's id.
struct Clients(BTreeMap<i32, Client>);

impl Clients {
    fn connect(cluster: &Cluster) -> Clients {
        Clients(ALL.iter().map(|id| (*id, Client::connect(cluster.address(*id)))).collect())
    }

    fn of(&mut self, id: i32) -> &mut Client {
        self.0.get_mut(&id).expect("each has one")
    }
}

fn coordinator_of(client: &mut Client, id: &str) -> i32 {
    let request = FindCoordinatorRequest { key_type: 1, coordinator_keys: vec![Text::from(id)], ..Default::default() };
    let mut node_id = -1;
    wait_until("the id has a coordinator", SOON, || {
        node_id = client.call(&request, 4).coordinators[0].node_id;
        node_id >= 0
    });
    node_id
}

fn leaders(cluster: &Cluster) -> BTreeMap<i32, i32> {
    let mut leaders = BTreeMap::new();
    wait_until("every partition has a leader", SOON, || {
        let partitions = cluster.partitions(2, TOPIC);
        leaders = partitions.iter().map(|of| (of.partition_index, of.leader_id)).collect();
        leaders.values().all(|leader| *leader > 0)
    });
    leaders
}

impl Writer {
    fn begin(clients: &mut Clients, number: usize) -> Writer {
        let name = format!("writer-{number}");
        let coordinator = coordinator_of(clients.of(2), &name);
        let producer = Transactional::begin(clients.of(coordinator), &name, Protocol::BOTH[number % 2]);
        let known = HashSet::from([producer.producer()]);
        Writer { producer, coordinator, known, open: Vec::new(), committed: Vec::new() }
    }

    fn step(&mut self, clients: &mut Clients, leaders: &BTreeMap<i32, i32>, random: &mut Random) {
        if self.open.is_empty() || random.below(3) > 0 {
            let partition = i32::try_from(random.below(PARTITIONS as usize)).expect("small");
            let name = self.producer.transactional_id.clone();
            let value = format!("{name} {} {}", self.committed.len(), self.open.len());
            if self.producer.protocol == Protocol::Old {
                self.producer.add(clients.of(self.coordinator), TOPIC, &[partition]);
            }
            let batch = self.producer.batch(TOPIC, partition, &[&value]);
            let leader = clients.of(leaders[&partition]);
            wait_until("the batch is taken", SOON, || {
                let code = self.producer.send(leader, TOPIC, partition, &batch).error_code;
                assert!(!code.is_err() || code == ErrorCode::NOT_ENOUGH_REPLICAS, "{name}: {code}");
                !code.is_err()
            });
            self.open.push((partition, value));
        } else {
            self.end(clients);
        }
        self.known.insert(self.producer.producer());
    }

    fn end(&mut self, clients: &mut Clients) {
        self.producer.end(clients.of(self.coordinator), true);
        self.committed.append(&mut self.open);
    }
}

/// Checks that producers whose coordinator lost power are fenced, and that all others continue.
fn go_on(cluster: &Cluster, writers: &mut [Writer]) {
    let mut clients = Clients::connect(cluster);
    let known: HashSet<i64> = writers.iter().flat_map(|writer| writer.known.iter().map(|(id, _)| *id)).collect();
    for writer in writers.iter_mut() {
        let name = writer.producer.transactional_id.clone();
        if writer.coordinator != CUT {
            if !writer.open.is_empty() {
                writer.end(&mut clients);
            }
            continue;
        }
        writer.open.clear();
        let client = clients.of(CUT);
        let mut refused = ErrorCode::NONE;
        wait_until("the coordinator answers", SOON, || {
            refused = writer.producer.try_end(client, true).error_code;
            !fullbore_tests::TRANSIENT.contains(&refused)
        });
        let fenced = [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_ID_MAPPING];
        assert!(fenced.contains(&refused), "{name}: {refused}");
        let new = Transactional::begin(client, &name, writer.producer.protocol);
        assert!(!known.contains(&new.id), "{name} has {:?} again", new.producer());
        writer.producer = new;
    }
}

fn round(seed: u64) -> Option<()> {
    let mut random = Random::new(seed);
    let mut disks = [(); 3].map(|()| Disk::make()).into_iter().collect::<Option<Vec<_>>>()?;
    let directories: Vec<PathBuf> = disks.iter().map(Disk::data).collect();
    let mut cluster = ClusterPlan::new(3, &SETS).in_directories(&directories).start();
    cluster.create(TOPIC, PARTITIONS, 3, &["min.insync.replicas=2"]);
    ALL.iter().for_each(|id| cluster.wait_for_isr(*id, TOPIC, 3));
    let (mut clients, led) = (Clients::connect(&cluster), leaders(&cluster));
    let mut writers: Vec<_> = (0..IDS).map(|number| Writer::begin(&mut clients, number)).collect();
    for step in 0..random.between(40, 120) {
        let number = random.below(IDS);
        writers[number].step(&mut clients, &led, &mut random);
        if step == 20 || random.below(25) == 0 {
            disks.iter().for_each(Disk::commit);
        }
    }
    assert!(writers.iter().any(|writer| writer.coordinator == CUT && !writer.open.is_empty()), "seed {seed}");
    cut_power(&mut cluster, &mut disks, &[CUT]);
    cluster.wait_for_isr(2, TOPIC, 3);
    go_on(&cluster, &mut writers);
    let led = leaders(&cluster);
    let mut clients = Clients::connect(&cluster);
    let mut read = Vec::new();
    for (partition, leader) in led {
        let client = clients.of(leader);
        wait_until("the stable offset reaches the end", SOON, || {
            client.stable(TOPIC, partition) == client.latest(TOPIC, partition)
        });
        read.extend(client.committed_texts(TOPIC, partition).into_iter().map(|text| (partition, text)));
    }
    let others = writers.iter().filter(|writer| writer.coordinator != CUT);
    for (partition, value) in others.flat_map(|writer| &writer.committed) {
        let times = read.iter().filter(|(at, text)| (at, text) == (partition, value)).count();
        assert_eq!(times, 1, "{value} in {partition}");
    }
    Some(())
}

#[test]
fn power_loss_of_the_only_coordinator_aborts_its_transactions_on_all_brokers() {
    let first = 7_000;
    for seed in first..first + fullbore_tests::rounds("FULLBORE_POWER_ROUNDS", 1, 20) as u64 {
        eprintln!("seed {seed}");
        if round(seed).is_none() {
            return;
        }
    }
}
