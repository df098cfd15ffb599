//! IncrementalAlterConfigs 0-1, of topics, of this broker (its id), of every broker (the empty name), of groups and of
//! subscriptions to clients' metrics.
//!
//! Each resource stands for itself: its changes are made all or none, and one refused does not stop the others. When
//! the answer leaves, what was changed is on disk and in force.

use super::describe_configs::{BROKER, BROKER_LOGGER, NO_LOGGERS, TOPIC};
use super::{Call, Fault, Reply};
use crate::broker::Shared;
use crate::config::Resource;
use crate::control::{
    AlterBrokerConfig, AlterBrokerConfigs, AlterResourceConfig, AlterResourceConfigs, AlterTopicConfig,
    AlterTopicConfigs, BrokerScope, ConfigChange, Refusal, check_name,
};
use fullbore_wire::apis::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of the name of a subscription or group: the table's key must not be as long as a frame.
const RESOURCE_NAME_BYTES_MAX: usize = 1024;

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: IncrementalAlterConfigsRequest = call.body(reply.version)?;
    let mut times: HashMap<(i8, &str), usize> = HashMap::new();
    for resource in &request.resources {
        *times.entry((resource.resource_type, resource.resource_name.as_str())).or_default() += 1;
    }
    let mut wanted = Wanted::default();
    let mut asked = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        asked.push(match times[&(resource.resource_type, resource.resource_name.as_str())] {
            1 => wanted.add(call.broker, resource),
            _ => Err(invalid("Each resource must appear at most once.")),
        });
    }
    let done = wanted.make(call.broker, request.validate_only).await;
    let outcome = |asked: Result<Place, Refusal>| match asked {
        Ok(Place::Topic(at)) => done.topics[at].clone(),
        Ok(Place::Broker(at)) => done.brokers[at].clone(),
        Ok(Place::Resource(at)) => done.resources[at].clone(),
        Err(refusal) => Err(refusal),
    };
    let answers = request.resources.iter().zip(asked.into_iter().map(outcome));
    let responses = answers.map(|(resource, outcome)| answer(resource, outcome)).collect();
    reply.frame::<IncrementalAlterConfigsRequest>(&IncrementalAlterConfigsResponse { responses, ..Default::default() })
}

/// What is well-formed of a request, to be decided by the control plane.
#[derive(Default)]
struct Wanted {
    topics: Vec<AlterTopicConfig>,
    brokers: Vec<AlterBrokerConfig>,
    resources: Vec<AlterResourceConfig>,
}

/// Where in [`Wanted`] a resource is.
enum Place {
    Topic(usize),
    Broker(usize),
    Resource(usize),
}

/// What became of it, in the same order.
#[derive(Default)]
struct Done {
    topics: Vec<Result<(), Refusal>>,
    brokers: Vec<Result<(), Refusal>>,
    resources: Vec<Result<(), Refusal>>,
}

impl Wanted {
    fn add(&mut self, broker: &Shared, asked: &AlterConfigsResource) -> Result<Place, Refusal> {
        let name = asked.resource_name.as_str();
        match asked.resource_type {
            TOPIC => {
                if name.is_empty() {
                    return Err(invalid("Default topic resources are not allowed."));
                }
                check_name(name)?;
                self.topics.push(AlterTopicConfig { name: name.to_owned(), changes: changes(&asked.configs)? });
                Ok(Place::Topic(self.topics.len() - 1))
            }
            BROKER => {
                let scope = scope(broker.config.node_id, name)?;
                self.brokers.push(AlterBrokerConfig { scope, changes: changes(&asked.configs)? });
                Ok(Place::Broker(self.brokers.len() - 1))
            }
            BROKER_LOGGER => Err(Refusal::new(ErrorCode::INVALID_CONFIG, NO_LOGGERS)),
            code => {
                let unknown = || invalid(format!("Resource type {code} has no configuration here."));
                let resource = Resource::from_code(code).ok_or_else(unknown)?;
                check_resource_name(resource, name)?;
                let changes = changes(&asked.configs)?;
                self.resources.push(AlterResourceConfig { resource, name: name.to_owned(), changes });
                Ok(Place::Resource(self.resources.len() - 1))
            }
        }
    }

    async fn make(self, broker: &Arc<Shared>, validate_only: bool) -> Done {
        let mut done = Done::default();
        if !self.topics.is_empty() {
            let asked = AlterTopicConfigs { topics: self.topics, validate_only };
            let topics = broker.control.alter_topic_configs(asked).await;
            done.topics = topics.into_iter().map(|topic| topic.map(drop)).collect();
        }
        if !self.brokers.is_empty() {
            let asked = AlterBrokerConfigs { brokers: self.brokers, validate_only };
            done.brokers = broker.control.alter_broker_configs(asked).await;
        }
        if !self.resources.is_empty() {
            let asked = AlterResourceConfigs { resources: self.resources, validate_only };
            done.resources = broker.control.alter_resource_configs(asked).await;
        }
        if !validate_only {
            broker.put_configs_in_force().await;
        }
        done
    }
}

fn check_resource_name(resource: Resource, name: &str) -> Result<(), Refusal> {
    match (resource, name.len()) {
        (Resource::Group, 0) => Err(invalid("Default group resources are not allowed.")),
        (Resource::ClientMetrics, 0) => Err(invalid("Subscription name can't be empty")),
        (_, 1..=RESOURCE_NAME_BYTES_MAX) => Ok(()),
        _ => Err(invalid(format!("A name may have {RESOURCE_NAME_BYTES_MAX} bytes."))),
    }
}

fn scope(node_id: i32, name: &str) -> Result<BrokerScope, Refusal> {
    match name.parse::<i32>() {
        _ if name.is_empty() => Ok(BrokerScope::Every),
        Ok(id) if id == node_id => Ok(BrokerScope::This),
        Ok(_) => Err(invalid(format!("Unexpected broker id, expected {node_id} or empty string, but received {name}"))),
        Err(_) => Err(invalid(format!("Node id must be an integer, but it is: {name}"))),
    }
}

fn changes(configs: &[AlterableConfig]) -> Result<Vec<(String, ConfigChange)>, Refusal> {
    let mut names: Vec<&str> = configs.iter().map(|config| config.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid(format!("Error due to duplicate config keys : {}", twice[0])));
    }
    configs.iter().map(|config| Ok((config.name.to_string(), change(config)?))).collect()
}

fn change(config: &AlterableConfig) -> Result<ConfigChange, Refusal> {
    let null = || invalid(format!("Null value not supported for : {}", config.name));
    let value = || config.value.as_ref().map(Text::to_string).ok_or_else(null);
    match config.config_operation {
        0 => Ok(ConfigChange::Set(value()?)),
        1 => Ok(ConfigChange::Delete),
        2 => Ok(ConfigChange::Append(value()?)),
        3 => Ok(ConfigChange::Subtract(value()?)),
        other => Err(invalid(format!("Unknown operation type {other} for config {}", config.name))),
    }
}

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::INVALID_REQUEST, message)
}

fn answer(resource: &AlterConfigsResource, outcome: Result<(), Refusal>) -> AlterConfigsResourceResponse {
    let (error_code, error_message) = match outcome {
        Ok(()) => (ErrorCode::NONE, None),
        Err(refusal) => (refusal.code, Some(Text::from(refusal.message))),
    };
    AlterConfigsResourceResponse {
        error_code,
        error_message,
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.clone(),
        ..Default::default()
    }
}
