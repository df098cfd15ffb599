//! The table of keys as text for `docs/configuration.md` and for the help on the command line.
//!
//! The page groups the keys by task, in the order of [`GROUPS`], and takes all its text from the table. A test compares
//! the committed page with the text that this module makes. Each key that has an effect belongs to the first group that
//! names it, and a test fails if no group does.

use super::broker_keys::honoured_keys;
use super::inert;
use super::key::Key;
use super::topic_keys::TOPIC_KEYS;

const HEAD: &str = "\
# Configuration

Names, meanings, defaults and ranges are those of Apache Kafka 4.3; the last column of each table has the differences.
The broker honours a value that is set, refuses it with a message, or reports at start that it has no effect.
An unknown key is reported as well, and refused if it starts with `fullbore.`. The configuration files that Kafka ships
set some keys that have no effect here; as long as you keep these values, one line reports all of them.

Keys of the broker are set in `server.properties` or with `--set key=value`, and read at start. Keys marked
`cluster-wide` can also be set while the broker runs, for one broker or for all of them: with `fullbore configs alter`,
`kafka-configs --entity-type brokers` or any client's IncrementalAlterConfigs. Such a value is stored, and overrides the
file. Kafka can change `listeners` and `ssl.*` at run time; here they are read at start. Only the contents of key,
certificate and truststore files are read again when the files change.

Generated from the table in `crates/config`; a test compares this page with it. To write it again:
`UPDATE_DOCS=1 cargo test -p fullbore-config committed_page`.
";

const TOPICS: &str = "A topic";
const TOPICS_HEAD: &str = "\
Set when a topic is created, with `fullbore topics create --config key=value` or any Kafka client, or later with
`fullbore configs alter`, `kafka-configs --alter` or IncrementalAlterConfigs. A topic that sets nothing has the broker's
value.
";

const INERT: &str = "Kafka's keys without effect";
const INERT_HEAD: &str = "\
The broker knows these keys and shows them in DescribeConfigs. If the broker's file sets such a key, the broker either
reports it, or refuses it unless the value is Kafka's default; the second column shows which of the two. A client that
sets such a key receives the reason.
";

const FIRST: &str = "Ten keys to set first";
const FIRST_HEAD: &str = "\
A broker starts without any of them: one broker on loopback, with its data in `fullbore-data`.
";

/// The keys that most users set first, each with an example and its purpose.
const FIRST_KEYS: &[(&str, &str, &str)] = &[
    ("listeners", "PLAINTEXT://0.0.0.0:9092", "addresses that the broker listens on; the default is loopback only"),
    (
        "advertised.listeners",
        "PLAINTEXT://kafka1.example.com:9092",
        "addresses that clients connect to; required if a listener binds every interface",
    ),
    ("log.dirs", "/var/lib/fullbore", "the data directory"),
    ("node.id", "1", "number of the broker, different on each broker of a cluster"),
    (
        "control.plane",
        "postgres://fullbore@db.example.com/fullbore",
        "the database that makes brokers a cluster; a single broker needs none",
    ),
    ("default.replication.factor", "3", "replicas of a new topic in a cluster"),
    ("min.insync.replicas", "2", "in-sync replicas that `acks=all` requires"),
    ("log.retention.ms", "259200000", "age at which records are deleted: three days here, a week by default"),
    ("diskless.storage", "s3://bucket/prefix", "object store of diskless topics; the same on all brokers of a cluster"),
    (
        "max.idempotence.batches.to.retain",
        "100",
        "batches that a producer may have in flight to a partition; five by default",
    ),
];

/// A group of keys that belong to one task.
struct Group {
    title: &'static str,
    /// The names of the keys, in the order of the page. A name that ends with a star stands for all keys with that
    /// prefix.
    keys: &'static [&'static str],
}

const GROUPS: &[Group] = &[
    Group {
        title: "Cluster and metadata",
        keys: &[
            "node.id",
            "broker.id",
            "broker.rack",
            "control.plane*",
            "initial.broker.*",
            "broker.*",
            "controller.*",
        ],
    },
    Group {
        title: "Network",
        keys: &[
            "listeners",
            "advertised.listeners",
            "listener.*",
            "inter.broker.listener.name",
            "security.inter.broker.protocol",
            "connections.max.idle.ms",
            "socket.send.*",
            "socket.receive.*",
            "socket.listen.*",
            "fullbore.worker.threads",
        ],
    },
    Group { title: "TLS", keys: &["ssl.*", "fullbore.ssl.*"] },
    Group {
        title: "Data directory and segments",
        keys: &[
            "log.dirs",
            "log.dir",
            "log.segment.bytes",
            "log.segment.delete.*",
            "log.roll.*",
            "log.index.*",
            "log.flush.*",
            "log.preallocate",
            "num.recovery.*",
            "fullbore.disk.*",
            "fullbore.lost.*",
            "fullbore.page.*",
        ],
    },
    Group {
        title: "Defaults of topics",
        keys: &[
            "num.partitions",
            "default.replication.factor",
            "min.insync.replicas",
            "unclean.*",
            "auto.create.*",
            "delete.topic.enable",
            "message.max.bytes",
            "log.message.*",
            "compression.type",
            "compression.*",
            "fullbore.produce.validation",
        ],
    },
    Group { title: "Retention", keys: &["log.cleanup.policy", "log.retention.*"] },
    Group { title: "Compaction", keys: &["log.cleaner.*"] },
    Group {
        title: "Idempotent producers",
        keys: &[
            "max.idempotence.*",
            "producer.id.*",
            "fullbore.producers.max",
            "fullbore.reorder.*",
            "fullbore.produce.version.max",
        ],
    },
    Group {
        title: "Consumer groups",
        keys: &[
            "group.coordinator.*",
            "group.consumer.*",
            "fullbore.group.*",
            "group.*",
            "offsets.*",
            "offset.*",
            "fullbore.groups.*",
            "fullbore.offsets.*",
        ],
    },
    Group { title: "Transactions", keys: &["transaction*", "fullbore.transaction*"] },
    Group {
        title: "Replication",
        keys: &["replica.*", "num.replica.*", "fullbore.replica.*", "auto.leader.*", "leader.imbalance.*"],
    },
    Group {
        title: "Diskless topics",
        keys: &["log.diskless.enable", "diskless.*", "inkless.*", "fullbore.diskless.*"],
    },
    Group {
        title: "Limits of connections and requests",
        keys: &["max.connections*", "fullbore.connection.*", "socket.request.*", "fetch.max.bytes", "max.*"],
    },
    Group { title: "Metrics", keys: &["fullbore.admin.listener", "telemetry.*"] },
];

impl Group {
    /// Returns the key's position among the names of the group; None if the group does not name the key.
    fn position(&self, key: &str) -> Option<usize> {
        self.keys.iter().position(|name| match name.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => key == *name,
        })
    }

    /// Returns the keys of this group, without those that belong to an earlier group.
    fn keys(&self) -> impl Iterator<Item = &'static Key> {
        let mut keys: Vec<(usize, &Key)> = honoured_keys()
            .filter(|key| group_of(key.name).is_some_and(|group| group.title == self.title))
            .filter_map(|key| Some((self.position(key.name)?, key)))
            .collect();
        keys.sort_by_key(|(position, _)| *position);
        keys.into_iter().map(|(_, key)| key)
    }
}

/// Returns the group of a key: the first group that lists the key's full name, or otherwise the first group with a
/// matching prefix. None if there is no such group.
fn group_of(key: &str) -> Option<&'static Group> {
    let exact = GROUPS.iter().find(|group| group.keys.contains(&key));
    exact.or_else(|| GROUPS.iter().find(|group| group.position(key).is_some()))
}

/// Returns the text of `docs/configuration.md`.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## Contents\n\n");
    let titles = GROUPS.iter().map(|group| group.title);
    for title in [FIRST].into_iter().chain(titles).chain([TOPICS, INERT]) {
        page.push_str(&format!("- [{title}](#{})\n", anchor(title)));
    }
    page.push_str(&format!("\n## {FIRST}\n\n{FIRST_HEAD}\n| example | purpose |\n|---|---|\n"));
    for (key, example, purpose) in FIRST_KEYS {
        page.push_str(&format!("| `{key}={example}` | {purpose} |\n"));
    }
    for group in GROUPS {
        page.push_str(&format!("\n## {}\n\n{}", group.title, table(group.keys(), true)));
    }
    page.push_str(&format!("\n## {TOPICS}\n\n{TOPICS_HEAD}\n{}", table(TOPIC_KEYS.iter(), false)));
    page.push_str(&format!("\n## {INERT}\n\n{INERT_HEAD}\n| why | in the file | keys |\n|---|---|---|\n"));
    for (why, refused, names) in inert_by_reason() {
        let then = if refused { "refused" } else { "reported" };
        page.push_str(&format!("| {why} | {then} | {} |\n", names.join("<br>")));
    }
    page
}

/// Returns each reason why keys have no effect, together with the names of its keys in backquotes. The flag is true if
/// the broker refuses these keys, and false if it only warns.
fn inert_by_reason() -> Vec<(&'static str, bool, Vec<String>)> {
    let mut rows: Vec<(&str, bool, Vec<String>)> = Vec::new();
    for (name, refused, why) in inert::rows() {
        let name = format!("`{name}`");
        match rows.iter_mut().find(|row| (row.0, row.1) == (why, refused)) {
            Some((_, _, names)) => names.push(name),
            None => rows.push((why, refused, vec![name])),
        }
    }
    rows
}

/// Returns the anchor that GitHub and mdbook give a heading.
fn anchor(title: &str) -> String {
    title.to_lowercase().replace(' ', "-").replace('\'', "")
}

fn table(keys: impl Iterator<Item = &'static Key>, of_broker: bool) -> String {
    let update = |text: &'static str| if of_broker { text } else { "" };
    let mut text = format!(
        "| key | default | allowed | {}meaning | differs from Kafka |\n|---|---|---|{}---|---|\n",
        update("update | "),
        update("---|")
    );
    for key in keys {
        text.push_str(&format!(
            "| `{}` | {} | {} | {}{} | {} |\n",
            key.name,
            default_text(key),
            key.allowed_text(),
            update(if key.dynamic { "cluster-wide | " } else { "at start | " }),
            key.doc,
            key.differs.unwrap_or("")
        ));
    }
    text
}

fn default_text(key: &Key) -> String {
    match key.synonyms.first().filter(|_| key.default.is_none() || key.at_creation) {
        Some(synonym) if key.at_creation => format!("that of `{synonym}` when the topic is created"),
        Some(synonym) => format!("that of `{synonym}`"),
        None => match key.default {
            None => "unset".to_owned(),
            Some("") => "empty".to_owned(),
            Some(value) => format!("`{value}`"),
        },
    }
}

/// Returns the help for the command line, with two lines for every key.
pub fn help() -> String {
    let mut text = "Broker keys:\n".to_owned();
    honoured_keys().for_each(|key| text.push_str(&help_of(key)));
    text.push_str("\nTopic keys:\n");
    TOPIC_KEYS.iter().for_each(|key| text.push_str(&help_of(key)));
    text
}

fn help_of(key: &Key) -> String {
    let default = default_text(key).replace('`', "");
    let differs = key.differs.map(|how| format!(" Differs from Kafka: {how}.")).unwrap_or_default();
    format!("  {} ({}; default: {default})\n      {}{differs}\n", key.name, key.allowed_text(), key.doc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BrokerConfig, Properties};

    #[test]
    fn committed_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, markdown()).expect("docs is writable");
        }
        let committed = std::fs::read_to_string(path).expect("docs/configuration.md is there");
        assert!(
            committed == markdown(),
            "docs/configuration.md is old: UPDATE_DOCS=1 cargo test -p fullbore-config committed_page"
        );
    }

    #[test]
    fn every_honoured_key_is_on_the_page_once() {
        let page = markdown();
        for key in honoured_keys() {
            assert!(group_of(key.name).is_some(), "{}: name it in GROUPS", key.name);
        }
        let shown: usize = GROUPS.iter().map(|group| group.keys().count()).sum();
        assert_eq!(shown, honoured_keys().count());
        assert!(GROUPS.iter().all(|group| group.keys().next().is_some()));
        let names = GROUPS.iter().flat_map(|group| group.keys).filter(|name| !name.ends_with('*'));
        for name in names {
            assert!(page.contains(&format!("\n| `{name}` | ")), "{name} is no key with an effect");
        }
    }

    #[test]
    fn keys_to_set_first_are_accepted_together() {
        let mut typed = Properties::default();
        FIRST_KEYS.iter().for_each(|(key, example, _)| typed.set(*key, *example));
        let (_, warnings) = BrokerConfig::from_properties(&typed).expect("examples are allowed");
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn help_has_every_key() {
        let text = help();
        assert!(honoured_keys().chain(TOPIC_KEYS).all(|key| text.contains(&format!("  {} (", key.name))));
    }
}
