//! Kafka's broker keys that have no meaning here, with the reason, so that a `server.properties` of an
//! ordinary Kafka starts this broker and its owner learns what changed.
//!
//! Not a list of everything Kafka knows: a key found nowhere is reported as unknown. A key whose loss
//! would make the broker less safe than its owner believes is refused, never only warned about.

use super::error::{ConfigError, Warning};
use super::properties::Properties;
use super::topic_keys::topic_key;

enum Fate {
    NoEffect(&'static str),
    Refused(&'static str),
}
use Fate::{NoEffect, Refused};

const THREADS: &str = "has no effect: threads follow the number of cores";
const METADATA: &str = "has no effect: this broker keeps its metadata itself, without controllers or ZooKeeper";
const GROUPS: &str = "has no effect: consumer groups are not offered yet";
const TRANSACTIONS: &str = "has no effect: transactions are not offered yet";
const COMPACTION: &str = "has no effect: compaction is not offered yet";
const REPLICATION: &str = "has no effect: there is no replication yet";
const QUEUE: &str = "has no effect: requests are bounded per connection by fullbore.connection.requests.max and fullbore.connection.bytes.max";
const CHECKPOINT: &str = "has no effect: checkpoints are written when segments close and at shutdown";
const TIERED: &str = "has no effect: tiered storage is not offered";
const QUOTAS: &str = "has no effect: quotas are not offered yet";
const WAITERS: &str = "has no effect: a finished request leaves its queue at once";
const JAVA: &str = "Java classes cannot be loaded here";
const SECURITY: &str = "SASL and access control are not offered yet; remove it to run without";
const JSSE: &str = "is a setting of Java's own TLS, and there is no Java here";

/// By the start of the key; the first match counts.
const FATES: &[(&str, Fate)] = &[
    ("num.network.threads", NoEffect(THREADS)),
    ("num.io.threads", NoEffect(THREADS)),
    ("background.threads", NoEffect(THREADS)),
    ("num.recovery.threads.per.data.dir", NoEffect(THREADS)),
    ("num.replica.fetchers", NoEffect(REPLICATION)),
    ("num.replica.alter.log.dirs.threads", NoEffect(REPLICATION)),
    ("process.roles", NoEffect(METADATA)),
    ("controller.", NoEffect(METADATA)),
    ("zookeeper.", NoEffect(METADATA)),
    ("metadata.", NoEffect(METADATA)),
    ("broker.heartbeat.", NoEffect(METADATA)),
    ("broker.session.", NoEffect(METADATA)),
    ("broker.id.generation.enable", NoEffect(METADATA)),
    ("reserved.broker.max.id", NoEffect(METADATA)),
    ("initial.broker.registration.timeout.ms", NoEffect(METADATA)),
    ("inter.broker.listener.name", NoEffect(REPLICATION)),
    ("security.inter.broker.protocol", NoEffect(REPLICATION)),
    ("replica.", NoEffect(REPLICATION)),
    ("auto.leader.rebalance.enable", NoEffect(REPLICATION)),
    ("leader.imbalance.", NoEffect(REPLICATION)),
    ("controlled.shutdown.", NoEffect(REPLICATION)),
    ("offsets.", NoEffect(GROUPS)),
    ("group.", NoEffect(GROUPS)),
    ("share.", NoEffect(GROUPS)),
    ("transaction.", NoEffect(TRANSACTIONS)),
    ("transactional.", NoEffect(TRANSACTIONS)),
    ("add.partitions.to.txn.", NoEffect(TRANSACTIONS)),
    ("log.cleaner.", NoEffect(COMPACTION)),
    ("queued.max.", NoEffect(QUEUE)),
    ("log.flush.offset.checkpoint.interval.ms", NoEffect(CHECKPOINT)),
    ("log.flush.start.offset.checkpoint.interval.ms", NoEffect(CHECKPOINT)),
    ("log.dir.failure.timeout.ms", NoEffect("has no effect: there is one data folder")),
    ("log.message.format.version", NoEffect("has no effect: Kafka 4 removed it too")),
    ("log.message.downconversion.enable", NoEffect("has no effect: Kafka 4 removed it too")),
    ("inter.broker.protocol.version", NoEffect("has no effect: Kafka 4 removed it too")),
    (
        "log.message.timestamp.difference.max.ms",
        Refused("Kafka 4 removed it; use log.message.timestamp.before.max.ms and .after.max.ms"),
    ),
    ("request.timeout.ms", NoEffect(REPLICATION)),
    ("metric", NoEffect("has no effect: metrics are at fullbore.admin.listener")),
    ("kafka.metrics.", NoEffect("has no effect: metrics are at fullbore.admin.listener")),
    ("auto.include.jmx.reporter", NoEffect("has no effect: metrics are at fullbore.admin.listener")),
    ("remote.", NoEffect(TIERED)),
    ("log.local.retention.", NoEffect(TIERED)),
    ("follower.fetch.last.tiered.", NoEffect(TIERED)),
    ("quota.", NoEffect(QUOTAS)),
    ("replication.quota.", NoEffect(QUOTAS)),
    ("alter.log.dirs.replication.quota.", NoEffect(QUOTAS)),
    ("client.quota.callback.class", Refused(JAVA)),
    ("fetch.purgatory.", NoEffect(WAITERS)),
    ("producer.purgatory.", NoEffect(WAITERS)),
    ("delete.records.purgatory.", NoEffect(WAITERS)),
    ("compression.", NoEffect("has no effect: the broker does not recompress")),
    ("telemetry.", NoEffect("has no effect: clients' own metrics are not collected")),
    ("config.providers", Refused("values are taken as they are typed; write them out")),
    ("delegation.token.", Refused(SECURITY)),
    ("connections.max.reauth.ms", Refused(SECURITY)),
    ("max.connection.creation.rate", NoEffect("has no effect: connections are limited in number, not in rate")),
    ("connection.failed.authentication.delay.ms", NoEffect("has no effect: there is no authentication yet")),
    ("confluent.", NoEffect("has no effect: not a key of Apache Kafka")),
    ("create.topic.policy.class.name", Refused(JAVA)),
    ("alter.config.policy.class.name", Refused(JAVA)),
    ("authorizer.class.name", Refused(SECURITY)),
    ("super.users", Refused(SECURITY)),
    ("allow.everyone.if.no.acl.found", Refused(SECURITY)),
    ("principal.builder.class", Refused(SECURITY)),
    (
        "ssl.endpoint.identification.algorithm",
        NoEffect("has no effect: a broker does not check the names of its clients"),
    ),
    ("ssl.principal.mapping.rules", Refused(SECURITY)),
    ("ssl.allow.", NoEffect("has no effect: new certificates may have any name")),
    ("ssl.", Refused(JSSE)),
    ("sasl.", Refused(SECURITY)),
    ("security.providers", Refused(SECURITY)),
    ("listener.name.", Refused("only ssl.* can be set for a single listener; set others for all")),
];

/// What the configuration files that come with Kafka 4 set, of the keys that have no effect here.
const STOCK: &[(&str, &str)] = &[
    ("process.roles", "broker,controller"),
    ("process.roles", "broker"),
    ("controller.quorum.bootstrap.servers", "localhost:9093"),
    ("inter.broker.listener.name", "PLAINTEXT"),
    ("num.network.threads", "3"),
    ("num.io.threads", "8"),
    ("num.recovery.threads.per.data.dir", "1"),
    ("num.recovery.threads.per.data.dir", "2"),
    ("offsets.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
];

/// Gathers the warnings about values that nobody chose, but Kafka's own files came with, into a last one.
pub(super) fn gather_stock(warnings: Vec<Warning>, typed: &Properties) -> Vec<Warning> {
    let is_stock = |warning: &Warning| {
        let value = typed.get(&warning.key).map(str::trim);
        STOCK.iter().any(|(key, stock)| *key == warning.key && value == Some(stock))
    };
    let (stock, mut rest): (Vec<_>, Vec<_>) = warnings.into_iter().partition(is_stock);
    if !stock.is_empty() {
        let keys: Vec<_> = stock.into_iter().map(|warning| warning.key).collect();
        rest.push(Warning { key: keys.join(", "), message: "as Kafka ships them; without effect here".to_owned() });
    }
    rest
}

/// What to say of a key that is not in the broker's table.
pub(super) fn judge(key: &str, value: &str) -> Result<Warning, ConfigError> {
    let warning = |message: String| Ok(Warning { key: key.to_owned(), message });
    match FATES.iter().find(|(start, _)| key.starts_with(start)) {
        Some((_, NoEffect(why))) => warning((*why).to_owned()),
        Some((_, Refused(why))) => Err(ConfigError::of_value(key, value, *why)),
        // Nobody else's keys start so: it can only be a slip.
        None if key.starts_with("fullbore.") => {
            Err(ConfigError::of_value(key, value, "is not a key of this broker; docs/configuration.md has them all"))
        }
        None => match topic_key(key).and_then(|topic| topic.synonyms.first()) {
            Some(broker) => warning(format!("has no effect here: it is a topic's setting; the broker's is {broker}")),
            None => warning("is not a key of this broker and has no effect".to_owned()),
        },
    }
}

/// The starts of keys, whether they are refused, and why; for the documentation.
pub(super) fn rows() -> impl Iterator<Item = (&'static str, bool, &'static str)> {
    FATES.iter().map(|(start, fate)| match fate {
        NoEffect(why) => (*start, false, why.strip_prefix("has no effect: ").unwrap_or(why)),
        Refused(why) => (*start, true, *why),
    })
}
