//! The table of keys as text: `docs/configuration.md`, and the help on the command line.
//!
//! The page has only text of the table; a test compares the committed page with it.

use super::broker_keys::honoured_keys;
use super::inert;
use super::key::Key;
use super::topic_keys::TOPIC_KEYS;

const HEAD: &str = "\
# Configuration

Names, meanings, defaults and ranges are those of Apache Kafka 4.3; the last column has every difference.
A value that is set is honoured, refused with a message, or reported at start as having no effect.
An unknown key is reported as well, and refused if it starts with `fullbore.`. Values of Kafka's own configuration
files that have no effect here are reported together in one line.
Generated from the table in `crates/config`; a test compares this page with it. To write it again:
`UPDATE_DOCS=1 cargo test -p fullbore-config committed_page`.
";

/// Returns the text of `docs/configuration.md`.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## The broker\n\nSet in `server.properties` or with `--set key=value`, and read at start. Keys marked `cluster-wide` can also be set\n\
         while the broker runs, for it alone or for every broker, by `kafka-configs --entity-type brokers` or any client's\n\
         IncrementalAlterConfigs. Such a value is stored, and goes before the file. `listeners` and `ssl.*`, which Kafka can\n\
         change while it runs, are read at start; key, certificate and truststore files are read again when they change.\n\n");
    page.push_str(&table(honoured_keys(), true));
    page.push_str(
        "\n## A topic\n\nSet when a topic is created, with `fullbore topics create --config key=value` or any Kafka client, or\n\
         later (`kafka-configs --alter`, IncrementalAlterConfigs). A topic that sets nothing has the broker's value.\n\n",
    );
    page.push_str(&table(TOPIC_KEYS.iter(), false));
    page.push_str(
        "\n## Kafka's broker keys without meaning here\n\nKnown, and shown by DescribeConfigs. In the broker's file a value is reported, or refused unless it is Kafka's default;\n\
         a client that sets one receives the reason.\n\n| key | in the file | why |\n|---|---|---|\n",
    );
    for (name, refused, why) in inert::rows() {
        let then = if refused { "refused" } else { "reported" };
        page.push_str(&format!("| `{name}` | {then} | {why} |\n"));
    }
    page
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

/// Returns every key on two lines, for the command line.
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
    fn help_has_every_key() {
        let text = help();
        assert!(honoured_keys().chain(TOPIC_KEYS).all(|key| text.contains(&format!("  {} (", key.name))));
    }
}
