//! Tests transactions on a diskless partition of a single broker, in virtual time: confirmations, the positions of
//! markers, and reads.

use bytes::{Bytes, BytesMut};
use fullbore_rules::commit::admission::Freshness;
use fullbore_rules::sequence::{Marker, ProducerTails, SequenceRefusal};
use fullbore_wire::ErrorCode;
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::Instant;

use super::index::manual_index::{ManualIndex, Turn};
use super::objects::double::StoreDouble;
use super::pipeline::Refreshed;
use super::*;
use fullbore_config::Properties;
use fullbore_log::Verification;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{Acks, AppendStep, Blocker};
use fullbore_log::partition::read::{Isolation, Read};
use fullbore_log::partition::terms::{AppendTerms, AwaitedConfirmation, VerificationTime};
use fullbore_log::validation::ValidBatch;

const TOPIC: Uuid = Uuid([1; 16]);
const PUT: Duration = Duration::from_millis(150);
/// An offset that is larger than all offsets in these tests.
const FAR: i64 = 1_000_000;

struct OneBroker {
    diskless: Diskless,
    store: Arc<StoreDouble>,
    _directory: tempfile::TempDir,
}

impl OneBroker {
    /// Starts a broker with `memory_bytes` bytes of memory for batches. It has a topic with `partitions` partitions.
    async fn start(memory_bytes: usize, partitions: i32) -> OneBroker {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = SqliteIndex::open(directory.path()).expect("made");
        let (owner, index) = ManualIndex::new(Index::new(store, 5));
        tokio::spawn(carry_out(index));
        let finder = RunFinder::open(directory.path()).expect("opened");
        let store = StoreDouble::taking(PUT);
        let objects = Objects::over(store.clone(), "one");
        let (mut config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        config.diskless.memory_bytes = memory_bytes;
        config.diskless.upload_attempts_max = 1;
        let (retention, of_index) = (Duration::from_secs(3600), (owner, finder, None));
        let diskless = Diskless::with_index(objects, &config.diskless, of_index, retention, Metrics::default());
        let config = Arc::new(config.topics.defaults);
        diskless.put_topic("topic", TOPIC, partitions, &config, Box::new(|_| ProducerTails::default()));
        let broker = OneBroker { diskless, store, _directory: directory };
        for index in 0..partitions {
            broker.partition(index).view.opened().await;
            let mut refreshed = Refreshed::new();
            DisklessPartition::refresh_producers(&[broker.partition(index)], &mut refreshed).await;
        }
        broker
    }

    fn partition(&self, index: i32) -> Arc<DisklessPartition> {
        self.diskless.find(&TOPIC, index).expect("it is there")
    }

    fn offer(
        &self,
        stamp: Stamp,
        is_transactional: bool,
        verification: Verification,
    ) -> Result<AppendStep, AppendError> {
        self.offer_to(0, &batch(stamp, is_transactional, 10), verification, FAR)
    }

    fn offer_to(
        &self,
        index: i32,
        bytes: &Bytes,
        verification: Verification,
        verified_at: i64,
    ) -> Result<AppendStep, AppendError> {
        let verified_at = VerificationTime { next_offset: verified_at, ..Default::default() };
        let terms = AppendTerms { verification, verified_at, ..AppendTerms::in_turn(Acks::All, 0) };
        self.offer_on(index, bytes, terms)
    }

    fn offer_on(&self, index: i32, bytes: &Bytes, terms: AppendTerms<'_>) -> Result<AppendStep, AppendError> {
        let batch = ValidBatch::unchecked(bytes);
        let port = u16::try_from(batch.stamp().producer_id).expect("a small id");
        self.partition(index).append(&batch, terms, ([127, 0, 0, 1], port).into(), Freshness::Current, None)
    }

    /// Appends a batch of the next epoch. The coordinator confirms its transaction later, through `confirmation`.
    fn offer_ahead(&self, base_sequence: i32, confirmation: &AwaitedConfirmation) -> Result<AppendStep, AppendError> {
        let stamp = Stamp { producer_epoch: 1, ..stamp(7, base_sequence) };
        let terms = AppendTerms::in_turn(Acks::All, 0);
        let terms = AppendTerms { verification: Verification::Added, awaited: Some(confirmation), ..terms };
        self.offer_on(0, &batch(stamp, true, 10), terms)
    }

    /// Starts to write the marker after which epoch 1 begins. Returns when the object with the marker is being
    /// uploaded.
    async fn begin_to_end(&self) -> JoinHandle<Result<(), AppendError>> {
        let (partition, puts) = (self.partition(0), self.store.puts());
        let of = Marker { producer_epoch: 1, ..marker(stamp(7, 0), true) };
        let end = tokio::spawn(async move { partition.write_marker(&of, 2).await });
        while self.store.puts() == puts {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        end
    }

    /// Writes a batch in a transaction that the coordinator has confirmed, and returns its offset.
    async fn write(&self, stamp: Stamp) -> i64 {
        committed(self.offer(stamp, true, Verification::Verified)).await.expect("committed")
    }

    async fn end(&self, stamp: Stamp, is_commit: bool) -> Result<(), AppendError> {
        self.partition(0).write_marker(&marker(stamp, is_commit), 1).await
    }

    /// Reads only committed records. Waits until missing records have arrived.
    async fn read(&self, offset: i64) -> Read {
        let (partition, since) = (self.partition(0), std::time::Instant::now());
        loop {
            match partition.try_read(Isolation::ReadCommitted, offset, 1 << 20, true, since, 1).expect("readable") {
                Some(read) => return read,
                None => yield_now().await,
            }
        }
    }

    /// Returns the first offset of each aborted transaction that [`OneBroker::read`] returns.
    async fn aborted(&self, offset: i64) -> Vec<i64> {
        let read = self.read(offset).await;
        read.aborted.expect("asked for").iter().map(|aborted| aborted.first_offset).collect()
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

fn stamp(producer_id: i64, base_sequence: i32) -> Stamp {
    Stamp { producer_id, producer_epoch: 0, base_sequence }
}

fn batch(stamp: Stamp, is_transactional: bool, size: usize) -> Bytes {
    let builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    let mut builder = if is_transactional { builder.transactional() } else { builder };
    builder.append(7, None, Some(&vec![b'x'; size]), &[]);
    builder.seal(stamp).expect("sealed").0.freeze()
}

fn marker(stamp: Stamp, is_commit: bool) -> Marker {
    let Stamp { producer_id, producer_epoch, .. } = stamp;
    Marker { producer_id, producer_epoch, coordinator_epoch: 0, is_commit }
}

async fn committed(step: Result<AppendStep, AppendError>) -> Result<i64, AppendError> {
    match step? {
        AppendStep::Done(appended) => Ok(appended.base_offset),
        AppendStep::Pending(ticket) => {
            let far = Instant::now() + Duration::from_secs(3600);
            ticket.wait(far, std::future::pending(), &Metrics::default()).await.map(|appended| appended.base_offset)
        }
        AppendStep::Blocked(blocker) => panic!("{blocker:?}"),
    }
}

fn is_unverified(step: Result<AppendStep, AppendError>) -> bool {
    matches!(step, Ok(AppendStep::Blocked(Blocker::Verification)))
}

#[tokio::test(start_paused = true)]
async fn batch_begins_a_transaction_it_waits_for_the_coordinator_and_those_behind_it_do_not() {
    let broker = OneBroker::start(64 << 20, 1).await;
    assert!(is_unverified(broker.offer(stamp(7, 0), true, Verification::Unknown)));
    let first = broker.offer(stamp(7, 0), true, Verification::Verified);
    // The first batch is not committed yet.
    let second = broker.offer(stamp(7, 1), true, Verification::Unknown);
    assert_eq!((committed(first).await, committed(second).await), (Ok(0), Ok(1)));
    let third = broker.offer(stamp(7, 2), true, Verification::Unknown);
    assert_eq!(committed(third).await, Ok(2));
    assert_eq!(broker.end(stamp(7, 0), true).await, Ok(()));
    assert!(is_unverified(broker.offer(stamp(7, 3), true, Verification::Unknown)), "the next transaction");
    assert_eq!(broker.partition(0).view.bounds().last_stable_offset, 4);
}

#[tokio::test(start_paused = true)]
async fn transaction_ends_between_its_confirmation_and_the_commit_the_batch_is_sent_again() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let known = broker.partition(0).view.offsets().log_end;
    assert_eq!(broker.end(stamp(7, 0), false).await, Ok(()));
    let late = broker.offer_to(0, &batch(stamp(7, 1), true, 10), Verification::Verified, known);
    assert_eq!(committed(late).await, Err(AppendError::Again));
    assert_eq!(broker.partition(0).view.bounds().last_stable_offset, 2, "nothing is open");
    assert!(is_unverified(broker.offer(stamp(7, 1), true, Verification::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn transaction_is_open_a_plain_batch_of_its_producer_is_refused() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let plain = broker.offer(stamp(7, 1), false, Verification::Unknown);
    assert_eq!(committed(plain).await, Err(AppendError::Sequence(SequenceRefusal::InvalidTxnState)));
    assert_eq!(committed(broker.offer(stamp(7, 1), true, Verification::Unknown)).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn marker_is_written_twice_at_once_both_have_its_outcome() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let (one, other) = tokio::join!(broker.end(stamp(7, 0), true), broker.end(stamp(7, 0), true));
    assert_eq!((one, other), (Ok(()), Ok(())));
    assert_eq!(broker.partition(0).view.offsets().log_end, 2, "one marker");
    let stale = Marker { coordinator_epoch: -1, ..marker(stamp(7, 0), true) };
    let refused = broker.partition(0).write_marker(&stale, 1).await;
    assert_eq!(refused, Err(AppendError::Sequence(SequenceRefusal::CoordinatorFenced)));
}

#[tokio::test(start_paused = true)]
async fn marker_is_in_an_object_that_is_not_uploaded_it_fails_and_the_next_try_is_written() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    broker.store.fail_next(1);
    assert_eq!(broker.end(stamp(7, 0), true).await, Err(AppendError::Storage));
    assert_eq!(broker.partition(0).view.bounds().last_stable_offset, 0);
    assert_eq!(broker.end(stamp(7, 0), true).await, Ok(()));
    assert_eq!(broker.partition(0).view.bounds().last_stable_offset, 2);
}

/// Another broker can still reach the store. If this broker returns an error at once, the coordinator can write the
/// marker through the other broker. It need not wait for the hanging PUT here.
#[tokio::test(start_paused = true)]
async fn broker_loses_the_store_with_a_marker_under_way_its_coordinator_gets_an_error_at_once() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    broker.store.hang_next(1_000);
    let partition = broker.partition(0);
    let end = tokio::spawn(async move { partition.write_marker(&marker(stamp(7, 0), true), 1).await });
    tokio::time::sleep(PUT).await;
    let began = Instant::now();
    broker.diskless.leave_out(true);
    let left_out = Err(AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!((end.await.expect("no panic"), began.elapsed()), (left_out, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn transaction_is_open_retention_leaves_its_records_until_it_ends() {
    let broker = OneBroker::start(64 << 20, 1).await;
    for producer in [7, 8, 9] {
        broker.write(stamp(producer, 0)).await;
        if producer != 8 {
            broker.end(stamp(producer, 0), false).await.expect("written");
        }
    }
    let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let config = Arc::new(TopicConfig { retention_bytes: Some(1), ..config.topics.defaults });
    broker.diskless.put_topic("topic", TOPIC, 1, &config, Box::new(|_| ProducerTails::default()));
    let log_start = || broker.partition(0).view.offsets().log_start;
    broker.partition(0).retain(0).await;
    assert_eq!(log_start(), 2, "the one of 8 is open");
    broker.end(stamp(8, 0), true).await.expect("written");
    broker.partition(0).retain(0).await;
    assert_eq!(log_start(), 5, "but for the last object");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let rows = broker.diskless.services.reader.finder().aborted(1, 0..10, 10).await.expect("read");
    assert_eq!(
        rows.transactions.iter().map(|aborted| aborted.first_offset).collect::<Vec<_>>(),
        [0; 0],
        "they go with their ranges"
    );
}

/// If a batch fails, the batches behind it fail too, but the marker of their transaction does not.
#[tokio::test(start_paused = true)]
async fn batch_before_a_marker_is_not_uploaded_the_marker_is_written() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    broker.store.fail_next(1);
    let failing = broker.offer(stamp(7, 1), true, Verification::Unknown);
    tokio::time::sleep(PUT / 2).await;
    let behind = broker.offer(stamp(7, 2), true, Verification::Unknown);
    let end = broker.end(stamp(7, 0), false);
    assert_eq!(end.await, Ok(()));
    assert_eq!(committed(failing).await, Err(AppendError::Storage));
    assert_eq!(committed(behind).await, Err(AppendError::Again));
    assert_eq!(broker.partition(0).view.bounds().last_stable_offset, 2);
    assert_eq!(broker.aborted(0).await, [0]);
}

#[tokio::test(start_paused = true)]
async fn marker_is_being_uploaded_the_next_transaction_is_uploaded_beside_it() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let end = broker.begin_to_end().await;
    let began = Instant::now();
    let (sender, confirmation) = AwaitedConfirmation::new();
    let batches = [0, 1].map(|sequence| broker.offer_ahead(sequence, &confirmation));
    assert_eq!(end.await.expect("no panic"), Ok(()));
    sender.give(Ok(()));
    let [first, second] = batches;
    assert_eq!((committed(first).await, committed(second).await), (Ok(2), Ok(3)));
    // The object with the two batches is closed early, but not earlier than 100 ms after the object with the marker.
    assert!(began.elapsed() < PUT + Duration::from_millis(110), "{:?}", began.elapsed());
    assert_eq!(broker.partition(0).view.bounds().last_stable_offset, 2);
}

#[tokio::test(start_paused = true)]
async fn marker_is_gathered_the_next_transaction_waits_until_its_object_is_closed() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let of = Marker { producer_epoch: 1, ..marker(stamp(7, 0), true) };
    let partition = broker.partition(0);
    let end = tokio::spawn(async move { partition.write_marker(&of, 2).await });
    yield_now().await;
    let (_sender, confirmation) = AwaitedConfirmation::new();
    assert!(is_unverified(broker.offer_ahead(0, &confirmation)));
    assert_eq!(end.await.expect("no panic"), Ok(()));
    assert!(matches!(broker.offer_ahead(0, &confirmation), Ok(AppendStep::Pending(_))));
}

#[tokio::test(start_paused = true)]
async fn coordinator_refuses_a_transaction_that_is_uploaded_none_of_it_is_committed() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let end = broker.begin_to_end().await;
    let (sender, confirmation) = AwaitedConfirmation::new();
    let batches = [0, 1].map(|sequence| broker.offer_ahead(sequence, &confirmation));
    let other = broker.offer(stamp(8, 0), false, Verification::Unknown);
    assert_eq!(end.await.expect("no panic"), Ok(()));
    sender.give(Err(ErrorCode::INVALID_PRODUCER_EPOCH));
    let [first, second] = batches;
    let refused = Err(AppendError::Role(ErrorCode::INVALID_PRODUCER_EPOCH));
    assert_eq!((committed(first).await, committed(second).await), (refused, Err(AppendError::Again)));
    assert_eq!((committed(other).await, broker.partition(0).view.offsets().log_end), (Ok(2), 3));
}

#[tokio::test(start_paused = true)]
async fn coordinator_is_silent_those_behind_the_transaction_wait_for_a_moment_only() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    assert_eq!(broker.begin_to_end().await.await.expect("no panic"), Ok(()));
    let (_sender, confirmation) = AwaitedConfirmation::new();
    let first = broker.offer_ahead(0, &confirmation);
    let (other, began) = (broker.offer(stamp(8, 0), false, Verification::Unknown), Instant::now());
    assert_eq!(committed(first).await, Err(AppendError::Again));
    assert_eq!(committed(other).await, Ok(2));
    assert!(began.elapsed() < PUT + Duration::from_millis(80), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn objects_are_full_all_the_time_the_last_records_of_a_transaction_go_early() {
    for ends_transaction in [true, false] {
        let broker = OneBroker::start(64 << 20, 1).await;
        let flood = batch(stamp(100, 0), false, 9 << 20);
        committed(broker.offer_to(0, &flood, Verification::Unknown, 0)).await.expect("committed");
        let full = (1..3).map(|at| batch(stamp(100, at), false, 9 << 20));
        let full: Vec<_> = full.map(|full| broker.offer_to(0, &full, Verification::Unknown, 0)).collect();
        for step in full {
            committed(step).await.expect("committed");
        }
        let in_turn = AppendTerms::in_turn(Acks::All, 0);
        let terms = AppendTerms { verification: Verification::Added, ends_transaction, ..in_turn };
        let began = Instant::now();
        committed(broker.offer_on(0, &batch(stamp(7, 0), true, 10), terms)).await.expect("committed");
        let waited = began.elapsed().saturating_sub(PUT).as_millis();
        assert_eq!(waited < 30, ends_transaction, "{waited} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn memory_is_used_up_a_marker_goes_into_the_next_object() {
    let broker = OneBroker::start(5 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let flood: Vec<_> = (0..100).map(|at| batch(stamp(100 + at, 0), false, 500_000)).collect();
    let offered = flood.iter().map(|batch| broker.offer_to(0, batch, Verification::Unknown, 0).expect("offered"));
    let offered: Vec<_> = offered.collect();
    assert!(offered.iter().any(|step| matches!(step, AppendStep::Blocked(Blocker::Memory(..)))), "it is used up");
    let began = Instant::now();
    assert_eq!(broker.end(stamp(7, 0), true).await, Ok(()));
    assert!(began.elapsed() < 10 * PUT, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn thousand_markers_come_at_once_they_are_in_few_objects() {
    const PARTITIONS: i32 = 1_000;
    let broker = OneBroker::start(64 << 20, PARTITIONS).await;
    let puts = broker.store.puts();
    let began = Instant::now();
    let mut markers = JoinSet::new();
    for index in 0..PARTITIONS {
        let partition = broker.partition(index);
        markers.spawn(async move { partition.write_marker(&marker(stamp(7, 0), true), 2).await });
    }
    assert!(markers.join_all().await.into_iter().all(|written| written == Ok(())));
    assert!(broker.store.puts() - puts <= 2, "{} PUTs", broker.store.puts() - puts);
    assert!(began.elapsed() < 2 * PUT + Duration::from_millis(40), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn topic_is_deleted_while_a_marker_is_under_way_the_marker_is_refused() {
    let broker = OneBroker::start(64 << 20, 1).await;
    broker.write(stamp(7, 0)).await;
    let partition = broker.partition(0);
    let end = tokio::spawn(async move { partition.write_marker(&marker(stamp(7, 0), true), 1).await });
    yield_now().await;
    let partition = broker.partition(0);
    broker.diskless.delete_topic(TOPIC, Box::new(|| {}));
    assert_eq!(end.await.expect("no panic"), Err(AppendError::Deleted));
    assert_eq!(partition.write_marker(&marker(stamp(7, 0), true), 1).await, Err(AppendError::Deleted));
}

#[tokio::test(start_paused = true)]
async fn transactions_are_aborted_reads_name_those_with_records_in_what_they_return() {
    let broker = OneBroker::start(64 << 20, 1).await;
    for (producer, is_commit) in [(7, false), (8, true), (9, false)] {
        let first = broker.write(stamp(producer, 0)).await;
        assert_eq!((first, broker.read(first).await.end_offset), (2 * (producer - 7), Some(first)), "nothing of it");
        broker.end(stamp(producer, 0), is_commit).await.expect("written");
    }
    let open = broker.write(stamp(10, 0)).await;
    assert_eq!(open, 6);
    let read = broker.read(0).await;
    assert_eq!((read.last_stable_offset, read.high_watermark, read.end_offset, read.is_cut), (6, 7, Some(6), false));
    assert_eq!(broker.diskless.stable_lag_max(), 1, "the metric has it");
    assert_eq!(broker.aborted(0).await, [0, 4]);
    assert_eq!(broker.aborted(2).await, [4]);
    assert_eq!(broker.aborted(6).await, [0; 0]);
    let all = broker.partition(0).try_read(Isolation::ReadUncommitted, 0, 1 << 20, true, std::time::Instant::now(), 1);
    let all = all.expect("readable").expect("in memory");
    assert_eq!((all.end_offset, all.aborted), (Some(7), None));
    let counted = |isolation| broker.partition(0).count(isolation, 0, u64::MAX).expect("in memory");
    let open = batch(stamp(10, 0), true, 10).len() as u64;
    assert_eq!(counted(Isolation::ReadUncommitted) - counted(Isolation::ReadCommitted), open);
}
