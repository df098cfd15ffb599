use super::*;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A log that records the changes of its levels.
#[derive(Default)]
struct Reported(Mutex<Vec<LevelChange>>);

impl LogLevels for Reported {
    fn of(&self, target: Option<&str>) -> Level {
        if target.is_none() { Level::Warn } else { Level::Info }
    }

    fn change(&self, changes: &[LevelChange]) -> Result<(), String> {
        self.0.lock().extend(changes);
        Ok(())
    }
}

fn set(name: &str, level: &str) -> (String, ConfigChange) {
    (name.to_owned(), ConfigChange::Set(level.to_owned()))
}

#[test]
fn invalid_change_is_refused_with_kafkas_message_and_changes_nothing() {
    let log = Arc::new(Reported::default());
    let loggers = Loggers::of(log.clone());
    let good = set("fullbore_broker::net", "DEBUG");
    let invalid = ErrorCode::INVALID_REQUEST;
    for (change, code, reported) in [
        (set("no.such", "INFO"), ErrorCode::INVALID_CONFIG, "Logger no.such does not exist!"),
        (("no.such".to_owned(), ConfigChange::Delete), ErrorCode::INVALID_CONFIG, "Logger no.such does not exist!"),
        (set("root", "info"), ErrorCode::INVALID_CONFIG, "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"),
        (set("root", "OFF"), ErrorCode::INVALID_CONFIG, "Cannot set the log level of root to OFF"),
        (
            ("root".to_owned(), ConfigChange::Delete),
            invalid,
            "Removing the log level of the root logger is not allowed",
        ),
        (("root".to_owned(), ConfigChange::Append("INFO".to_owned())), invalid, "APPEND operation is not allowed"),
        (("root".to_owned(), ConfigChange::Subtract("INFO".to_owned())), invalid, "SUBTRACT operation is not"),
        ((String::new(), ConfigChange::DeleteAll), invalid, "Unknown resource type 8"),
    ] {
        let refused = loggers.alter(&[good.clone(), change], false).expect_err(reported);
        assert!(refused.code == code && refused.message.contains(reported), "{refused:?}");
    }
    loggers.alter(std::slice::from_ref(&good), true).expect("valid");
    assert_eq!(*log.0.lock(), [], "nothing was changed");
    loggers
        .alter(&[good, ("fullbore::changes".to_owned(), ConfigChange::Delete), set("root", "FATAL")], false)
        .expect("valid");
    let root = (None, Some(Level::Fatal));
    let expected = [(Some("fullbore_broker::net"), Some(Level::Debug)), (Some("fullbore::changes"), None), root];
    assert_eq!(*log.0.lock(), expected);
    let described = loggers.describe().expect("there is a log");
    assert_eq!((described[0].name, described[0].value.as_deref()), ("root", Some("WARN")));
    assert!(described.iter().any(|entry| entry.name == "fullbore.protocol" && entry.value.as_deref() == Some("INFO")));
}

#[test]
fn broker_without_a_log_refuses_changes_of_levels() {
    let refused = Loggers::default().alter(&[set("root", "INFO")], false).expect_err("no log");
    assert!(
        refused.code == ErrorCode::INVALID_CONFIG && refused.message.contains("cannot be changed through the broker"),
        "{refused:?}"
    );
    assert!(Loggers::default().describe().is_err());
}

/// Returns the targets that the broker's crates log to. These are the modules with log lines, the modules above them,
/// and targets that are not modules.
fn targets_of_the_source() -> String {
    let mut found: BTreeSet<String> =
        ["fullbore", "fullbore::changes", "fullbore::protocol", "fullbore::serve"].map(str::to_owned).into();
    for name in ["broker", "config", "control", "db", "diskless", "host", "log"] {
        add_targets(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), name, &mut found);
    }
    found.into_iter().map(|target| format!("{target}\n")).collect()
}

/// Adds the modules of the crate `fullbore_NAME`. Its source is in the directory `source`.
fn add_targets(source: &Path, name: &str, found: &mut BTreeSet<String>) {
    let mut directories: Vec<PathBuf> = vec![source.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            let logs = ["error!(", "warn!(", "info!(", "debug!(", "trace!("].map(|end| format!("tracing::{end}"));
            if !path.ends_with("tests.rs") && logs.iter().any(|logs| text.contains(logs)) {
                let module = path.strip_prefix(source).expect("below it").with_extension("");
                let parts: Vec<_> = module.iter().map(|part| part.to_string_lossy()).collect();
                let is_root = |part: &str| part == "mod" || part == "lib";
                let parts: Vec<_> = parts.iter().filter(|part| !is_root(part)).map(|part| part.as_ref()).collect();
                let above = (0..=parts.len()).map(|count| parts[..count].join("::"));
                found.extend(above.map(|module| match module.as_str() {
                    "" => format!("fullbore_{name}"),
                    module => format!("fullbore_{name}::{module}"),
                }));
            }
        }
    }
}

#[test]
fn committed_page_of_targets_is_that_of_the_source() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/loggers/targets.txt");
    let targets = targets_of_the_source();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, &targets).expect("written");
    }
    let committed = fs::read_to_string(path).expect("there");
    assert!(committed == targets, "{path} is old: UPDATE_DOCS=1 cargo test --workspace committed_page");
}
