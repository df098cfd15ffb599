//! The log on standard error: what `--log`, RUST_LOG and `--debug` ask for, so that standard output stays for people and
//! scripts.
//!
//! Not the events themselves. Invariant: without `--debug protocol` the protocol log is off unless RUST_LOG or `--log` names it.

use crate::failure::Failure;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// What `--debug` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Debug {
    /// Each request and response with API, version, bytes, correlation id, and the time until the answer.
    Protocol,
}

impl Debug {
    fn directive(self) -> &'static str {
        match self {
            Debug::Protocol => "fullbore::protocol=debug",
        }
    }
}

/// Warnings of everything, the start and stop of the broker, what was changed and recovered, and new certificates.
const BROKER_DEFAULT: &str = "warn,fullbore::serve=info,fullbore::changes=info,fullbore_broker::net::tls=info";
/// The tools say themselves what their users should know.
const CLIENT_DEFAULT: &str = "off";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The log of the broker: `--log`, or RUST_LOG, or warnings and the stop; and what `--debug` adds.
pub fn of_broker(filter: Option<&str>, debug: &[Debug]) -> Result<(), Failure> {
    match filter {
        Some(text) => start(parse(text)?, debug),
        None => start(from_environment(BROKER_DEFAULT)?, debug),
    }
}

/// The log of a tool: RUST_LOG, or nothing; and what `--debug` adds.
pub fn of_client(debug: &[Debug]) -> Result<(), Failure> {
    start(from_environment(CLIENT_DEFAULT)?, debug)
}

fn from_environment(default: &str) -> Result<EnvFilter, Failure> {
    let set = std::env::var("RUST_LOG").ok();
    EnvFilter::try_new(set.as_deref().unwrap_or(default)).map_err(|error| Failure::new(format!("RUST_LOG: {error}")))
}

/// A filter of levels and of `target=level`. A word alone that is no level would be taken for a target, and log
/// nothing of ours.
fn parse(text: &str) -> Result<EnvFilter, Failure> {
    let refused = |part: &str| {
        Failure::new(format!(
            "--log {text}: {part} must be {}, or target=level, as fullbore_broker=debug",
            LEVELS.join(", ")
        ))
    };
    let is_known = |part: &str| part.contains('=') || LEVELS.contains(&part.to_ascii_lowercase().as_str());
    match text.split(',').map(str::trim).find(|part| !is_known(part)) {
        Some(part) => Err(refused(part)),
        None => EnvFilter::try_new(text).map_err(|_| refused("it")),
    }
}

fn start(filter: EnvFilter, debug: &[Debug]) -> Result<(), Failure> {
    let filter = debug
        .iter()
        .fold(filter, |filter, of| filter.add_directive(of.directive().parse().expect("a directive of our own")));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(crate::output::has_colours(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_and_targets() {
        for good in ["info", "DEBUG", "warn,fullbore_broker=debug", "fullbore_broker::net=trace, off"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        assert!(EnvFilter::try_new(BROKER_DEFAULT).is_ok() && EnvFilter::try_new(CLIENT_DEFAULT).is_ok());
        for bad in ["bogus", "", "info,fullbore_broker", "fullbore_broker=loud"] {
            let refused = parse(bad).expect_err(bad).to_string();
            assert!(refused.starts_with(&format!("--log {bad}: ")) && refused.contains("debug"), "{refused}");
        }
    }
}
