//! Tests that a read_committed client gets the same records from a slice with gaps as from the whole slice.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use fullbore_config::{BrokerConfig, Properties, TopicConfig};
use fullbore_rules::sequence::Marker;
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, Stamp, batches};
use proptest::prelude::*;
use rustix::fs::{Advice, fadvise};

use super::*;
use crate::Log;
use crate::append::Verification;
use crate::direct_io::DirectReads;
use crate::lookup::Slice;
use crate::recovery::RecoveryHint;
use crate::transactions::marker_of;
use crate::validation::ValidBatch;

fn config() -> TopicConfig {
    let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    broker.topics.defaults
}

/// A log to which several producers write transactions.
struct Written {
    log: Log,
    config: TopicConfig,
    /// The next sequence number of each producer.
    sequences: [i32; 3],
    _directory: tempfile::TempDir,
}

impl Written {
    fn new() -> Written {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("temporary directory");
        let config = config();
        let log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        Written { log, config, sequences: [0; 3], _directory: directory }
    }

    fn append(&mut self, producer: usize, bytes: usize) {
        let builder = BatchBuilder::new(Default::default(), Compression::None, None);
        let mut builder = builder.transactional();
        builder.append(0, None, Some(&vec![1; bytes]), &[]);
        let base_sequence = self.sequences[producer];
        self.sequences[producer] += 1;
        let stamp = Stamp { producer_id: producer as i64, producer_epoch: 0, base_sequence };
        let (bytes, _) = builder.seal(stamp).expect("sealed");
        let batch = ValidBatch::unchecked(&bytes);
        self.log.append_verified(&batch, Verification::Verified, 0, 0, &self.config).expect("appended");
    }

    fn end(&mut self, producer: usize, is_commit: bool) {
        let marker = Marker { producer_id: producer as i64, producer_epoch: 0, coordinator_epoch: 0, is_commit };
        self.log.append_marker(&marker, 0, 0, 0, &self.config).expect("ended");
    }

    /// Reads from an offset on, and returns the slice together with the ranges that would be sent. Returns `None` at
    /// the end of the log.
    fn read(&mut self, from: i64, max_bytes: u32) -> Option<Read> {
        self.read_beside(&DirectReads::default(), from, max_bytes)
    }

    /// Like [`Written::read`], but uses the pieces in `cold`.
    fn read_beside(&mut self, cold: &DirectReads, from: i64, max_bytes: u32) -> Option<Read> {
        let end = self.log.log_end();
        let stable = self.log.last_stable_offset(end);
        if from >= stable {
            return None;
        }
        let plan = self.log.plan_read(from, max_bytes, stable).expect("planned");
        let Slice::Of(mut slice) = plan.read(max_bytes, true, cold).expect("read") else { panic!("no records") };
        let upto = plan.whole(&mut slice, cold).expect("read");
        let aborted = self.log.plan_aborted(from).read(upto).expect("read");
        let ranges = without_aborted(slice.clone(), from..upto, &aborted, cold);
        Some(Read { slice, ranges, aborted })
    }
}

struct Read {
    slice: FileSlice,
    ranges: Vec<FileSlice>,
    aborted: Vec<AbortedTransaction>,
}

impl Read {
    fn left_out(&self) -> u32 {
        self.slice.len - self.ranges.iter().map(|range| range.len).sum::<u32>()
    }

    /// Reads `ranges` as a read_committed client does. Returns the offsets of the batches that are not aborted, and the
    /// offset after the last batch.
    fn consumed(&self, ranges: &[FileSlice]) -> (Vec<i64>, i64) {
        let mut aborted: BTreeSet<_> = self.aborted.iter().map(|of| (of.first_offset, of.producer_id)).collect();
        let (mut aborting, mut kept, mut next) = (BTreeSet::new(), Vec::new(), 0);
        for bytes in ranges.iter().map(bytes) {
            for batch in batches(&bytes).map(|batch| batch.expect("whole batches")) {
                while let Some(&(first, producer_id)) = aborted.first()
                    && first <= batch.last_offset()
                {
                    aborting.insert(producer_id);
                    aborted.pop_first();
                }
                match marker_of_control(&batch) {
                    Some(marker) if !marker.is_commit => _ = aborting.remove(&marker.producer_id),
                    Some(_) => {}
                    None if batch.is_transactional() && aborting.contains(&batch.producer_id()) => {}
                    None => kept.push(batch.base_offset()),
                }
                next = batch.last_offset() + 1;
            }
        }
        (kept, next)
    }
}

fn marker_of_control(batch: &BatchView<'_>) -> Option<Marker> {
    if batch.is_control() { marker_of(batch) } else { None }
}

fn bytes(range: &FileSlice) -> bytes::Bytes {
    let mut bytes = vec![0; range.len as usize];
    range.file.read_exact_at(&mut bytes, range.position).expect("read");
    bytes.into()
}

#[test]
fn long_transaction_was_aborted_its_marker_and_the_last_batch_are_sent() {
    let mut written = Written::new();
    for is_commit in [true, false, true] {
        (0..10).for_each(|_| written.append(0, 16_000));
        written.end(0, is_commit);
    }
    let all = written.read(0, 1 << 20).expect("stable");
    assert_eq!((all.ranges.len(), all.left_out() > 160_000), (2, true));
    assert_eq!(all.consumed(&all.ranges), ((0..10).chain(22..32).collect(), 33));
    let within = written.read(12, 65_000).expect("stable");
    assert_eq!((within.ranges.len(), within.consumed(&within.ranges)), (1, (vec![], 16)), "the client moves on");
    assert!(within.ranges[0].len < 20_000);
}

#[tokio::test]
async fn log_is_not_in_the_page_cache_aborted_batches_in_read_ahead_pieces_are_left_out() {
    let mut written = Written::new();
    for is_commit in [true, false, true] {
        (0..10).for_each(|_| written.append(0, 16_000));
        written.end(0, is_commit);
    }
    let cold = DirectReads::default();
    let FileSlice { file, position, len, settled } = written.read(0, 1 << 20).expect("stable").slice;
    file.sync_all().expect("on disk");
    fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
    // Only the scan is tested here, because planning a read would load pages of the file into memory.
    let (aborted, slice) =
        (written.log.plan_aborted(0).read(33).expect("read"), FileSlice { file: file.clone(), position, len, settled });
    if is_resident(&file, position, len as usize) {
        eprintln!("files here are always in memory: nothing is shown");
        return;
    }
    assert_eq!(
        without_aborted(slice.clone(), 0..33, &aborted, &cold),
        std::slice::from_ref(&slice),
        "no piece has been read"
    );
    assert!(!is_resident(&file, position, len as usize), "and the scan reads no disk");
    cold.read(&file, position, len as usize, settled).await.expect("read").expect("not in memory");
    let ranges = without_aborted(slice.clone(), 0..33, &aborted, &cold);
    assert!(!is_resident(&file, position, len as usize), "nor does it with the piece");
    assert_eq!((ranges.len(), slice.len - ranges.iter().map(|range| range.len).sum::<u32>() > 160_000), (2, true));
}

#[test]
fn aborted_runs_are_short_or_few_the_slice_is_sent_as_it_is() {
    let mut written = Written::new();
    for round in 0..40 {
        written.append(0, 1_000);
        written.append(1, 1_000);
        written.end(0, round % 2 == 0);
        written.end(1, true);
    }
    let read = written.read(0, 1 << 20).expect("stable");
    assert_eq!((read.ranges.len(), read.left_out()), (1, 0));
    assert_eq!(without_aborted(read.slice.clone(), 0..160, &[], &DirectReads::default()), [read.slice]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn client_finds_the_same_records_and_place_with_gaps_as_without(
        steps in prop::collection::vec((0..3_usize, 1..40_000_usize, 0..14_u8), 1..120),
        max_bytes in 1..600_000_u32,
    ) {
        let mut written = Written::new();
        for (producer, bytes, end) in steps {
            match end {
                0 => written.end(producer, true),
                1 | 2 => written.end(producer, false),
                _ => written.append(producer, bytes),
            }
        }
        for from in 0..written.log.log_end() {
            let Some(read) = written.read(from, max_bytes) else { break };
            prop_assert_eq!(read.consumed(&read.ranges), read.consumed(std::slice::from_ref(&read.slice)));
        }
    }
}
