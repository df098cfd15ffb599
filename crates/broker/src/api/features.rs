//! The features that clients are told of (KIP-584), each with the one level at which this broker is.
//!
//! Only what holds here: a client that finds `transaction.version` 2 takes part in the transactions of KIP-890, and one
//! that finds `share.version` in share groups. A feature that is not listed has level 0. No level can be changed.

use crate::node::Node;
use fullbore_wire::Text;
use fullbore_wire::apis::api_versions::{FinalizedFeatureKey, SupportedFeatureKey};

/// A name and a level.
pub type Feature = (&'static str, i16);

/// Version of the metadata in Kafka 4.3 (4.3-IV0), which tools show as the version of the cluster.
const METADATA: Feature = ("metadata.version", 30);
/// Version of consumer groups with the protocol of KIP-848.
const GROUPS: Feature = ("group.version", 1);

/// Version of transactions with the protocol of KIP-890.
const TRANSACTIONS: Feature = ("transaction.version", 2);

/// Every feature, in the order of the names.
pub fn all() -> impl Iterator<Item = Feature> {
    [GROUPS, METADATA, TRANSACTIONS].into_iter()
}

pub fn supported() -> Vec<SupportedFeatureKey> {
    let key = |(name, level)| SupportedFeatureKey {
        name: Text::from_static(name),
        min_version: level,
        max_version: level,
        ..Default::default()
    };
    all().map(key).collect()
}

pub fn finalized() -> Vec<FinalizedFeatureKey> {
    let key = |(name, level)| FinalizedFeatureKey {
        name: Text::from_static(name),
        min_version_level: level,
        max_version_level: level,
        ..Default::default()
    };
    all().map(key).collect()
}

/// That of the metadata, which never goes back.
pub fn epoch(broker: &Node) -> i64 {
    i64::try_from(broker.control.image().epoch()).unwrap_or(i64::MAX)
}
