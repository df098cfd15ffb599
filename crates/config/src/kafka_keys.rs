//! The broker keys of Apache Kafka 4.3 that have no effect here or accept only their default, each with the reason.
//!
//! If a later version of the broker uses such a key, its row must move to `broker_keys` or to one of the tables that
//! `broker_keys` lists. The checks of the values are in `inert`.

use super::key::Allowed::{self, Any, Between, OneOf};
use super::key::Key;
use super::key::Type::{self, Boolean, Class, Double, Int, List, Long, Password, Short, String};

const LONG_MAX: &str = "9223372036854775807";

const THREADS: &str = "has no effect: threads follow the number of cores";
const METADATA: &str = "has no effect: this broker keeps its metadata itself, without controllers";
const COORDINATOR: &str = "has no effect: the coordinator of groups has no threads, buffers or timeouts of its own";
const SHARE: &str = "has no effect: share groups are not offered";
const STREAMS: &str = "has no effect: streams groups are not offered";
const TRANSACTIONS: &str = "has no effect: the coordinator of transactions has no buffers or pauses of its own";
const TWO_PHASE: &str = "two-phase commit (KIP-939) is not finished in Kafka, and not offered";
const HAND_OVER: &str = "has no effect: a stopping broker of a cluster always hands over its leaderships";
const AT_ONCE: &str = "has no effect: a leader answers a follower as soon as it has something new";
const TUNED: &str = "has no effect: the system chooses";
const NEAR: &str = "has no effect: consumers read from leaders";
const QUEUE: &str = "has no effect: requests are bounded per connection by fullbore.connection.requests.max and fullbore.connection.bytes.max";
const CHECKPOINT: &str = "has no effect: checkpoints are written when segments close and at shutdown";
const TIERED: &str = "has no effect: tiered storage is not offered";
const QUOTAS: &str = "has no effect: quotas are not offered yet";
const WAITERS: &str = "has no effect: a finished request leaves its queue at once";
const METRICS: &str = "has no effect: metrics are at fullbore.admin.listener";
const RATE: &str = "has no effect: connections are limited in number, not in rate";
const NO_SASL: &str = "has no effect: there is no authentication yet";
const NEW_CERTIFICATES: &str = "has no effect: new certificates may have any name";
const EARLY: &str = "has no effect: no listener is opened before the others";
const OUTGOING: &str = "has no effect: connections to other brokers have timeouts of their own";
const ONE_DIRECTORY: &str = "has no effect: there is one data directory";
const CORDON: &str = "there is only one data directory, and new partitions need it";
const JAVA: &str = "Java classes cannot be loaded here";
const SECURITY: &str = "SASL and access control are not offered yet; remove this key to run without them";
const JSSE: &str = "is a setting of Java's own TLS, and there is no Java here";
const PROVIDERS: &str = "values are taken literally, because config providers are not supported; write out the values";

/// Kafka's keys that have no effect here. Some of them are refused unless they have their default.
pub static KAFKA_KEYS: &[Key] = &[
    no_effect("add.partitions.to.txn.retry.backoff.max.ms", Int, Some("100"), at_least(0), TRANSACTIONS),
    no_effect("add.partitions.to.txn.retry.backoff.ms", Int, Some("20"), at_least(1), TRANSACTIONS),
    no_effect("transaction.state.log.load.buffer.size", Int, Some("5242880"), at_least(1), TRANSACTIONS),
    refused("transaction.two.phase.commit.enable", Boolean, Some("false"), Any, TWO_PHASE),
    refused("alter.config.policy.class.name", Class, None, Any, JAVA),
    refused("client.quota.callback.class", Class, None, Any, JAVA),
    refused("create.topic.policy.class.name", Class, None, Any, JAVA),
    no_effect("alter.log.dirs.replication.quota.window.num", Int, Some("11"), at_least(1), QUOTAS),
    no_effect("alter.log.dirs.replication.quota.window.size.seconds", Int, Some("1"), at_least(1), QUOTAS),
    no_effect("follower.replication.throttled.rate", Long, Some(LONG_MAX), at_least(0), QUOTAS),
    no_effect("leader.replication.throttled.rate", Long, Some(LONG_MAX), at_least(0), QUOTAS),
    no_effect("quota.window.num", Int, Some("11"), at_least(1), QUOTAS),
    no_effect("quota.window.size.seconds", Int, Some("1"), at_least(1), QUOTAS),
    no_effect("replica.alter.log.dirs.io.max.bytes.per.second", Long, Some(LONG_MAX), at_least(0), QUOTAS),
    no_effect("replication.quota.window.num", Int, Some("11"), at_least(1), QUOTAS),
    no_effect("replication.quota.window.size.seconds", Int, Some("1"), at_least(1), QUOTAS),
    refused("authorizer.class.name", String, Some(""), Any, SECURITY),
    refused("connections.max.reauth.ms", Long, Some("0"), Any, SECURITY),
    refused("delegation.token.expiry.check.interval.ms", Long, Some("3600000"), at_least(1), SECURITY),
    refused("delegation.token.expiry.time.ms", Long, Some("86400000"), at_least(1), SECURITY),
    refused("delegation.token.max.lifetime.ms", Long, Some("604800000"), at_least(1), SECURITY),
    refused("delegation.token.secret.key", Password, None, Any, SECURITY),
    refused(
        "principal.builder.class",
        Class,
        Some("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
        Any,
        SECURITY,
    ),
    refused("sasl.client.callback.handler.class", Class, None, Any, SECURITY),
    refused("sasl.enabled.mechanisms", List, Some("GSSAPI"), Any, SECURITY),
    refused("sasl.jaas.config", Password, None, Any, SECURITY),
    refused("sasl.kerberos.kinit.cmd", String, Some("/usr/bin/kinit"), Any, SECURITY),
    no_effect("sasl.kerberos.min.time.before.relogin", Long, Some("60000"), Any, NO_SASL).dynamic(),
    refused("sasl.kerberos.principal.to.local.rules", List, Some("DEFAULT"), Any, SECURITY),
    refused("sasl.kerberos.service.name", String, None, Any, SECURITY),
    no_effect("sasl.kerberos.ticket.renew.jitter", Double, Some("0.05"), Any, NO_SASL).dynamic(),
    no_effect("sasl.kerberos.ticket.renew.window.factor", Double, Some("0.8"), Any, NO_SASL).dynamic(),
    refused("sasl.login.callback.handler.class", Class, None, Any, SECURITY),
    refused("sasl.login.class", Class, None, Any, SECURITY),
    refused("sasl.login.connect.timeout.ms", Int, None, Any, SECURITY),
    refused("sasl.login.read.timeout.ms", Int, None, Any, SECURITY),
    no_effect("sasl.login.refresh.buffer.seconds", Short, Some("300"), Any, NO_SASL).dynamic(),
    no_effect("sasl.login.refresh.min.period.seconds", Short, Some("60"), Any, NO_SASL).dynamic(),
    no_effect("sasl.login.refresh.window.factor", Double, Some("0.8"), Any, NO_SASL).dynamic(),
    no_effect("sasl.login.refresh.window.jitter", Double, Some("0.05"), Any, NO_SASL).dynamic(),
    refused("sasl.login.retry.backoff.max.ms", Long, Some("10000"), Any, SECURITY),
    refused("sasl.login.retry.backoff.ms", Long, Some("100"), Any, SECURITY),
    refused("sasl.mechanism.controller.protocol", String, Some("GSSAPI"), Any, SECURITY),
    refused("sasl.mechanism.inter.broker.protocol", String, Some("GSSAPI"), Any, SECURITY),
    refused("sasl.oauthbearer.assertion.algorithm", String, Some("RS256"), Any, SECURITY),
    refused("sasl.oauthbearer.assertion.claim.aud", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.assertion.claim.exp.seconds", Int, Some("300"), Between(0, 86400), SECURITY),
    refused("sasl.oauthbearer.assertion.claim.iss", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.assertion.claim.jti.include", Boolean, Some("false"), Any, SECURITY),
    refused("sasl.oauthbearer.assertion.claim.nbf.seconds", Int, Some("60"), Between(0, 3600), SECURITY),
    refused("sasl.oauthbearer.assertion.claim.sub", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.assertion.file", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.assertion.private.key.file", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.assertion.private.key.passphrase", Password, None, Any, SECURITY),
    refused("sasl.oauthbearer.assertion.template.file", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.client.credentials.client.id", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.client.credentials.client.secret", Password, None, Any, SECURITY),
    refused("sasl.oauthbearer.clock.skew.seconds", Int, Some("30"), Any, SECURITY),
    refused("sasl.oauthbearer.expected.audience", List, Some(""), Any, SECURITY),
    refused("sasl.oauthbearer.expected.issuer", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.jwks.endpoint.refresh.ms", Long, Some("3600000"), Any, SECURITY),
    refused("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", Long, Some("10000"), Any, SECURITY),
    refused("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Long, Some("100"), Any, SECURITY),
    refused("sasl.oauthbearer.jwks.endpoint.url", String, None, Any, SECURITY),
    refused(
        "sasl.oauthbearer.jwt.retriever.class",
        Class,
        Some("org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever"),
        Any,
        SECURITY,
    ),
    refused(
        "sasl.oauthbearer.jwt.validator.class",
        Class,
        Some("org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator"),
        Any,
        SECURITY,
    ),
    refused("sasl.oauthbearer.scope", String, None, Any, SECURITY),
    refused("sasl.oauthbearer.scope.claim.name", String, Some("scope"), Any, SECURITY),
    refused("sasl.oauthbearer.sub.claim.name", String, Some("sub"), Any, SECURITY),
    refused("sasl.oauthbearer.token.endpoint.url", String, None, Any, SECURITY),
    refused("sasl.server.callback.handler.class", Class, None, Any, SECURITY),
    refused("sasl.server.max.receive.size", Int, Some("524288"), Any, SECURITY),
    refused("security.providers", String, None, Any, SECURITY),
    refused("ssl.principal.mapping.rules", String, Some("DEFAULT"), Any, SECURITY),
    no_effect("controlled.shutdown.enable", Boolean, Some("true"), Any, HAND_OVER),
    no_effect("num.replica.alter.log.dirs.threads", Int, None, Any, ONE_DIRECTORY),
    no_effect("replica.fetch.min.bytes", Int, Some("1"), Any, AT_ONCE),
    no_effect("replica.selector.class", String, None, Any, NEAR),
    no_effect("replica.socket.receive.buffer.bytes", Int, Some("65536"), Any, TUNED),
    no_effect("request.timeout.ms", Int, Some("30000"), Any, OUTGOING),
    no_effect("background.threads", Int, Some("10"), at_least(1), THREADS),
    no_effect("num.io.threads", Int, Some("8"), at_least(1), THREADS),
    no_effect("num.network.threads", Int, Some("3"), at_least(1), THREADS),
    no_effect("controller.quorum.append.linger.ms", Int, Some("25"), at_least(0), METADATA),
    no_effect("controller.quorum.auto.join.enable", Boolean, Some("false"), Any, METADATA),
    no_effect("controller.quorum.bootstrap.servers", List, Some(""), Any, METADATA),
    no_effect("controller.quorum.election.backoff.max.ms", Int, Some("1000"), at_least(0), METADATA),
    no_effect("controller.quorum.election.timeout.ms", Int, Some("1000"), at_least(0), METADATA),
    no_effect("controller.quorum.fetch.max.bytes", Int, Some("1048576"), at_least(1), METADATA),
    no_effect("controller.quorum.fetch.snapshot.max.bytes", Int, Some("1048576"), at_least(1), METADATA),
    no_effect("controller.quorum.fetch.timeout.ms", Int, Some("2000"), at_least(0), METADATA),
    no_effect("controller.quorum.request.timeout.ms", Int, Some("2000"), at_least(0), METADATA),
    no_effect("controller.quorum.retry.backoff.ms", Int, Some("20"), at_least(0), METADATA),
    no_effect("controller.quorum.voters", List, Some(""), Any, METADATA),
    no_effect("controller.quota.window.num", Int, Some("11"), at_least(1), METADATA),
    no_effect("controller.quota.window.size.seconds", Int, Some("1"), at_least(1), METADATA),
    no_effect("controller.socket.timeout.ms", Int, Some("30000"), Any, METADATA),
    no_effect("metadata.log.dir", String, None, Any, METADATA),
    no_effect("metadata.log.max.record.bytes.between.snapshots", Long, Some("20971520"), at_least(1), METADATA),
    no_effect("metadata.log.max.snapshot.interval.ms", Long, Some("3600000"), at_least(0), METADATA),
    no_effect("metadata.log.segment.bytes", Int, Some("1073741824"), at_least(8388608), METADATA),
    no_effect("metadata.log.segment.ms", Long, Some("604800000"), Any, METADATA),
    no_effect("metadata.max.idle.interval.ms", Int, Some("500"), at_least(0), METADATA),
    no_effect("metadata.max.retention.bytes", Long, Some("104857600"), Any, METADATA),
    no_effect("metadata.max.retention.ms", Long, Some("604800000"), Any, METADATA),
    no_effect("process.roles", List, None, OneOf(&["broker", "controller"]), METADATA),
    refused("config.providers", List, Some(""), Any, PROVIDERS),
    no_effect("connection.failed.authentication.delay.ms", Int, Some("100"), at_least(0), NO_SASL),
    refused("cordoned.log.dirs", List, Some(""), Any, CORDON),
    no_effect("delete.records.purgatory.purge.interval.requests", Int, Some("1"), Any, WAITERS),
    no_effect("fetch.purgatory.purge.interval.requests", Int, Some("1000"), Any, WAITERS),
    no_effect("producer.purgatory.purge.interval.requests", Int, Some("1000"), Any, WAITERS),
    no_effect("early.start.listeners", List, None, Any, EARLY),
    no_effect("follower.fetch.last.tiered.offset.enable", Boolean, Some("false"), Any, TIERED),
    no_effect("log.local.retention.bytes", Long, Some("-2"), at_least(-2), TIERED),
    no_effect("log.local.retention.ms", Long, Some("-2"), at_least(-2), TIERED),
    no_effect("remote.fetch.max.wait.ms", Int, Some("500"), at_least(1), TIERED),
    no_effect("remote.list.offsets.request.timeout.ms", Long, Some("30000"), at_least(1), TIERED),
    no_effect("remote.log.index.file.cache.total.size.bytes", Long, Some("1073741824"), at_least(1), TIERED),
    no_effect("remote.log.manager.copier.thread.pool.size", Int, Some("10"), at_least(1), TIERED),
    no_effect("remote.log.manager.copy.max.bytes.per.second", Long, Some(LONG_MAX), at_least(1), TIERED),
    no_effect("remote.log.manager.copy.quota.window.num", Int, Some("11"), at_least(1), TIERED),
    no_effect("remote.log.manager.copy.quota.window.size.seconds", Int, Some("1"), at_least(1), TIERED),
    no_effect("remote.log.manager.expiration.thread.pool.size", Int, Some("10"), at_least(1), TIERED),
    no_effect("remote.log.manager.fetch.max.bytes.per.second", Long, Some(LONG_MAX), at_least(1), TIERED),
    no_effect("remote.log.manager.fetch.quota.window.num", Int, Some("11"), at_least(1), TIERED),
    no_effect("remote.log.manager.fetch.quota.window.size.seconds", Int, Some("1"), at_least(1), TIERED),
    no_effect("remote.log.manager.follower.thread.pool.size", Int, Some("2"), at_least(1), TIERED),
    no_effect("remote.log.manager.task.interval.ms", Long, Some("30000"), at_least(1), TIERED),
    no_effect("remote.log.manager.thread.pool.size", Int, Some("2"), at_least(1), TIERED),
    no_effect("remote.log.metadata.custom.metadata.max.bytes", Int, Some("128"), at_least(0), TIERED),
    no_effect(
        "remote.log.metadata.manager.class.name",
        String,
        Some("org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"),
        Any,
        TIERED,
    ),
    no_effect("remote.log.metadata.manager.class.path", String, None, Any, TIERED),
    no_effect("remote.log.metadata.manager.impl.prefix", String, Some("rlmm.config."), Any, TIERED),
    no_effect("remote.log.metadata.manager.listener.name", String, None, Any, TIERED),
    no_effect("remote.log.reader.max.pending.tasks", Int, Some("100"), at_least(1), TIERED),
    no_effect("remote.log.reader.threads", Int, Some("10"), at_least(1), TIERED),
    no_effect("remote.log.storage.manager.class.name", String, None, Any, TIERED),
    no_effect("remote.log.storage.manager.class.path", String, None, Any, TIERED),
    no_effect("remote.log.storage.manager.impl.prefix", String, Some("rsm.config."), Any, TIERED),
    no_effect("remote.log.storage.system.enable", Boolean, Some("false"), Any, TIERED),
    no_effect("group.coordinator.append.linger.ms", Int, Some("-1"), at_least(-1), COORDINATOR),
    no_effect("group.coordinator.background.threads", Int, Some("2"), at_least(1), COORDINATOR),
    no_effect("group.coordinator.cached.buffer.max.bytes", Int, Some("1048588"), at_least(524288), COORDINATOR),
    no_effect("group.coordinator.threads", Int, Some("4"), at_least(1), COORDINATOR),
    no_effect("offsets.commit.timeout.ms", Int, Some("5000"), at_least(1), COORDINATOR),
    no_effect("offsets.load.buffer.size", Int, Some("5242880"), at_least(1), COORDINATOR),
    no_effect("group.share.assignment.interval.ms", Int, Some("1000"), at_least(0), SHARE),
    no_effect("group.share.assignors", List, Some("simple"), Any, SHARE),
    no_effect("group.share.delivery.count.limit", Int, Some("5"), Between(2, 10), SHARE),
    no_effect("group.share.heartbeat.interval.ms", Int, Some("5000"), at_least(1), SHARE),
    no_effect("group.share.max.assignment.interval.ms", Int, Some("15000"), at_least(0), SHARE),
    no_effect("group.share.max.delivery.count.limit", Int, Some("10"), Between(5, 25), SHARE),
    no_effect("group.share.max.heartbeat.interval.ms", Int, Some("15000"), at_least(1), SHARE),
    no_effect("group.share.max.partition.max.record.locks", Int, Some("4000"), Between(2000, 10000), SHARE),
    no_effect("group.share.max.record.lock.duration.ms", Int, Some("60000"), Between(30000, 3600000), SHARE),
    no_effect("group.share.max.session.timeout.ms", Int, Some("60000"), at_least(1), SHARE),
    no_effect("group.share.max.share.sessions", Int, Some("2000"), at_least(1), SHARE),
    no_effect("group.share.max.size", Int, Some("200"), Between(1, 1000), SHARE),
    no_effect("group.share.min.assignment.interval.ms", Int, Some("0"), at_least(0), SHARE),
    no_effect("group.share.min.delivery.count.limit", Int, Some("2"), Between(2, 5), SHARE),
    no_effect("group.share.min.heartbeat.interval.ms", Int, Some("5000"), at_least(1), SHARE),
    no_effect("group.share.min.partition.max.record.locks", Int, Some("100"), Between(100, 2000), SHARE),
    no_effect("group.share.min.record.lock.duration.ms", Int, Some("15000"), Between(1000, 30000), SHARE),
    no_effect("group.share.min.session.timeout.ms", Int, Some("45000"), at_least(1), SHARE),
    no_effect("group.share.partition.max.record.locks", Int, Some("2000"), Between(100, 10000), SHARE),
    no_effect("group.share.record.lock.duration.ms", Int, Some("30000"), Between(1000, 3600000), SHARE),
    no_effect("group.share.session.timeout.ms", Int, Some("45000"), at_least(1), SHARE),
    no_effect("share.coordinator.append.linger.ms", Int, Some("-1"), at_least(-1), SHARE),
    no_effect("share.coordinator.cached.buffer.max.bytes", Int, Some("1048588"), at_least(524288), SHARE),
    no_effect("share.coordinator.load.buffer.size", Int, Some("5242880"), at_least(1), SHARE),
    no_effect("share.coordinator.snapshot.update.records.per.snapshot", Int, Some("500"), Between(0, 500), SHARE),
    no_effect("share.coordinator.state.topic.compression.codec", Int, Some("0"), Any, SHARE),
    no_effect("share.coordinator.state.topic.min.isr", Short, Some("2"), at_least(1), SHARE),
    no_effect("share.coordinator.state.topic.num.partitions", Int, Some("50"), at_least(1), SHARE),
    no_effect("share.coordinator.state.topic.replication.factor", Short, Some("3"), at_least(1), SHARE),
    no_effect("share.coordinator.state.topic.segment.bytes", Int, Some("104857600"), at_least(1), SHARE),
    no_effect("share.coordinator.threads", Int, Some("1"), at_least(1), SHARE),
    no_effect("share.coordinator.write.timeout.ms", Int, Some("5000"), at_least(1), SHARE),
    no_effect("share.fetch.purgatory.purge.interval.requests", Int, Some("1000"), Any, SHARE),
    no_effect("group.streams.assignment.interval.ms", Int, Some("1000"), at_least(0), STREAMS),
    no_effect("group.streams.heartbeat.interval.ms", Int, Some("5000"), at_least(1), STREAMS),
    no_effect("group.streams.initial.rebalance.delay.ms", Int, Some("3000"), at_least(0), STREAMS),
    no_effect("group.streams.max.assignment.interval.ms", Int, Some("15000"), at_least(0), STREAMS),
    no_effect("group.streams.max.heartbeat.interval.ms", Int, Some("15000"), at_least(1), STREAMS),
    no_effect("group.streams.max.session.timeout.ms", Int, Some("60000"), at_least(1), STREAMS),
    no_effect("group.streams.max.size", Int, Some("2147483647"), at_least(1), STREAMS),
    no_effect("group.streams.max.standby.replicas", Int, Some("2"), at_least(0), STREAMS),
    no_effect("group.streams.min.assignment.interval.ms", Int, Some("0"), at_least(0), STREAMS),
    no_effect("group.streams.min.heartbeat.interval.ms", Int, Some("5000"), at_least(1), STREAMS),
    no_effect("group.streams.min.session.timeout.ms", Int, Some("45000"), at_least(1), STREAMS),
    no_effect("group.streams.num.standby.replicas", Int, Some("0"), at_least(0), STREAMS),
    no_effect("group.streams.session.timeout.ms", Int, Some("45000"), at_least(1), STREAMS),
    no_effect("kafka.metrics.polling.interval.secs", Int, Some("10"), at_least(1), METRICS),
    no_effect("kafka.metrics.reporters", List, Some(""), Any, METRICS),
    no_effect("metric.reporters", List, Some("org.apache.kafka.common.metrics.JmxReporter"), Any, METRICS),
    no_effect("metrics.num.samples", Int, Some("2"), at_least(1), METRICS),
    no_effect("metrics.recording.level", String, Some("INFO"), Any, METRICS),
    no_effect("metrics.sample.window.ms", Long, Some("30000"), at_least(1), METRICS),
    no_effect("log.dir.failure.timeout.ms", Long, Some("30000"), at_least(1), ONE_DIRECTORY),
    no_effect("log.flush.offset.checkpoint.interval.ms", Int, Some("60000"), at_least(0), CHECKPOINT),
    no_effect("log.flush.start.offset.checkpoint.interval.ms", Int, Some("60000"), at_least(0), CHECKPOINT),
    no_effect("max.connection.creation.rate", Int, Some("2147483647"), at_least(0), RATE),
    no_effect("queued.max.request.bytes", Long, Some("-1"), Any, QUEUE),
    no_effect("queued.max.requests", Int, Some("500"), at_least(1), QUEUE),
    no_effect("socket.connection.setup.timeout.max.ms", Long, Some("30000"), Any, OUTGOING),
    no_effect("socket.connection.setup.timeout.ms", Long, Some("10000"), Any, OUTGOING),
    no_effect("ssl.allow.dn.changes", Boolean, Some("false"), Any, NEW_CERTIFICATES),
    no_effect("ssl.allow.san.changes", Boolean, Some("false"), Any, NEW_CERTIFICATES),
    refused("ssl.engine.factory.class", Class, None, Any, JSSE),
    refused("ssl.keymanager.algorithm", String, Some("SunX509"), Any, JSSE),
    refused("ssl.provider", String, None, Any, JSSE),
    refused("ssl.secure.random.implementation", String, None, Any, JSSE),
    refused("ssl.trustmanager.algorithm", String, Some("PKIX"), Any, JSSE),
];

const fn at_least(min: i64) -> Allowed {
    Between(min, i64::MAX)
}

const fn no_effect(
    name: &'static str,
    of: Type,
    default: Option<&'static str>,
    allowed: Allowed,
    why: &'static str,
) -> Key {
    Key::without_effect(name, of, default, allowed, why)
}

const fn refused(
    name: &'static str,
    of: Type,
    default: Option<&'static str>,
    allowed: Allowed,
    why: &'static str,
) -> Key {
    Key::refused(name, of, default, allowed, why)
}
