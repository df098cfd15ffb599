//! Tips for errors in command lines: words of Kafka's tools, names without their flags, and malformed numbers.
//!
//! Invariant: a tip about a word of another program names a command or flag of this program, or states that this
//! program has none.

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

/// Commands of other programs, without `kafka-` and `.sh`, each with a tip about the corresponding command of this
/// program.
const COMMANDS: [(&str, &str); 25] = [
    ("acl", ACLS),
    ("acls", ACLS),
    ("broker", BROKERS),
    ("brokers", BROKERS),
    ("broker-api-versions", "write `fullbore api-versions`"),
    ("client-metrics", "write `fullbore configs describe --entity-type client-metrics`"),
    ("config", CONFIGS),
    ("configs", CONFIGS),
    ("console-consumer", "write `fullbore consume --topic TOPIC`"),
    ("console-producer", "write `fullbore produce --topic TOPIC`"),
    ("consumer-group", GROUPS),
    ("consumer-groups", GROUPS),
    ("consumer-perf-test", "write `fullbore perf consume`"),
    ("delete-records", "write `fullbore topics delete-records`"),
    ("get-offsets", "write `fullbore topics offsets`"),
    ("group", GROUPS),
    ("leader-election", "write `fullbore topics elect-leaders`"),
    ("metadata", "write `fullbore info`"),
    ("producer-perf-test", "write `fullbore perf produce`"),
    ("server-start", "write `fullbore serve --config server.properties`"),
    ("server-stop", "SIGTERM stops `fullbore serve`; `fullbore cluster down` stops a cluster"),
    ("start", "`fullbore serve` starts one broker, `fullbore cluster up` several"),
    ("topic", TOPICS),
    ("topics", TOPICS),
    ("users", "SASL is not offered yet"),
];
const ACLS: &str = "ACLs are not offered yet";
const BROKERS: &str = "`fullbore info` lists the brokers, `fullbore serve` starts one";
const CONFIGS: &str = "write `fullbore configs`";
const GROUPS: &str = "write `fullbore groups`";
const TOPICS: &str = "write `fullbore topics`";

/// Flags of other programs that name brokers, by addresses or by ids.
const BROKER_FLAGS: [&str; 3] = ["--broker-list", "--brokers", "--broker"];
/// Flags of this program for the ids of brokers.
const BROKER_IDS: [&str; 2] = ["broker-list", "broker-id"];
/// The positional argument for names of topics, as clap's errors write it.
const NAMES: &str = "[TOPIC]...";
/// Flags that change the configuration of a topic in Kafka's tools. Other commands have a `--config` with another
/// meaning.
const CONFIG_FLAGS: [&str; 3] = ["--config", "--add-config", "--delete-config"];
const ALTER: &str = "to change a configuration, write `fullbore configs alter --topic TOPIC --add-config KEY=VALUE`";
const ZOOKEEPER: &str = "there is no ZooKeeper; name a broker with --bootstrap-server HOST:PORT";
const BOOTSTRAP: &str = "name a broker with --bootstrap-server HOST:PORT";

/// Adds a tip to an error, and removes clap's own suggestions. `typed` is the command line, in which a flag like
/// `--create` was replaced by the subcommand `create`.
pub fn add(error: &mut Error, typed: &[OsString], program: &Command) {
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => of_command(&text(error, ContextKind::InvalidSubcommand)),
        ErrorKind::UnknownArgument => of_argument(&text(error, ContextKind::InvalidArg), typed, program),
        ErrorKind::ValueValidation => of_number(error),
        ErrorKind::ArgumentConflict => of_names(error),
        _ => None,
    };
    if let Some(tip) = tip {
        for guess in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
            error.remove(guess);
        }
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
}

fn text(error: &Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    }
}

fn of_command(word: &str) -> Option<String> {
    let name = word.strip_suffix(".sh").unwrap_or(word);
    let name = name.strip_prefix("kafka-").unwrap_or(name);
    COMMANDS.iter().find(|(other, _)| *other == name).map(|(_, here)| (*here).to_owned())
}

/// Returns the tip about a flag of another program, or about a name without its flag, if there is one.
fn of_argument(argument: &str, typed: &[OsString], program: &Command) -> Option<String> {
    if argument == "--zookeeper" {
        return Some(ZOOKEEPER.to_owned());
    }
    if BROKER_FLAGS.contains(&argument) {
        return Some(of_broker(argument, typed, program));
    }
    let is_of_topics = typed.get(1).is_some_and(|word| word == "topics");
    if is_of_topics && CONFIG_FLAGS.contains(&argument) {
        return Some(ALTER.to_owned());
    }
    let path = commands_before(argument, typed, program);
    let command = path.last().unwrap_or(&program);
    let is_of_groups = path.iter().any(|command| command.get_name() == "groups");
    let flag = if is_of_groups { "group" } else { "topic" };
    let is_known = command.get_arguments().any(|known| known.get_long() == Some(flag));
    let is_given = typed.iter().any(|word| word.to_str().is_some_and(|word| word.strip_prefix("--") == Some(flag)));
    (is_known && !argument.starts_with('-')).then(|| match is_given {
        true => format!("a pattern needs quotes, as in --{flag} 'test-.*', or the shell replaces it by names of files"),
        false => format!("write --{flag} {argument}"),
    })
}

/// Returns the command and subcommands to which `argument` was given.
fn commands_before<'a>(argument: &str, typed: &[OsString], program: &'a Command) -> Vec<&'a Command> {
    let mut path = Vec::new();
    for word in typed.iter().skip(1).take_while(|word| word.to_str() != Some(argument)) {
        let command = path.last().copied().unwrap_or(program);
        path.extend(word.to_str().and_then(|word| command.find_subcommand(word)));
    }
    path
}

/// Returns the tip about an unknown flag that names brokers. A value of numbers means ids, any other value means
/// addresses.
fn of_broker(flag: &str, typed: &[OsString], program: &Command) -> String {
    let mut words =
        typed.iter().filter_map(|word| word.to_str()).skip_while(|word| word.split('=').next() != Some(flag));
    let value = words.next().and_then(|word| word.split_once('=')).map(|(_, value)| value).or(words.next());
    let value = value.filter(|value| value.split(',').all(|id| id.parse::<i32>().is_ok()));
    let Some(ids) = value else { return BOOTSTRAP.to_owned() };
    let path = commands_before(flag, typed, program);
    let command = path.last().unwrap_or(&program);
    let is_known = |flag: &&str| command.get_arguments().any(|known| known.get_long() == Some(*flag));
    match BROKER_IDS.into_iter().find(is_known) {
        Some(flag) => format!("write --{flag} {ids}; `fullbore info` lists the brokers"),
        None => "this command has no flag for ids of brokers; `fullbore info` lists the brokers".to_owned(),
    }
}

/// Returns the tip about a further name after `--topic NAME`. Usually the shell has expanded a pattern to several
/// names. Returns `None` for any other error.
fn of_names(error: &Error) -> Option<String> {
    let context: Vec<String> = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .into_iter()
        .filter_map(|kind| match error.get(kind)? {
            ContextValue::String(text) => Some(text.clone()),
            ContextValue::Strings(texts) => Some(texts.join(" ")),
            _ => None,
        })
        .collect();
    let is_of_both = context.iter().any(|text| text.contains("--topic ")) && context.iter().any(|text| text == NAMES);
    is_of_both.then(|| {
        "a pattern needs quotes, as in --topic 'test-.*', or the shell replaces it by names of files".to_owned()
    })
}

/// Returns the tip about a number that is malformed or too large, which it recognises by the error of Rust's number
/// parsers. Returns `None` for other errors.
fn of_number(error: &Error) -> Option<String> {
    let source = std::error::Error::source(error)?;
    let whole = source.downcast_ref::<ParseIntError>().map(ParseIntError::kind);
    let is_negative = text(error, ContextKind::InvalidValue).parse::<f64>().is_ok_and(f64::is_sign_negative);
    let tip = match whole {
        Some(IntErrorKind::NegOverflow) => "the number is out of range; write one that is closer to 0",
        Some(_) if is_negative => "write a number that is not negative",
        Some(IntErrorKind::PosOverflow) => "write a smaller number",
        Some(_) => "write a whole number, in digits",
        None if source.is::<ParseFloatError>() => "write a number, as in 0.5",
        None => return None,
    };
    Some(tip.to_owned())
}
