//! Tests the coordinator on one broker, including logs that fail.

use super::*;
use crate::coordinator::Coordinator;
use crate::groups::Groups;
use crate::partitions::{Acks, AnyPartition, AppendStep, AppendTerms, Origin, Replica};
use bytes::Bytes;
use fullbore_config::Properties;
use fullbore_control::{CreateTopic, CreateTopics, DirectoryLock, RegistrationInfo};
use fullbore_diskless::{Diskless, DisklessPartition};
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::files::now_ms;
use fullbore_log::Verification;
use fullbore_log::validation::ValidBatch;
use fullbore_rules::cluster::PreviousShutdown;
use fullbore_rules::commit::admission::Freshness;
use fullbore_rules::sequence::Marker;
use fullbore_rules::transaction::{AddPartitions, EndTxn, InitProducerId, TransactionAnswer};
use fullbore_tests::Batch;
use std::path::Path;
use tokio::sync::watch;

const ID: &str = "id";
const TOPIC: &str = "t";
/// The name of a diskless topic.
const REMOTE: &str = "remote";

struct Opened {
    transactions: Arc<Transactions>,
    control: Control,
    logs: Arc<Partitions>,
    _stop: watch::Sender<bool>,
    _lock: DirectoryLock,
}

async fn opened(directory: &Path, text: &str) -> Opened {
    opened_by(SteadyClock::start(), directory, text).await
}

async fn opened_by(clock: SteadyClock, directory: &Path, text: &str) -> Opened {
    let text = format!("log.dirs={}\n{text}", directory.display());
    let config = BrokerConfig::from_properties(&Properties::parse(&text).expect("valid")).expect("valid").0;
    let config = Arc::new(config);
    let lock = DirectoryLock::take(directory).expect("free");
    let space = Arc::new(DiskSpace::open(lock.directory(), 0));
    let opened = Control::open(Arc::clone(&config), &lock, Arc::clone(&space), RegistrationInfo::nowhere());
    let (control, _) = opened.expect("opens");
    let logs = Partitions::open_with(directory, &config, Arc::clone(&space)).expect("opens");
    let (known, metrics) = (Arc::default(), Metrics::default());
    let diskless = Diskless::open(&config, control.cluster_id(), known, space, metrics).await.expect("opens");
    logs.serve_diskless(diskless);
    let (followed, of_config) = (Arc::clone(&logs), Arc::clone(&config));
    control.follow(Box::new(move |before, after| {
        crate::follow_image::follow(&followed, &of_config, before, after, Origin::New);
    }));
    let groups = Groups::new(&config, control.clone(), Arc::clone(&logs), Metrics::default());
    let shared = (control.clone(), Arc::clone(&logs), Metrics::default());
    let unsettled = Unsettled::open(directory, PreviousShutdown::Killed);
    let transactions = Transactions::by(clock, &config, shared, groups, unsettled);
    let stop = watch::Sender::new(false);
    transactions.start(&stop);
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: -1, ..Default::default() };
    let configs = vec![("diskless.enable".to_owned(), Some("true".to_owned()))];
    let remote = CreateTopic { name: REMOTE.into(), num_partitions: 2, configs, ..topic.clone() };
    let made = control.create_topics(CreateTopics { topics: vec![topic, remote], validate_only: false }).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    Opened { transactions, control, logs, _stop: stop, _lock: lock }
}

impl Opened {
    fn partition(&self) -> Arc<Replica> {
        let id = self.control.image().topic(TOPIC).expect("it was made").id;
        self.logs.find(&id, 0).expect("it is here")
    }

    async fn answer(&self, event: impl FnOnce(&mut Transaction, RequestTicket, &mut Turn<'_>)) -> TransactionAnswer {
        self.transactions.put_to(ID, None, event).expect("it serves").answer().await.expect("it is answered")
    }

    /// Begins a transaction and writes one record in it.
    async fn begin(&self) -> ProducerIdAndEpoch {
        self.transactions.prepare(true, [ID]).await.expect("there is room");
        let init = InitProducerId { current: None, timeout_ms: 60_000, wait_until: None };
        let answer = self.answer(|transaction, ticket, turn| transaction.init_producer_id(init, ticket, turn)).await;
        let TransactionAnswer::InitProducerId(Ok(producer)) = answer else { panic!("{answer:?}") };
        let partitions = vec![TopicPartition { topic: Text::from_static(TOPIC), partition: 0 }];
        let add = AddPartitions { producer, partitions, version: TransactionVersion::V2, wait_until: None };
        let added = self.answer(|transaction, ticket, turn| transaction.add_partitions(add, ticket, turn)).await;
        assert_eq!(added, TransactionAnswer::AddPartitions(Ok(())));
        let bytes = first_batch(producer);
        let appended = self.partition().append(&ValidBatch::unchecked(&bytes), terms_of_added()).expect("appended");
        assert!(matches!(appended, AppendStep::Done(_)));
        producer
    }

    /// Opens a transaction in a diskless partition, which no transactional id knows of.
    async fn begin_in(&self, partition: &DisklessPartition, producer: ProducerIdAndEpoch) {
        let (bytes, peer) = (first_batch(producer), ([127, 0, 0, 1], 7).into());
        let batch = ValidBatch::unchecked(&bytes);
        match partition.append(&batch, terms_of_added(), peer, Freshness::Current, None).expect("taken") {
            AppendStep::Pending(ticket) => {
                let far = tokio::time::Instant::now() + std::time::Duration::from_secs(3_600);
                ticket.wait(far, std::future::pending(), &Metrics::default()).await.expect("written");
            }
            AppendStep::Done(_) | AppendStep::Blocked(_) => panic!("it is not written yet"),
        }
    }

    async fn remote(&self, index: i32) -> Arc<DisklessPartition> {
        let id = self.control.image().topic(REMOTE).expect("it was made").id;
        let Some(AnyPartition::Diskless(partition)) = self.logs.find_any(&id, index) else { panic!("it is diskless") };
        partition.view.opened().await;
        partition
    }

    async fn commit(&self, producer: ProducerIdAndEpoch) -> Result<Option<ProducerIdAndEpoch>, ErrorCode> {
        let end = EndTxn { producer, is_commit: true, version: TransactionVersion::V2 };
        match self.answer(|transaction, ticket, turn| transaction.end_txn(end, ticket, turn)).await {
            TransactionAnswer::EndTxn(ended) => ended,
            other => panic!("{other:?}"),
        }
    }

    /// Loads the ids again, as after a restart.
    async fn reload(&self) {
        let (transactions, shard) = (Arc::clone(&self.transactions), self.transactions.serving(ID).expect("loaded"));
        let loaded = tokio::task::spawn_blocking(move || transactions.install(&shard)).await.expect("no panic");
        assert!(loaded.is_ok());
    }

    fn state(&self) -> TransactionState {
        self.transactions.describe(ID).expect("known").state
    }

    /// Returns the offset up to which the records of the partition are on the disk.
    fn recovery_point(&self) -> i64 {
        self.partition().noted().expect("open").recovery_point
    }
}

fn first_batch(producer: ProducerIdAndEpoch) -> Bytes {
    Batch::at(0, &["v"]).from_producer(producer.id, producer.epoch, 0).transactional().bytes()
}

/// Returns the parameters with which a batch is appended after the coordinator has added the partition to the
/// transaction.
fn terms_of_added() -> AppendTerms<'static> {
    AppendTerms { verification: Verification::Added, ..AppendTerms::in_turn(Acks::Leader, 0) }
}

#[tokio::test]
async fn commit_in_flush_mode_has_records_and_decision_on_the_disk_when_answered() {
    for (text, is_flushed) in [("fullbore.transaction.flush=true", true), ("", false)] {
        let directory = tempfile::tempdir().expect("temporary directory");
        let opened = opened(directory.path(), text).await;
        let producer = opened.begin().await;
        assert_eq!(opened.recovery_point(), 0, "only a commit is flushed");
        assert!(opened.commit(producer).await.is_ok());
        let flushed = if is_flushed { 1..=2 } else { 0..=0 };
        assert!(flushed.contains(&opened.recovery_point()), "{text}: {}", opened.recovery_point());
        while is_flushed && opened.state() != TransactionState::CompleteCommit {
            tokio::task::yield_now().await;
        }
        assert_eq!(opened.recovery_point(), if is_flushed { 2 } else { 0 }, "{text}: the marker is on the disk");
    }
}

/// An earlier process may have appended a decision without flushing it. If loading did not flush it, a power loss after
/// the markers were written would lose the decision.
#[tokio::test]
async fn loaded_decision_in_flush_mode_is_on_the_disk_before_it_is_carried_out() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let opened = opened(directory.path(), "fullbore.transaction.flush=true").await;
    opened.begin().await;
    let shard = opened.transactions.serving(ID).expect("loaded");
    let recovery_point = || shard.partition().noted().expect("open").recovery_point;
    assert_eq!(recovery_point(), 0, "nothing relies on it yet");
    opened.reload().await;
    assert_eq!(recovery_point(), 2, "the producer, and its transaction");
}

#[tokio::test]
async fn transaction_with_unflushable_records_is_not_committed() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let opened = opened(directory.path(), "fullbore.transaction.flush=true").await;
    let producer = opened.begin().await;
    opened.partition().break_down();
    assert_eq!(opened.commit(producer).await, Err(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    assert_eq!(opened.state(), TransactionState::Ongoing);
}

/// After a power loss, `__transaction_state` may have lost its last records, while the index of diskless topics has
/// kept its rows. Transactions that are open only in the index must be aborted.
#[tokio::test]
async fn transactions_with_lost_state_are_aborted_in_diskless_partitions() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let opened = opened(directory.path(), "").await;
    let partitions = [opened.remote(0).await, opened.remote(1).await];
    for (id, partition) in (1_000..).zip([0, 0, 1, 1]) {
        opened.begin_in(&partitions[partition], ProducerIdAndEpoch { id, epoch: 3 }).await;
    }
    // Deletes the records of the second partition, which still knows its open transactions.
    partitions[1].delete_records_before(-1).await.expect("deleted");
    opened.transactions.unsettled.set();
    while opened.transactions.unsettled.is_set() {
        tokio::task::yield_now().await;
    }
    for partition in &partitions {
        let bounds = partition.view.bounds();
        assert_eq!((bounds.last_stable_offset, bounds.offsets.log_end), (4, 4), "two records, and two markers");
        let producers = partition.producers().await.expect("known");
        assert!(producers.iter().all(|of| of.open_from.is_none() && of.producer_epoch == 4), "{producers:?}");
    }
}

#[tokio::test]
async fn commit_without_obstacles_is_answered_at_once_and_completed_after_its_answer() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let opened = opened(directory.path(), "").await;
    let producer = opened.begin().await;
    let (unwritten, version) = (Unwritten::default(), TransactionVersion::V2);
    let end = EndTxn { producer, is_commit: true, version };
    let event = |transaction: &mut Transaction, ticket, turn: &mut Turn<'_>| transaction.end_txn(end, ticket, turn);
    let pending = opened.transactions.put_to(ID, Some(&unwritten), event).expect("it serves");
    assert!(pending.is_answered(), "without another task");
    assert_eq!(opened.partition().offsets().expect("open").high_watermark, 2, "the marker is there");
    assert_eq!(opened.state(), TransactionState::PrepareCommit, "the answer leaves first");
    let completed = async {
        while opened.state() != TransactionState::CompleteCommit {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        never = unwritten.carry_out() => match never {},
        () = completed => {}
    }
}

/// The future that writes the markers of 128 partitions yields several times, so the rest of the request runs in a task
/// of its own.
#[tokio::test]
async fn commit_with_many_markers_is_completed_after_its_answer() {
    const PARTITIONS: i32 = 2 * MARKERS_A_TURN as i32;
    let directory = tempfile::tempdir().expect("temporary directory");
    let opened = opened(directory.path(), "").await;
    let name = Text::from_static("wide");
    let topic = CreateTopic { name: name.to_string(), num_partitions: PARTITIONS, ..Default::default() };
    let topic = CreateTopic { replication_factor: -1, ..topic };
    let made = opened.control.create_topics(CreateTopics { topics: vec![topic], validate_only: false }).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    let producer = opened.begin().await;
    let partitions = TopicPartition::each_of(&name, &(0..PARTITIONS).collect::<Vec<_>>()).collect();
    let add = AddPartitions { producer, partitions, version: TransactionVersion::V2, wait_until: None };
    let added = opened.answer(|transaction, ticket, turn| transaction.add_partitions(add, ticket, turn)).await;
    assert_eq!(added, TransactionAnswer::AddPartitions(Ok(())));
    for partition in 0..PARTITIONS {
        let id = opened.control.image().topic(&name).expect("it was made").id;
        let replica = opened.logs.find(&id, partition).expect("it is here");
        let marker = Marker { producer_id: 1, producer_epoch: 0, coordinator_epoch: 0, is_commit: false };
        replica.append_marker(&marker, 2, None, 0).expect("its log is made");
    }
    assert!(opened.commit(producer).await.is_ok());
    let completed = async {
        while opened.state() != TransactionState::CompleteCommit {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), completed).await.expect("it is completed");
}

#[tokio::test]
async fn commit_during_an_append_of_another_thread_is_answered_and_completed() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let opened = opened(directory.path(), "").await;
    let producer = opened.begin().await;
    let unwritten = Unwritten::default();
    let end = EndTxn { producer, is_commit: true, version: TransactionVersion::V2 };
    let event = |transaction: &mut Transaction, ticket, turn: &mut Turn<'_>| transaction.end_txn(end, ticket, turn);
    let shard = opened.transactions.serving(ID).expect("it serves");
    let held = shard.hold();
    let pending = opened.transactions.put_to(ID, Some(&unwritten), event).expect("it serves");
    assert!(!pending.is_answered());
    drop(held);
    shard.flush();
    assert!(matches!(pending.answer().await, Ok(TransactionAnswer::EndTxn(Ok(_)))));
    let completed = async {
        while opened.state() != TransactionState::CompleteCommit {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), completed).await.expect("it is completed");
}

#[tokio::test]
async fn transaction_after_a_step_of_the_systems_clock_keeps_its_begin_and_timeout_when_loaded() {
    for step_ms in [-120_000, 0, 120_000] {
        let directory = tempfile::tempdir().expect("temporary directory");
        let opened = opened_by(SteadyClock::before_step(step_ms), directory.path(), "").await;
        let before = now_ms();
        opened.begin().await;
        let begun = opened.transactions.describe(ID).expect("known").start_ms;
        assert!((before - 1..=now_ms() + 1).contains(&begun), "{step_ms}: {begun} is not of the system's clock");
        opened.reload().await;
        let loaded = opened.transactions.describe(ID).expect("known").start_ms;
        assert!((begun - 1..=begun + 1).contains(&loaded), "{step_ms}: {begun}, then {loaded}");
        let long = TransactionFilter { states: &[], producer_ids: &[], duration_ms: 60_000 };
        assert!(opened.transactions.list(&long, |_| true).expect("loaded").is_empty(), "{step_ms}");
        assert!(opened.transactions.counts().oldest_open.is_some_and(|oldest| oldest.age_ms < 60_000), "{step_ms}");
        let pending = opened.transactions.put_to(ID, None, |transaction, _, turn| transaction.time_out(turn));
        drop(pending.expect("it serves"));
        assert_eq!(opened.state(), TransactionState::Ongoing, "{step_ms}: its timeout of a minute has not passed");
    }
}
