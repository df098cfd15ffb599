//! ApiVersions 0-4: the first request of most clients. The response lists the APIs and the features that this broker
//! serves.

use super::call::{Call, Fault, Reply};
use super::features;
use crate::node::MetadataServices;
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use fullbore_wire::{ErrorCode, Frame, Text, Version};
use std::time::Instant;

/// Maximum length of a client's software name, and of its version, that a connection stores.
const SOFTWARE_CHARS_MAX: usize = 100;

pub fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: ApiVersionsRequest = call.body(reply.version)?;
    let named = is_software_name(&request.client_software_name) && is_software_name(&request.client_software_version);
    let error_code = if reply.version.number < 3 || named { ErrorCode::NONE } else { ErrorCode::INVALID_REQUEST };
    if named {
        call.client.software_name = kept(&request.client_software_name);
        call.client.software_version = kept(&request.client_software_version);
    }
    call.client.versions_sent_at = Some(Instant::now());
    reply.frame::<ApiVersionsRequest>(&answer(metadata, reply.version.number, error_code))
}

/// Returns the response to an ApiVersions request of an unknown version. The response lists all APIs in the layout of
/// version 0, so that the client can repeat its request in a version that the broker supports.
pub fn unsupported(metadata: &MetadataServices, listener: usize, correlation_id: i32) -> Result<Frame, Fault> {
    let version = Version { number: 0, flexible: false };
    Reply { version, correlation_id, listener }.frame::<ApiVersionsRequest>(&answer(
        metadata,
        version.number,
        ErrorCode::UNSUPPORTED_VERSION,
    ))
}

/// Returns the highest version of an API that this broker serves.
pub fn max_of(metadata: &MetadataServices, key: ApiKey) -> i16 {
    match key {
        ApiKey::Produce => metadata.config.api.produce_version_max,
        _ => *key.versions().end(),
    }
}

/// Returns true if an API is advertised. Telemetry is advertised only while there is a subscription, because every
/// client would otherwise request a subscription at its start, and librdkafka would log that. Kafka advertises
/// telemetry only if a receiver of metrics is configured.
fn is_offered(metadata: &MetadataServices, key: ApiKey) -> bool {
    match key {
        ApiKey::GetTelemetrySubscriptions | ApiKey::PushTelemetry => {
            metadata.control.image().client_metrics().next().is_some()
        }
        _ => true,
    }
}

fn answer(metadata: &MetadataServices, version: i16, error_code: ErrorCode) -> ApiVersionsResponse {
    let range = |key: &ApiKey| {
        let versions = key.versions();
        // KAFKA-18659: librdkafka disables features unless Produce is advertised from version 0. The lowest version
        // served is 3.
        let min_version = if *key == ApiKey::Produce { 0 } else { *versions.start() };
        ApiVersion { api_key: key.code(), min_version, max_version: max_of(metadata, *key), ..Default::default() }
    };
    ApiVersionsResponse {
        error_code,
        api_keys: metadata.served.iter().filter(|key| is_offered(metadata, **key)).map(range).collect(),
        supported_features: features::supported(version),
        finalized_features_epoch: features::epoch(metadata),
        finalized_features: features::finalized(metadata),
        ..Default::default()
    }
}

/// Copies the beginning of the text, because a slice of it would keep the whole request in memory.
fn kept(text: &str) -> Text {
    Text::from(text.get(..text.len().min(SOFTWARE_CHARS_MAX)).unwrap_or_default())
}

/// Returns true if Kafka's rule allows this client software name or version (KIP-511).
fn is_software_name(text: &str) -> bool {
    let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    alphanumeric(text.chars().next())
        && alphanumeric(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
}
