//! Reads and changes the configurations of topics, brokers, groups and client metrics, and lists the resources that
//! have any.
//!
//! A request about one broker is sent to that broker. Any other request is sent to any broker.

use crate::blocking::Cluster;
use crate::error::ClientError;
use fullbore_wire::Text;
use fullbore_wire::apis::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult,
};
use fullbore_wire::apis::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use fullbore_wire::apis::list_config_resources::ListConfigResourcesRequest;

/// The kind of a resource with configurations (Kafka's `ConfigResource.Type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceKind {
    /// A topic.
    Topic,
    /// A broker, or all brokers if the name is empty.
    Broker,
    /// The log levels of a broker.
    BrokerLogger,
    /// A subscription to clients' metrics.
    ClientMetrics,
    /// A consumer group.
    Group,
}

impl ResourceKind {
    fn code(self) -> i8 {
        match self {
            ResourceKind::Topic => 2,
            ResourceKind::Broker => 4,
            ResourceKind::BrokerLogger => 8,
            ResourceKind::ClientMetrics => 16,
            ResourceKind::Group => 32,
        }
    }

    /// Returns the kind and the name for error messages, as in `cannot read the configuration of topic 't'`.
    fn noun(self) -> &'static str {
        match self {
            ResourceKind::Topic => "topic",
            ResourceKind::Broker => "broker",
            ResourceKind::BrokerLogger => "the loggers of broker",
            ResourceKind::ClientMetrics => "client-metric",
            ResourceKind::Group => "group",
        }
    }
}

/// The place where a value is set (Kafka's `ConfigEntry.ConfigSource`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigSource(pub i8);

impl ConfigSource {
    /// The value is set for the topic.
    pub const TOPIC: ConfigSource = ConfigSource(1);
    /// The value is set for one broker while it runs.
    pub const BROKER: ConfigSource = ConfigSource(2);
    /// The value is set for all brokers while they run.
    pub const ALL_BROKERS: ConfigSource = ConfigSource(3);
    /// The value is set for a broker's loggers.
    pub const LOGGER: ConfigSource = ConfigSource(6);
    /// The value is set for client metrics.
    pub const CLIENT_METRICS: ConfigSource = ConfigSource(7);
    /// The value is set for the group.
    pub const GROUP: ConfigSource = ConfigSource(8);

    /// Returns Kafka's name of the source.
    pub fn name(self) -> &'static str {
        match self.0 {
            1 => "DYNAMIC_TOPIC_CONFIG",
            2 => "DYNAMIC_BROKER_CONFIG",
            3 => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            4 => "STATIC_BROKER_CONFIG",
            5 => "DEFAULT_CONFIG",
            6 => "DYNAMIC_BROKER_LOGGER_CONFIG",
            7 => "DYNAMIC_CLIENT_METRICS_CONFIG",
            8 => "DYNAMIC_GROUP_CONFIG",
            _ => "UNKNOWN",
        }
    }
}

/// The value that a configuration has in one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// The name of the configuration in this source, such as `log.retention.ms` for `retention.ms`.
    pub name: Text,
    /// The value, or `None` if it is a secret.
    pub value: Option<Text>,
    /// The source of the value.
    pub source: ConfigSource,
}

/// A configuration entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// The configuration's name.
    pub name: Text,
    /// The value, or `None` if it is unset or a secret.
    pub value: Option<Text>,
    /// The source of the value.
    pub source: ConfigSource,
    /// True if the value is a secret.
    pub is_sensitive: bool,
    /// True if the value cannot be changed.
    pub is_read_only: bool,
    /// The values that the configuration has in its sources. The first value is in force.
    pub synonyms: Vec<Synonym>,
}

/// A resource, as its kind and its name or broker id.
pub type ConfigOf<'a> = (ResourceKind, &'a str);

/// Returns every configuration of a resource, sorted by name.
///
/// # Errors
/// Returns [`ClientError`] if the broker refuses the request, or the connection fails.
pub fn describe_configs(cluster: &mut Cluster, of: ConfigOf<'_>) -> Result<Vec<ConfigEntry>, ClientError> {
    let (kind, name) = of;
    let resource =
        DescribeConfigsResource { resource_type: kind.code(), resource_name: name.into(), ..Default::default() };
    let request = DescribeConfigsRequest { resources: vec![resource], include_synonyms: true, ..Default::default() };
    let response = match place(cluster, of)? {
        Some(address) => cluster.call_at(&address, &request, i16::MAX)?,
        None => cluster.call(&request)?,
    };
    let mut found = Vec::new();
    for result in response.results {
        if result.error_code.is_err() {
            let what = format!("cannot read the configuration of {} '{name}'", kind.noun());
            return Err(ClientError::kafka(what, result.error_code, result.error_message.as_deref()));
        }
        found.extend(result.configs.into_iter().map(entry));
    }
    found.sort_by(|a: &ConfigEntry, b| a.name.cmp(&b.name));
    Ok(found)
}

fn entry(found: DescribeConfigsResourceResult) -> ConfigEntry {
    let synonym = |synonym: fullbore_wire::apis::describe_configs::DescribeConfigsSynonym| Synonym {
        name: synonym.name,
        value: synonym.value,
        source: ConfigSource(synonym.source),
    };
    ConfigEntry {
        name: found.name,
        value: found.value,
        source: ConfigSource(found.config_source),
        is_sensitive: found.is_sensitive,
        is_read_only: found.read_only,
        synonyms: found.synonyms.into_iter().map(synonym).collect(),
    }
}

/// A change of one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a value.
    Set(String, String),
    /// Removes the value. The value of the next source, such as the default, is then in force.
    Delete(String),
}

/// Changes configurations of a resource. If one change is refused, none is made.
///
/// # Errors
/// Returns [`ClientError`] if the broker refuses the request, or the connection fails.
pub fn alter_configs(cluster: &mut Cluster, of: ConfigOf<'_>, changes: &[Change]) -> Result<(), ClientError> {
    let (kind, name) = of;
    let config = |change: &Change| match change {
        Change::Set(key, value) => AlterableConfig {
            name: key.as_str().into(),
            config_operation: 0,
            value: Some(value.as_str().into()),
            ..Default::default()
        },
        Change::Delete(key) => {
            AlterableConfig { name: key.as_str().into(), config_operation: 1, value: None, ..Default::default() }
        }
    };
    let resource = AlterConfigsResource {
        resource_type: kind.code(),
        resource_name: name.into(),
        configs: changes.iter().map(config).collect(),
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let response = match place(cluster, of)? {
        Some(address) => cluster.call_at(&address, &request, i16::MAX)?,
        None => cluster.call(&request)?,
    };
    match response.responses.iter().find(|outcome| outcome.error_code.is_err()) {
        Some(failed) => {
            let whose = match (kind, name) {
                (ResourceKind::Broker, "") => "of all brokers".to_owned(),
                _ => format!("of {} '{name}'", kind.noun()),
            };
            let message = failed.error_message.as_deref();
            Err(ClientError::kafka(format!("cannot change the configuration {whose}"), failed.error_code, message))
        }
        None => Ok(()),
    }
}

/// Returns the names of the resources of this kind for which at least one configuration is set. Brokers before 4.1
/// report only client metrics, so the list is empty for other kinds.
///
/// # Errors
/// Returns [`ClientError`] if the broker refuses the request, or the connection fails.
pub fn config_resources(cluster: &mut Cluster, kind: ResourceKind) -> Result<Vec<Text>, ClientError> {
    let request = ListConfigResourcesRequest { resource_types: vec![kind.code()], ..Default::default() };
    // Version 0 lists only client metrics, and has no field for the kind.
    let version = cluster.any()?.version::<ListConfigResourcesRequest>();
    if kind != ResourceKind::ClientMetrics && !matches!(version, Ok(1..)) {
        return Ok(Vec::new());
    }
    let old = version? == 0;
    let response = cluster.call(&if old { ListConfigResourcesRequest::default() } else { request })?;
    if response.error_code.is_err() {
        return Err(ClientError::kafka("cannot list the resources with configurations", response.error_code, None));
    }
    let mut names: Vec<Text> = response.config_resources.into_iter().map(|found| found.resource_name).collect();
    names.sort();
    Ok(names)
}

/// Returns the address of the broker to which the resource belongs, or `None` if any broker can answer for the
/// resource.
fn place(cluster: &mut Cluster, of: ConfigOf<'_>) -> Result<Option<String>, ClientError> {
    if !matches!(of.0, ResourceKind::Broker | ResourceKind::BrokerLogger) || of.1.is_empty() {
        return Ok(None);
    }
    let brokers = cluster.brokers()?;
    match brokers.iter().find(|broker| broker.id.to_string() == of.1) {
        Some(broker) => Ok(Some(broker.address())),
        None => Err(ClientError::no_broker(of.1, brokers.iter().map(|broker| broker.id))),
    }
}
