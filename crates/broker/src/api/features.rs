//! The features in ApiVersions responses (KIP-584): which levels this broker supports, and which level is in force.
//!
//! Clients act on these levels, so a level is listed only if it is implemented. With `transaction.version` 2 they use
//! the transactions of KIP-890, and with `share.version` share groups. A feature that is not listed has level 0.

use crate::node::MetadataServices;
use fullbore_control::FEATURES;
use fullbore_wire::Text;
use fullbore_wire::apis::api_versions::{FinalizedFeatureKey, SupportedFeatureKey};

/// First version of ApiVersions whose clients can read a feature with 0 as its lowest level (KAFKA-17492).
const LEVEL_ZERO_FROM: i16 = 4;

/// Returns the supported levels that a client of this version of ApiVersions can read.
pub fn supported(version: i16) -> Vec<SupportedFeatureKey> {
    let readable = FEATURES.iter().filter(|feature| version >= LEVEL_ZERO_FROM || feature.min > 0);
    let key = |feature: &fullbore_control::Feature| SupportedFeatureKey {
        name: Text::from_static(feature.name),
        min_version: feature.min,
        max_version: feature.max,
        ..Default::default()
    };
    readable.map(key).collect()
}

/// Returns the levels in force. A feature that is off is left out.
pub fn finalized(metadata: &MetadataServices) -> Vec<FinalizedFeatureKey> {
    let image = metadata.control.image();
    let levels = FEATURES.iter().map(|feature| (feature.name, image.feature_level(feature)));
    let key = |(name, level)| FinalizedFeatureKey {
        name: Text::from_static(name),
        min_version_level: level,
        max_version_level: level,
        ..Default::default()
    };
    levels.filter(|(_, level)| *level > 0).map(key).collect()
}

/// Returns the epoch of the features, which is that of the metadata and never decreases.
pub fn epoch(metadata: &MetadataServices) -> i64 {
    i64::try_from(metadata.control.image().epoch()).unwrap_or(i64::MAX)
}
