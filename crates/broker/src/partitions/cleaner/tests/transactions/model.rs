//! A model test. It cleans random logs with transactions, restarts the broker, and kills it at any step. It compares
//! the result with a list of the batches that were written.

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Appends a batch with or without a producer. The flag of a key is true for a tombstone.
    Append { producer_id: Option<i64>, is_transactional: bool, keys: Vec<(u8, bool)> },
    /// Appends the marker that ends a producer's transaction. With `bumps`, the marker has the next producer epoch.
    End { producer_id: i64, is_commit: bool, bumps: bool },
    /// Moves the log start forward by `count` offsets with DeleteRecords, at most to the start of the first open
    /// transaction.
    DeleteRecords { count: i64 },
    /// Cleans the log after `later_ms`.
    Clean { later_ms: i64 },
    /// Cleans the log after `later_ms`, and kills the broker at the file change with the number `at`.
    KillInCleaning { later_ms: i64, at: usize },
    /// Restarts the broker after a clean shutdown or a kill. With `forgets`, the producer snapshots are lost.
    Restart { is_clean: bool, forgets: bool },
}

#[derive(Clone, Debug)]
enum Written {
    Batch { producer_id: Option<i64>, epoch: i16, is_transactional: bool, records: Vec<(u8, Option<Vec<u8>>)> },
    Marker { producer_id: i64, epoch: i16, is_commit: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Committed,
    Aborted,
    Open,
}

/// A log, and the list of the batches that were written to it.
struct World {
    /// The data directory. After a kill, this is a copy that was made at the moment of the kill.
    dirs: Vec<TempDir>,
    open: Option<(Arc<Partitions>, Arc<Replica>)>,
    map_bytes: Option<usize>,
    segment_bytes: u64,
    now_ms: i64,
    written: BTreeMap<i64, Written>,
    log_start: i64,
}

fn new_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(parent).expect("temporary directory")
}

impl World {
    fn new(segment_bytes: u64, map_bytes: Option<usize>) -> World {
        let dirs = vec![new_dir()];
        let open = Some(open_with(dirs[0].path(), segment_bytes, map_bytes));
        World { dirs, open, map_bytes, segment_bytes, now_ms: NOW, written: BTreeMap::new(), log_start: 0 }
    }

    fn partition(&self) -> &Arc<Replica> {
        &self.open.as_ref().expect("open").1
    }

    fn dir(&self) -> &Path {
        self.dirs.last().expect("one").path()
    }

    fn end(&self) -> i64 {
        self.written.last_key_value().map_or(0, |(base, written)| match written {
            Written::Batch { records, .. } => base + records.len() as i64,
            Written::Marker { .. } => base + 1,
        })
    }

    /// Returns each known producer's epoch, next sequence, and the first offset of its open transaction.
    fn producers(&self) -> BTreeMap<i64, (i16, i32, Option<i64>)> {
        let mut known = BTreeMap::new();
        for (base, written) in &self.written {
            match written {
                Written::Batch { producer_id: Some(id), epoch, is_transactional, records } => {
                    let (at, next, open) = known.entry(*id).or_insert((*epoch, 0, None));
                    assert_eq!(at, epoch);
                    *next += records.len() as i32;
                    *open = open.or(is_transactional.then_some(*base));
                }
                Written::Batch { .. } => {}
                Written::Marker { producer_id, epoch, .. } => {
                    let (at, next, open) = known.entry(*producer_id).or_insert((*epoch, 0, None));
                    *next = if at == epoch { *next } else { 0 };
                    (*at, *open) = (*epoch, None);
                }
            }
        }
        known
    }

    /// Returns for each batch the outcome of its transaction, by base offset.
    fn outcomes(&self) -> BTreeMap<i64, Outcome> {
        let (mut outcomes, mut open) = (BTreeMap::new(), BTreeMap::<i64, Vec<i64>>::new());
        for (base, written) in &self.written {
            match written {
                Written::Batch { producer_id: Some(id), is_transactional: true, .. } => {
                    outcomes.insert(*base, Outcome::Open);
                    open.entry(*id).or_default().push(*base);
                }
                Written::Batch { .. } => _ = outcomes.insert(*base, Outcome::Committed),
                Written::Marker { producer_id, is_commit, .. } => {
                    let outcome = if *is_commit { Outcome::Committed } else { Outcome::Aborted };
                    outcomes.extend(open.remove(producer_id).unwrap_or_default().into_iter().map(|at| (at, outcome)));
                }
            }
        }
        outcomes
    }

    /// Returns the records before `end` whose batches have one of `outcomes`, beginning at the log start.
    fn records(&self, outcomes: &[Outcome], end: i64) -> Taken {
        let of = self.outcomes();
        let batches = self.written.iter().filter_map(|(base, written)| match written {
            Written::Batch { records, .. } if outcomes.contains(&of[base]) => Some((*base, records)),
            _ => None,
        });
        let records = batches.flat_map(|(base, records)| (base..).zip(records.iter().cloned()));
        records.filter(|(at, _)| (self.log_start..end).contains(at)).collect()
    }

    fn first_open(&self) -> Option<i64> {
        self.producers().values().filter_map(|(.., open)| *open).min()
    }

    fn reopen(&mut self) {
        self.open = None;
        self.open = Some(open_with(self.dir(), self.segment_bytes, self.map_bytes));
    }

    fn append(&mut self, producer_id: Option<i64>, is_transactional: bool, keys: &[(u8, bool)]) {
        let base = self.end();
        let value = |at: usize| Some(format!("{base}+{at} {}", "x".repeat(20)).into_bytes());
        let record = |(at, (key, is_tombstone)): (usize, &(u8, bool))| (*key, value(at).filter(|_| !is_tombstone));
        let records: Vec<_> = keys.iter().enumerate().map(record).collect();
        let known = producer_id.and_then(|id| self.producers().get(&id).copied()).unwrap_or((0, 0, None));
        let (epoch, next, open) = known;
        let is_transactional = producer_id.is_some() && (is_transactional || open.is_some());
        let stamp = producer_id.map_or(Stamp::NONE, |id| stamp(id, epoch, next));
        assert_eq!(put(self.partition(), stamp, is_transactional, &records), base);
        self.written.insert(base, Written::Batch { producer_id, epoch, is_transactional, records });
    }

    fn end_transaction(&mut self, producer_id: i64, is_commit: bool, bumps: bool) {
        let (epoch, ..) = self.producers().get(&producer_id).copied().unwrap_or((0, 0, None));
        let epoch = epoch + i16::from(bumps);
        let marker = Marker { producer_id, producer_epoch: epoch, coordinator_epoch: 0, is_commit };
        let base = self.end();
        self.partition().append_marker(&marker, if bumps { 2 } else { 0 }, None, NOW).expect("ended");
        self.written.insert(base, Written::Marker { producer_id, epoch, is_commit });
    }

    fn clean(&mut self, later_ms: i64) {
        self.now_ms += later_ms;
        let logs = &self.open.as_ref().expect("open").0;
        while logs.clean_dirtiest(self.now_ms) {}
    }

    fn kill_in_cleaning(&mut self, later_ms: i64, at: usize) {
        let (from, to, mut count) = (self.dir().to_owned(), new_dir(), 0);
        let into = to.path().to_owned();
        let look = move || {
            if count == at {
                copy(&from, &into);
            }
            count += 1;
        };
        watch(look, || self.clean(later_ms));
        if fs::read_dir(to.path()).expect("listed").next().is_some() {
            self.open = None;
            self.dirs = vec![to];
        }
        self.reopen();
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Append { producer_id, is_transactional, keys } => self.append(*producer_id, *is_transactional, keys),
            Step::End { producer_id, is_commit, bumps } => self.end_transaction(*producer_id, *is_commit, *bumps),
            Step::DeleteRecords { count } => {
                let most = self.first_open().unwrap_or(self.end());
                self.log_start = (self.log_start + count).min(most).max(self.log_start);
                let (logs, partition) = self.open.as_ref().expect("open");
                partition.delete_records_before(self.log_start).expect("deleted");
                logs.keep_log_starts(std::slice::from_ref(partition)).expect("kept");
            }
            Step::Clean { later_ms } => self.clean(*later_ms),
            Step::KillInCleaning { later_ms, at } => self.kill_in_cleaning(*later_ms, *at),
            Step::Restart { is_clean, forgets } => {
                if *is_clean {
                    self.open.as_ref().expect("open").0.close();
                }
                self.open = None;
                if *forgets && self.dir().join("t-0").exists() {
                    forget_snapshots(self.dir());
                }
                self.reopen();
            }
        }
    }

    fn check(&self) {
        let partition = self.partition();
        let (raw, batches) = consume(partition, Isolation::ReadUncommitted, 1 << 20);
        assert!(batches.is_sorted_by(|one, next| one.last_offset < next.base_offset));
        self.check_records(&raw, &self.records(&[Outcome::Committed, Outcome::Aborted, Outcome::Open], self.end()));
        let stable = self.first_open().unwrap_or(self.end()).max(self.log_start);
        let committed = self.records(&[Outcome::Committed], stable);
        for max_bytes in [200, 1 << 20] {
            let (read, _) = consume(partition, Isolation::ReadCommitted, max_bytes);
            assert!(read.last_key_value().is_none_or(|(at, _)| *at < stable));
            self.check_records(&read, &committed);
            let newest =
                |rows: &Taken| rows.iter().map(|(at, row)| (row.0, (*at, row.1.clone()))).collect::<BTreeMap<_, _>>();
            let without_tombstones = |rows: &Taken| {
                newest(rows).into_iter().filter(|(_, (_, value))| value.is_some()).collect::<BTreeMap<_, _>>()
            };
            assert_eq!(without_tombstones(&read), without_tombstones(&committed), "at read_committed");
            // A record may be missing only if a later committed one superseded it, or if it is a tombstone.
            let last = newest(&committed);
            for (at, (key, value)) in committed.iter().filter(|(at, _)| !read.contains_key(at)) {
                assert!(last[key].0 > *at || value.is_none(), "{at} is gone");
            }
        }
        let open = self.records(&[Outcome::Open], self.end());
        assert!(open.iter().all(|(at, row)| raw.get(at) == Some(row)), "open transactions are as they were");
        let known = self.producers().into_iter().map(|(id, (epoch, next, open))| (id, epoch, next - 1, open));
        assert_eq!(producers(partition), known.collect::<Vec<_>>());
    }

    fn check_records(&self, read: &Taken, written: &Taken) {
        for (at, row) in read {
            assert_eq!(Some(row), written.get(at), "at {at}, from {}", self.log_start);
        }
    }

    /// Ends all transactions, then cleans the log until a cleaning changes nothing. Returns the offset up to which the
    /// log is clean.
    fn settle(&mut self) -> i64 {
        for (producer_id, _) in self.producers().into_iter().filter(|(_, (.., open))| open.is_some()) {
            self.end_transaction(producer_id, producer_id % 2 == 0, true);
        }
        let (until, mut before, mut unchanged) = (self.end(), Vec::new(), 0);
        for _ in 0..40 {
            for _ in 0..self.segment_bytes / 100 {
                self.append(None, false, &[(250, false)]);
            }
            self.clean(RETENTION_MS);
            let left = raw(self.partition());
            let left: Vec<_> = left.into_iter().filter(|batch| batch.last_offset < until).collect();
            unchanged = if left == before { unchanged + 1 } else { 0 };
            before = left;
            if unchanged == 3 {
                break;
            }
        }
        assert_eq!(unchanged, 3, "it never ends");
        self.check();
        check_index(self.partition());
        until
    }

    /// Returns true if the transaction of `marker` began before the log start.
    fn has_data_before_start(&self, marker: &BatchFacts) -> bool {
        let mut first = None;
        for (base, written) in self.written.range(..marker.base_offset) {
            match written {
                Written::Marker { producer_id, .. } if *producer_id == marker.producer_id => first = None,
                Written::Batch { producer_id: Some(id), is_transactional: true, .. } if *id == marker.producer_id => {
                    first = first.or(Some(*base));
                }
                _ => {}
            }
        }
        first.is_some_and(|first| first < self.log_start)
    }

    /// Checks that no removable record or marker remains before `clean_to`.
    fn check_clean(&self, clean_to: i64) {
        let partition = self.partition();
        let (rows, batches) = consume(partition, Isolation::ReadUncommitted, 1 << 20);
        let committed = self.records(&[Outcome::Committed], clean_to);
        for (at, (key, _)) in rows.range(..clean_to) {
            let newest = committed.iter().rfind(|(_, row)| row.0 == *key).expect("it is committed");
            assert_eq!(newest.0, at, "superseded or aborted");
        }
        for marker in batches.iter().filter(|batch| batch.last_offset < clean_to && batch.is_commit.is_some()) {
            // The marker may also stay if the transaction has data before the log start, which may still be in the
            // marker's segment.
            let has_data = has_data(&batches, marker) || self.has_data_before_start(marker);
            assert!(has_data, "{marker:?} of {clean_to}: {batches:#?}");
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let producer_id = 0..3_i64;
    let keys = prop::collection::vec((0..6_u8, prop::bool::weighted(0.1)), 1..4);
    let later_ms = prop::sample::select(vec![0, 1, RETENTION_MS]);
    prop_oneof![
        24 => (prop::option::weighted(0.8, producer_id.clone()), prop::bool::weighted(0.8), keys).prop_map(
            |(producer_id, is_transactional, keys)| Step::Append { producer_id, is_transactional, keys }
        ),
        12 => (producer_id, any::<bool>(), any::<bool>())
            .prop_map(|(producer_id, is_commit, bumps)| Step::End { producer_id, is_commit, bumps }),
        1 => (0..20_i64).prop_map(|count| Step::DeleteRecords { count }),
        2 => later_ms.clone().prop_map(|later_ms| Step::Clean { later_ms }),
        2 => (later_ms, 0..40_usize).prop_map(|(later_ms, at)| Step::KillInCleaning { later_ms, at }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(is_clean, forgets)| Step::Restart { is_clean, forgets }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_cleanings_restarts_and_kills_leave_the_committed_records_readable(
        segment_bytes in prop::sample::select(vec![400, 900]),
        map_bytes in prop::option::weighted(0.2, Just(120_usize)),
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let mut world = World::new(segment_bytes, map_bytes);
        for step in &steps {
            world.run(step);
            if !matches!(step, Step::Append { .. } | Step::End { .. }) {
                world.check();
            }
        }
        world.check();
        let clean_to = world.settle();
        world.check_clean(clean_to);
    }
}
