//! Writes one log line for each committed command that changes topics, settings or features. The line contains the
//! changes and the client that requested them.
//!
//! Other commands, such as ISR changes and reservations of producer ids, are not logged here. Invariants: secrets are
//! never logged. A line stays short even if a request contains many names: it shows the first few names and the total
//! number.

use std::fmt::Write;
use std::sync::Arc;

use fullbore_tls::is_secret;

use super::command::{
    AlterBrokerConfigs, AlterResourceConfigs, AlterTopicConfigs, BrokerScope, ConfigChange, ConfigsCommand, Refusal,
    TopicsCommand,
};
use super::image::Topic;
use super::pending::{Pending, PendingCommand};
use fullbore_config::Resource;

/// The log target of the lines that this module writes.
pub use fullbore_host::files::CHANGES;
/// Maximum number of topics or other resources whose names one line shows.
const NAMED_MAX: usize = 10;
/// Maximum number of settings that one line shows for a resource.
const SETTINGS_MAX: usize = 20;
/// Maximum number of characters of a name or value that one line shows.
const CHARS_MAX: usize = 256;

/// Logs the changes of a committed command. Does nothing if the command changed nothing.
pub(super) fn log(command: &PendingCommand, by: &str) {
    let changed = match command {
        PendingCommand::Topics(Pending { command, answer: Some(topics), .. }) => topics_changed(command, topics),
        PendingCommand::Configs(Pending { command, answer: Some(each), .. }) => configs_changed(command, each),
        _ => None,
    };
    if let Some((what, changed)) = changed
        && !changed.is_empty()
    {
        let (count, names) = (changed.len(), named(&changed));
        tracing::info!(target: CHANGES, by, count, names, "{what}");
    }
}

/// The text of the line, and the resources that changed. `None` if the command changed nothing.
type Changed = Option<(&'static str, Vec<String>)>;

fn topics_changed(command: &TopicsCommand, topics: &[Result<Arc<Topic>, Refusal>]) -> Changed {
    Some(match command {
        TopicsCommand::Create(requested) if !requested.validate_only => ("topics created", each_done(topics, created)),
        TopicsCommand::Grow(requested) if !requested.validate_only => {
            ("partitions added", each_done(topics, |topic| format!("{} ({} now)", topic.name, topic.partition_count())))
        }
        TopicsCommand::Delete(_) => {
            ("topics deleted", each_done(topics, |topic| format!("{} ({})", topic.name, topic.id)))
        }
        TopicsCommand::Alter(requested) if !requested.validate_only => {
            ("topics configured", with_settings(of_topics(requested), topics))
        }
        TopicsCommand::Create(_) | TopicsCommand::Grow(_) | TopicsCommand::Alter(_) => return None,
    })
}

fn configs_changed(command: &ConfigsCommand, each: &[Result<(), Refusal>]) -> Changed {
    Some(match command {
        ConfigsCommand::Brokers(requested) if !requested.validate_only => {
            ("brokers configured", with_settings(of_brokers(requested), each))
        }
        ConfigsCommand::Resources(requested) if !requested.validate_only => {
            ("groups or clients' metrics configured", with_settings(of_resources(requested), each))
        }
        ConfigsCommand::Features(requested) if !requested.validate_only => {
            let done = requested.updates.iter().zip(each).filter(|(_, outcome)| outcome.is_ok());
            (
                "features updated",
                done.map(|(update, _)| format!("{} ({})", shown(&update.name), update.level)).collect(),
            )
        }
        ConfigsCommand::Brokers(_) | ConfigsCommand::Resources(_) | ConfigsCommand::Features(_) => return None,
    })
}

fn each_done(topics: &[Result<Arc<Topic>, Refusal>], describe: impl Fn(&Topic) -> String) -> Vec<String> {
    topics.iter().flatten().map(|topic| describe(topic)).collect()
}

fn created(topic: &Topic) -> String {
    let mut text = format!("{} ({}; partitions={}", topic.name, topic.id, topic.partition_count());
    let set = topic.overrides.iter().map(|(name, value)| setting(name, '=', value));
    extend(&mut text, ", ", set.collect());
    text.push(')');
    text
}

type Changes<'a> = (String, &'a [(String, ConfigChange)]);

fn of_topics(requested: &AlterTopicConfigs) -> impl Iterator<Item = Changes<'_>> {
    requested.topics.iter().map(|topic| (topic.name.clone(), topic.changes.as_slice()))
}

fn of_brokers(requested: &AlterBrokerConfigs) -> impl Iterator<Item = Changes<'_>> {
    requested.brokers.iter().map(|broker| {
        let whom = match broker.scope {
            BrokerScope::This => "this broker",
            BrokerScope::Every => "every broker",
        };
        (whom.to_owned(), broker.changes.as_slice())
    })
}

fn of_resources(requested: &AlterResourceConfigs) -> impl Iterator<Item = Changes<'_>> {
    requested.resources.iter().map(|requested| {
        let kind = match requested.resource {
            Resource::Group => "group",
            Resource::ClientMetrics => "clients' metrics",
        };
        (format!("{kind} {}", shown(&requested.name)), requested.changes.as_slice())
    })
}

fn with_settings<'a, T>(requested: impl Iterator<Item = Changes<'a>>, each: &[Result<T, Refusal>]) -> Vec<String> {
    let done = requested.zip(each).filter(|(_, outcome)| outcome.is_ok());
    done.map(|((name, changes), _)| format!("{name} ({})", settings(changes))).collect()
}

fn settings(changes: &[(String, ConfigChange)]) -> String {
    let each = changes.iter().map(|(name, change)| match change {
        ConfigChange::Set(value) => setting(name, '=', value),
        ConfigChange::Append(value) => setting(name, '+', value),
        ConfigChange::Subtract(value) => setting(name, '-', value),
        ConfigChange::Delete => format!("{} unset", shown(name)),
        ConfigChange::DeleteAll => "all else unset".to_owned(),
    });
    let mut text = String::new();
    extend(&mut text, "", each.collect());
    text
}

fn setting(name: &str, sign: char, value: &str) -> String {
    let value = if is_secret(name) { "[hidden]".to_owned() } else { shown(value) };
    match sign {
        '=' => format!("{}={value}", shown(name)),
        _ => format!("{} {sign}{value}", shown(name)),
    }
}

fn extend(text: &mut String, first: &str, settings: Vec<String>) {
    let mut separator = first;
    for one in settings.iter().take(SETTINGS_MAX) {
        let _ = write!(text, "{separator}{one}");
        separator = ", ";
    }
    if settings.len() > SETTINGS_MAX {
        let _ = write!(text, " and {} more", settings.len() - SETTINGS_MAX);
    }
}

fn named(changed: &[String]) -> String {
    let mut names = changed.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if changed.len() > NAMED_MAX {
        let _ = write!(names, " and {} more", changed.len() - NAMED_MAX);
    }
    names
}

/// Escapes a client's text so that it fits on one line.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::command::{AlterBrokerConfig, AlterTopicConfig};
    use super::*;
    use fullbore_wire::ErrorCode;

    fn refused<T>() -> Result<T, Refusal> {
        Err(Refusal::new(ErrorCode::INVALID_CONFIG, "no"))
    }

    fn broker_config(changes: Vec<(&str, ConfigChange)>) -> ConfigsCommand {
        let changes = changes.into_iter().map(|(name, change)| (name.to_owned(), change)).collect();
        let brokers = vec![AlterBrokerConfig { scope: BrokerScope::Every, changes }];
        ConfigsCommand::Brokers(AlterBrokerConfigs { brokers, validate_only: false })
    }

    #[test]
    fn secret_settings_are_hidden_in_the_log() {
        let set = |name| (name, ConfigChange::Set("TOPSECRET".to_owned()));
        let secrets = ["ssl.key.password", "ssl.keystore.key", "listener.name.in.ssl.keystore.certificate.chain"];
        let command = broker_config(secrets.map(set).into_iter().chain([set("log.retention.ms")]).collect());
        let (_, reported) = configs_changed(&command, &[Ok(())]).expect("told");
        assert_eq!(reported[0].matches("TOPSECRET").count(), 1, "{reported:?}");
        assert_eq!(reported[0].matches("[hidden]").count(), 3, "{reported:?}");
    }

    #[test]
    fn long_values_with_line_breaks_give_one_short_line() {
        let long = ConfigChange::Set("\n".repeat(100_000));
        let command = broker_config((0..1000).map(|_| ("a.key", long.clone())).collect());
        let (_, reported) = configs_changed(&command, &[Ok(())]).expect("told");
        assert!(reported[0].len() < 20_000 && !reported[0].contains('\n'), "{}", reported[0].len());
        assert!(reported[0].ends_with(" and 980 more)"));
        let names: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
        assert_eq!(named(&names), "t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 990 more");
    }

    #[test]
    fn refused_and_validated_changes_are_not_logged() {
        let topic = |name: &str| AlterTopicConfig {
            name: name.to_owned(),
            changes: vec![
                ("retention.ms".to_owned(), ConfigChange::Set("7".to_owned())),
                ("cleanup.policy".to_owned(), ConfigChange::Append("compact".to_owned())),
                ("segment.ms".to_owned(), ConfigChange::Delete),
            ],
        };
        let mut requested = AlterTopicConfigs { topics: vec![topic("a"), topic("b")], validate_only: false };
        let reported = with_settings(of_topics(&requested), &[refused(), Ok(())]);
        assert_eq!(reported, ["b (retention.ms=7, cleanup.policy +compact, segment.ms unset)"]);
        requested.validate_only = true;
        assert!(topics_changed(&TopicsCommand::Alter(requested), &[]).is_none());
    }
}
