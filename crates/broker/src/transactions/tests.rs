//! The coordinator on one broker, over logs that break.

use super::*;
use crate::groups::Groups;
use crate::partitions::{Acks, AppendStep, AppendTerms, Origin, Replica};
use bytes::BytesMut;
use fullbore_config::Properties;
use fullbore_control::{CreateTopic, CreateTopics, FolderLock, RegistrationInfo};
use fullbore_host::disk_space::DiskSpace;
use fullbore_log::Verification;
use fullbore_log::validation::ValidBatch;
use fullbore_rules::cluster::PreviousShutdown;
use fullbore_rules::sequence::Marker;
use fullbore_rules::transaction::{AddPartitions, EndTxn, InitProducerId, TransactionAnswer};
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
use std::path::Path;
use tokio::sync::watch;

const ID: &str = "id";
const TOPIC: &str = "t";

struct Opened {
    transactions: Arc<Transactions>,
    control: Control,
    logs: Arc<Partitions>,
    _stop: watch::Sender<bool>,
    _lock: FolderLock,
}

async fn opened(folder: &Path, text: &str) -> Opened {
    let config = BrokerConfig::from_properties(&Properties::parse(text).expect("valid")).expect("valid").0;
    let config = Arc::new(config);
    let lock = FolderLock::take(folder).expect("free");
    let space = Arc::new(DiskSpace::open(lock.folder(), 0));
    let opened = Control::open(Arc::clone(&config), &lock, Arc::clone(&space), RegistrationInfo::nowhere());
    let (control, _) = opened.expect("opens");
    let logs = Partitions::open_with(folder, &config, space).expect("opens");
    let (followed, of_config) = (Arc::clone(&logs), Arc::clone(&config));
    control.follow(Box::new(move |before, after| {
        crate::follow_image::follow(&followed, &of_config, before, after, Origin::New);
    }));
    let groups = Groups::new(&config, control.clone(), Arc::clone(&logs), Metrics::default());
    let shared = (control.clone(), Arc::clone(&logs), Metrics::default());
    let unsettled = Unsettled::look(folder, PreviousShutdown::Killed);
    let transactions = Transactions::new(&config, shared, groups, unsettled);
    let stop = watch::Sender::new(false);
    transactions.start(&stop);
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: -1, ..Default::default() };
    let made = control.create_topics(CreateTopics { topics: vec![topic], validate_only: false }).await;
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

    /// Begins a transaction with a record.
    async fn begin(&self) -> ProducerIdAndEpoch {
        self.transactions.prepare(true, [ID]).await.expect("there is room");
        let init = InitProducerId { current: None, timeout_ms: 60_000, wait_until: None };
        let answer = self.answer(|transaction, ticket, turn| transaction.init_producer_id(init, ticket, turn)).await;
        let TransactionAnswer::InitProducerId(Ok(producer)) = answer else { panic!("{answer:?}") };
        let partitions = vec![TopicPartition { topic: Text::from_static(TOPIC), partition: 0 }];
        let add = AddPartitions { producer, partitions, version: TransactionVersion::V2, wait_until: None };
        let added = self.answer(|transaction, ticket, turn| transaction.add_partitions(add, ticket, turn)).await;
        assert_eq!(added, TransactionAnswer::AddPartitions(Ok(())));
        let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None).transactional();
        builder.append(0, None, Some(b"v"), &[]);
        let stamp = Stamp { producer_id: producer.id, producer_epoch: producer.epoch, base_sequence: 0 };
        let bytes = builder.seal(stamp).expect("sealed").0;
        let terms = AppendTerms { verification: Verification::Added, ..AppendTerms::in_turn(Acks::Leader, 0) };
        let appended = self.partition().append(&ValidBatch::unchecked(&bytes), terms).expect("appended");
        assert!(matches!(appended, AppendStep::Done(_)));
        producer
    }

    async fn commit(&self, producer: ProducerIdAndEpoch) -> Result<Option<ProducerIdAndEpoch>, ErrorCode> {
        let end = EndTxn { producer, is_commit: true, version: TransactionVersion::V2 };
        match self.answer(|transaction, ticket, turn| transaction.end_txn(end, ticket, turn)).await {
            TransactionAnswer::EndTxn(ended) => ended,
            other => panic!("{other:?}"),
        }
    }

    fn state(&self) -> TransactionState {
        self.transactions.describe(ID).expect("known").state
    }

    /// Every record of the partition before this offset is on the disk.
    fn recovery_point(&self) -> i64 {
        self.partition().noted().expect("open").recovery_point
    }
}

#[tokio::test]
async fn mode_is_flush_a_commit_is_answered_its_records_and_its_decision_are_on_the_disk() {
    for (text, is_flushed) in [("fullbore.transaction.flush=true", true), ("", false)] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let opened = opened(folder.path(), text).await;
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

#[tokio::test]
async fn records_cannot_be_flushed_the_transaction_is_not_committed() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let opened = opened(folder.path(), "fullbore.transaction.flush=true").await;
    let producer = opened.begin().await;
    opened.partition().break_down();
    assert_eq!(opened.commit(producer).await, Err(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    assert_eq!(opened.state(), TransactionState::Ongoing);
}

#[tokio::test]
async fn nothing_stands_in_the_way_a_commit_is_answered_at_once_and_complete_behind_its_answer() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let opened = opened(folder.path(), "").await;
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

/// Markers of so many partitions are written in several turns: the request goes on in a task of its own.
#[tokio::test]
async fn markers_take_several_turns_the_transaction_is_complete_behind_its_answer() {
    const PARTITIONS: i32 = 2 * MARKERS_A_TURN as i32;
    let folder = tempfile::tempdir().expect("temporary folder");
    let opened = opened(folder.path(), "").await;
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
