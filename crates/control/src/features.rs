//! The features of the cluster (KIP-584), with the levels that this version supports.
//!
//! The image contains the current levels, and `decide` decides about changes. A feature that is not listed here has
//! level 0, and cannot be enabled.

/// A feature, with the levels that this version supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The feature's name in Kafka.
    pub name: &'static str,
    /// The lowest level that can be set. 0 means that the feature can be disabled.
    pub min: i16,
    /// The highest level. A feature has this level until another one is set.
    pub max: i16,
}

/// The version of transactions. With level 1, the coordinator writes flexible records to `__transaction_state`. Level 2
/// adds the protocol of KIP-890.
pub const TRANSACTION_VERSION: Feature = Feature { name: "transaction.version", min: 0, max: 2 };

/// All features in the order of their names: the consumer group protocol of KIP-848, the version of the metadata, and
/// the version of transactions. Tools show the version of the metadata, Kafka's 4.3-IV0, as the cluster's version.
pub const FEATURES: [Feature; 3] = [
    Feature { name: "group.version", min: 1, max: 1 },
    Feature { name: "metadata.version", min: 30, max: 30 },
    TRANSACTION_VERSION,
];

/// Returns the feature with this name, or `None` if this version does not support it.
pub(super) fn find(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.name == name)
}
