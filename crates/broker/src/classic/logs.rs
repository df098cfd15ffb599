//! skeleton
use std::path::Path;
use std::sync::Arc;
use fullbore_wire::Uuid;
use super::{OpenError, Partition};
use crate::config::{BrokerConfig, TopicConfig};

/// The broker-wide settings of the log.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// log.retention.check.interval.ms
    pub retention_check_interval_ms: u64,
    /// producer.id.expiration.ms
    pub producer_id_expiration_ms: u64,
    /// producer.id.expiration.check.interval.ms
    pub producer_id_expiration_check_interval_ms: u64,
}
impl From<&BrokerConfig> for Settings {
    fn from(config: &BrokerConfig) -> Self {
        Settings {
            retention_check_interval_ms: config.log_retention_check_interval_ms,
            producer_id_expiration_ms: config.producer_id_expiration_ms,
            producer_id_expiration_check_interval_ms: config.producer_id_expiration_check_interval_ms,
        }
    }
}
/// Every partition under one data folder.
pub struct Logs;
impl Logs {
    /// Opens the folder, which exists and is locked by the caller. Opens no partition.
    pub fn open(_data_dir: &Path, _settings: Settings) -> Result<Arc<Logs>, OpenError> { Ok(Arc::new(Logs)) }
    /// The partition, known from now on; to be called for every partition at start, since retention only looks at known ones.
    /// `config` replaces the one in force.
    pub fn partition(&self, _topic: &str, _topic_id: Uuid, _index: i32, _config: Arc<TopicConfig>) -> Arc<Partition> { unimplemented!() }
    /// Deletes a topic's partitions: gone at once, files removed after file.delete.delay.ms.
    pub fn delete_topic(&self, _topic: &str, _topic_id: Uuid) {}
    /// Clean shutdown. Blocks; appends and reads fail from now on.
    pub fn close(&self) {}
}
