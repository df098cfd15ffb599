//! DescribeConfigs 1-4: returns the settings of topics, this broker and its loggers, groups and client metrics
//! subscriptions. The empty broker name stands for the dynamic settings that apply to every broker.

use super::call::{Call, Fault, Reply, once, words};
use super::response_size::Measure;
use crate::node::ObservationServices;
use fullbore_config::{ConfigEntry, Resource, describe_broker, describe_cluster, describe_resource, describe_topic};
use fullbore_control::Refusal;
use fullbore_wire::apis::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::collections::{BTreeMap, HashMap};

/// Values of Kafka's `ConfigResource.Type`.
pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const BROKER_LOGGER: i8 = 8;

/// Maximum size of the settings in a response, without those of topics. Once it is reached, further resources get an
/// error. A request can name any number of groups, and even a group that does not exist has settings. The number of
/// topics is limited, and memory is reserved for their settings ([`room`]).
const SETTINGS_BYTES_MAX: usize = 32 << 20;
const TOO_MANY: &str =
    "The settings of all named resources exceed one response: request fewer resources, or single keys.";
/// Estimated size of a setting without its texts.
const SETTING_BYTES: usize = 16;

pub fn handle(call: &mut Call<'_>, services: &ObservationServices, reply: Reply) -> Result<Frame, Fault> {
    let mut request: DescribeConfigsRequest = call.body(reply.version)?;
    request.resources = once(request.resources, |resource| (resource.resource_type, resource.resource_name.clone()));
    let mut bytes = 0;
    let describe = |resource: &DescribeConfigsResource| {
        if resource.resource_type == TOPIC {
            return describe(services, &request, resource, true);
        }
        let described = describe(services, &request, resource, bytes < SETTINGS_BYTES_MAX);
        bytes += described.configs.iter().map(size).sum::<usize>();
        described
    };
    let results = request.resources.iter().map(describe).collect();
    reply.frame::<DescribeConfigsRequest>(&DescribeConfigsResponse { results, ..Default::default() })
}

/// Number of copies of an override's value in an encoded response: in the entry and in a synonym.
const OVERRIDE_COPIES: usize = 2;
/// Number of copies of an override's value in memory while the response is made.
const OVERRIDE_COPIES_IN_MEMORY: usize = 8;

/// Returns the approximate size of the response, either in memory or encoded (`measure`). A topic counts as a topic
/// without overrides, plus the sizes of its overrides.
pub(super) fn room(services: &ObservationServices, request: &DescribeConfigsRequest, measure: Measure) -> usize {
    let (of_setting, copies): (fn(&DescribeConfigsResourceResult) -> usize, usize) = match measure {
        Measure::Memory => (memory, OVERRIDE_COPIES_IN_MEMORY),
        Measure::Encoded => (size, OVERRIDE_COPIES),
    };
    let image = services.metadata.control.image();
    let of_type = |resource_type, name: &str| {
        let sample = DescribeConfigsResource { resource_type, resource_name: Text::from(name), ..Default::default() };
        let found = match resource_type {
            TOPIC => describe_topic(&services.metadata.config, image.dynamic(), &BTreeMap::new()).ok(),
            _ => entries(services, &sample).ok(),
        };
        let settings = found.into_iter().flatten().map(|entry| of_setting(&answer(entry, request)));
        settings.fold(Sample::default(), Sample::with)
    };
    let mut samples: HashMap<i8, Sample> = HashMap::new();
    let mut bytes = 0;
    let resources: Vec<&DescribeConfigsResource> = request.resources.iter().collect();
    for resource in once(resources, |resource| (resource.resource_type, &resource.resource_name)) {
        let mut overrides = 0;
        if resource.resource_type == TOPIC {
            let Some(topic) = image.topic(&resource.resource_name) else { continue };
            overrides = topic.overrides.iter().map(|(key, value)| copies * (key.len() + value.len())).sum();
        }
        // The first resource of each type is measured, and its sample is used for all others of this type. A resource
        // that does not exist has an empty sample, which the sample of the next resource replaces.
        let known = samples.get(&resource.resource_type).filter(|sample| sample.bytes > 0).copied();
        let sample = known.unwrap_or_else(|| of_type(resource.resource_type, &resource.resource_name));
        samples.insert(resource.resource_type, sample);
        let keys = resource.configuration_keys.as_deref().unwrap_or_default();
        let settings = if keys.is_empty() { sample.bytes } else { sample.bytes.min(sample.longest * keys.len()) };
        bytes += settings + overrides;
    }
    bytes
}

/// Sizes of the settings of one resource: the sum of all, and the largest.
#[derive(Clone, Copy, Default)]
struct Sample {
    bytes: usize,
    longest: usize,
}

impl Sample {
    fn with(self, setting: usize) -> Sample {
        Sample { bytes: self.bytes + setting, longest: self.longest.max(setting) }
    }
}

/// Returns approximately how much memory a setting takes: its structs and its encoded form. This is doubled, because a
/// growing buffer may have reserved twice the memory that it needs.
fn memory(setting: &DescribeConfigsResourceResult) -> usize {
    let fixed = size_of::<DescribeConfigsResourceResult>() + size_of::<ConfigEntry>();
    let synonyms = setting.synonyms.len() * 2 * size_of::<DescribeConfigsSynonym>();
    2 * (fixed + synonyms + size(setting))
}

/// Returns the approximate size of a setting in the response.
fn size(setting: &DescribeConfigsResourceResult) -> usize {
    let of = |text: &Option<Text>| text.as_deref().map_or(0, str::len);
    let synonyms = setting.synonyms.iter().map(|synonym| synonym.name.len() + of(&synonym.value) + SETTING_BYTES);
    let own = setting.name.len() + of(&setting.value) + of(&setting.documentation) + SETTING_BYTES;
    own + synonyms.sum::<usize>()
}

fn describe(
    services: &ObservationServices,
    request: &DescribeConfigsRequest,
    resource: &DescribeConfigsResource,
    has_room: bool,
) -> DescribeConfigsResult {
    let mut result = DescribeConfigsResult {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.clone(),
        ..Default::default()
    };
    if !has_room {
        result.error_code = ErrorCode::POLICY_VIOLATION;
        result.error_message = Some(Text::from_static(TOO_MANY));
        return result;
    }
    match entries(services, resource) {
        Ok(entries) => {
            result.configs = entries
                .into_iter()
                .filter(|entry| is_requested_for(entry, resource))
                .map(|entry| answer(entry, request))
                .collect();
        }
        Err(refusal) => {
            result.error_code = refusal.code;
            result.error_message = Some(words(refusal.message));
        }
    }
    result
}

fn entries(services: &ObservationServices, resource: &DescribeConfigsResource) -> Result<Vec<ConfigEntry>, Refusal> {
    let name = resource.resource_name.as_str();
    let image = services.metadata.control.image();
    match resource.resource_type {
        TOPIC => {
            fullbore_control::check_name(name)?;
            let topic = image.topic(name).ok_or_else(|| {
                Refusal::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("Topic '{name}' does not exist."))
            })?;
            describe_topic(&services.metadata.config, image.dynamic(), &topic.overrides)
                .map_err(|error| Refusal::new(ErrorCode::INVALID_CONFIG, error.to_string()))
        }
        BROKER if name == services.metadata.config.node.id.to_string() => {
            Ok(describe_broker(&services.metadata.config, image.dynamic()))
        }
        BROKER if name.is_empty() => Ok(describe_cluster(&services.metadata.config, image.dynamic())),
        BROKER => Err(Refusal::new(
            ErrorCode::INVALID_REQUEST,
            format!("Unexpected broker id, expected {}, but received {name}", services.metadata.config.node.id),
        )),
        BROKER_LOGGER if name == services.metadata.config.node.id.to_string() => services.loggers.describe(),
        BROKER_LOGGER => {
            let message = match name.parse::<i32>() {
                _ if name.is_empty() => "Broker id must not be empty".to_owned(),
                Ok(_) => {
                    format!("Unexpected broker id, expected {}, but received {name}", services.metadata.config.node.id)
                }
                Err(_) => format!("Broker id must be an integer, but it is: {name}"),
            };
            Err(Refusal::new(ErrorCode::INVALID_REQUEST, message))
        }
        code => {
            let refuse = |message: String| Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
            match Resource::from_code(code) {
                None => refuse(format!("Resource type {code} has no configuration here.")),
                Some(Resource::Group) if name.is_empty() => refuse("Group name must not be empty".to_owned()),
                Some(Resource::ClientMetrics) if name.is_empty() => {
                    refuse("Client metrics subscription name must not be empty".to_owned())
                }
                Some(resource) => {
                    let nothing = BTreeMap::new();
                    let set = image.resource(resource, name).map_or(&nothing, |configured| &configured.overrides);
                    Ok(describe_resource(&services.metadata.config, image.dynamic(), resource, set))
                }
            }
        }
    }
}

/// Returns true if the request selects this entry. A request without keys selects all entries.
fn is_requested_for(entry: &ConfigEntry, resource: &DescribeConfigsResource) -> bool {
    let keys = resource.configuration_keys.as_deref().unwrap_or_default();
    keys.is_empty() || keys.iter().any(|key| *key == entry.name)
}

fn answer(entry: ConfigEntry, request: &DescribeConfigsRequest) -> DescribeConfigsResourceResult {
    let synonyms = entry.synonyms.into_iter().filter(|_| request.include_synonyms);
    DescribeConfigsResourceResult {
        name: Text::from_static(entry.name),
        value: entry.value.filter(|_| !entry.sensitive).map(Text::from),
        read_only: entry.read_only,
        config_source: entry.source as i8,
        is_sensitive: entry.sensitive,
        synonyms: synonyms
            .map(|synonym| DescribeConfigsSynonym {
                name: Text::from_static(synonym.name),
                value: Some(Text::from(synonym.value)).filter(|_| !entry.sensitive),
                source: synonym.source as i8,
                ..Default::default()
            })
            .collect(),
        config_type: entry.of as i8,
        documentation: request.include_documentation.then(|| Text::from_static(entry.documentation)),
        ..Default::default()
    }
}
