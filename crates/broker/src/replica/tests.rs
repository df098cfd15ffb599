//! Calls functions of one replica in random order. The replica panics at a change of phase that the table in
//! [`super::phase`] does not allow.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_tests::Batch;
use fullbore_wire::ErrorCode;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::partitions::{Acks, AppendError, AppendTerms, FromLeader, Origin, Partitions};
use fullbore_config::{BrokerConfig, Properties};
use fullbore_log::validation::ValidBatch;

const ID: Uuid = Uuid([1; 16]);

#[derive(Debug, Clone, Copy)]
enum Call {
    Append,
    Read,
    AskToOpen,
    OpenNow,
    RecoverNow,
    Hurry,
    /// Applies metadata. If the value is true, this broker leads; otherwise another broker does.
    Lead(bool),
    AppendFromLeader,
    TruncateFully,
    OpenAnew,
    BreakDown,
    AnnounceLeaving,
    Leave,
    Retire,
}

/// A step of the sequential test.
#[derive(Debug, Clone, Copy)]
enum Step {
    Call(Call),
    /// Changes a byte in the first batch if the log is not open.
    Damage,
    /// Restarts the broker, after a clean shutdown if the value is true, or after a crash if it is false. The restarted
    /// broker registers the topic as one that may have records.
    Restart(bool),
}

struct Broker {
    directory: TempDir,
    logs: Arc<Partitions>,
    partition: Arc<Replica>,
    leader_epoch: Mutex<i32>,
}

impl Broker {
    fn start(directory: TempDir, origin: Origin) -> Broker {
        Broker::start_with(directory, origin, None)
    }

    fn start_with(directory: TempDir, origin: Origin, segment_bytes: Option<u64>) -> Broker {
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let logs = Partitions::open(directory.path(), &config).expect("opened");
        let registered = Arc::new(registered(true, 0));
        let mut topic = config.topics.defaults;
        topic.segment_bytes = segment_bytes.unwrap_or(topic.segment_bytes);
        logs.put_topic("t", ID, &[registered], &Arc::new(topic), origin);
        let partition = logs.find(&ID, 0).expect("it has just been registered");
        Broker { directory, logs, partition, leader_epoch: Mutex::default() }
    }

    fn restart(self, cleanly: bool) -> Broker {
        let Broker { directory, logs, partition, .. } = self;
        if cleanly {
            logs.close();
        }
        drop((logs, partition));
        Broker::start(directory, Origin::Kept)
    }

    fn call(&self, call: Call) {
        let partition = &self.partition;
        let leader_epoch = partition.registered().leader_epoch;
        match call {
            Call::Append => {
                drop(partition.append(&ValidBatch::unchecked(&record()), AppendTerms::in_turn(Acks::Leader, 0)))
            }
            Call::Read => drop(partition.read(0, 1000, true)),
            Call::AskToOpen => partition.request_open(),
            Call::OpenNow => _ = partition.open_now(),
            Call::RecoverNow => _ = partition.recover_now(),
            Call::Hurry => partition.hurry(),
            Call::Lead(leads) => {
                let mut leader_epoch = self.leader_epoch.lock();
                *leader_epoch += 1;
                partition.follow(&Arc::new(registered(leads, *leader_epoch)), &partition.config());
            }
            Call::AppendFromLeader => {
                let from = partition.position().map_or(0, |position| position.offset);
                let answer =
                    FromLeader { leader_epoch, from, records: &Bytes::new(), high_watermark: from, log_start: from };
                drop(partition.append_from_leader(answer));
            }
            Call::TruncateFully => drop(partition.truncate_fully_and_start_at(leader_epoch, 5)),
            Call::OpenAnew => partition.open_anew(),
            Call::BreakDown => partition.break_down(),
            Call::AnnounceLeaving => partition.announce_leaving(),
            Call::Leave => drop(partition.leave(AppendError::Gone)),
            Call::Retire => _ = partition.retire(),
        }
    }

    fn damage(&self) {
        if self.partition.phase().is_open() {
            return;
        }
        let Ok(files) = fs::read_dir(self.partition.dir()) else { return };
        let logs = files.map(|file| file.expect("listed").path());
        for log in logs.filter(|path| path.extension().is_some_and(|extension| extension == "log")) {
            let mut bytes = fs::read(&log).expect("read");
            if let Some(byte) = bytes.get_mut(65) {
                *byte ^= 1;
                fs::write(&log, bytes).expect("written");
            }
        }
    }

    /// Checks that the phase matches the state of the log.
    fn check_phase(&self) {
        let state = self.partition.lock();
        assert_eq!(self.partition.phase().phase(), state.log.phase());
    }
}

fn registered(leads: bool, leader_epoch: i32) -> PartitionRegistration {
    let node_id = BrokerConfig::from_properties(&Properties::default()).expect("valid").0.node.id;
    let other = node_id + 1;
    PartitionRegistration {
        replicas: vec![node_id, other],
        isr: vec![node_id, other],
        leader: Some(if leads { node_id } else { other }),
        leader_epoch,
        ..Default::default()
    }
}

fn record() -> Bytes {
    Batch::at(0, &["value"]).bytes()
}

fn calls() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => Just(Call::Append),
        3 => Just(Call::Read),
        1 => Just(Call::AskToOpen),
        3 => Just(Call::OpenNow),
        2 => Just(Call::RecoverNow),
        1 => Just(Call::Hurry),
        2 => any::<bool>().prop_map(Call::Lead),
        2 => Just(Call::AppendFromLeader),
        2 => Just(Call::TruncateFully),
        3 => Just(Call::OpenAnew),
        1 => Just(Call::BreakDown),
        1 => Just(Call::AnnounceLeaving),
        1 => Just(Call::Leave),
        1 => Just(Call::Retire),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => calls().prop_map(Step::Call),
        2 => Just(Step::Damage),
        2 => any::<bool>().prop_map(Step::Restart),
    ]
}

/// While no file can be created in the data directory, no log can be created either. The failed creation must not count
/// as a failure of the partition. Otherwise the partition would be handed over and get no appends, so no append could
/// end the failure.
#[test]
fn new_partition_in_an_unwritable_data_directory_does_not_count_as_failing() {
    let broker = Broker::start(tempfile::tempdir().expect("a directory"), Origin::New);
    let (data, away) = (broker.directory.path().to_owned(), tempfile::tempdir().expect("a directory"));
    fs::rename(&data, away.path().join("data")).expect("moved");
    fs::write(&data, b"").expect("a file in its place");
    let append = || broker.partition.append(&ValidBatch::unchecked(&record()), AppendTerms::in_turn(Acks::Leader, 0));
    assert_eq!(append().err(), Some(AppendError::Storage));
    assert_eq!(broker.partition.log_dir.failing.count(), 0);
    fs::remove_file(&data).expect("removed");
    fs::rename(away.path().join("data"), &data).expect("moved back");
    assert!(append().is_ok());
}

/// Moves the data directory away, and calls `check` twice: first without any directory at its path, and then with an
/// empty directory, as after an unmount. Finally moves the data directory back.
fn while_moved(broker: &Broker, check: impl Fn()) {
    let (data, away) = (broker.directory.path().to_owned(), tempfile::tempdir().expect("a directory"));
    fs::rename(&data, away.path().join("data")).expect("moved");
    check();
    assert!(!data.exists(), "the data directory is not made again");
    fs::create_dir(&data).expect("made");
    check();
    broker.partition.log_dir.checkpoints.write(&broker.logs.partitions()).expect_err("another directory");
    fs::remove_dir(&data).expect("the other directory has no files");
    fs::rename(away.path().join("data"), &data).expect("moved back");
}

/// While the data directory is moved away, an append must not create a partition in a new directory at its path. The
/// appended records would be lost once the data directory is moved back.
#[test]
fn moved_data_directory_refuses_new_partitions_until_it_is_back() {
    let broker = Broker::start(tempfile::tempdir().expect("a directory"), Origin::New);
    let append = || broker.partition.append(&ValidBatch::unchecked(&record()), AppendTerms::in_turn(Acks::Leader, 0));
    while_moved(&broker, || assert_eq!(append().err(), Some(AppendError::Storage)));
    assert!(append().is_ok());
}

/// A partition must not begin again at offset 0 when its directory is missing because the data directory was moved.
#[test]
fn moved_data_directory_refuses_unopened_partitions_until_it_is_back() {
    let broker = Broker::start(tempfile::tempdir().expect("a directory"), Origin::New);
    let append = |broker: &Broker| {
        broker.partition.append(&ValidBatch::unchecked(&record()), AppendTerms::in_turn(Acks::Leader, 0)).map(drop)
    };
    assert_eq!(append(&broker), Ok(()));
    let broker = broker.restart(true);
    while_moved(&broker, || {
        assert_eq!(append(&broker), Err(AppendError::Storage));
        assert!(broker.partition.read(0, 1000, true).is_err());
    });
    assert_eq!(append(&broker), Ok(()));
    assert_eq!(broker.partition.position().map(|position| position.offset).ok(), Some(2));
}

/// The directory of a deleted partition is removed once the data directory is back.
#[test]
fn moved_data_directory_keeps_a_deleted_partition_until_it_is_back() {
    let broker = Broker::start(tempfile::tempdir().expect("a directory"), Origin::New);
    let append = || broker.partition.append(&ValidBatch::unchecked(&record()), AppendTerms::in_turn(Acks::Leader, 0));
    assert!(append().is_ok());
    let dir = broker.partition.dir();
    while_moved(&broker, || {
        broker.call(Call::Retire);
        broker.partition.log_dir.retire_leftovers();
    });
    assert!(dir.exists());
    broker.partition.log_dir.retire_leftovers();
    assert!(!dir.exists());
}

/// The first segment cannot be opened. Appends, and reads of later records, still succeed. Nevertheless the partition
/// must be handed over until the segment can be opened.
#[test]
fn unreadable_records_hand_the_partition_over_until_they_can_be_read() {
    // Each batch fills a segment.
    let broker = Broker::start_with(tempfile::tempdir().expect("a directory"), Origin::New, Some(14));
    let partition = &broker.partition;
    let append =
        || partition.append(&ValidBatch::unchecked(&record()), AppendTerms::in_turn(Acks::Leader, 0)).map(drop);
    (0..3).for_each(|_| append().expect("appended"));
    let read = |offset| partition.read_on(0, offset, 1, true).map(drop);
    let close_files = || match &mut partition.lock_as_it_is().log {
        LogState::Open(log) => log.close_files(true),
        _ => panic!("it has been written to"),
    };
    let at = |seconds| Instant::now() + Duration::from_secs(seconds);
    let (segment, away) = (partition.dir().join("00000000000000000000.log"), partition.dir().join("away"));
    let take_away = || {
        close_files();
        fs::rename(&segment, &away).expect("moved");
        symlink(&segment, &segment).expect("a link to itself");
        assert_eq!(read(0), Err(ErrorCode::KAFKA_STORAGE_ERROR));
    };
    let give_back = || {
        fs::remove_file(&segment).expect("removed");
        fs::rename(&away, &segment).expect("moved back");
    };

    take_away();
    give_back();
    partition.check_failing(at(5));
    assert_eq!(partition.log_dir.failing.count(), 0, "one failure that does not come again");

    take_away();
    partition.check_failing(at(1));
    assert_eq!(partition.resigned_log(), None, "it has failed for a moment");
    append().expect("the newest segment takes records");
    read(2).expect("later records can be read");
    partition.check_failing(at(5));
    assert_eq!(partition.resigned_log(), Some(ResignedLog::Whole));
    assert_eq!(partition.log_dir.unwritable.count(), 1);
    append().expect("appended where no other replica leads");
    partition.check_failing(at(10));
    assert_eq!(partition.resigned_log(), Some(ResignedLog::Whole), "an append is no read");

    give_back();
    partition.check_failing(at(1));
    assert_eq!(partition.log_dir.unwritable.count(), 1, "it has just failed");
    partition.check_failing(at(5));
    assert_eq!(partition.resigned_log(), None);
    assert_eq!((partition.log_dir.failing.count(), partition.log_dir.unwritable.count()), (0, 0));
    read(0).expect("the records can be read again");
}

/// The disk loses a write of a killed broker. Another replica in the ISR has the lost record, so this one must not lead
/// with the rest, and must still find the loss after another kill. It may open its log once it has left the ISR.
#[test]
fn disk_lost_a_write_of_a_killed_broker_the_log_is_refused_until_the_replica_has_left_the_isr() {
    let broker = Broker::start(tempfile::tempdir().expect("a directory"), Origin::New);
    for _ in 0..3 {
        let terms = AppendTerms::in_turn(Acks::Leader, 0);
        broker.partition.append(&ValidBatch::unchecked(&record()), terms).map(drop).expect("appended");
    }
    let Broker { directory, logs, partition, .. } = broker;
    let segment = partition.dir().join("00000000000000000000.log");
    drop((logs, partition));
    let mut bytes = fs::read(&segment).expect("read");
    let len = bytes.len();
    bytes[len * 2 / 3..].fill(0);
    fs::write(&segment, &bytes).expect("written");
    let mut broker = Broker::start(directory, Origin::Kept);
    for _ in 0..2 {
        assert!(!broker.partition.recover_now());
        broker.partition.check_failing(Instant::now());
        assert_eq!(broker.partition.resigned_log(), Some(ResignedLog::EndMissing));
        assert_eq!(fs::read(&segment).expect("read"), bytes);
        broker = broker.restart(false);
    }
    let mut left = registered(false, 1);
    left.isr = left.leader.into_iter().collect();
    broker.partition.follow(&Arc::new(left), &broker.partition.config());
    assert!(broker.partition.recover_now());
    assert_eq!(broker.partition.position().map(|position| position.offset).ok(), Some(2));
}

/// Consumers skip a damaged batch, and all other operations on the log still work. So the partition must not be handed
/// over.
#[test]
fn reads_of_a_damaged_batch_do_not_count_as_failing() {
    let broker = Broker::start(tempfile::tempdir().expect("a directory"), Origin::New);
    let damaged = io::Error::new(io::ErrorKind::InvalidData, "damaged");
    broker.partition.read_failed_at(0, 1, &damaged);
    assert_eq!(broker.partition.log_dir.failing.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..Default::default() })]

    #[test]
    fn sequential_calls_keep_the_phase_equal_to_the_log_state(
        origin in any::<bool>(),
        steps in prop::collection::vec(steps(), 1..30),
    ) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut broker = Broker::start(directory, if origin { Origin::New } else { Origin::Kept });
        for step in steps {
            match step {
                Step::Call(call) => broker.call(call),
                Step::Damage => broker.damage(),
                Step::Restart(cleanly) => broker = broker.restart(cleanly),
            }
            broker.check_phase();
        }
    }

    #[test]
    fn concurrent_calls_keep_the_phase_equal_to_the_log_state(
        first in prop::collection::vec(calls(), 0..3),
        threads in prop::collection::vec(prop::collection::vec(calls(), 1..15), 3),
    ) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let broker = Broker::start(directory, Origin::New);
        first.into_iter().for_each(|call| broker.call(call));
        thread::scope(|scope| {
            for calls in threads {
                scope.spawn(|| calls.into_iter().for_each(|call| {
                    broker.call(call);
                    broker.check_phase();
                }));
            }
        });
    }
}
