//! The broker's configuration after all checks.
//!
//! The text as the user typed it is in [`Properties`]. A `BrokerConfig` exists only if every value has passed its
//! check. Each broker key that has an effect is a field here, unless it accepts only one value.

use super::broker_keys::{broker_key, meant_broker_key};
use super::diskless::DisklessConfig;
use super::dynamic::{BrokerValues, DynamicConfig};
use super::error::{ConfigError, Mistakes, Warning};
use super::group_keys::GroupConfig;
use super::inert::{gather_stock, judge_known, judge_unknown};
use super::live::LiveConfig;
use super::lookup::reader;
use super::network::NetworkConfig;
use super::node::NodeConfig;
use super::plane::MembershipConfig;
use super::properties::Properties;
use super::reader::ConfigReader;
use super::replication::ReplicationConfig;
use super::requests::{ApiConfig, ReorderConfig};
use super::ssl;
use super::storage::StorageConfig;
use super::topics::TopicsConfig;
use super::transaction_keys::TransactionConfig;

/// All settings of a broker. The names and meanings are Kafka's. If a setting has a unit, the unit is part of the
/// field's name.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    pub node: NodeConfig,
    pub membership: MembershipConfig,
    pub network: NetworkConfig,
    pub storage: StorageConfig,
    pub topics: TopicsConfig,
    pub diskless: DisklessConfig,
    pub replication: ReplicationConfig,
    pub api: ApiConfig,
    pub reorder: ReorderConfig,
    pub groups: GroupConfig,
    pub transactions: TransactionConfig,
    /// The settings that may change while the broker runs, with their values from the file and the command line.
    pub live: LiveConfig,
    checked: Properties,
}

impl BrokerConfig {
    /// Checks what the user typed and returns the configuration, with a warning for each key that has no effect.
    ///
    /// # Errors
    /// Returns all [`Mistakes`] if a key or a value is refused, each with the place where its key was set.
    pub fn from_properties(typed: &Properties) -> Result<(Self, Vec<Warning>), Mistakes> {
        let mut mistakes = Mistakes::default();
        let (checked, mut warnings) = check(typed, &mut mistakes);
        let read = Self::read(&reader(BrokerValues::at_start(&checked)), &checked);
        let read = read.map_err(|others| mistakes.append_unrelated(others)).ok();
        let Some((config, listener_warnings)) = read.filter(|_| mistakes.is_empty()) else {
            mistakes.place(|key| typed.place_of(key));
            mistakes.append(Self::misspelt(typed));
            return Err(mistakes);
        };
        warnings.extend(listener_warnings);
        let mut warnings = gather_stock(warnings, typed);
        warnings.iter_mut().for_each(|warning| warning.key.insert_str(0, &typed.place_of(&warning.key)));
        Ok((config, warnings))
    }

    /// Returns a mistake for each unknown key whose name is close to that of a known key. The caller reports these
    /// mistakes together with all others, because the misspelt key may have caused another mistake.
    pub fn misspelt(typed: &Properties) -> Mistakes {
        let mut mistakes = Mistakes::default();
        let is_unknown = |name: &str| broker_key(name).is_none() && ssl::of_one_listener(name).is_none();
        for (name, value) in typed.iter().filter(|(name, _)| is_unknown(name)) {
            let meant = meant_broker_key(name);
            match judge_unknown(name, value) {
                Ok(warning) if !meant.is_empty() && warning.message.ends_with(&meant) => {
                    mistakes.add(typed.place_of(name), ConfigError::of_key(name, warning.message));
                }
                _ => {}
            }
        }
        mistakes
    }

    /// Returns a view of all values that are set for the broker. Dynamic values override the checked values of the
    /// file.
    pub(super) fn values<'a>(&'a self, dynamic: &'a DynamicConfig) -> BrokerValues<'a> {
        BrokerValues { properties: &self.checked, dynamic }
    }

    fn read<F>(values: &ConfigReader<F>, checked: &Properties) -> Result<(Self, Vec<Warning>), Mistakes>
    where
        F: Fn(&str) -> Option<String>,
    {
        let mut mistakes = Mistakes::default();
        let found = (
            mistakes.keep(NetworkConfig::read(values, checked)),
            mistakes.keep(NodeConfig::read(values, checked)),
            mistakes.keep(MembershipConfig::read(values)),
            mistakes.keep(StorageConfig::read(values)),
            mistakes.keep(DisklessConfig::read(values, checked)),
            mistakes.keep(GroupConfig::read(values)),
            mistakes.keep(LiveConfig::read(values)),
        );
        let (
            Some((network, warnings)),
            Some(node),
            Some(membership),
            Some(storage),
            Some(diskless),
            Some(groups),
            Some(live),
        ) = found
        else {
            return Err(mistakes);
        };
        let replication = ReplicationConfig::read(values, &network.listeners)?;
        let topics = TopicsConfig::read(values, checked, membership.control_plane.is_some())?;
        let transactions = TransactionConfig::read(values);
        let (api, reorder, checked) = (ApiConfig::read(values), ReorderConfig::read(values), checked.clone());
        let config = Self {
            node,
            membership,
            network,
            storage,
            topics,
            diskless,
            replication,
            api,
            reorder,
            groups,
            transactions,
            live,
            checked,
        };
        Ok((config, warnings))
    }
}

/// Checks each value against the key's row in the tables, and leaves out values that are refused. A key that is in no
/// table becomes a mistake if the table of prefixes in `inert` refuses it, and a warning otherwise.
fn check(typed: &Properties, mistakes: &mut Mistakes) -> (Properties, Vec<Warning>) {
    let mut checked = Properties::default();
    let mut warnings = Vec::new();
    for (name, value) in typed.iter() {
        let valid = match (broker_key(name), ssl::of_one_listener(name)) {
            (Some(key), _) => {
                let valid = judge_known(key, value).and_then(|warning| Ok((warning, key.check(value)?)));
                valid.map(|(warning, value)| (warning, Some((name.to_owned(), value))))
            }
            (None, Some(own)) => own.key.check_as(name, value).map(|value| (None, Some((own.canonical, value)))),
            (None, None) => judge_unknown(name, value).map(|warning| (Some(warning), None)),
        };
        if let Some((warning, value)) = mistakes.keep(valid) {
            warnings.extend(warning);
            value.into_iter().for_each(|(name, value)| checked.set(name, value));
        }
    }
    (checked, warnings)
}

#[cfg(test)]
mod tests {
    use super::super::broker_keys::{broker_keys, honoured_keys};
    use super::super::resource_keys::GROUP_CONFIG_KEYS;
    use super::super::topic_keys::TOPIC_KEYS;
    use super::*;
    use std::path::PathBuf;

    fn parse(text: &str) -> Result<(BrokerConfig, Vec<Warning>), Mistakes> {
        BrokerConfig::from_properties(&Properties::parse(text)?)
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn nothing_set_is_a_broker_on_loopback() {
        let (config, warnings) = parse("").expect("valid");
        assert!(warnings.is_empty());
        assert_eq!(
            (config.node.id, config.network.listeners[0].host.as_str(), config.network.listeners[0].port),
            (1, "127.0.0.1", 9092)
        );
        assert_eq!((config.network.send_buffer_bytes, config.live.max_connections), (None, 2_147_483_647));
        assert_eq!((config.topics.partitions, config.api.fetch_max_bytes), (1, 57_671_680));
        assert_eq!(config.network.admin_listener, Some(("127.0.0.1".to_owned(), 9644)));
    }

    #[test]
    fn every_default_passes_its_own_check_and_every_synonym_exists() {
        for key in broker_keys().chain(TOPIC_KEYS) {
            if let Some(default) = key.default {
                assert_eq!(key.check(default).expect(key.name), default);
            }
            for synonym in key.synonyms {
                assert!(broker_key(synonym).is_some(), "{} names {synonym}", key.name);
            }
        }
    }

    #[test]
    fn names_are_there_once() {
        for table in [broker_keys().collect::<Vec<_>>(), TOPIC_KEYS.iter().collect()] {
            for (index, key) in table.iter().enumerate() {
                assert!(!table[..index].iter().any(|other| other.name == key.name), "{} is there twice", key.name);
            }
        }
    }

    #[test]
    fn every_broker_key_is_read_or_has_one_value() {
        let nothing = Properties::default();
        let values = reader(BrokerValues::at_start(&nothing));
        BrokerConfig::read(&values, &nothing).expect("valid");
        let requested = values.requested();
        let by_synonym = |name: &str| {
            let readers =
                honoured_keys().filter(|key| requested.contains(key.name)).chain(TOPIC_KEYS).chain(GROUP_CONFIG_KEYS);
            readers.flat_map(|key| key.synonyms).any(|synonym| *synonym == name)
        };
        for key in honoured_keys() {
            assert!(
                key.is_fixed() || requested.contains(key.name) || by_synonym(key.name),
                "{} is stored and ignored",
                key.name
            );
        }
    }

    #[test]
    fn a_stock_server_properties_of_kafka_starts_with_warnings() {
        let (config, warnings) = parse(
            "process.roles=broker,controller\nnode.id=7\ncontroller.quorum.bootstrap.servers=localhost:9093\n\
             listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n\
             advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\ncontroller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL\nnum.network.threads=3\n\
             num.io.threads=8\nsocket.send.buffer.bytes=102400\nsocket.receive.buffer.bytes=102400\n\
             socket.request.max.bytes=104857600\nlog.dirs=/tmp/kraft-combined-logs\nnum.partitions=1\n\
             num.recovery.threads.per.data.dir=2\noffsets.topic.replication.factor=1\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\nlog.retention.hours=168\n\
             log.segment.bytes=1073741824\nlog.retention.check.interval.ms=300000\n",
        )
        .expect("valid");
        assert_eq!(
            (config.node.id, config.network.listeners.len(), config.network.send_buffer_bytes),
            (7, 1, Some(102_400))
        );
        let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let [listener, stock] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(listener, "listeners: CONTROLLER is not opened: there is no controller here");
        assert!(stock.ends_with(": as Kafka ships them; without effect here"), "{stock}");
        for key in ["process.roles", "num.network.threads", "num.io.threads"] {
            assert!(stock.contains(key), "{key} is not in {stock}");
        }
    }

    #[test]
    fn a_value_other_than_kafkas_stock_one_has_its_own_warning() {
        let (_, warnings) = parse("num.network.threads=3\nnum.io.threads=64\nmin.insync.replicas=2").expect("valid");
        let keys: Vec<_> = warnings.iter().map(|warning| warning.key.as_str()).collect();
        assert_eq!(keys, ["num.io.threads", "num.network.threads"]);
    }

    #[test]
    fn a_key_without_effect_is_checked_and_a_refused_key_accepts_its_default() {
        assert_eq!(refusal("num.io.threads=many"), "num.io.threads=many: must be a number of at least 1");
        assert_eq!(refusal("background.threads=0"), "background.threads=0: must be a number of at least 1");
        let (_, warnings) = parse("authorizer.class.name=\nsasl.enabled.mechanisms=GSSAPI").expect("Kafka's defaults");
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn empty_mechanisms_and_https_in_capitals_are_valid() {
        let names = "ssl.endpoint.identification.algorithm";
        for (typed, compares_names) in [("HTTPS", true), ("Https", true), ("", false)] {
            let (config, warnings) = parse(&format!("sasl.enabled.mechanisms=\n{names}={typed}")).expect(typed);
            assert_eq!((config.replication.compares_names, warnings.len()), (compares_names, 0), "{typed}");
        }
        assert!(refusal(&format!("{names}=ldap")).starts_with(&format!("{names}=ldap: must be https")));
    }

    #[test]
    fn an_unknown_key_of_our_own_is_refused() {
        let refusal = refusal("fullbore.conection.bytes.max=1");
        assert!(refusal.starts_with("fullbore.conection.bytes.max=1: is not a key"), "{refusal}");
        assert!(refusal.contains("did you mean fullbore.connection.bytes.max?"), "{refusal}");
    }

    #[test]
    fn time_is_typed_with_its_unit_refusal_has_the_number() {
        assert!(refusal("log.retention.ms=1h").ends_with("; 1h is 3600000"));
        assert!(refusal("log.retention.hours=7d").ends_with("; 7d is 168"));
        for other in ["log.retention.hours=90m", "log.retention.ms=soon", "log.retention.ms=h", "num.partitions=1h"] {
            assert!(!refusal(other).contains(" is "), "{other}");
        }
    }

    #[test]
    fn misspelt_key_is_beside_a_mistake_refusal_names_the_key_that_was_meant() {
        let refused = refusal("num.partitions=0\nlog.retention.mss=1\nunheard.of=1");
        let lines: Vec<&str> = refused.lines().collect();
        assert_eq!(lines.len(), 2, "{refused}");
        assert!(lines[1].starts_with("log.retention.mss: is not a key of this broker and has no effect"), "{refused}");
        assert!(lines[1].ends_with("; did you mean log.retention.ms?"), "{refused}");
    }

    #[test]
    fn refusals_are_one_line_with_key_value_and_what_is_allowed() {
        assert_eq!(refusal("log.segment.bytes=12"), "log.segment.bytes=12: must be between 1048576 and 2147483647");
        assert_eq!(
            refusal("max.idempotence.batches.to.retain=10001"),
            "max.idempotence.batches.to.retain=10001: must be between 5 and 10000"
        );
        assert_eq!(
            refusal("fullbore.produce.version.max=12"),
            "fullbore.produce.version.max=12: must be between 13 and 14"
        );
        assert_eq!(refusal("num.partitions=many"), "num.partitions=many: must be between 1 and 100000");
        assert_eq!(refusal("num.io.threads=2147483648"), "num.io.threads=2147483648: must be at most 2147483647");
        assert_eq!(
            refusal("fullbore.disk.reserve.bytes=9223372036854775808"),
            "fullbore.disk.reserve.bytes=9223372036854775808: must be at most 9223372036854775807"
        );
        assert_eq!(
            refusal("log.retention.ms=99999999999999999999"),
            "log.retention.ms=99999999999999999999: must be at most 9223372036854775807"
        );
        assert_eq!(refusal("log.retention.ms=0"), "log.retention.ms=0: must be -1 or a number of at least 1");
        assert_eq!(refusal("auto.create.topics.enable=yes"), "auto.create.topics.enable=yes: must be true or false");
        assert_eq!(refusal("log.dirs=/a,/b"), "log.dirs=/a,/b: must be exactly one directory");
        assert_eq!(refusal("node.id=1\nbroker.id=2"), "broker.id=2: must be the same as node.id=1, or left out");
        assert!(
            refusal("default.replication.factor=3")
                .starts_with("default.replication.factor=3: must be 1 for a standalone broker")
        );
        for text in ["authorizer.class.name=A", "sasl.enabled.mechanisms=PLAIN"] {
            assert!(refusal(text).contains("not offered yet"), "{text}");
        }
    }

    #[test]
    fn unknown_and_topic_keys_warn() {
        let (_, warnings) = parse("foo=1\nlog.retention.hour=5\nretention.ms=5").expect("valid");
        let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(lines[0], "foo: is not a key of this broker and has no effect");
        assert_eq!(
            lines[1],
            "log.retention.hour: is not a key of this broker and has no effect; did you mean log.retention.hours?"
        );
        assert!(lines[2].contains("the broker's key is log.retention.ms"), "{}", lines[2]);
    }

    #[test]
    fn synonyms_and_case() {
        let (config, _) =
            parse("broker.id=9\nlog.dir=/data\nauto.create.topics.enable=FALSE\nmax.connections.per.ip = 3 ")
                .expect("valid");
        assert_eq!(
            (config.node.id, config.node.data_dir, config.live.max_connections_per_ip),
            (9, PathBuf::from("/data"), 3)
        );
        assert!(!config.topics.auto_create);
    }
}
