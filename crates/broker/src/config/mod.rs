//! Configuration: from text a user typed to numbers the program uses.
//!
//! One table (`broker_keys`, `topic_keys`) holds every key; the parser, the help text,
//! `docs/configuration.md` and the answers to DescribeConfigs all come from it. [`Properties`] is what
//! the user typed, [`BrokerConfig`] and [`TopicConfig`] are what the program needs, and every check
//! stands between them.
//!
//! Invariant: a value a user sets is honoured, refused with a message, or reported in a [`Warning`];
//! it is never stored and then ignored.

mod broker;
mod broker_keys;
mod describe;
mod docs;
mod dynamic;
mod error;
mod group_keys;
mod inert;
mod key;
mod listener;
mod lookup;
mod properties;
mod ssl;
mod topic;
mod topic_keys;

pub use broker::BrokerConfig;
pub use broker_keys::BROKER_KEYS;
pub use describe::{ConfigEntry, ConfigSynonym, describe_broker, describe_cluster, describe_topic, in_force};
pub use docs::{help, markdown};
pub use dynamic::{DynamicConfig, check_dynamic, is_dynamic};
pub use error::{ConfigError, Warning};
pub use group_keys::GroupConfig;
pub use key::{Allowed, Key, Source, Type};
pub use listener::Listener;
pub use properties::Properties;
pub use ssl::ListenerTls;
pub use topic::{TimestampType, TopicConfig};
pub use topic_keys::TOPIC_KEYS;
