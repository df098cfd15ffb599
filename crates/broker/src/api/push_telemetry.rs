//! PushTelemetry 0: receives the metrics of a client. They are counted, but not read.

use super::call::{Call, Fault, Reply};
use super::get_telemetry_subscriptions::CODECS;
use crate::node::ObservationServices;
use fullbore_rules::telemetry::{Push, TelemetryRefusal};
use fullbore_wire::apis::push_telemetry::{PushTelemetryRequest, PushTelemetryResponse};
use fullbore_wire::{ErrorCode, Frame};

/// The codec of a push without compression.
const NONE: i8 = 0;

pub fn handle(call: &mut Call<'_>, services: &ObservationServices, reply: Reply) -> Result<Frame, Fault> {
    let request: PushTelemetryRequest = call.body(reply.version)?;
    let instance = request.client_instance_id;
    let codec = request.compression_type;
    let bytes = request.metrics.len();
    let push = Push {
        subscription_id: request.subscription_id,
        is_last: request.terminating,
        is_known_codec: codec == NONE || CODECS.contains(&codec),
        fits: i32::try_from(bytes).is_ok_and(|bytes| bytes <= services.metadata.config.api.telemetry_max_bytes),
    };
    let requesting = call.client.requesting(instance, call.header.client_id.as_deref().unwrap_or_default());
    let taken = match instance.is_zero() {
        true => Err(ErrorCode::INVALID_REQUEST),
        false => services.telemetry.push(&services.metadata.control.image(), &requesting, push, bytes).map_err(code),
    };
    let error_code = taken.err().unwrap_or(ErrorCode::NONE);
    if error_code.is_err() {
        services.metrics.telemetry_refused(error_code);
    }
    reply.frame::<PushTelemetryRequest>(&PushTelemetryResponse { error_code, ..Default::default() })
}

fn code(refusal: TelemetryRefusal) -> ErrorCode {
    match refusal {
        TelemetryRefusal::TooEarly => ErrorCode::THROTTLING_QUOTA_EXCEEDED,
        TelemetryRefusal::Ended => ErrorCode::INVALID_REQUEST,
        TelemetryRefusal::UnknownSubscription => ErrorCode::UNKNOWN_SUBSCRIPTION_ID,
        TelemetryRefusal::UnknownCodec => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        TelemetryRefusal::TooLarge => ErrorCode::TELEMETRY_TOO_LARGE,
    }
}
