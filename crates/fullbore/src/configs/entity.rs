//! The flags that name an entity with configurations, in the two forms of kafka-configs.sh:
//! `--entity-type topics --entity-name t` and `--topic t`.

use crate::failure::Failure;
use clap::{ArgGroup, Args};
use fullbore_bench::report::json::{string, text};
use fullbore_client::admin::{ConfigSource, ResourceKind};

/// Entity types of Kafka that are not supported yet, with their configurations.
const ABSENT: [(&str, &str); 3] = [
    ("users", "SCRAM credentials and quotas of users"),
    ("clients", "quotas of client ids"),
    ("ips", "connection rates of IP addresses"),
];
/// The supported entity types.
const TYPES: &str = "topics, brokers, broker-loggers, groups or client-metrics";

#[derive(Args, Debug, Default)]
#[command(group = ArgGroup::new("whose").args(["entity_name", "entity_default", "topic", "broker", "broker_defaults",
    "broker_logger", "group", "client_metrics"]))]
#[command(group = ArgGroup::new("short").args(["topic", "broker", "broker_defaults", "broker_logger", "group",
    "client_metrics"]).conflicts_with("entity_type"))]
pub struct Entity {
    /// The type of the entity: topics, brokers, broker-loggers, groups or client-metrics.
    #[arg(long, value_name = "TYPE")]
    entity_type: Option<String>,
    /// The name of the entity: a topic's or group's name, a broker's id.
    #[arg(long, value_name = "NAME", requires = "entity_type")]
    entity_name: Option<String>,
    /// The defaults of all brokers.
    #[arg(long, requires = "entity_type")]
    entity_default: bool,
    /// A topic.
    #[arg(long)]
    topic: Option<String>,
    /// A broker, by its id.
    #[arg(long, value_name = "ID")]
    broker: Option<String>,
    /// The defaults of all brokers.
    #[arg(long)]
    broker_defaults: bool,
    /// The log levels of a broker, by its id.
    #[arg(long, value_name = "ID")]
    broker_logger: Option<String>,
    /// A consumer group.
    #[arg(long)]
    group: Option<String>,
    /// A subscription to metrics of clients, by its name.
    #[arg(long, value_name = "NAME")]
    client_metrics: Option<String>,
}

/// The entity that the flags name, or all entities of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant {
    /// The kind of the entity.
    pub kind: ResourceKind,
    /// The single entity, or `None` for all entities of the kind.
    pub whose: Option<Whose>,
}

/// An entity that has configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The defaults of all brokers.
    Defaults,
    /// The entity with this name.
    Named(String),
}

impl Entity {
    /// Returns the entity that the flags name.
    ///
    /// # Errors
    /// Fails if the flags name no entity, or if the entity type is not supported.
    pub fn meant(&self) -> Result<Meant, Failure> {
        let named = |kind, name: &Option<String>| Some((kind, Whose::Named(name.clone()?)));
        let short = named(ResourceKind::Topic, &self.topic)
            .or(named(ResourceKind::Broker, &self.broker))
            .or(named(ResourceKind::BrokerLogger, &self.broker_logger))
            .or(named(ResourceKind::Group, &self.group))
            .or(named(ResourceKind::ClientMetrics, &self.client_metrics))
            .or(self.broker_defaults.then_some((ResourceKind::Broker, Whose::Defaults)));
        let (kind, whose) = match (short, self.entity_type.as_deref()) {
            (Some((kind, whose)), _) => (kind, Some(whose)),
            (None, Some(word)) => (kind(word)?, self.entity_name.clone().map(Whose::Named)),
            (None, None) => {
                return Err(Failure::new(
                    "name an entity: --topic NAME, --broker ID, --broker-defaults, --group \
                                         NAME, or --entity-type and --entity-name",
                ));
            }
        };
        if self.entity_default && kind != ResourceKind::Broker {
            return Err(Failure::new("--entity-default is for --entity-type brokers; leave it out"));
        }
        let whose = if self.entity_default { Some(Whose::Defaults) } else { whose };
        if let (ResourceKind::Broker | ResourceKind::BrokerLogger, Some(Whose::Named(name))) = (kind, &whose)
            && name.parse::<i32>().is_err()
        {
            return Err(Failure::new(format!("the name of a broker is its id, a number, and not '{name}'")));
        }
        Ok(Meant { kind, whose })
    }
}

fn kind(word: &str) -> Result<ResourceKind, Failure> {
    match word {
        "topics" => Ok(ResourceKind::Topic),
        "brokers" => Ok(ResourceKind::Broker),
        "broker-loggers" => Ok(ResourceKind::BrokerLogger),
        "groups" => Ok(ResourceKind::Group),
        "client-metrics" => Ok(ResourceKind::ClientMetrics),
        other => Err(Failure::new(match ABSENT.iter().find(|(name, _)| *name == other) {
            Some((_, what)) => format!("--entity-type {other}: {what} are not offered yet; use {TYPES}"),
            None => format!("--entity-type {other}: must be {TYPES}"),
        })),
    }
}

/// Returns the noun for one entity of this kind, as in kafka-configs.sh.
pub fn singular(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Topic => "topic",
        ResourceKind::Broker => "broker",
        ResourceKind::BrokerLogger => "broker-logger",
        ResourceKind::ClientMetrics => "client-metric",
        ResourceKind::Group => "group",
    }
}

impl Whose {
    /// Returns the name by which a request identifies the entity.
    pub fn resource_name(&self) -> &str {
        match self {
            Whose::Defaults => "",
            Whose::Named(name) => name,
        }
    }

    /// Returns the JSON members `type` and `name`, which identify the entity.
    pub fn members(&self, kind: ResourceKind) -> [(&'static str, String); 2] {
        let name = match self {
            Whose::Defaults => None,
            Whose::Named(name) => Some(name.as_str()),
        };
        [("type", string(singular(kind))), ("name", text(name))]
    }

    /// Returns the source that brokers report for a value that is set on the entity itself.
    pub fn source(&self, kind: ResourceKind) -> ConfigSource {
        match (kind, self) {
            (ResourceKind::Topic, _) => ConfigSource::TOPIC,
            (ResourceKind::Broker, Whose::Defaults) => ConfigSource::ALL_BROKERS,
            (ResourceKind::Broker, Whose::Named(_)) => ConfigSource::BROKER,
            (ResourceKind::BrokerLogger, _) => ConfigSource::LOGGER,
            (ResourceKind::ClientMetrics, _) => ConfigSource::CLIENT_METRICS,
            (ResourceKind::Group, _) => ConfigSource::GROUP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        entity: Entity,
    }

    fn meant(flags: &str) -> Result<Meant, String> {
        let line = crate::command_line::parsed::<Line>(std::iter::once("configs").chain(flags.split_whitespace()));
        line.map_err(|error| error.to_string())?.entity.meant().map_err(|failure| failure.to_string())
    }

    #[test]
    fn both_forms_of_flags_name_the_same_entity() {
        let named = |name: &str| Some(Whose::Named(name.to_owned()));
        for (flags, kind, whose) in [
            ("--topic t", ResourceKind::Topic, named("t")),
            ("--entity-type topics --entity-name t", ResourceKind::Topic, named("t")),
            ("--entity-type topics", ResourceKind::Topic, None),
            ("--broker 1", ResourceKind::Broker, named("1")),
            ("--broker-defaults", ResourceKind::Broker, Some(Whose::Defaults)),
            ("--entity-type brokers --entity-default", ResourceKind::Broker, Some(Whose::Defaults)),
            ("--entity-type broker-loggers --entity-name 1", ResourceKind::BrokerLogger, named("1")),
            ("--broker-logger 1", ResourceKind::BrokerLogger, named("1")),
            ("--group g", ResourceKind::Group, named("g")),
            ("--client-metrics m", ResourceKind::ClientMetrics, named("m")),
        ] {
            assert_eq!(meant(flags), Ok(Meant { kind, whose }), "{flags}");
        }
    }

    #[test]
    fn a_refused_entity_is_answered_with_the_allowed_ones() {
        for (flags, reported) in [
            ("", "--broker-defaults"),
            ("--entity-type users", "SCRAM credentials and quotas of users are not offered yet"),
            ("--entity-type clients", "quotas of client ids are not offered yet"),
            ("--entity-type topic", "must be topics, brokers"),
            ("--broker one", "a number"),
            ("--entity-type topics --entity-default", "--entity-default is for"),
            ("--topic a --broker 1", "cannot be used with"),
            ("--entity-name a", "--entity-type"),
        ] {
            let refusal = meant(flags).expect_err(flags);
            assert!(refusal.contains(reported), "{flags}: {refusal}");
        }
    }
}
