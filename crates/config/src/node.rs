//! The identity of this broker, its data directory and its threads.

use std::path::PathBuf;

use super::error::{ConfigError, Mistakes};
use super::properties::Properties;
use super::reader::ConfigReader;

/// Settings of this broker's own process.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// node.id
    pub id: i32,
    /// The directory for all data (`log.dirs`).
    pub data_dir: PathBuf,
    /// broker.rack
    pub rack: Option<String>,
    /// Number of threads that serve connections. With 0, there is one per core.
    pub worker_threads: usize,
}

impl NodeConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(
        values: &ConfigReader<F>,
        checked: &Properties,
    ) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::default();
        let data_dir = data_dir(&values.text("log.dirs").unwrap_or_default());
        let found = (mistakes.keep(node_id(values, checked)), mistakes.keep(data_dir));
        let (Some(id), Some(data_dir)) = found else { return Err(mistakes) };
        let rack = values.text("broker.rack").filter(|rack| !rack.is_empty());
        Ok(Self { id, data_dir, rack, worker_threads: values.number("fullbore.worker.threads") })
    }
}

fn node_id<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>, checked: &Properties) -> Result<i32, ConfigError> {
    match (checked.get("node.id"), checked.get("broker.id")) {
        (Some(new), Some(old)) if new != old => {
            Err(ConfigError::of_value("broker.id", old, format!("must be the same as node.id={new}, or left out")))
        }
        _ => Ok(values.number("node.id")),
    }
}

fn data_dir(typed: &str) -> Result<PathBuf, ConfigError> {
    if typed.is_empty() || typed.contains(',') {
        return Err(ConfigError::of_value("log.dirs", typed, "must be exactly one directory"));
    }
    Ok(PathBuf::from(typed))
}
