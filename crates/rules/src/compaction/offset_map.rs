//! Maps the hash of each key to the key's newest offset, in a fixed amount of memory.
//!
//! The map does not grow. A cleaning ends at the first record whose key does not fit into the map, and the next
//! cleaning continues there. The map uses open addressing with linear probing. A slot has 24 bytes: 16 for the hash and
//! 8 for the offset. The system maps zeroed memory only when it is first written, so unused slots cost nothing.
//!
//! Invariant: there is always an empty slot, so every search ends.

use super::sip::{self, hash};

pub use super::sip::HashKey;

/// How many bytes of memory each key takes.
pub const SLOT_BYTES: usize = 24;

/// The hashes of keys, with the newest offset of each key.
#[derive(Debug)]
pub struct OffsetMap {
    key: sip::HashKey,
    /// Each slot has three words: two of the hash, and the offset plus one. In an empty slot, the last word is 0.
    slots: Vec<[u64; 3]>,
    len: usize,
    limit: usize,
}

impl OffsetMap {
    /// Creates a map of at most `bytes` bytes, of which the share `load_factor` may be used. At most `keys` keys will
    /// be added. If they need fewer bytes, the map is smaller.
    pub fn new(key: HashKey, bytes: usize, load_factor: f64, keys: usize) -> OffsetMap {
        let load_factor = if load_factor.is_finite() { load_factor.clamp(0.01, 1.0) } else { 1.0 };
        let needed = (keys as f64 / load_factor.min(0.75)) as usize;
        let count = (bytes / SLOT_BYTES).min(needed.saturating_add(1)).max(2);
        let limit = ((count as f64 * load_factor) as usize).clamp(1, count - 1);
        OffsetMap { key, slots: vec![[0; 3]; count], len: 0, limit }
    }

    /// Notes the newest offset of a key. The offsets must grow from call to call. Returns false if the map is full
    /// and does not have the key.
    #[must_use]
    pub fn put(&mut self, key: &[u8], offset: i64) -> bool {
        let hash = hash(self.key, key);
        let at = self.slot_of(hash);
        if self.slots[at][2] == 0 {
            if self.len == self.limit {
                return false;
            }
            self.len += 1;
        }
        self.slots[at] = [hash[0], hash[1], offset as u64 + 1];
        true
    }

    /// Returns the newest offset of a key; None if the map does not have the key.
    pub fn get(&self, key: &[u8]) -> Option<i64> {
        let slot = self.slots[self.slot_of(hash(self.key, key))];
        (slot[2] != 0).then(|| (slot[2] - 1) as i64)
    }

    /// Returns the slot with this hash, or the empty slot where it belongs.
    fn slot_of(&self, hash: [u64; 2]) -> usize {
        let count = self.slots.len();
        // The high half of the product is below `count`, and as evenly distributed as the hash.
        let mut at = ((u128::from(hash[0]) * count as u128) >> 64) as usize;
        loop {
            let slot = &self.slots[at];
            if slot[2] == 0 || (slot[0] == hash[0] && slot[1] == hash[1]) {
                return at;
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many keys the map can hold.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn offset_map_equals_a_hash_map_until_it_is_full(
            slots in 2_usize..200,
            load_factor in 0.1..1.5,
            puts in prop::collection::vec(0_u16..300, 0..400),
            key: [u64; 2],
        ) {
            let mut map = OffsetMap::new(HashKey(key), slots * SLOT_BYTES + 5, load_factor, usize::MAX);
            let mut model = HashMap::new();
            for (offset, key) in puts.into_iter().enumerate() {
                let bytes = key.to_be_bytes();
                let is_new = !model.contains_key(&key);
                let taken = map.put(&bytes, offset as i64);
                prop_assert_eq!(taken, !(is_new && model.len() == map.limit()));
                if taken {
                    model.insert(key, offset as i64);
                }
            }
            prop_assert!(map.limit() < slots && map.len() == model.len());
            for key in 0_u16..300 {
                prop_assert_eq!(map.get(&key.to_be_bytes()), model.get(&key).copied());
            }
        }
    }

    #[test]
    fn map_for_few_keys_is_small() {
        let map = OffsetMap::new(HashKey([0; 2]), 128 << 20, 0.9, 10);
        assert!(map.limit() >= 10 && map.slots.len() < 20, "{}", map.slots.len());
        let map = OffsetMap::new(HashKey([0; 2]), 24 * 1000, 0.9, usize::MAX);
        assert_eq!((map.slots.len(), map.limit()), (1000, 900));
    }
}
