//! The subscribed topics of a group and their hash. The hash is stored, so the group notices changes even after a
//! restart.

use fullbore_wire::{Text, Uuid};
use std::collections::BTreeMap;

/// The sum of the hashes of all subscribed topics. The sum is stored, so every version of the program must compute it
/// in the same way.
pub(super) type TopicsHash = i64;

/// The subscribed topics that exist, each with its id and its number of partitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SubscribedTopics {
    by_name: BTreeMap<Text, (Uuid, i32)>,
    hash: TopicsHash,
}

impl SubscribedTopics {
    pub fn hash(&self) -> TopicsHash {
        self.hash
    }

    pub fn get(&self, name: &str) -> Option<(Uuid, i32)> {
        self.by_name.get(name).copied()
    }

    /// Stores a topic, or removes it if it does not exist or is no longer subscribed to.
    pub fn set(&mut self, name: Text, topic: Option<(Uuid, i32)>) {
        if let Some((id, partitions)) = self.by_name.remove(&name) {
            self.hash = self.hash.wrapping_sub(hash(&name, id, partitions));
        }
        if let Some((id, partitions)) = topic {
            self.hash = self.hash.wrapping_add(hash(&name, id, partitions));
            self.by_name.insert(name, (id, partitions));
        }
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &Text> {
        self.by_name.keys()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &(Uuid, i32))> {
        self.by_name.iter()
    }
}

/// Returns the hash of a topic: FNV-1a, and then the last step of MurmurHash3. The last step mixes the bits, because
/// the hashes of topics are added up.
fn hash(name: &str, id: Uuid, partitions: i32) -> TopicsHash {
    let bytes = name.bytes().chain(id.0).chain(partitions.to_be_bytes());
    let fnv = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let once = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let twice = (once ^ (once >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (twice ^ (twice >> 33)).cast_signed()
}
