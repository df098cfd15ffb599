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
async fn append(partition: &Arc<DisklessPartition>, batch: &Bytes, port: u16) -> AppendTicket {
    let (mut waited, peer) = (Unblocked::default(), SocketAddr::from(([127, 0, 0, 1], port)));
    loop {
        let terms = AppendTerms::in_turn(Acks::All, 0);
        match waited.append(partition, &ValidBatch::unchecked(batch), terms, peer).expect("taken") {
            AppendStep::Pending(ticket) => return ticket,
            AppendStep::Blocked(blocker) => waited.wait_for(std::slice::from_ref(partition), blocker, None).await,
            AppendStep::Done(appended) => panic!("{appended:?} at once"),
        }
    }
}

async fn flood(partition: Arc<DisklessPartition>, port: u16) {
    let batch = Batch::sized(100_000).bytes();
    loop {
        drop(append(&partition, &batch, port).await);
        yield_now().await;
    }
}

/// Runs the paced producer while `flooders` other producers send as fast as they can. Returns the longest time that a
/// batch of the paced producer waited for its answer.
async fn longest_beside(flooders: u16) -> Duration {
    let flooded = Flooded::start().await;
    let _flooding: JoinSet<()> = (0..flooders).map(|port| flood(flooded.partition(0), 2 + port)).collect();
    sleep(PUT * 5).await;
    let (batch, mut answers) = (Batch::sized(100).bytes(), JoinSet::new());
    for _ in 0..PACED {
        let (partition, batch) = (flooded.partition(1), batch.clone());
        answers.spawn(async move {
            let sent = Instant::now();
            let ticket = append(&partition, &batch, 1).await;
            let answer = ticket.wait(sent + PUT * 1000, std::future::pending(), &Metrics::default()).await;
            answer.expect("committed");
            sent.elapsed()
        });
        sleep(PUT / 10).await;
    }
    answers.join_all().await.into_iter().max().expect("some")
}

#[tokio::test(start_paused = true)]
async fn flooders_make_a_paced_producer_wait_two_objects_longer_at_most() {
    let alone = longest_beside(0).await;
    for flooders in [1, 4, 16] {
        let beside = longest_beside(flooders).await;
        assert!(beside <= alone + 2 * PUT, "{beside:?} beside {flooders} flooders, {alone:?} alone");
    }
}
