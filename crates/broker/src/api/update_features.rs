//! UpdateFeatures 0-2. Every feature has the one level at which this broker is ([`features`]): asking for that changes
//! nothing, and any other is refused.

use super::call::{Call, Fault, Reply, told, words};
use super::features;
use fullbore_control::Refusal;
use fullbore_wire::apis::update_features::{
    FeatureUpdateKey, UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use fullbore_wire::{ErrorCode, Frame};

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: UpdateFeaturesRequest = call.body(reply.version)?;
    let outcomes = request.feature_updates.iter().map(|update| (update, check(update)));
    let mut response = UpdateFeaturesResponse::default();
    if reply.version.number >= 2 {
        // All or nothing: the first that fails is the error of the whole.
        if let Some(refusal) = outcomes.filter_map(|(_, outcome)| outcome.err()).next() {
            response.error_code = refusal.code;
            response.error_message = Some(words(refusal.message));
        }
    } else {
        response.results = outcomes.map(|(update, outcome)| result(update, outcome)).collect();
    }
    reply.frame::<UpdateFeaturesRequest>(&response)
}

fn check(update: &FeatureUpdateKey) -> Result<(), Refusal> {
    let (name, wanted) = (&update.feature, update.max_version_level);
    let why = match features::all().find(|(known, _)| *name == **known) {
        Some((_, level)) if level == wanted => return Ok(()),
        Some((_, level)) => format!("This broker has it at level {level} only."),
        None => "This broker does not have the feature.".to_owned(),
    };
    let message = format!("Invalid update version {wanted} for feature {name}. {why}");
    Err(Refusal::new(ErrorCode::INVALID_UPDATE_VERSION, message))
}

fn result(update: &FeatureUpdateKey, outcome: Result<(), Refusal>) -> UpdatableFeatureResult {
    let (error_code, error_message) = told(outcome);
    UpdatableFeatureResult { feature: update.feature.clone(), error_code, error_message, ..Default::default() }
}
