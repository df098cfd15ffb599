//! Kafka's BROKER_LOGGER configurations: clients can read and change the log level of each module while the broker
//! runs.
//!
//! The program around the broker provides the log ([`LogLevels`]). As in Kafka, changes are not stored, and every start
//! begins with the program's configuration. A request changes either all of its levels, or none.

use fullbore_config::{ConfigEntry, Source, Type};
use fullbore_control::{CHANGES, ConfigChange, Refusal};
use fullbore_wire::ErrorCode;
use std::sync::{Arc, LazyLock};

/// Kafka's name for the logger of all modules that have no level of their own.
const ROOT: &str = "root";
/// The lines that [`targets`] returns. A test compares them with the source.
const TARGETS: &str = include_str!("targets.txt");
const NO_LOG: &str =
    "The program in which this broker is embedded decides its log levels; they cannot be changed through the broker.";

/// Kafka's levels (`LogLevelConfig`). Nothing is ever logged as fatal, so the level `Fatal` silences a logger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Logs nothing.
    Fatal,
    /// Logs failures.
    Error,
    /// Also logs faults that an operator should look at.
    Warn,
    /// Also logs rare events.
    Info,
    /// Also logs frequent events.
    Debug,
    /// Also logs very frequent events.
    Trace,
}

impl Level {
    /// All levels, in the order in which Kafka lists them.
    pub const ALL: [Level; 6] = [Level::Debug, Level::Error, Level::Fatal, Level::Info, Level::Trace, Level::Warn];

    /// Returns Kafka's name for the level.
    pub fn name(self) -> &'static str {
        match self {
            Level::Fatal => "FATAL",
            Level::Error => "ERROR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Debug => "DEBUG",
            Level::Trace => "TRACE",
        }
    }

    fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// A change of one target's level, or of the root's level if the target is `None`. If the level is `None`, the target
/// inherits that of the nearest module above it.
pub type LevelChange = (Option<&'static str>, Option<Level>);

/// The levels of a log. They may change at any time.
pub trait LogLevels: Send + Sync {
    /// Returns the level that applies to `target`, or to the root if `target` is `None`.
    fn of(&self, target: Option<&str>) -> Level;

    /// Makes all changes, or none.
    ///
    /// # Errors
    /// Returns the reason why the log refuses the changes.
    fn change(&self, changes: &[LevelChange]) -> Result<(), String>;
}

/// The levels of the log, as clients see and change them.
#[derive(Clone, Default)]
pub struct Loggers {
    levels: Option<Arc<dyn LogLevels>>,
}

impl Loggers {
    /// Creates the loggers of a log. The default value has no log, and then clients get an error.
    pub fn of(levels: Arc<dyn LogLevels>) -> Self {
        Loggers { levels: Some(levels) }
    }

    /// Returns every logger with the level that applies to it.
    ///
    /// # Errors
    /// Returns a refusal if there is no log.
    pub fn describe(&self) -> Result<Vec<ConfigEntry>, Refusal> {
        let levels = self.levels()?;
        let entry = |(name, target)| ConfigEntry {
            name,
            value: Some(levels.of(target).name().to_owned()),
            source: Source::DynamicBrokerLogger,
            of: Type::String,
            read_only: false,
            sensitive: false,
            synonyms: Vec::new(),
            documentation: "",
        };
        Ok(names().map(entry).collect())
    }

    /// Changes the levels of loggers. With `validate_only`, the changes are only checked.
    ///
    /// # Errors
    /// Returns a refusal if a logger or a level does not exist, or if loggers do not support the operation. The codes
    /// and messages are Kafka's (`RuntimeLoggerManager`).
    pub fn alter(&self, changes: &[(String, ConfigChange)], validate_only: bool) -> Result<(), Refusal> {
        let levels = self.levels()?;
        let wanted = changes.iter().map(|(name, change)| checked(name, change)).collect::<Result<Vec<_>, _>>()?;
        if validate_only {
            return Ok(());
        }
        levels.change(&wanted).map_err(|why| Refusal::new(ErrorCode::UNKNOWN_SERVER_ERROR, why))?;
        for (name, change) in changes {
            let level = if let ConfigChange::Set(level) = change { level } else { "inherited" };
            tracing::warn!(target: CHANGES, logger = name, level, "log level changed");
        }
        Ok(())
    }

    fn levels(&self) -> Result<&Arc<dyn LogLevels>, Refusal> {
        self.levels.as_ref().ok_or_else(|| Refusal::new(ErrorCode::INVALID_CONFIG, NO_LOG))
    }
}

/// Returns every target of this program's log lines, and every module above one of these targets.
pub fn targets() -> impl Iterator<Item = &'static str> {
    TARGETS.lines()
}

/// Each target with the name that clients use for it.
static NAMES: LazyLock<Vec<(String, &'static str)>> =
    LazyLock::new(|| targets().map(|target| (target.replace("::", "."), target)).collect());

/// Returns the name and the target of every logger. The parts of a name are separated by dots, as in Kafka, because
/// Kafka's tool does not accept colons.
fn names() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let named = NAMES.iter().map(|(name, target)| (name.as_str(), Some(*target)));
    std::iter::once((ROOT, None)).chain(named)
}

fn checked(name: &str, change: &ConfigChange) -> Result<LevelChange, Refusal> {
    let not_allowed = |what: &str| {
        let message = format!("{what} operation is not allowed for the BROKER_LOGGER resource");
        Err(Refusal::new(ErrorCode::INVALID_REQUEST, message))
    };
    let known = || {
        let missing = || Refusal::new(ErrorCode::INVALID_CONFIG, format!("Logger {name} does not exist!"));
        let is_meant = |(known, target): &(&str, Option<&str>)| *known == name || *target == Some(name);
        names().find(is_meant).map(|(_, target)| target).ok_or_else(missing)
    };
    match change {
        ConfigChange::Set(value) => {
            let target = known()?;
            let level = Level::named(value).ok_or_else(|| {
                let valid = Level::ALL.map(Level::name).join(", ");
                let message = format!(
                    "Cannot set the log level of {name} to {value} as it is not a supported log level. Valid log levels \
                     are {valid}"
                );
                Refusal::new(ErrorCode::INVALID_CONFIG, message)
            })?;
            Ok((target, Some(level)))
        }
        ConfigChange::Delete => match known()? {
            None => Err(Refusal::new(
                ErrorCode::INVALID_REQUEST,
                format!("Removing the log level of the {ROOT} logger is not allowed"),
            )),
            target => Ok((target, None)),
        },
        ConfigChange::Append(_) => not_allowed("APPEND"),
        ConfigChange::Subtract(_) => not_allowed("SUBTRACT"),
        // AlterConfigs would replace all levels, which Kafka refuses with this message.
        ConfigChange::DeleteAll => Err(Refusal::new(ErrorCode::INVALID_REQUEST, "Unknown resource type 8")),
    }
}

#[cfg(test)]
mod tests;
