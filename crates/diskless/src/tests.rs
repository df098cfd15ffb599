//! Tests diskless topics while other brokers make changes, and while the broker waits for the index. Each test answers
//! the requests to the index itself, so it decides when they are answered.

use std::net::SocketAddr;
use std::ops::Range;

use super::index::manual_index::{ManualIndex, Turn};
use super::index::{ChangeSource, IndexChanges, IndexOwner, IndexStore, UploadedObject};
use super::objects::double::StoreDouble;
use fullbore_rules::commit::admission::Freshness;
use fullbore_rules::commit::{BatchKind, ObjectBatch};
use fullbore_rules::sequence::{ProducerTails, Stamp as Stamped};
use fullbore_tests::Batch;
use fullbore_wire::batch::Stamp;
use tokio::task::yield_now;

use super::pipeline::Refreshed;
use super::*;
use fullbore_config::{BrokerConfig, Properties, TimestampType};
use fullbore_db::StoreError;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{Acks, AppendStep, AppendTicket, Blocker};
use fullbore_log::partition::read::Isolation;
use fullbore_log::partition::reorder_buffer::ReorderBuffer;
use fullbore_log::partition::terms::{AppendTerms, EarlyBatches};
use fullbore_log::validation::ValidBatch;

const ONE: Uuid = Uuid([1; 16]);

/// A broker whose requests to the index are answered by the test.
struct ByHand {
    diskless: Diskless,
    index: ManualIndex<SqliteIndex>,
    config: Arc<TopicConfig>,
    directory: tempfile::TempDir,
}

/// A change feed that never reports a change.
struct Unheard;

impl ChangeSource for Unheard {
    fn changed(&mut self) -> Result<Vec<index::PartitionRow>, StoreError> {
        Ok(Vec::new())
    }
}

impl ByHand {
    fn new() -> ByHand {
        ByHand::beside(None)
    }

    /// Creates a broker that gets the changes of other brokers from `changes`.
    fn beside(changes: Option<IndexChanges>) -> ByHand {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = SqliteIndex::open(directory.path()).expect("made");
        let (owner, index) = ManualIndex::new(Index::new(store, 5));
        let finder = RunFinder::open(directory.path()).expect("opened");
        let objects = Objects::over(StoreDouble::taking(Duration::ZERO), "one");
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let of_index = (owner, finder, changes);
        let retention = Duration::from_secs(300);
        let diskless = Diskless::with_index(objects, &config.diskless, of_index, retention, Metrics::default());
        ByHand { diskless, index, config: Arc::new(config.topics.defaults), directory }
    }

    fn put(&self, id: Uuid, count: i32) {
        self.diskless.put_topic("topic", id, count, &self.config, Box::new(|_| ProducerTails::default()));
    }

    /// Acts as another broker: commits one batch for each of these sequences of producer 7. Each batch has one record,
    /// and is in its own object.
    fn committed_elsewhere(&self, sequences: Range<i32>) {
        let partition = self.diskless.find(&ONE, 0).and_then(|of| of.view.number()).expect("settled");
        let mut store = SqliteIndex::open(self.directory.path()).expect("opened");
        let ids = store.register(sequences.len(), 0).expect("registered");
        let mut other = Index::new(store, 5);
        for (base_sequence, id) in sequences.zip(ids) {
            let stamp = Stamped { producer_id: 7, producer_epoch: 0, base_sequence, record_count: 1 };
            let batches = vec![ObjectBatch {
                partition,
                position: 0,
                size: 100,
                stamp,
                max_timestamp: 7,
                kind: BatchKind::Plain,
                confirmation: None,
            }];
            other.commit(&[UploadedObject { id, batches }], 0).expect("committed");
        }
    }

    /// Answers the requests to the index until there are none left. Returns the number of requests.
    async fn carry_out(&mut self) -> usize {
        let mut count = 0;
        while let Turn::Other(requested) = self.index.turn().await {
            self.index.carry_out(requested, 0);
            count += 1;
        }
        count
    }

    fn refresh(&self, index: i32) -> tokio::task::JoinHandle<Result<(), AppendError>> {
        tokio::spawn(refreshed(self.diskless.find(&ONE, index).expect("it is there")))
    }

    /// Appends a record with this stamp to the first partition, as the task of a connection would.
    async fn append(&mut self, stamp: Stamp, now_ms: i64) -> Result<i64, AppendError> {
        let partition = self.diskless.find(&ONE, 0).expect("it is there");
        let bytes = Batch::at(7, &["value"]).stamped(stamp).bytes();
        let terms = AppendTerms::in_turn(Acks::All, now_ms);
        let (mut freshness, peer) = (Freshness::MayBeStale, SocketAddr::from(([127, 0, 0, 1], 7)));
        let pending = loop {
            match partition.append(&ValidBatch::unchecked(&bytes), terms, peer, freshness, None)? {
                AppendStep::Done(appended) => return Ok(appended.base_offset),
                AppendStep::Pending(ticket) => break answered(ticket),
                AppendStep::Blocked(Blocker::StaleState(_)) => {
                    let refreshing = self.refresh(0);
                    self.until(|| refreshing.is_finished(), now_ms).await;
                    freshness = Freshness::Current;
                }
                blocked => panic!("{blocked:?}"),
            }
        };
        let answered = tokio::spawn(pending);
        self.until(|| answered.is_finished(), now_ms).await;
        answered.await.expect("no panic")
    }

    /// Answers the requests to the index until `is_done` returns true.
    async fn until(&mut self, is_done: impl Fn() -> bool, now_ms: i64) {
        while !is_done() {
            match self.index.turn().await {
                Turn::Commit(objects, answer) => drop(answer.send(self.index.commit(&objects, now_ms))),
                Turn::Other(requested) => self.index.carry_out(requested, now_ms),
                Turn::Idle => yield_now().await,
            }
        }
    }
}

/// Refreshes the producers of one partition.
async fn refreshed(partition: Arc<DisklessPartition>) -> Result<(), AppendError> {
    let mut refreshed = Refreshed::new();
    DisklessPartition::refresh_producers(&[partition], &mut refreshed).await;
    refreshed.into_values().next().expect("it has a number")
}

/// Waits for the answer to a batch. Returns its offset.
async fn answered(ticket: AppendTicket) -> Result<i64, AppendError> {
    let far = tokio::time::Instant::now() + Duration::from_secs(3600);
    ticket.wait(far, std::future::pending(), &Metrics::default()).await.map(|appended| appended.base_offset)
}

/// Regression test: the index thread had panicked, and the pipeline repeated a commit forever, because no thread
/// answered it.
#[tokio::test]
async fn index_thread_panics_pending_and_later_batches_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = SqliteIndex::open(directory.path()).expect("made");
    let (owner, thread) = IndexOwner::start(Index::new(store, 5)).expect("started");
    let finder = RunFinder::open(directory.path()).expect("opened");
    let objects = Objects::over(StoreDouble::taking(Duration::ZERO), "one");
    let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let of_index = (owner.clone(), finder, None);
    let diskless =
        Diskless::with_index(objects, &config.diskless, of_index, Duration::from_secs(300), Metrics::default());
    let topic = Arc::new(config.topics.defaults);
    diskless.put_topic("topic", ONE, 1, &topic, Box::new(|_| ProducerTails::default()));
    let partition = diskless.find(&ONE, 0).expect("it is there");
    while !partition.view.is_ready() {
        yield_now().await;
    }
    refreshed(Arc::clone(&partition)).await.expect("the thread answers");
    let append = |base_sequence| {
        let stamp = Stamp { producer_id: 7, producer_epoch: 0, base_sequence };
        let bytes = Batch::at(7, &["value"]).stamped(stamp).bytes();
        let terms = AppendTerms::in_turn(Acks::All, 7);
        partition.append(&ValidBatch::unchecked(&bytes), terms, ([127, 0, 0, 1], 7).into(), Freshness::Current, None)
    };
    // The first batch makes the broker register several object ids. The next batch therefore needs no registration, and
    // fails only in its commit.
    let Ok(AppendStep::Pending(first)) = append(0) else { panic!("it is not pending") };
    assert_eq!(answered(first).await, Ok(0));
    let panics = Box::new(|_| panic!("planted by the test"));
    owner.create("other".into(), Uuid([2; 16]), 1, Box::new(|_| ProducerTails::default()), panics);
    if let Ok(AppendStep::Pending(ticket)) = append(1) {
        let answer = tokio::time::timeout(Duration::from_secs(60), answered(ticket)).await;
        assert_eq!(answer.expect("it is answered"), Err(AppendError::Gone));
    }
    assert!(owner.ended().await);
    while !matches!(append(2), Err(AppendError::Gone)) {
        yield_now().await;
    }
    assert!(diskless.index_has_panicked() && owner.known_store().await.is_err());
    drop(thread);
}

#[tokio::test]
async fn answer_to_a_commit_overtakes_an_older_refresh_the_commit_is_not_missed() {
    let mut broker = ByHand::new();
    broker.put(ONE, 1);
    broker.carry_out().await;
    let partition = broker.diskless.find(&ONE, 0).expect("it is there");
    // The index answers now. The caller receives the answer only when it polls again, after the commit below.
    let mut refreshing = Box::pin(refreshed(partition));
    assert!(tokio::time::timeout(Duration::ZERO, &mut refreshing).await.is_err());
    broker.carry_out().await;
    assert_eq!(broker.append(Stamp::NONE, 0).await, Ok(0));
    refreshing.await.expect("refreshed");
    for sequence in 0..3 {
        let stamp = Stamp { producer_id: 7, producer_epoch: 0, base_sequence: sequence };
        assert_eq!(broker.append(stamp, 0).await, Ok(i64::from(sequence) + 1));
    }
}

#[tokio::test]
async fn topic_is_deleted_no_memory_of_it_is_kept() {
    let mut broker = ByHand::new();
    broker.put(ONE, 2);
    broker.carry_out().await;
    let refreshing = broker.refresh(0);
    yield_now().await;
    broker.carry_out().await;
    refreshing.await.expect("no panic").expect("refreshed");
    assert_eq!(broker.index.kept(), [1, 2, 0]);
    let number = broker.diskless.find(&ONE, 0).and_then(|of| of.view.number()).expect("settled");
    // A partition is refreshed while its topic is deleted. Another topic is deleted before the index has created it.
    // At the end, no state of either topic may be in memory.
    let refreshing = broker.refresh(0);
    yield_now().await;
    broker.diskless.delete_topic(ONE, Box::new(|| {}));
    broker.put(Uuid([2; 16]), 2);
    broker.diskless.delete_topic(Uuid([2; 16]), Box::new(|| {}));
    broker.carry_out().await;
    refreshing.await.expect("no panic").expect_err("it is deleted");
    assert_eq!(broker.index.kept(), [0, 0, 0]);
    assert!(broker.diskless.services.pipeline.known(number, |_| ()).is_none());
}

#[tokio::test]
async fn clock_of_the_broker_is_behind_the_databases_records_get_the_later_time() {
    let mut broker = ByHand::new();
    Arc::make_mut(&mut broker.config).message_timestamp_type = TimestampType::LogAppendTime;
    broker.put(ONE, 1);
    broker.carry_out().await;
    let (now_ms, hour_ms) = (fullbore_host::files::now_ms(), 3_600_000);
    let newest = |broker: &mut ByHand| broker.index.with_store(|store| store.partitions()[0].max_timestamp);
    assert_eq!(broker.append(Stamp::NONE, now_ms).await, Ok(0));
    assert_eq!(newest(&mut broker), now_ms);
    broker.diskless.services.index.clock().saw(now_ms + hour_ms, Duration::ZERO);
    assert_eq!(broker.append(Stamp::NONE, now_ms).await, Ok(1));
    let dated = newest(&mut broker);
    assert!((now_ms + hour_ms..now_ms + 2 * hour_ms).contains(&dated), "{} ms", dated - now_ms);
}

#[tokio::test]
async fn clock_jumps_one_object_is_refused_and_not_all_registered_ones() {
    let mut broker = ByHand::new();
    broker.put(ONE, 1);
    broker.carry_out().await;
    assert_eq!(broker.append(Stamp::NONE, 0).await, Ok(0));
    let later = 7_200_000;
    let index = broker.diskless.services.index.clone();
    let cleaning = tokio::spawn(async move { index.unused(64, 60_000).await });
    broker.until(|| cleaning.is_finished(), later).await;
    assert_eq!(cleaning.await.expect("no panic").map(|unused| unused.len()), Ok(63));
    let refused = broker.append(Stamp::NONE, later).await;
    assert_eq!(refused, Err(AppendError::Again), "nothing is broken, and the log has nothing to say");
    assert_eq!(broker.append(Stamp::NONE, later).await, Ok(1));
}

#[tokio::test]
async fn many_moves_of_log_starts_are_given_up_a_commit_waits_for_few_of_them() {
    let mut broker = ByHand::new();
    broker.put(ONE, 50);
    broker.carry_out().await;
    for index in 0..50 {
        let partition = broker.diskless.find(&ONE, index).expect("it is there");
        let moving = partition.delete_records_before(0);
        assert!(tokio::time::timeout(Duration::ZERO, moving).await.is_err(), "whoever asks waits for nothing");
    }
    let carried_out = broker.carry_out().await;
    assert!((1..=2).contains(&carried_out), "{carried_out} before a commit");
    // A later request gets a permit and is carried out.
    let partition = broker.diskless.find(&ONE, 7).expect("it is there");
    let moving = tokio::spawn(async move { partition.delete_records_before(0).await });
    broker.until(|| moving.is_finished(), 0).await;
    assert_eq!(moving.await.expect("no panic"), Ok(0));
}

#[tokio::test]
async fn caller_gives_up_a_move_of_the_log_start_its_result_is_applied() {
    let mut broker = ByHand::new();
    broker.put(ONE, 1);
    broker.carry_out().await;
    assert_eq!(broker.append(Stamp::NONE, 0).await, Ok(0));
    let partition = broker.diskless.find(&ONE, 0).expect("it is there");
    let moving = partition.delete_records_before(1);
    assert!(tokio::time::timeout(Duration::ZERO, moving).await.is_err(), "the index has not done it yet");
    broker.carry_out().await;
    yield_now().await;
    yield_now().await;
    assert_eq!(partition.view.offsets().log_start, 1);
}

#[tokio::test]
async fn change_feed_omits_commits_of_others_their_records_are_read() {
    let mut broker = ByHand::beside(Some(IndexChanges::over(Box::new(Unheard))));
    broker.put(ONE, 1);
    broker.carry_out().await;
    broker.committed_elsewhere(0..3);
    let partition = broker.diskless.find(&ONE, 0).expect("it is there");
    let (waiter, began) = (Arc::default(), std::time::Instant::now());
    let _registration = partition.view.register(&waiter);
    assert!(
        partition.try_read(Isolation::ReadUncommitted, 0, 1000, true, began, 1).expect("readable").is_none(),
        "it is asked for"
    );
    waiter.notified().await;
    assert_eq!(partition.view.offsets().log_end, 3);
}

/// The broker knows only sequence 0. Another broker has committed sequences 1 and 2. The producer sends 1 again,
/// because its answer was lost.
#[tokio::test]
async fn missing_batch_is_committed_elsewhere_the_parked_one_is_released() {
    let mut broker = ByHand::beside(Some(IndexChanges::over(Box::new(Unheard))));
    broker.put(ONE, 1);
    broker.carry_out().await;
    let stamp = |base_sequence| Stamp { producer_id: 7, producer_epoch: 0, base_sequence };
    assert_eq!(broker.append(stamp(0), 0).await, Ok(0));
    broker.committed_elsewhere(1..3);
    let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let (reordering, partition) =
        (ReorderBuffer::new(&config.reorder, Metrics::default()), broker.diskless.find(&ONE, 0));
    let partition = partition.expect("it is there");
    let admit = |base_sequence, freshness| {
        let bytes = Batch::at(7, &["value"]).stamped(stamp(base_sequence)).bytes();
        let early = EarlyBatches { are_sent: false, wait_in: Some(&reordering) };
        let terms = AppendTerms { early, ..AppendTerms::in_turn(Acks::All, 0) };
        partition
            .append(&ValidBatch::unchecked(&bytes), terms, ([127, 0, 0, 1], 7).into(), freshness, None)
            .expect("taken")
    };
    let AppendStep::Pending(second) = admit(1, Freshness::MayBeStale) else { panic!("it seems to be the next") };
    let is_stale = |step: &AppendStep| matches!(step, AppendStep::Blocked(Blocker::StaleState(7)));
    assert!(is_stale(&admit(3, Freshness::MayBeStale)), "one is missing");
    let refreshing = tokio::spawn({
        let partition = Arc::clone(&partition);
        refreshed(partition)
    });
    let mut of_second = None;
    while !refreshing.is_finished() {
        match broker.index.turn().await {
            Turn::Other(requested) => broker.index.carry_out(requested, 0),
            Turn::Commit(objects, answer) => of_second = Some((objects, answer)),
            Turn::Idle => yield_now().await,
        }
    }
    let AppendStep::Pending(fourth) = admit(3, Freshness::Current) else { panic!("the second one is in line") };
    if let Some((objects, answer)) = of_second {
        drop(answer.send(broker.index.commit(&objects, 0)));
    }
    let (second, fourth) = (tokio::spawn(answered(second)), tokio::spawn(answered(fourth)));
    broker.until(|| second.is_finished() && fourth.is_finished(), 0).await;
    assert_eq!(second.await.expect("no panic"), Ok(1));
    assert_eq!(fourth.await.expect("no panic"), Ok(3));
}

#[tokio::test]
async fn refreshes_are_given_up_at_once_their_queries_do_not_pile_up() {
    let mut broker = ByHand::new();
    broker.put(ONE, 50);
    broker.carry_out().await;
    for index in 0..50 {
        let partition = broker.diskless.find(&ONE, index).expect("it is there");
        assert!(tokio::time::timeout(Duration::ZERO, refreshed(partition)).await.is_err());
    }
    let carried_out = broker.carry_out().await;
    assert!((1..=2).contains(&carried_out), "{carried_out} before a commit");
    assert_eq!(broker.append(Stamp { producer_id: 7, producer_epoch: 0, base_sequence: 0 }, 0).await, Ok(0));
}

#[tokio::test]
async fn settings_change_the_index_gets_only_a_larger_window() {
    let mut broker = ByHand::new();
    let retain = |broker: &mut ByHand, window| {
        Arc::make_mut(&mut broker.config).producer_state_batches_to_retain = window;
    };
    broker.put(ONE, 2);
    assert_eq!(broker.carry_out().await, 2, "they are made, and so much is retained");
    for window in [128, 5, 128, 5] {
        retain(&mut broker, window);
        (0..25).for_each(|_| broker.put(ONE, 2));
    }
    assert!(broker.carry_out().await <= 2);
    retain(&mut broker, 500);
    broker.put(ONE, 2);
    assert_eq!(broker.carry_out().await, 1);
    // The settings change to a larger window before the index has returned the ids of the partitions.
    let two = Uuid([2; 16]);
    broker.put(two, 2);
    retain(&mut broker, 600);
    broker.put(two, 2);
    assert_eq!(broker.carry_out().await, 3);
}

#[tokio::test]
async fn many_refreshes_wait_a_commit_waits_for_few_of_them() {
    let mut broker = ByHand::new();
    broker.put(ONE, 50);
    broker.carry_out().await;
    let mut refreshes: Vec<_> = (0..50).map(|index| broker.refresh(index)).collect();
    let given_up = refreshes.split_off(40);
    yield_now().await;
    given_up.iter().for_each(|refresh| refresh.abort());
    let index = broker.diskless.services.index.clone();
    let commit = tokio::spawn(async move { index.commit(Vec::new()).await });
    yield_now().await;
    let mut before = 0;
    loop {
        match broker.index.turn().await {
            Turn::Commit(objects, answer) => {
                let _ = answer.send(broker.index.commit(&objects, 0));
                break;
            }
            Turn::Other(requested) => {
                before += 1;
                broker.index.carry_out(requested, 0);
            }
            Turn::Idle => {}
        }
    }
    assert!(before <= 2, "{before} refreshes before the commit");
    commit.await.expect("no panic").expect("committed");
    while !refreshes.iter().all(|refresh| refresh.is_finished()) {
        broker.carry_out().await;
    }
    for refresh in refreshes {
        refresh.await.expect("no panic").expect("refreshed");
    }
}

#[tokio::test]
async fn request_has_many_partitions_they_are_refreshed_together_and_a_deleted_one_fails_alone() {
    let mut broker = ByHand::beside(Some(IndexChanges::over(Box::new(Unheard))));
    broker.put(ONE, 40);
    broker.carry_out().await;
    let partitions: Vec<_> = (0..40).filter_map(|index| broker.diskless.find(&ONE, index)).collect();
    assert!(partitions.iter().all(|partition| partition.is_stale_for(7)));
    broker.committed_elsewhere(0..3);
    let gone = Uuid([2; 16]);
    broker.diskless.put_topic("gone", gone, 1, &broker.config, Box::new(|_| ProducerTails::default()));
    broker.carry_out().await;
    let deleted = broker.diskless.find(&gone, 0).expect("it is there");
    broker.diskless.delete_topic(gone, Box::new(|| {}));
    broker.carry_out().await;
    let all: Vec<_> = partitions.iter().chain([&deleted]).cloned().collect();
    let refreshing = tokio::spawn(async move {
        let mut refreshed = Refreshed::new();
        DisklessPartition::refresh_producers(&all, &mut refreshed).await;
        refreshed
    });
    let mut requested = 0;
    while !refreshing.is_finished() {
        requested += broker.carry_out().await;
        yield_now().await;
    }
    assert_eq!(requested, 3, "41 partitions, 16 at a time");
    let refreshed = refreshing.await.expect("no panic");
    let failed: Vec<_> = refreshed.iter().filter(|(_, outcome)| outcome.is_err()).map(|(number, _)| *number).collect();
    assert_eq!((refreshed.len(), failed), (41, deleted.view.number().into_iter().collect()));
    assert!(!partitions[0].is_stale_for(7), "its producer is known");
    assert!(partitions[1].is_stale_for(7), "a first batch asks where others commit, too");
}

/// Refreshes 16 partitions, first with a single query. The index refuses query number n, counted from 0, if
/// `is_refused(n)` returns true. Returns the size of each query, and the outcomes in the order of the partitions.
async fn refreshed_while_refused(is_refused: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<Result<(), AppendError>>) {
    let mut broker = ByHand::new();
    broker.put(ONE, 16);
    broker.carry_out().await;
    let all: Vec<_> = (0..16).filter_map(|index| broker.diskless.find(&ONE, index)).collect();
    let refreshing = tokio::spawn(async move {
        let mut refreshed = Refreshed::new();
        DisklessPartition::refresh_producers(&all, &mut refreshed).await;
        refreshed
    });
    let mut questions = Vec::new();
    while !refreshing.is_finished() {
        match broker.index.turn().await {
            Turn::Other(requested) => {
                questions.push(requested.partitions());
                match is_refused(questions.len() - 1) {
                    true => requested.refuse_refresh(),
                    false => broker.index.carry_out(requested, 0),
                }
            }
            _ => yield_now().await,
        }
    }
    let mut outcomes: Vec<_> = refreshing.await.expect("no panic").into_iter().collect();
    outcomes.sort_by_key(|(number, _)| *number);
    (questions, outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

#[tokio::test]
async fn common_refresh_fails_partitions_are_refreshed_one_by_one() {
    let (questions, outcomes) = refreshed_while_refused(|question| question == 0).await;
    assert_eq!(questions, [[16].as_slice(), &[1; 16]].concat());
    assert_eq!(outcomes, vec![Ok(()); 16]);
}

#[tokio::test]
async fn refresh_of_one_fails_those_before_it_keep_their_outcomes() {
    let (questions, outcomes) = refreshed_while_refused(|question| [0, 6].contains(&question)).await;
    assert_eq!(questions, [[16].as_slice(), &[1; 6]].concat(), "none is asked for after the one that failed");
    assert_eq!(outcomes, [vec![Ok(()); 5], vec![Err(AppendError::Storage); 11]].concat());
}
