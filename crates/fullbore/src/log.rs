//! The log on standard error, whose levels `--log`, RUST_LOG and `--debug` set. Standard output never has log lines.
//!
//! Invariants: the protocol log is off unless `--debug protocol`, RUST_LOG or `--log` names it. If a line cannot be
//! written, for example on a full disk or without a reader, it is lost, without any other effect. `log_output` writes
//! the broker's lines.

use crate::failure::Failure;
use crate::log_format::LogFormat;
use crate::log_output::LogOutput;
use clap::ValueEnum;
use fullbore_broker::loggers::{self, Level, LevelChange, LogLevels};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter, Targets};

/// Values of `--debug`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Debug {
    /// Each request and response with API, version, bytes, correlation id, and round-trip time.
    Protocol,
}

impl Debug {
    fn directive(self) -> &'static str {
        match self {
            Debug::Protocol => "fullbore::protocol=debug",
        }
    }
}

/// The default filter of the broker's log: warnings, start and stop, changes, recoveries, and new certificates.
const BROKER_DEFAULT: &str = "warn,fullbore::serve=info,fullbore::changes=info,fullbore_broker::net::tls=info";
/// The default filter of tools. It is off, because a tool prints for the user what matters.
const CLIENT_DEFAULT: &str = "off";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Sets up the broker's log. `--log` takes precedence over RUST_LOG, and both over the default. Adds the targets of
/// `--debug`. Returns the levels, which can be changed later, and the output, on which the caller must call `end`.
pub fn of_broker(
    filter: Option<&str>,
    format: LogFormat,
    debug: &[Debug],
) -> Result<(Arc<dyn LogLevels>, LogOutput), Failure> {
    let text = match filter {
        Some(text) => parse(text)?.to_owned(),
        None => from_environment(BROKER_DEFAULT)?,
    };
    let text = with_debug(text, debug);
    let output = LogOutput::to_standard_error()?;
    let builder = tracing_subscriber::fmt()
        .with_ansi(crate::output::has_colours(&std::io::stderr()))
        .log_internal_errors(false)
        .event_format(format.lines())
        .with_env_filter(EnvFilter::new(&text))
        .with_writer(output.clone())
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    let levels = Levels::new(text, move |filter| handle.reload(filter).map_err(|error| error.to_string()));
    Ok((Arc::new(levels), output))
}

/// Sets up the log of a tool by RUST_LOG, and adds the targets of `--debug`. Without either, the tool has no log.
pub fn of_client(debug: &[Debug]) -> Result<(), Failure> {
    let text = with_debug(from_environment(CLIENT_DEFAULT)?, debug);
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(text))
        .with_ansi(crate::output::has_colours(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    Ok(())
}

fn from_environment(default: &str) -> Result<String, Failure> {
    let text = std::env::var("RUST_LOG").unwrap_or_else(|_| default.to_owned());
    match EnvFilter::try_new(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::new(format!("RUST_LOG: {error}"))),
    }
}

/// Checks a filter whose parts are levels or `target=level`. Refuses a word that is not a level: `EnvFilter` would
/// treat it as a target, and would log no events of Fullbore.
fn parse(text: &str) -> Result<&str, Failure> {
    let refused = |part: &str| {
        Failure::new(format!(
            "--log {text}: {part} must be {}, or target=level, as fullbore_broker=debug",
            LEVELS.join(", ")
        ))
    };
    let is_known = |part: &str| part.contains('=') || LEVELS.contains(&part.to_ascii_lowercase().as_str());
    match text.split(',').map(str::trim).find(|part| !is_known(part)) {
        Some(part) => Err(refused(part)),
        None => EnvFilter::try_new(text).map(|_| text).map_err(|_| refused("it")),
    }
}

fn with_debug(text: String, debug: &[Debug]) -> String {
    // With an empty filter, only errors are logged.
    let text = if text.trim().is_empty() { "error".to_owned() } else { text };
    debug.iter().fold(text, |text, of| format!("{text},{}", of.directive()))
}

/// The levels of the broker's log: the filter at the start, and the changes since then.
struct Levels<R> {
    began: String,
    /// The changed levels by target. `None` stands for the root.
    set: Mutex<BTreeMap<Option<&'static str>, Level>>,
    reload: R,
}

impl<R: Fn(EnvFilter) -> Result<(), String> + Send + Sync> Levels<R> {
    fn new(began: String, reload: R) -> Self {
        Levels { began, set: Mutex::default(), reload }
    }

    /// Returns the level of a target, which is that of its longest prefix among the changed levels and those of the
    /// start. `EnvFilter` alone would also apply a level that was set for the target `log` to the target `logs`.
    fn level(&self, set: &BTreeMap<Option<&'static str>, Level>, target: Option<&str>) -> Level {
        let began: Vec<Targets> = self.began.split(',').filter_map(|part| part.trim().parse().ok()).collect();
        let directives = || began.iter().flat_map(Targets::iter);
        let of_root = began.iter().rev().find_map(Targets::default_level).map(of_filter);
        let of_root = set.get(&None).copied().or(of_root).unwrap_or(Level::Fatal);
        let Some(target) = target else { return of_root };
        let is_above =
            |above: &str| target.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        let of_began = directives().filter(|(above, _)| target.starts_with(above));
        let of_began = of_began.map(|(above, level)| (above.len(), false, of_filter(level)));
        let of_set = set.iter().filter_map(|(above, level)| above.map(|above| (above, *level)));
        let of_set = of_set.filter(|(above, _)| is_above(above)).map(|(above, level)| (above.len(), true, level));
        let nearest = of_began.chain(of_set).max_by_key(|(length, is_set, _)| (*length, *is_set));
        nearest.map_or(of_root, |(_, _, level)| level)
    }

    fn filter(&self, set: &BTreeMap<Option<&'static str>, Level>) -> EnvFilter {
        let began = EnvFilter::new(&self.began);
        if set.is_empty() {
            return began;
        }
        let root = Directive::from(to_filter(self.level(set, None)));
        loggers::targets().fold(began.add_directive(root), |filter, target| {
            let directive = format!("{target}={}", to_filter(self.level(set, Some(target))));
            filter.add_directive(directive.parse().expect("a target and a level"))
        })
    }
}

impl<R: Fn(EnvFilter) -> Result<(), String> + Send + Sync> LogLevels for Levels<R> {
    fn of(&self, target: Option<&str>) -> Level {
        self.level(&self.set.lock().expect("nobody panics with it"), target)
    }

    fn change(&self, changes: &[LevelChange]) -> Result<(), String> {
        let mut set = self.set.lock().expect("nobody panics with it");
        let mut changed = set.clone();
        for (target, level) in changes {
            match level {
                Some(level) => changed.insert(*target, *level),
                None => changed.remove(target),
            };
        }
        (self.reload)(self.filter(&changed))?;
        *set = changed;
        Ok(())
    }
}

fn to_filter(level: Level) -> LevelFilter {
    match level {
        Level::Fatal => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}

fn of_filter(filter: LevelFilter) -> Level {
    Level::ALL.into_iter().find(|level| to_filter(*level) == filter).unwrap_or(Level::Fatal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_levels_and_targets_only() {
        for good in ["info", "DEBUG", "warn,fullbore_broker=debug", "fullbore_broker::net=trace, off"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        assert!(EnvFilter::try_new(BROKER_DEFAULT).is_ok() && EnvFilter::try_new(CLIENT_DEFAULT).is_ok());
        for bad in ["bogus", "", "info,fullbore_broker", "fullbore_broker=loud"] {
            let refused = parse(bad).expect_err(bad).to_string();
            assert!(refused.starts_with(&format!("--log {bad}: ")) && refused.contains("debug"), "{refused}");
        }
    }

    #[test]
    fn a_changed_level_applies_below_its_target_until_it_is_reset() {
        let filters = Arc::new(Mutex::new(Vec::new()));
        let reported = filters.clone();
        let reload = move |filter: EnvFilter| {
            reported.lock().expect("unbroken").push(filter.to_string());
            Ok(())
        };
        let levels = Levels::new("warn,fullbore::changes=info,fullbore_broker::net::tls=info".to_owned(), reload);
        let (net, tls, below) = ("fullbore_broker::net", "fullbore_broker::net::tls", "fullbore_broker::net::listener");
        let shown = |targets: [Option<&str>; 4]| targets.map(|target| levels.of(target).name());
        assert_eq!(shown([None, Some(net), Some(tls), Some(below)]), ["WARN", "WARN", "INFO", "WARN"]);
        levels.change(&[(Some(net), Some(Level::Debug)), (None, Some(Level::Fatal))]).expect("taken");
        assert_eq!(shown([None, Some(net), Some(tls), Some(below)]), ["FATAL", "DEBUG", "INFO", "DEBUG"]);
        let near =
            [Some("fullbore::changes"), Some("fullbore_broker"), Some("fullbore_broker::network"), Some("hyper")];
        assert_eq!(shown(near), ["INFO", "FATAL", "FATAL", "FATAL"]);
        assert!(filters.lock().expect("unbroken")[0].contains("fullbore_broker::net::listener=debug"));
        levels.change(&[(Some(net), None), (None, Some(Level::Warn))]).expect("taken");
        assert_eq!(shown([None, Some(net), Some(tls), Some(below)]), ["WARN", "WARN", "INFO", "WARN"]);
    }
}
