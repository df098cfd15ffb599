//! GetTelemetrySubscriptions 0: returns which metrics a client should push, and how often.

use super::call::{Call, Fault, Reply};
use crate::node::ObservationServices;
use fullbore_wire::apis::get_telemetry_subscriptions::{
    GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};

/// The codecs that a push may use, in Kafka's order: zstd, lz4, gzip, snappy. A push without compression is always
/// allowed.
pub const CODECS: [i8; 4] = [4, 3, 1, 2];

pub fn handle(call: &mut Call<'_>, services: &ObservationServices, reply: Reply) -> Result<Frame, Fault> {
    let request: GetTelemetrySubscriptionsRequest = call.body(reply.version)?;
    let instance = match request.client_instance_id {
        id if id.is_zero() => Uuid(uuid::Uuid::new_v4().into_bytes()),
        id => id,
    };
    let requesting = call.client.requesting(instance, call.header.client_id.as_deref().unwrap_or_default());
    let response = match services.telemetry.request(&services.metadata.control.image(), &requesting) {
        Ok(wanted) => GetTelemetrySubscriptionsResponse {
            client_instance_id: instance,
            subscription_id: wanted.subscription_id,
            accepted_compression_types: CODECS.to_vec(),
            push_interval_ms: wanted.interval_ms,
            telemetry_max_bytes: services.metadata.config.api.telemetry_max_bytes,
            delta_temporality: true,
            requested_metrics: wanted.metrics.into_iter().map(Text::from).collect(),
            ..Default::default()
        },
        Err(_too_early) => GetTelemetrySubscriptionsResponse {
            error_code: ErrorCode::THROTTLING_QUOTA_EXCEEDED,
            client_instance_id: instance,
            ..Default::default()
        },
    };
    reply.frame::<GetTelemetrySubscriptionsRequest>(&response)
}
