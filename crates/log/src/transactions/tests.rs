//! Tests of transactions in a log. They are compared with a simple model while the log rolls, restarts, is killed with
//! damaged indexes, and is cut off.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp as WireStamp};
use proptest::prelude::*;

use super::*;
use crate::append::Verification;
use crate::files::{TXN_INDEX, parse_offset_name};
use crate::recovery::RecoveryHint;
use crate::validation::ValidBatch;

const KILLED: RecoveryHint = RecoveryHint { clean: false, ..RecoveryHint::NOTHING };

fn config(segment_bytes: u64) -> TopicConfig {
    let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    TopicConfig { segment_bytes, ..broker.topics.defaults }
}

fn batch(producer_id: i64, producer_epoch: i16, base_sequence: i32, is_transactional: bool) -> BytesMut {
    let builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    let mut builder = if is_transactional { builder.transactional() } else { builder };
    builder.append(0, None, Some(b"v"), &[]);
    builder.seal(WireStamp { producer_id, producer_epoch, base_sequence }).expect("sealed").0
}

fn marker(producer_id: i64, producer_epoch: i16, is_commit: bool) -> Marker {
    Marker { producer_id, producer_epoch, coordinator_epoch: 0, is_commit }
}

#[test]
fn a_batch_that_begins_an_unverified_transaction_is_refused() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = config(1 << 20);
    let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
    let bytes = batch(7, 0, 0, true);
    let first = ValidBatch::unchecked(&bytes);
    assert_eq!(log.append(&first, 0, 0, &config), Err(AppendError::Unverified));
    let later = batch(7, 0, 3, true);
    let later = ValidBatch::unchecked(&later);
    let refused = log.append_verified(&later, Verification::Added, 0, 0, &config);
    assert_eq!(refused.map_err(|error| error.code().0), Err(45), "without state it begins with 0");
    log.append_verified(&first, Verification::Added, 0, 0, &config).expect("appended");
    assert!(log.append(&first, 0, 0, &config).expect("a duplicate").is_duplicate);
    let second = batch(7, 0, 1, true);
    log.append(&ValidBatch::unchecked(&second), 0, 0, &config).expect("the transaction is open");
    let plain = batch(7, 0, 2, false);
    let refused = log.append(&ValidBatch::unchecked(&plain), 0, 0, &config);
    assert_eq!(refused.map_err(|error| error.code().0), Err(48));
    assert_eq!(log.last_stable_offset(2), 0);
    let ended = log.append_marker(&marker(7, 1, true), 2, 0, 0, &config).expect("ended");
    assert_eq!((ended.base_offset, log.log_end()), (2, 3));
    assert_eq!((log.last_stable_offset(2), log.last_stable_offset(3)), (0, 3));
    assert_eq!(log.plan_aborted(0).read(3).expect("read"), [], "it is committed");
}

#[test]
fn batch_has_no_sequence_only_a_coordinators_is_appended() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = config(1 << 20);
    let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
    let of_client = batch(7, 1, -1, true);
    let refused = log.append_verified(&ValidBatch::unchecked(&of_client), Verification::Verified, 0, 0, &config);
    assert_eq!(refused.map_err(|error| error.code().0), Err(87));
    let of_offsets = |bytes: &BytesMut| {
        let view = BatchView::first(bytes).expect("a batch");
        ValidBatch::of_offsets(view, &config, 0).map(|batch| batch.to_owned())
    };
    for (producer_id, base_sequence, is_transactional) in [(7, 0, true), (7, -1, false), (-1, -1, true)] {
        let other = batch(producer_id, 1, base_sequence, is_transactional);
        assert!(of_offsets(&other).is_err(), "{producer_id} {base_sequence} {is_transactional}");
    }
    let offsets = of_offsets(&of_client).expect("a coordinator's");
    assert_eq!(log.append(&offsets, 0, 0, &config), Err(AppendError::Unverified));
    for verification in [Verification::Added, Verification::Unknown] {
        let appended = log.append_verified(&offsets, verification, 0, 0, &config).expect("appended");
        assert!(!appended.is_duplicate);
    }
    assert_eq!((log.last_stable_offset(2), log.log_end()), (0, 2));
    let old = batch(7, 0, -1, true);
    let refused = log.append_verified(&of_offsets(&old).expect("a batch"), Verification::Verified, 0, 0, &config);
    assert_eq!(refused.map_err(|error| error.code().0), Err(47));
    log.append_marker(&marker(7, 2, true), 2, 0, 0, &config).expect("ended");
    assert_eq!(log.append(&offsets, 0, 0, &config).map_err(|error| error.code().0), Err(47), "the epoch has ended");
    assert_eq!(log.last_stable_offset(3), 3);
}

#[test]
fn many_transactions_are_aborted_a_range_finds_its_own() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = config(200_000);
    let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
    for round in 0..3_000_i32 {
        let bytes = batch(7, 0, round, true);
        log.append_verified(&ValidBatch::unchecked(&bytes), Verification::Verified, 0, 0, &config).expect("appended");
        log.append_marker(&marker(7, 0, round % 3 == 0), 0, 0, 0, &config).expect("ended");
    }
    assert!(log.segments.len() > 2);
    for from in [0, 1, 599, 2_400, 5_997] {
        let found = log.plan_aborted(from).read(from + 10).expect("read");
        let first_offsets: Vec<i64> = found.iter().map(|aborted| aborted.first_offset).collect();
        let expected: Vec<i64> = (0..3_000_i64)
            .filter(|round| round % 3 != 0 && 2 * round + 1 >= from && 2 * round < from + 10)
            .map(|round| 2 * round)
            .collect();
        assert_eq!(first_offsets, expected, "from {from}");
    }
}

/// A transaction is opened at the first offset and stays open while many others are aborted. A reader must still find
/// the transactions in its range, without reading all entries.
#[test]
fn long_transaction_spans_many_aborted_ones_a_range_finds_its_own_and_reads_no_more() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = config(1 << 30);
    let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
    let append = |log: &mut Log, producer_id, sequence| {
        let bytes = batch(producer_id, 0, sequence, true);
        log.append_verified(&ValidBatch::unchecked(&bytes), Verification::Verified, 0, 0, &config).expect("appended");
    };
    append(&mut log, 8, 0);
    // Append a transaction and abort it. The batch is at offset 1 + 2 * sequence, and the marker at the next offset.
    let abort = |log: &mut Log, sequence: i32| {
        append(log, 7, sequence);
        log.append_marker(&marker(7, 0, false), 0, 0, 0, &config).expect("ended");
    };
    (0..3_600).for_each(|sequence| abort(&mut log, sequence));
    log.append_marker(&marker(8, 0, false), 0, 0, 0, &config).expect("ended");
    let firsts = |log: &Log, from: i64| -> Vec<i64> {
        let found = log.plan_aborted(from).read(from + 10).expect("read");
        found.iter().map(|aborted| aborted.first_offset).collect()
    };
    let expected = |from: i64| (from..from + 11).filter(|offset| offset % 2 == 0).map(|marker| marker - 1);
    for _ in 0..2 {
        for from in [2, 600, 1_998, 2_000, 4_100] {
            assert_eq!(firsts(&log, from), expected(from).chain([0]).collect::<Vec<_>>(), "from {from}");
        }
    }
    // Earlier lookups have remembered that the transactions of these entries begin after the range that begins at
    // offset 2. Change their first offset in the file to 3. A lookup that reads these entries again would then return
    // them, and the test would fail.
    let name = crate::files::offset_path(directory.path(), 0, TXN_INDEX);
    let file = std::fs::File::options().write(true).open(name).expect("opened");
    for entry in 1_000..3_000 {
        std::os::unix::fs::FileExt::write_all_at(&file, &3_i64.to_be_bytes(), entry * 34 + 10).expect("written");
    }
    assert_eq!(firsts(&log, 2), expected(2).chain([0]).collect::<Vec<_>>(), "they are not read again");
    // After the cut, new entries replace the old ones. A lookup must read the new ones.
    log.truncate_to(1_601, 0, &config).expect("cut off");
    append(&mut log, 8, 1);
    for sequence in 800..3_200 {
        abort(&mut log, sequence);
    }
    log.append_marker(&marker(8, 0, false), 0, 0, 0, &config).expect("ended");
    assert_eq!(firsts(&log, 1_604), [1_604, 1_606, 1_608, 1_610, 1_612, 0]);
}

/// Opens the log again after a kill. If `forgets` is true, removes its producer snapshots first.
fn killed(log: Log, forgets: bool, config: &TopicConfig) -> Log {
    let (dir, log_start, recovery_point) = (Arc::clone(log.dir()), Some(log.log_start()), log.recovery_point());
    drop(log);
    if forgets {
        crate::snapshot::remove_past(&dir, i64::MIN).expect("removed");
    }
    Log::open(&dir, RecoveryHint { log_start, recovery_point, ..KILLED }, 0, config).expect("opened")
}

#[test]
fn log_start_passes_an_open_transaction_its_marker_still_ends_it() {
    for (deleted_to, is_retired, forgets) in
        [(3, false, false), (3, false, true), (20, true, false), (20, true, true), (30, true, false)]
    {
        let directory = tempfile::tempdir().expect("temporary directory");
        let config = config(400);
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        for sequence in 0..30 {
            let bytes = batch(7, 0, sequence, true);
            let valid = ValidBatch::unchecked(&bytes);
            log.append_verified(&valid, Verification::Verified, 0, 0, &config).expect("appended");
        }
        assert_eq!(log.last_stable_offset(30), 0);
        let space = fullbore_host::disk_space::DiskSpace::open(directory.path(), 0);
        log.delete_before(deleted_to, 0, &space).expect("deleted");
        if is_retired {
            log.retire_old(0, 30, &config, false).result.expect("retired");
            assert!(log.first_base_offset() > 10 && log.first_base_offset() <= deleted_to);
        }
        let mut log = killed(log, forgets, &config);
        assert_eq!(log.log_start(), deleted_to);
        assert_eq!(log.last_stable_offset(30), deleted_to, "as Kafka's: no record before the log start is waited for");
        let plain = batch(-1, -1, -1, false);
        log.append(&ValidBatch::unchecked(&plain), 0, 0, &config).expect("appended");
        assert_eq!(log.last_stable_offset(31), deleted_to);
        log.append_marker(&marker(7, 0, false), 0, 0, 0, &config).expect("ended");
        assert_eq!((log.last_stable_offset(31), log.last_stable_offset(32)), (deleted_to, 32));
        let found = log.plan_aborted(deleted_to).read(32).expect("read");
        assert!(found.iter().all(|aborted| aborted.first_offset <= deleted_to && aborted.last_offset == 31));
        assert_eq!(found.len(), 1);
    }
}

#[test]
fn retention_takes_all_of_an_open_transaction_its_marker_ends_nothing_that_is_left() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = TopicConfig { retention_ms: Some(1), ..config(400) };
    let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
    for sequence in 0..30 {
        let bytes = batch(7, 0, sequence, true);
        let valid = ValidBatch::unchecked(&bytes);
        log.append_verified(&valid, Verification::Verified, 0, 0, &config).expect("appended");
    }
    log.retire_old(10, 30, &config, false).result.expect("retired");
    let mut log = killed(log, false, &config);
    assert_eq!((log.log_start(), log.last_stable_offset(30), log.producers().first_open()), (30, 30, Some(0)));
    let plain = batch(-1, -1, -1, false);
    log.append(&ValidBatch::unchecked(&plain), 0, 0, &config).expect("appended");
    assert_eq!(log.last_stable_offset(31), 30, "until the marker");
    log.append_marker(&marker(7, 0, true), 0, 0, 0, &config).expect("ended");
    assert_eq!((log.last_stable_offset(32), log.producers().first_open()), (32, None));
}

/// Consumers do not read the log of a follower. The log must still forget markers, or it would remember every marker
/// since the start.
#[test]
fn log_is_not_read_retention_forgets_replicated_markers() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = config(1 << 20);
    let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
    let bytes = batch(7, 0, 0, true);
    log.append_verified(&ValidBatch::unchecked(&bytes), Verification::Verified, 0, 0, &config).expect("appended");
    log.append_marker(&marker(7, 0, true), 0, 0, 0, &config).expect("ended");
    log.retire_old(0, 1, &config, false).result.expect("nothing is old");
    assert_eq!(log.last_stable_offset(1), 0, "the marker is not replicated");
    log.retire_old(0, 2, &config, false).result.expect("nothing is old");
    assert_eq!(log.last_stable_offset(1), 1, "it is forgotten");
}

#[test]
fn marker_was_emptied_it_ends_nothing_and_its_epoch_is_kept() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = config(1 << 20);
    let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
    let bytes = batch(7, 3, 0, true);
    log.append_verified(&ValidBatch::unchecked(&bytes), Verification::Verified, 0, 0, &config).expect("appended");
    let mut emptied = BytesMut::new();
    let whole = Marker { producer_id: 8, producer_epoch: 5, is_commit: true, coordinator_epoch: 0 }.batch(0);
    fullbore_wire::batch::retain_empty(&BatchView::first(&whole).expect("a batch"), &mut emptied);
    emptied[..8].copy_from_slice(&1_i64.to_be_bytes());
    emptied[12..16].copy_from_slice(&0_i32.to_be_bytes());
    let view = BatchView::first(&emptied).expect("a batch");
    assert_eq!(log.append_as_they_are(&emptied, &[view], 0, &config).expect("a follower takes it"), 1);
    let states = |log: &Log| {
        let state = |state: fullbore_rules::sequence::ProducerState| {
            (state.producer_id, state.producer_epoch, state.last_sequence, state.open_from)
        };
        let mut states: Vec<_> = log.producers().iter().map(state).collect();
        states.sort_unstable();
        states
    };
    let expected = [(7, 3, 0, Some(0)), (8, 5, -1, None)];
    assert_eq!((states(&log), log.last_stable_offset(2)), (expected.to_vec(), 0));
    let mut log = killed(log, true, &config);
    assert_eq!((states(&log), log.last_stable_offset(2)), (expected.to_vec(), 0));
}

#[derive(Clone, Debug)]
enum Step {
    Append {
        producer_id: i64,
        is_transactional: bool,
    },
    End {
        producer_id: i64,
        is_commit: bool,
        bumps: bool,
    },
    Restart,
    /// The broker is killed. `damage` has a number and a flag. If the number is 0 and nothing was flushed, the test
    /// damages the last index of aborted transactions. If the flag is true, it cuts the file off within an entry, and
    /// otherwise it removes the file.
    Kill {
        damage: Option<(usize, bool)>,
    },
    Cut {
        behind: i64,
    },
    Flush,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Batch { producer_id: i64, epoch: i16, is_transactional: bool },
    Marker(Marker),
}

struct Model {
    dir: Arc<Path>,
    config: TopicConfig,
    log: Option<Log>,
    /// The entries of the log, one for each offset.
    entries: Vec<Entry>,
}

impl Model {
    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("it is open")
    }

    /// Returns the epoch and the next sequence number that the model expects of a producer.
    fn next(&self, producer_id: i64) -> (i16, i32) {
        self.entries.iter().fold((0, 0), |(epoch, next), entry| match *entry {
            Entry::Batch { producer_id: id, epoch: of, .. } if id == producer_id && of == epoch => (epoch, next + 1),
            Entry::Marker(marker) if marker.producer_id == producer_id && marker.producer_epoch > epoch => {
                (marker.producer_epoch, 0)
            }
            _ => (epoch, next),
        })
    }

    /// Returns the aborted transactions in the order of their markers, and the first offsets of the open ones.
    fn transactions(&self) -> (Vec<AbortedTransaction>, Vec<i64>) {
        let (mut open, mut aborted) = (BTreeMap::new(), Vec::new());
        for (offset, entry) in (0_i64..).zip(&self.entries) {
            match *entry {
                Entry::Batch { producer_id, is_transactional: true, .. } => {
                    _ = open.entry(producer_id).or_insert(offset)
                }
                Entry::Batch { .. } => {}
                Entry::Marker(marker) => {
                    let Some(first_offset) = open.remove(&marker.producer_id) else { continue };
                    let last_stable_offset = open.values().copied().min().unwrap_or(offset + 1);
                    let producer_id = marker.producer_id;
                    let ended =
                        AbortedTransaction { producer_id, first_offset, last_offset: offset, last_stable_offset };
                    aborted.extend((!marker.is_commit).then_some(ended));
                }
            }
        }
        (aborted, open.into_values().collect())
    }

    fn append(&mut self, producer_id: i64, is_transactional: bool) {
        let (epoch, sequence) = self.next(producer_id);
        let bytes = batch(producer_id, epoch, sequence, is_transactional);
        let config = self.config.clone();
        let valid = ValidBatch::unchecked(&bytes);
        match self.log().append_verified(&valid, Verification::Verified, 0, 0, &config) {
            Ok(done) => {
                assert!(!done.is_duplicate);
                self.entries.push(Entry::Batch { producer_id, epoch, is_transactional });
            }
            Err(error) => assert_eq!((error.code().0, is_transactional), (48, false), "{error}"),
        }
    }

    fn end(&mut self, producer_id: i64, is_commit: bool, bumps: bool) {
        let (epoch, _) = self.next(producer_id);
        let marker = marker(producer_id, epoch + i16::from(bumps), is_commit);
        let config = self.config.clone();
        self.log().append_marker(&marker, if bumps { 2 } else { 0 }, 0, 0, &config).expect("ended");
        self.entries.push(Entry::Marker(marker));
    }

    fn reopen(&mut self, known: RecoveryHint) {
        let recovery_point = self.log().recovery_point();
        self.log = None;
        let known = RecoveryHint { recovery_point, log_start: Some(0), ..known };
        self.log = Some(Log::open(&self.dir, known, 0, &self.config).expect("opened"));
    }

    fn damage(&self, (place, is_torn): (usize, bool)) {
        let names = std::fs::read_dir(&self.dir).expect("listed").map(|entry| entry.expect("listed").path());
        let is_index = |path: &std::path::PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).and_then(parse_offset_name);
            name.is_some_and(|(_, suffix)| suffix == TXN_INDEX)
        };
        let mut found: Vec<_> = names.filter(is_index).collect();
        found.sort();
        let Some(path) = found.last().filter(|_| place == 0) else { return };
        if is_torn {
            let file = std::fs::File::options().write(true).open(path).expect("opened");
            file.set_len(file.metadata().expect("there").len().saturating_sub(5)).expect("cut");
        } else {
            std::fs::remove_file(path).expect("removed");
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Append { producer_id, is_transactional } => self.append(producer_id, is_transactional),
            Step::End { producer_id, is_commit, bumps } => self.end(producer_id, is_commit, bumps),
            Step::Restart => {
                self.log().finish().expect("written");
                self.reopen(RecoveryHint::NOTHING);
            }
            Step::Kill { damage } => {
                // A restarted broker trusts the indexes before the recovery point, so they are damaged only if nothing
                // was flushed.
                let is_flushed = self.log().recovery_point() > 0;
                damage.filter(|_| !is_flushed).into_iter().for_each(|damage| self.damage(damage));
                self.reopen(KILLED);
            }
            Step::Cut { behind } => {
                let end = (self.log().log_end() - behind).max(0);
                let config = self.config.clone();
                self.log().truncate_to(end, 0, &config).expect("cut off");
                self.entries.truncate(usize::try_from(end).expect("small"));
            }
            Step::Flush => {
                let plan = self.log().plan_flush(false).expect("planned");
                let result = plan.run();
                self.log().flushed(&plan, &result);
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let (aborted, open) = self.transactions();
        let end = i64::try_from(self.entries.len()).expect("small");
        assert_eq!(self.log().log_end(), end);
        assert_eq!(self.log().producers().first_open(), open.into_iter().min());
        for from in [0, end / 2, end - 3] {
            for upto in [from + 2, end] {
                let overlaps =
                    |entry: &&AbortedTransaction| entry.last_offset >= from && entry.first_offset < upto && from < upto;
                let expected: Vec<_> = aborted.iter().filter(overlaps).copied().collect();
                let found = self.log().plan_aborted(from).read(upto).expect("read");
                assert_eq!(found, expected, "{from}..{upto}");
            }
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let producer_id = 0..3_i64;
    prop_oneof![
        12 => (producer_id.clone(), prop::bool::weighted(0.8))
            .prop_map(|(producer_id, is_transactional)| Step::Append { producer_id, is_transactional }),
        6 => (producer_id, any::<bool>(), any::<bool>())
            .prop_map(|(producer_id, is_commit, bumps)| Step::End { producer_id, is_commit, bumps }),
        1 => Just(Step::Restart),
        1 => prop::option::of((0..2_usize, any::<bool>())).prop_map(|damage| Step::Kill { damage }),
        1 => (0..12_i64).prop_map(|behind| Step::Cut { behind }),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn log_is_restarted_killed_and_cut_its_transactions_are_those_of_its_batches(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let config = config(400);
        let dir: Arc<Path> = directory.path().into();
        let log = Log::open(&dir, RecoveryHint::NOTHING, 0, &config).expect("opened");
        let mut model = Model { dir, config, log: Some(log), entries: Vec::new() };
        steps.iter().for_each(|step| model.run(step));
    }
}
