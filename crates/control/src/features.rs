//! Features of the cluster (KIP-584): supported levels, and the level in force.
//!
//! Not here: the decision to change a level, which is in `decide`. A feature that is not listed has level 0, and cannot
//! be enabled.

/// Feature with the levels that this version supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Kafka's name.
    pub name: &'static str,
    /// Lowest level that may be set; 0 disables the feature.
    pub min: i16,
    /// Highest level, in force until another one is set.
    pub max: i16,
}

/// Version of transactions: 1 has flexible records in `__transaction_state`, 2 the protocol of KIP-890.
pub const TRANSACTION_VERSION: Feature = Feature { name: "transaction.version", min: 0, max: 2 };

/// Every feature, by name: consumer groups with the protocol of KIP-848; the metadata of Kafka 4.3 (4.3-IV0), which
/// tools show as the cluster's version; transactions.
pub const FEATURES: [Feature; 3] = [
    Feature { name: "group.version", min: 1, max: 1 },
    Feature { name: "metadata.version", min: 30, max: 30 },
    TRANSACTION_VERSION,
];

/// Returns the feature of this name.
pub(super) fn find(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.name == name)
}
