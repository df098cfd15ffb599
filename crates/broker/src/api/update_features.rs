//! UpdateFeatures 0-2: changes the level of `transaction.version`. Every other feature has only one level.
//!
//! Either all changes are made, or none. As in Kafka 4, every version has one error for the whole request.

use super::call::{Call, Fault, Reply, words};
use crate::node::MetadataServices;
use fullbore_control::{FeatureUpdate, UpdateFeatures, UpgradeType};
use fullbore_wire::Frame;
use fullbore_wire::apis::update_features::{
    FeatureUpdateKey, UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use std::collections::BTreeMap;

/// Kafka's message begins with this text and ends with the message of the failed feature.
const FAILED: &str = "The update failed for all features since the following feature had an error: ";

pub async fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: UpdateFeaturesRequest = call.body(reply.version)?;
    // If a feature is named twice, the last level counts.
    let wanted = request.feature_updates.iter().map(|update| (&update.feature, wanted(update, reply.version.number)));
    let updates = wanted.collect::<BTreeMap<_, _>>().into_values().collect();
    let features = UpdateFeatures { updates, validate_only: request.validate_only };
    let mut response = UpdateFeaturesResponse::default();
    match call.control(&metadata.control).update_features(features).await {
        Ok(()) if reply.version.number < 2 => {
            let updated =
                |update: FeatureUpdateKey| UpdatableFeatureResult { feature: update.feature, ..Default::default() };
            response.results = request.feature_updates.into_iter().map(updated).collect();
        }
        Ok(()) => {}
        Err(refusal) => {
            response.error_code = refusal.code;
            response.error_message = Some(words(format!("{FAILED}{}", refusal.message)));
        }
    }
    reply.frame::<UpdateFeaturesRequest>(&response)
}

fn wanted(update: &FeatureUpdateKey, version: i16) -> FeatureUpdate {
    let kind = match update.upgrade_type {
        _ if version == 0 && update.allow_downgrade => Some(UpgradeType::SafeDowngrade),
        1 => Some(UpgradeType::Upgrade),
        2 => Some(UpgradeType::SafeDowngrade),
        3 => Some(UpgradeType::UnsafeDowngrade),
        _ => None,
    };
    FeatureUpdate { name: update.feature.to_string(), level: update.max_version_level, kind }
}
