//! Tests fairness in virtual time. One producer sends at a steady pace, others send as fast as they can, and the broker
//! uploads one object at a time.

use std::net::SocketAddr;

use bytes::Bytes;
use fullbore_rules::sequence::ProducerTails;
use fullbore_tests::Batch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

use super::index::manual_index::{ManualIndex, Turn};
use super::objects::double::StoreDouble;
use super::*;
use fullbore_config::Properties;
use fullbore_log::partition::outcome::{Acks, AppendStep, AppendTicket};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::validation::ValidBatch;

const TOPIC: Uuid = Uuid([1; 16]);
/// How long a PUT takes.
const PUT: Duration = Duration::from_secs(1);
const OBJECT: usize = 1 << 20;
/// How many batches the paced producer sends.
const PACED: usize = 100;

/// A broker with one upload slot, memory for 32 objects, and a topic with two partitions.
struct Flooded {
    diskless: Diskless,
    _directory: tempfile::TempDir,
}

impl Flooded {
    async fn start() -> Flooded {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = SqliteIndex::open(directory.path()).expect("made");
        let (owner, index) = ManualIndex::new(Index::new(store, 5));
        tokio::spawn(carry_out(index));
        let finder = RunFinder::open(directory.path()).expect("opened");
        let objects = Objects::over(StoreDouble::taking(PUT), "one");
        let (mut config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        config.diskless.object_bytes_max = OBJECT;
        config.diskless.memory_bytes = 32 * OBJECT;
        config.diskless.upload_slots = 1;
        let retention = Duration::from_secs(3600);
        let of_index = (owner, finder, None);
        let diskless = Diskless::with_index(objects, &config.diskless, of_index, retention, Metrics::default());
        diskless.put_topic(
            "topic",
            TOPIC,
            2,
            &Arc::new(config.topics.defaults),
            Box::new(|_| ProducerTails::default()),
        );
        let flooded = Flooded { diskless, _directory: directory };
        for index in [0, 1] {
            flooded.partition(index).view.opened().await;
        }
        flooded
    }

    fn partition(&self, index: i32) -> Arc<DisklessPartition> {
        self.diskless.find(&TOPIC, index).expect("it is there")
    }
}

/// Answers each request to the index, as the index thread would.
async fn carry_out(mut index: ManualIndex<SqliteIndex>) {
    loop {
        match index.turn().await {
            Turn::Commit(objects, answer) => drop(answer.send(index.commit(&objects, 0))),
            Turn::Other(requested) => index.carry_out(requested, 0),
            Turn::Idle => index.tidy(0),
        }
    }
}

/// Appends a batch over the connection with the port `port`. Returns the ticket as soon as the batch is admitted.
async fn append(partition: &Arc<DisklessPartition>, batch: &Bytes, port: u16, acks: Acks) -> AppendTicket {
    let (mut waited, peer) = (Unblocked::default(), SocketAddr::from(([127, 0, 0, 1], port)));
    loop {
        let terms = AppendTerms::in_turn(acks, 0);
        match waited.append(partition, &ValidBatch::unchecked(batch), terms, peer).expect("taken") {
            AppendStep::Pending(ticket) => return ticket,
            AppendStep::Blocked(blocker) => waited.wait_for(std::slice::from_ref(partition), blocker, None).await,
            AppendStep::Done(appended) => panic!("{appended:?} at once"),
        }
    }
}

/// Waits until the batch of this ticket is committed. Returns its offset.
async fn committed(ticket: AppendTicket) -> i64 {
    let answer = ticket.wait(Instant::now() + PUT * 1000, std::future::pending(), &Metrics::default()).await;
    answer.expect("committed").base_offset
}

/// Sends large batches over one connection as fast as it can, in turn from `ids` idempotent producers. Without any, the
/// batches have no producer id.
async fn flood(partition: Arc<DisklessPartition>, port: u16, ids: i32) {
    let first = 10_000 * i64::from(port);
    for turn in 0.. {
        let batch = match ids {
            0 => Batch::sized(100_000),
            _ => Batch::numbered(first + i64::from(turn % ids), turn / ids, 100_000),
        };
        drop(append(&partition, &batch.bytes(), port, Acks::All).await);
        yield_now().await;
    }
}

/// The connections of a test, and the acknowledgements for which the paced producers wait.
#[derive(Clone, Copy, Debug)]
struct Load {
    flooding: u16,
    /// How many idempotent producers each flooding connection has.
    ids: i32,
    paced: u16,
    acks: Acks,
}

const ONE_PACED: Load = Load { flooding: 0, ids: 0, paced: 1, acks: Acks::All };

/// Runs the paced producers, each over its own connection, while other connections send as fast as they can. Returns
/// the longest time that a batch of a paced producer waited for its answer.
async fn longest_beside(load: Load) -> Duration {
    let flooded = Flooded::start().await;
    let port = |nth| 100 + nth;
    let _flooding: JoinSet<()> =
        (0..load.flooding).map(|nth| flood(flooded.partition(0), port(nth), load.ids)).collect();
    sleep(PUT * 5).await;
    let (batch, mut answers) = (Batch::sized(100).bytes(), JoinSet::new());
    for _ in 0..PACED {
        for port in 0..load.paced {
            let (partition, batch) = (flooded.partition(1), batch.clone());
            answers.spawn(async move {
                let sent = Instant::now();
                committed(append(&partition, &batch, port, load.acks).await).await;
                sent.elapsed()
            });
        }
        sleep(PUT / 10).await;
    }
    answers.join_all().await.into_iter().max().expect("some")
}

/// Checks that the paced producers wait at most two objects longer than without the flooding connections.
async fn check_waits(load: Load) {
    let alone = longest_beside(Load { flooding: 0, ..load }).await;
    let beside = longest_beside(load).await;
    assert!(beside <= alone + 2 * PUT, "{beside:?} beside {load:?}, {alone:?} alone");
}

#[tokio::test(start_paused = true)]
async fn flooders_make_a_paced_producer_wait_two_objects_longer_at_most() {
    for flooding in [1, 4, 16, 200] {
        check_waits(Load { flooding, ..ONE_PACED }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn connection_floods_with_thousands_of_producer_ids_a_paced_producer_waits_two_objects_longer_at_most() {
    for acks in [Acks::All, Acks::Leader] {
        check_waits(Load { flooding: 1, ids: 2_000, acks, ..ONE_PACED }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn connections_flood_with_many_producer_ids_several_paced_producers_wait_two_objects_longer_at_most() {
    check_waits(Load { flooding: 4, ids: 100, paced: 5, acks: Acks::All }).await;
}

/// The earlier batches of the producer wait in the share of a connection that floods. The other connection is idle.
#[tokio::test(start_paused = true)]
async fn producer_moves_to_another_connection_its_batches_are_committed_in_order() {
    let flooded = Flooded::start().await;
    let _flooding: JoinSet<()> = [flood(flooded.partition(0), 2, 2_000)].into_iter().collect();
    sleep(PUT * 5).await;
    let mut tickets = Vec::new();
    for sequence in 0..40 {
        let port = if sequence < 20 { 2 } else { 3 };
        let batch = Batch::numbered(7, sequence, 100).bytes();
        tickets.push(append(&flooded.partition(1), &batch, port, Acks::All).await);
    }
    for (offset, ticket) in (0..).zip(tickets) {
        assert_eq!(committed(ticket).await, offset);
    }
}
