//! Features of the cluster (KIP-584) with their supported levels.
//!
//! Not here: levels in force (`image`), and the decision to change a level (`decide`). A feature that is not listed
//! here has level 0, and cannot be enabled.

/// Feature with the levels that this version supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Name, as in Kafka.
    pub name: &'static str,
    /// Lowest level that may be set; 0 disables the feature.
    pub min: i16,
    /// Highest level; in force until another level is set.
    pub max: i16,
}

/// Version of transactions. Level 1 has flexible records in `__transaction_state`; level 2 adds the protocol of
/// KIP-890.
pub const TRANSACTION_VERSION: Feature = Feature { name: "transaction.version", min: 0, max: 2 };

/// All features, in the order of their names: consumer groups with the protocol of KIP-848, the version of the
/// metadata, and transactions. Tools show the version of the metadata, 4.3-IV0 of Kafka 4.3, as the cluster's version.
pub const FEATURES: [Feature; 3] = [
    Feature { name: "group.version", min: 1, max: 1 },
    Feature { name: "metadata.version", min: 30, max: 30 },
    TRANSACTION_VERSION,
];

/// Returns the feature of this name; None if it is not supported.
pub(super) fn find(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.name == name)
}
