//! Chooses a record's partition. A record with a key gets the same partition as with Kafka's Java client. Records
//! without a key are spread in runs of consecutive records. Each partition gets as many as its broker accepts.
//!
//! Invariant: the same key and partition count give the same partition as `BuiltInPartitioner` in Kafka.

use crate::clock;
use crate::prospect::Prospect;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// MurmurHash2 with 32 bits and the seed of Kafka's `org.apache.kafka.common.utils.Utils.murmur2`.
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ data.len() as u32;
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes(chunk.try_into().expect("chunks_exact gives four bytes")).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = chunks.remainder();
    if !tail.is_empty() {
        let mut word = [0; 4];
        word[..tail.len()].copy_from_slice(tail);
        h = (h ^ u32::from_le_bytes(word)).wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}

/// Returns the partition of a key among `partitions`, of which there must be at least one.
pub fn for_key(key: &[u8], partitions: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % partitions
}

/// Chooses the partition for records without a key: one partition for a *run* of consecutive records, then another one
/// for the next run (KIP-480).
///
/// A run lasts for about [`RUN_TIME`] at the present rate of records, but has at least batch.size bytes. At any time, a
/// few partitions thus get large batches, instead of all partitions small ones. There is one exception: on a long path,
/// a run ends as soon as all of its records are sent. The next partition is the best of a few random ones ("the power
/// of two choices", Mitzenmacher, 1996). Each partition thus gets as many records as its broker accepts (KIP-794), and
/// no record waits for acknowledgements while another partition could send it.
#[derive(Debug)]
pub(crate) struct Sticky {
    current: AtomicU32,
    bytes: AtomicUsize,
    /// The number of bytes after which the run ends.
    run_bytes: AtomicUsize,
    run_began: Mutex<Instant>,
    seed: AtomicU64,
}

/// The target duration of a run. The length of the next run in bytes is computed from it and the rate of the present
/// run, within bounds. Batches are sent during a run, so no record waits for its end.
const RUN_TIME: Duration = Duration::from_millis(2);
/// Maximum length of a run, as a multiple of batch.size. Without this limit, a whole burst of records could be added to
/// a single partition.
const RUN_BATCHES: usize = 16;
/// The number of partitions from which the best one is chosen.
const CHOICES: usize = 4;

impl Sticky {
    pub(crate) fn new(seed: u64) -> Self {
        Sticky {
            current: AtomicU32::new(splitmix(seed) as u32),
            bytes: AtomicUsize::new(0),
            run_bytes: AtomicUsize::new(0),
            run_began: Mutex::new(clock::now()),
            seed: AtomicU64::new(seed),
        }
    }

    /// Returns the partition of the current run. If its path is long and all of its records are sent, begins a new run
    /// first. `available` contains the partitions with a leader, or all partitions if none has a leader, and must not
    /// be empty.
    #[inline]
    pub(crate) fn choose<'a, T>(&self, available: &'a [T], prospect: impl Fn(&T) -> &Prospect) -> &'a T {
        let at = self.current.load(Ordering::Relaxed) as usize % available.len();
        if self.bytes.load(Ordering::Relaxed) > 0 {
            let current = prospect(&available[at]);
            if current.is_drained() && current.is_on_a_long_path() {
                return &available[self.begin_run(available, &prospect)];
            }
        }
        &available[at]
    }

    /// Continues with the next partition, because the current one does not accept a record.
    pub(crate) fn skip(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that were added to the current partition. Begins the next run once the present one has enough
    /// bytes.
    #[inline]
    pub(crate) fn produced<T>(
        &self,
        bytes: usize,
        limits: &RunLimits,
        available: &[T],
        prospect: impl Fn(&T) -> &Prospect,
    ) {
        // Two threads may call this at the same time. Then both may begin a run, or the bytes of one may not be
        // counted. Either case hardly changes how the records are spread.
        let run = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if run < limits.batch_size || run < self.run_bytes.load(Ordering::Relaxed) {
            return;
        }
        self.begin_run(available, &prospect);
        let now = clock::now();
        let took = now.saturating_duration_since(std::mem::replace(&mut *self.run_began.lock(), now));
        let most = (run as f64 * RUN_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6)) as usize;
        let most = most.min(limits.batch_bytes_max).min(RUN_BATCHES.saturating_mul(limits.batch_size));
        self.run_bytes.store(most, Ordering::Relaxed);
    }

    /// Begins a run with the best of a few partitions and returns its index.
    fn begin_run<T>(&self, available: &[T], prospect: &impl Fn(&T) -> &Prospect) -> usize {
        let now = clock::now();
        let seed = self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let first = splitmix(seed) as usize;
        // Up to `CHOICES` partitions are candidates: all partitions if there are so few, and otherwise random ones.
        let step = if available.len() <= CHOICES { 1 } else { splitmix(!seed) as usize | 1 };
        let choices = (0..CHOICES.min(available.len())).map(|i| first.wrapping_add(i.wrapping_mul(step)));
        let best = choices.map(|at| at % available.len()).min_by_key(|at| prospect(&available[*at]).rank(now));
        let best = best.unwrap_or(0);
        self.bytes.store(0, Ordering::Relaxed);
        self.current.store(best as u32, Ordering::Relaxed);
        best
    }
}

/// The minimum and maximum length of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    /// Minimum number of bytes in a run.
    pub(crate) batch_size: usize,
    /// Maximum number of bytes in a run.
    pub(crate) batch_bytes_max: usize,
}

/// The output function of SplitMix64.
pub(crate) fn splitmix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `UtilsTest.testMurmur2` in Apache Kafka.
    #[test]
    fn murmur2_equals_that_of_java() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, hash, "{text}");
        }
    }

    #[test]
    fn a_negative_hash_keeps_its_low_bits() {
        let hash = -973_932_308i32;
        assert_eq!(for_key(b"21", 7), (hash & i32::MAX) as usize % 7);
    }

    /// The queue of a busy broker lengthens the round trip, so the path counts as long. If runs then ended early,
    /// batches would be small and keep the broker busy.
    #[test]
    fn a_fast_producer_on_a_long_path_keeps_its_runs() {
        let (sticky, limits) = (Sticky::new(7), RunLimits { batch_size: 1000, batch_bytes_max: 1 << 20 });
        let available: Vec<(usize, Prospect)> = (0..100).map(|at| (at, Prospect::default())).collect();
        available.iter().for_each(|(_, prospect)| prospect.set_free_at(Some(clock::now())));
        let mut runs = vec![(0, 0)];
        for _ in 0..100_000 {
            let (at, prospect) = sticky.choose(&available, |(_, prospect)| prospect);
            // The unsent bytes stand for a batch that waits for its connection, so that the run is not over.
            prospect.set_unsent(1000);
            match runs.last_mut() {
                Some((last, bytes)) if last == at => *bytes += 100,
                _ => runs.push((*at, 100)),
            }
            sticky.produced(100, &limits, &available, |(_, prospect)| prospect);
        }
        let longest = runs.iter().map(|(_, bytes)| *bytes).max();
        assert!(longest >= Some(RUN_BATCHES * 1000), "{longest:?}");
    }

    #[test]
    fn equal_partitions_get_the_same_share() {
        let sticky = Sticky::new(7);
        let available: Vec<(usize, Prospect)> = (0..9).map(|at| (at, Prospect::default())).collect();
        let limits = RunLimits { batch_size: 1000, batch_bytes_max: 1000 };
        let mut counts = [0u32; 9];
        for _ in 0..90_000 {
            counts[sticky.choose(&available, |(_, prospect)| prospect).0] += 1;
            sticky.produced(100, &limits, &available, |(_, prospect)| prospect);
        }
        assert!(counts.iter().all(|n| (8_500..11_500).contains(n)), "{counts:?}");
    }
}
