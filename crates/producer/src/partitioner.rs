//! Which partition a record goes to: by its key as Kafka's Java client does, else uniformly, a batch at a time.
//!
//! Invariant: the same key and partition count give the same partition as `BuiltInPartitioner` in Kafka.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// MurmurHash2, 32 bits, with the seed of `org.apache.kafka.common.utils.Utils.murmur2`.
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

/// The partition of a key among `partitions` (at least 1).
pub fn for_key(key: &[u8], partitions: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % partitions
}

/// The partition for records without a key: the same until about batch.size bytes went there, then another at
/// random (KIP-480, and KIP-794 so that each gets the same bytes).
#[derive(Debug)]
pub(crate) struct Sticky {
    current: AtomicU32,
    bytes: AtomicUsize,
    seed: AtomicU64,
}

impl Sticky {
    pub(crate) fn new(seed: u64) -> Self {
        let first = splitmix(seed) as u32;
        Sticky { current: AtomicU32::new(first), bytes: AtomicUsize::new(0), seed: AtomicU64::new(seed) }
    }

    /// The partition now; `available` are those with a leader, or all when none has: at least one.
    pub(crate) fn choose<'a, T>(&self, available: &'a [T]) -> &'a T {
        &available[self.current.load(Ordering::Relaxed) as usize % available.len()]
    }

    /// Moves on to the next partition: the one before takes nothing just now.
    pub(crate) fn skip(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes sent to the current partition and moves on when they are enough.
    pub(crate) fn produced(&self, bytes: usize, batch_size: usize) {
        // Two threads may both move on, or one count be lost: that is still uniform.
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes >= batch_size {
            self.bytes.store(0, Ordering::Relaxed);
            let seed = self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            self.current.store(splitmix(seed) as u32, Ordering::Relaxed);
        }
    }
}

/// SplitMix64's output function.
pub(crate) fn splitmix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UtilsTest.testMurmur2` in Apache Kafka.
    #[test]
    fn murmur2_gives_what_java_gives() {
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

    #[test]
    fn sticky_partitions_get_the_same_share() {
        let sticky = Sticky::new(7);
        let available: Vec<usize> = (0..9).collect();
        let mut counts = [0u32; 9];
        for _ in 0..90_000 {
            counts[*sticky.choose(&available)] += 1;
            sticky.produced(100, 1000);
        }
        assert!(counts.iter().all(|n| (8_500..11_500).contains(n)), "{counts:?}");
    }
}
