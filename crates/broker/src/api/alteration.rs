//! Changes settings for AlterConfigs and IncrementalAlterConfigs. The resources are topics, this broker (by its id),
//! its loggers, all brokers (the empty name), groups and client metrics subscriptions.
//!
//! Each resource is decided on its own: either all of its changes are made, or none. When the client gets the response,
//! the changes are in force. They are also on disk, except for those of loggers.

use super::describe_configs::{BROKER, BROKER_LOGGER, TOPIC};
use crate::node::ObservationServices;
use fullbore_config::Resource;
use fullbore_control::{
    AlterBrokerConfig, AlterBrokerConfigs, AlterResourceConfig, AlterResourceConfigs, AlterTopicConfig,
    AlterTopicConfigs, BrokerScope, ConfigChange, Control, Refusal, check_name,
};
use fullbore_wire::ErrorCode;
use std::borrow::Cow;
use std::collections::HashMap;

/// Maximum length of the name of a subscription or group, in bytes. The name becomes a key in the database. Without
/// this limit, the key could be as long as a whole request.
const RESOURCE_NAME_BYTES_MAX: usize = 1024;

/// The requested changes of one resource.
pub struct Alteration<'a> {
    /// Kafka's `ConfigResource.Type`.
    pub resource_type: i8,
    pub name: &'a str,
    /// The changes, or the reason why they are malformed.
    pub changes: Result<Vec<(String, ConfigChange)>, Refusal>,
}

/// Makes the requested changes. Returns one outcome per resource, in the order of the request.
pub async fn alter(
    services: &ObservationServices,
    control: &Control,
    alterations: Vec<Alteration<'_>>,
    validate_only: bool,
) -> Vec<Result<(), Refusal>> {
    let mut times: HashMap<(i8, &str), usize> = HashMap::new();
    for requested in &alterations {
        *times.entry((requested.resource_type, requested.name)).or_default() += 1;
    }
    let mut wanted = Alterations::default();
    let mut places = Vec::with_capacity(alterations.len());
    for requested in alterations {
        places.push(match times[&(requested.resource_type, requested.name)] {
            1 => wanted.add(services, requested, validate_only),
            _ => Err(invalid("Each resource must appear at most once.")),
        });
    }
    let done = wanted.make(control, validate_only).await;
    let outcome = |place: Result<ResourceIndex, Refusal>| match place {
        Ok(ResourceIndex::Topic(at)) => done.topics[at].clone(),
        Ok(ResourceIndex::Broker(at)) => done.brokers[at].clone(),
        Ok(ResourceIndex::Resource(at)) => done.resources[at].clone(),
        Ok(ResourceIndex::Done) => Ok(()),
        Err(refusal) => Err(refusal),
    };
    places.into_iter().map(outcome).collect()
}

/// The well-formed changes of a request, grouped by the command of the control plane that makes them.
#[derive(Default)]
struct Alterations {
    topics: Vec<AlterTopicConfig>,
    brokers: Vec<AlterBrokerConfig>,
    resources: Vec<AlterResourceConfig>,
}

/// The index of a resource's outcome in one of the lists of [`Done`].
enum ResourceIndex {
    Topic(usize),
    Broker(usize),
    Resource(usize),
    /// A logger of this broker. Its change needs no command and is already made, so [`Done`] has no outcome for it.
    Done,
}

/// The outcomes of [`Alterations`], in the same order.
#[derive(Default)]
struct Done {
    topics: Vec<Result<(), Refusal>>,
    brokers: Vec<Result<(), Refusal>>,
    resources: Vec<Result<(), Refusal>>,
}

impl Alterations {
    fn add(
        &mut self,
        services: &ObservationServices,
        requested: Alteration<'_>,
        validate_only: bool,
    ) -> Result<ResourceIndex, Refusal> {
        let Alteration { name, changes, .. } = requested;
        match requested.resource_type {
            TOPIC => {
                if name.is_empty() {
                    return Err(invalid("Default topic resources are not allowed."));
                }
                check_name(name)?;
                self.topics.push(AlterTopicConfig { name: name.to_owned(), changes: changes? });
                Ok(ResourceIndex::Topic(self.topics.len() - 1))
            }
            BROKER => {
                let scope = scope(services.metadata.config.node.id, name)?;
                self.brokers.push(AlterBrokerConfig { scope, changes: changes? });
                Ok(ResourceIndex::Broker(self.brokers.len() - 1))
            }
            BROKER_LOGGER => {
                let node_id = services.metadata.config.node.id;
                match name.parse::<i32>() {
                    Ok(id) if id == node_id => {
                        services.loggers.alter(&changes?, validate_only).map(|()| ResourceIndex::Done)
                    }
                    Ok(_) => Err(invalid(format!("Unexpected node id. Expected {node_id}, but received {name}"))),
                    Err(_) => Err(invalid(format!("Node id must be an integer, but it is: {name}"))),
                }
            }
            code => {
                let unknown = || invalid(format!("Resource type {code} has no configuration here."));
                let resource = Resource::from_code(code).ok_or_else(unknown)?;
                check_resource_name(resource, name)?;
                self.resources.push(AlterResourceConfig { resource, name: name.to_owned(), changes: changes? });
                Ok(ResourceIndex::Resource(self.resources.len() - 1))
            }
        }
    }

    async fn make(self, control: &Control, validate_only: bool) -> Done {
        let mut done = Done::default();
        if !self.topics.is_empty() {
            let requested = AlterTopicConfigs { topics: self.topics, validate_only };
            let topics = control.alter_topic_configs(requested).await;
            done.topics = topics.into_iter().map(|topic| topic.map(drop)).collect();
        }
        if !self.brokers.is_empty() {
            let requested = AlterBrokerConfigs { brokers: self.brokers, validate_only };
            done.brokers = control.alter_broker_configs(requested).await;
        }
        if !self.resources.is_empty() {
            let requested = AlterResourceConfigs { resources: self.resources, validate_only };
            done.resources = control.alter_resource_configs(requested).await;
        }
        done
    }
}

fn check_resource_name(resource: Resource, name: &str) -> Result<(), Refusal> {
    match (resource, name.len()) {
        (Resource::Group, 0) => Err(invalid("Default group resources are not allowed.")),
        (Resource::ClientMetrics, 0) => Err(invalid("Subscription name can't be empty")),
        (_, 1..=RESOURCE_NAME_BYTES_MAX) => Ok(()),
        _ => Err(invalid(format!("A name may have at most {RESOURCE_NAME_BYTES_MAX} bytes."))),
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

/// Checks that a request names each key of a resource only once.
pub fn check_names(mut names: Vec<&str>) -> Result<(), Refusal> {
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(invalid(format!("Error due to duplicate config keys : {}", twice[0]))),
        None => Ok(()),
    }
}

pub fn invalid(message: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(ErrorCode::INVALID_REQUEST, message)
}
