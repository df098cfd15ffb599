//! The sweep's own broker, which runs in this process on a free port. Its data are in a temporary directory.
//!
//! Invariant: when [`OwnBroker::stop`] returns, the broker has stopped and its directory is gone.

use crate::failure::Failure;
use crate::output;
use fullbore_broker::Broker;
use fullbore_config::{BrokerConfig, Properties};
use std::path::Path;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The setting that determines how many batches of each producer a broker retains.
const RETAIN: &str = "max.idempotence.batches.to.retain";
/// The minimum and default value of [`RETAIN`].
const RETAIN_MIN: u64 = 5;

/// A running broker of the sweep.
pub struct OwnBroker {
    directory: TempDir,
    runtime: Runtime,
    broker: Broker,
    /// The settings that differ from the defaults, for the report.
    pub settings: Vec<(String, String)>,
}

/// Returns the settings of a broker for producers with `in_flight_max` requests in flight. `more` overrides them.
pub fn settings(in_flight_max: u64, more: &[(String, String)]) -> Vec<(String, String)> {
    let pair = |key: &str, value: String| (key.to_owned(), value);
    let retain = (in_flight_max > RETAIN_MIN).then(|| pair(RETAIN, in_flight_max.to_string()));
    // The files of deleted topics are removed at once. Otherwise the topic of each measurement would occupy the disk
    // for another minute.
    let delete = pair("log.segment.delete.delay.ms", "0".to_owned());
    let mut settings: Vec<(String, String)> = retain.into_iter().chain([delete]).collect();
    for (key, value) in more {
        settings.retain(|(own, _)| own != key);
        settings.push((key.clone(), value.clone()));
    }
    settings
}

/// Creates a temporary directory for the broker's data.
pub fn directory() -> Result<TempDir, Failure> {
    tempfile::Builder::new().prefix("fullbore-sweep-").tempdir().map_err(|error| {
        let place = std::env::temp_dir();
        Failure::new(format!("cannot make a directory in {}: {error}; set TMPDIR to one that exists", place.display()))
    })
}

impl OwnBroker {
    /// Starts the broker in this directory.
    pub fn start(directory: TempDir, settings: Vec<(String, String)>) -> Result<OwnBroker, Failure> {
        let config = config(directory.path(), &settings)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let broker = runtime.block_on(Broker::start(config))?;
        Ok(OwnBroker { directory, runtime, broker, settings })
    }

    /// Returns the broker's address.
    pub fn address(&self) -> String {
        self.broker.addr().to_string()
    }

    /// Stops the broker and removes its data.
    pub fn stop(self) -> Result<(), Failure> {
        self.runtime.block_on(self.broker.shutdown());
        drop(self.runtime);
        self.directory.close()?;
        Ok(())
    }
}

fn config(directory: &Path, settings: &[(String, String)]) -> Result<BrokerConfig, Failure> {
    let mut properties = Properties::default();
    properties.set("fullbore.admin.listener", "");
    for (key, value) in settings {
        properties.set(key.as_str(), value.as_str());
    }
    properties.set("log.dirs", directory.join("data").display().to_string());
    properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
    let (config, warnings) = BrokerConfig::from_properties(&properties)
        .map_err(|error| Failure::new(format!("the sweep's own broker does not start: {error}")))?;
    warnings.iter().for_each(output::remark);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_retains_as_many_batches_as_the_sweep_needs() {
        let of = |max| settings(max, &[]).into_iter().find(|(key, _)| key == RETAIN).map(|(_, value)| value);
        assert_eq!((of(1), of(5), of(100)), (None, None, Some("100".to_owned())));
        let own = settings(100, &[(RETAIN.to_owned(), "7".to_owned())]);
        assert_eq!(own.iter().filter(|(key, _)| key == RETAIN).count(), 1);
        assert!(own.contains(&(RETAIN.to_owned(), "7".to_owned())), "what the user says counts");
    }

    #[test]
    fn a_stopped_broker_leaves_no_data() {
        let directory = directory().expect("a directory");
        let path = directory.path().to_owned();
        let own = OwnBroker::start(directory, settings(20, &[])).expect("started");
        assert!(path.exists());
        own.stop().expect("stopped");
        assert!(!path.exists());
    }

    #[test]
    fn more_batches_than_a_broker_retains_are_refused_with_the_limit() {
        let refusal =
            OwnBroker::start(directory().expect("a directory"), settings(20_000, &[])).err().expect("refused");
        assert!(refusal.to_string().contains("max.idempotence.batches.to.retain=20000: must be"), "{refusal}");
    }
}
