//! The settings of a consumer by Kafka's names: settings of its fetches, and of its membership in a group.
//!
//! The settings of connections are in [`security`](crate::security). The group's name is not a setting, because
//! commands have a flag for it. `docs/consumer.md` is generated from these tables.

use crate::consume::{FetchSettings, StartOffset};
use crate::error::ConfigError;
use crate::group::{Assignor, GroupConfig, Protocol};
use crate::key::{self, Key, Setting, boolean};
use fullbore_wire::Text;
use std::time::Duration;

/// The settings of a consumer that may be in a group, with Kafka's names and defaults.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// The settings of fetches, and where a partition starts (auto.offset.reset).
    pub fetch: FetchSettings,
    /// The settings of the membership. The group and the topics have no key here, so the caller sets them.
    pub group: GroupConfig,
    /// True if the consumer commits offsets (enable.auto.commit).
    pub commits: bool,
    /// The time between two commits (auto.commit.interval.ms).
    pub commit_interval: Duration,
    /// True if patterns of topic names do not match internal topics (exclude.internal.topics).
    pub exclude_internal: bool,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        ConsumerConfig {
            fetch: FetchSettings { reset: Some(StartOffset::Latest), ..FetchSettings::default() },
            group: GroupConfig::new(Text::default(), Vec::new()),
            commits: true,
            commit_interval: Duration::from_secs(5),
            exclude_internal: true,
        }
    }
}

/// Settings of fetches, by name.
const FETCH_KEYS: &[Key<FetchSettings>] = crate::keys! {
    "check.crcs", "true", "Verifies the checksum of each batch.",
        |c, v| c.check_crcs = boolean(v)?;
    "fetch.buffer.memory", "67108864", "Limit in bytes for records that the consumer has requested but not read yet, \
         for all leaders together. One more response of each leader may exceed it. To Fullbore's leaders, which read \
         ahead, the consumer sends as many fetches at a time as fill the link. To any other leader it sends one \
         larger fetch at a time, for at most half of the limit. Kafka has no such setting.",
        |c, v| c.buffer_memory = count(v)?;
    "fetch.max.bytes", "52428800", "Largest number of bytes of records in the response to a fetch; the first batch is \
         always complete.",
        |c, v| c.max_bytes = count(v)?;
    "fetch.max.wait.ms", "500", "Longest time for which the broker waits until fetch.min.bytes are available.",
        |c, v| c.max_wait_ms = count(v)?;
    "fetch.min.bytes", "1", "Number of bytes of records for which the broker waits before it responds to a fetch.",
        |c, v| c.min_bytes = count(v)?;
    "isolation.level", "read_uncommitted", "read_committed leaves out records of open and aborted transactions.",
        |c, v| c.read_committed = read_committed(v)?;
    "max.partition.fetch.bytes", "1048576", "Initial limit in bytes for the records of one partition in a response. \
         If the limit reduces throughput, the consumer raises it, but not above fetch.max.bytes or the free part of \
         fetch.buffer.memory. With Fullbore's leaders, which read ahead, the limit applies to all partitions of a \
         response together. `perf consume` also sets it by `--fetch-size`.",
        |c, v| c.partition_max_bytes = count(v)?;
};

/// The settings of a consumer without those of its fetches, by name.
const KEYS: &[Key<ConsumerConfig>] = crate::keys! {
    "auto.commit.interval.ms", "5000", "Time between two commits. A commit has the offsets of the records that the command has written to its output.",
        |c, v| c.commit_interval = milliseconds(v)?;
    "auto.offset.reset", "latest", "Where to start in a partition that has no committed offset, or whose next records \
         were deleted before they were read. earliest: at the log start; latest: at the log end; none: the command \
         ends with an error. If the log loses records after they were read, earliest and latest continue at the \
         first lost offset. With `--from-beginning` the default is earliest; without `--group` it is none. Kafka's \
         by_duration is refused: use `--offset s@TIME` to start at a time.",
        |c, v| c.fetch.reset = reset(v)?;
    "enable.auto.commit", "true", "Commits the offsets of the records that the command has written to its output, at intervals and at the end.",
        |c, v| c.commits = boolean(v)?;
    "exclude.internal.topics", "true", "Leaves internal topics out of `--include`.",
        |c, v| c.exclude_internal = boolean(v)?;
    "group.instance.id", "", "Id of a static member, which keeps its partitions if it is away for less than \
         session.timeout.ms. `--group-instance-id` sets this key too.",
        |c, v| c.group.instance = Some(v.into());
    "group.protocol", "classic", "classic: one of the members computes the assignment of partitions; consumer: the \
         broker computes it (KIP-848). `--group-protocol` sets this key too.",
        |c, v| c.group.protocol = protocol(v)?;
    "group.remote.assignor", "", "Assignor that the broker uses, uniform or range; if empty, the broker chooses. Only \
         with group.protocol=consumer.",
        |c, v| c.group.remote_assignor = Some(v.into());
    "heartbeat.interval.ms", "3000", "Time between two heartbeats of a member. Only with group.protocol=classic; otherwise the broker sets it.",
        |c, v| c.group.heartbeat_interval = milliseconds(v)?;
    "max.poll.interval.ms", "300000", "Longest time in a rebalance for a member to give up partitions and rejoin. \
         Unlike in Kafka, the time between polls is not limited: a member whose output is blocked stays in its group.",
        |c, v| c.group.rebalance_timeout = milliseconds(v)?;
    "metadata.max.age.ms", "300000", "Time between two checks for new topics, new partitions and new leaders. Each check \
         of the leaders goes to another broker than the one before.",
        |c, v| c.group.metadata_max_age = milliseconds(v)?;
    "partition.assignment.strategy", "range,roundrobin", "range, roundrobin, cooperative-sticky, or several, separated by commas; the names of Kafka's classes are accepted, too. cooperative-sticky alone makes rebalances cooperative. Only with group.protocol=classic. (Kafka's default is range and cooperative-sticky.)",
        |c, v| c.group.assignors = assignors(v)?;
    "session.timeout.ms", "45000", "The group removes a member that sends no heartbeat for this time. Only with \
         group.protocol=classic; otherwise the broker sets it.",
        |c, v| c.group.session_timeout = milliseconds(v)?;
};

impl FetchSettings {
    /// Returns the settings of fetches.
    pub fn settings() -> impl Iterator<Item = Setting> {
        FETCH_KEYS.iter().map(|key| key.setting)
    }

    /// Sets one setting by its name in Kafka. Returns false if fetches have no setting of this name.
    ///
    /// # Errors
    /// Returns [`ConfigError::Value`] with the allowed values, if the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        key::set(FETCH_KEYS, self, name, value)
    }
}

impl ConsumerConfig {
    /// Returns the settings of a consumer, including those of its fetches.
    pub fn settings() -> impl Iterator<Item = Setting> {
        KEYS.iter().map(|key| key.setting).chain(FetchSettings::settings())
    }

    /// Sets one setting by its name in Kafka. Returns false if consumers have no setting of this name.
    ///
    /// # Errors
    /// Returns [`ConfigError::Value`] with the allowed values, if the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        Ok(key::set(KEYS, self, name, value)? || self.fetch.set(name, value)?)
    }
}

fn count(value: &str) -> Result<i32, String> {
    value.parse().ok().filter(|n| *n >= 0).ok_or_else(|| "must be 0 or more".to_owned())
}

fn milliseconds(value: &str) -> Result<Duration, String> {
    let parsed = value.parse::<u32>().ok().filter(|ms| *ms > 0);
    let allowed = || "must be a number of milliseconds above 0".to_owned();
    parsed.map(|ms| Duration::from_millis(ms.into())).ok_or_else(allowed)
}

fn read_committed(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "read_committed" => Ok(true),
        "read_uncommitted" => Ok(false),
        _ => Err("must be read_committed or read_uncommitted".to_owned()),
    }
}

fn reset(value: &str) -> Result<Option<StartOffset>, String> {
    match value {
        "earliest" => Ok(Some(StartOffset::Earliest)),
        "latest" => Ok(Some(StartOffset::Latest)),
        "none" => Ok(None),
        _ => Err("must be earliest, latest or none".to_owned()),
    }
}

fn protocol(value: &str) -> Result<Protocol, String> {
    match value.to_ascii_lowercase().as_str() {
        "classic" => Ok(Protocol::Classic),
        "consumer" => Ok(Protocol::Consumer),
        _ => Err("must be classic or consumer".to_owned()),
    }
}

fn assignors(value: &str) -> Result<Vec<Assignor>, String> {
    let named: Option<Vec<Assignor>> = value.split(',').map(|name| Assignor::named(name.trim())).collect();
    named.ok_or_else(|| "must be range, roundrobin or cooperative-sticky, or several with commas".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Security;

    /// The keys of Kafka's consumer that are not settings here, each with a sentence about the alternative.
    const OTHERS: &[(&str, &str)] = &[
        ("allow.auto.create.topics", "The consumer never creates a topic."),
        ("client.rack", "The consumer reads from leaders."),
        (
            "default.api.timeout.ms, request.timeout.ms",
            "Fixed: 30 s for each response. If a partition has no leader, or its leader refuses the fetch, the command retries until it ends. With `--exit` it retries for `--timeout`.",
        ),
        ("group.id", "`--group` names the group."),
        ("interceptor.classes, metric.reporters", "Java classes cannot be loaded here."),
        (
            "key.deserializer, value.deserializer",
            "Ignored without a message, since scripts set them. Keys and values are bytes; flags choose how they are printed.",
        ),
        ("max.poll.records", "Records are printed as they arrive."),
        ("receive.buffer.bytes, send.buffer.bytes", "The system chooses."),
        (
            "reconnect.backoff.ms, reconnect.backoff.max.ms, retry.backoff.ms, retry.backoff.max.ms",
            "Fixed: a retry follows after 100 ms, or after 1 s if failures continue.",
        ),
        ("sasl.*", "Refused: SASL is not offered yet."),
        ("socket.connection.setup.timeout.ms", "10 s."),
    ];

    fn table<'a>(rows: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> String {
        let row = |(key, default, doc): (&str, &str, &str)| {
            format!("| `{key}` | {default} | {} |\n", doc.replace('|', "\\|"))
        };
        let mut rows: Vec<String> = rows.map(row).collect();
        rows.sort();
        format!("| key | default | what it does |\n|---|---|---|\n{}", rows.concat())
    }

    fn rows(
        settings: impl Iterator<Item = Setting>,
    ) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        settings.map(|setting| (setting.name, setting.default, setting.doc))
    }

    /// Builds the text of docs/consumer.md.
    fn page() -> String {
        let mut page = "\
# Consumer configuration

Settings of `fullbore consume` (`-X KEY=VALUE`, `--command-config FILE`) and of `fullbore perf consume`
(`--command-property KEY=VALUE`, `--command-config FILE`). Names and defaults are Kafka's. If a default differs,
its line also shows Kafka's default.

    fullbore consume --topic orders --group workers --exit -X auto.offset.reset=earliest --bootstrap-server 127.0.0.1:9092

A key that is not on this page has no effect. A notice on standard error then names the key, and the key that was
probably meant: `fetch.min.byte: has no effect on this consumer; did you mean fetch.min.bytes?` It omits the value,
which may be a secret.

The command ends with an error if a value is not allowed, or if a `sasl.*` key is set. It also ends if a `ssl.*` key is
set without `security.protocol=SSL`, since the connection would not be encrypted.

Generated from the tables in `crates/client/src/{consumer_config,security}.rs`; a test compares this page with them. To
write it again: `UPDATE_DOCS=1 cargo test -p fullbore-client committed_page`.

- [Fetches](#fetches)
- [Groups and commits](#groups-and-commits)
- [Connections](#connections)
- [Kafka's other keys](#kafkas-other-keys)

## Fetches

For `consume` and `perf consume`.

"
        .to_owned();
        page += &table(rows(FetchSettings::settings()));
        page += "
## Groups and commits

These keys are for `consume`. Without `--group`, only `exclude.internal.topics`, `metadata.max.age.ms` and
`auto.offset.reset` have an effect. `auto.offset.reset` then applies if records were deleted before they were read.

";
        page += &table(rows(KEYS.iter().map(|key| key.setting)));
        page += "\n## Connections\n\nFor every command that connects to a cluster.\n\n";
        let own = [
            (
                "bootstrap.servers",
                "localhost:9092",
                "host:port of the brokers to which the command connects first, separated by commas; `--bootstrap-server` overrides it.",
            ),
            (
                "client.id",
                "",
                "Name of the client, sent with every request. The default is fullbore-consume, or with `perf consume` perf-consumer-client as in Kafka's tool.",
            ),
        ];
        page += &table(own.into_iter().chain(rows(Security::settings())));
        page += "\n## Kafka's other keys\n\nThese keys have no effect. A notice reports each of them, unless its line names an exception.\n\n| key | here |\n|---|---|\n";
        for (keys, here) in OTHERS {
            page += &format!("| `{}` | {here} |\n", keys.replace(", ", "`, `"));
        }
        page
    }

    #[test]
    fn committed_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/consumer.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, page()).expect("docs is writable");
        }
        let committed = std::fs::read_to_string(path).expect("docs/consumer.md is there");
        assert!(
            committed == page(),
            "docs/consumer.md is old: UPDATE_DOCS=1 cargo test -p fullbore-client committed_page"
        );
    }

    #[test]
    fn the_table_and_the_defaults_agree() {
        let mut set = ConsumerConfig::default();
        for setting in ConsumerConfig::settings().filter(|setting| !setting.default.is_empty()) {
            assert!(set.set(setting.name, setting.default).expect(setting.name), "{}", setting.name);
        }
        assert_eq!(format!("{set:?}"), format!("{:?}", ConsumerConfig::default()));
    }

    #[test]
    fn keys_that_the_page_lists_as_without_effect_are_not_settings() {
        let mut config = ConsumerConfig::default();
        for key in OTHERS.iter().flat_map(|(keys, _)| keys.split(", ")) {
            assert!(!config.set(key, "1").expect(key), "{key}");
        }
    }

    #[test]
    fn a_refused_value_is_reported_with_its_key_and_the_allowed_values() {
        for (key, value, expected) in [
            ("fetch.min.bytes", "-1", "must be 0 or more"),
            ("check.crcs", "yes", "must be true or false"),
            ("session.timeout.ms", "0", "must be a number of milliseconds above 0"),
            ("auto.offset.reset", "by_duration:P1D", "must be earliest, latest or none"),
            ("group.protocol", "eager", "must be classic or consumer"),
            ("partition.assignment.strategy", "sticky", "must be range, roundrobin or cooperative-sticky"),
            ("isolation.level", "x", "must be read_committed or read_uncommitted"),
        ] {
            let refused = ConsumerConfig::default().set(key, value).expect_err(key).to_string();
            assert!(refused.starts_with(&format!("{key}={value}: {expected}")), "{refused}");
        }
    }
}
