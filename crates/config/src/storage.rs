//! How logs are stored on the disk, and how much of them stays in memory.

use super::cleaner::CleanerSettings;
use super::cleaner_keys;
use super::error::ConfigError;
use super::reader::ConfigReader;

/// Settings that all logs share.
#[derive(Debug, Clone)]
pub struct StorageConfig {
    /// Size of the reserve file, which the broker shrinks when the disk is full (`fullbore.disk.reserve.bytes`).
    pub disk_reserve_bytes: u64,
    /// How many bytes of the newest records stay in the page cache. With `None`, the system decides.
    pub page_cache_kept: Option<u64>,
    /// Number of threads that open logs at a start (`num.recovery.threads.per.data.dir`). Opening takes long only after
    /// a crash.
    pub recovery_threads: usize,
    /// log.retention.check.interval.ms
    pub retention_check_interval_ms: u64,
    /// replica.high.watermark.checkpoint.interval.ms
    pub high_watermark_checkpoint_interval_ms: u64,
    /// producer.id.expiration.check.interval.ms
    pub producer_id_expiration_check_interval_ms: u64,
    /// Maximum number of idempotent producers that all logs together remember (`fullbore.producers.max`).
    pub producers_max: usize,
    /// The settings of compaction, with their values from the file and the command line.
    pub cleaner: CleanerSettings,
}

impl StorageConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Result<Self, ConfigError> {
        let cleaner = cleaner_keys::read(values);
        if cleaner.threads > 0 && cleaner.map_bytes() <= 1 << 20 {
            let bytes = cleaner.dedupe_buffer_bytes.to_string();
            let message = "must be more than 1 MiB for each of log.cleaner.threads";
            return Err(ConfigError::of_value("log.cleaner.dedupe.buffer.size", &bytes, message));
        }
        Ok(Self {
            disk_reserve_bytes: values.number("fullbore.disk.reserve.bytes"),
            page_cache_kept: values.unless_minus_one("fullbore.page.cache.kept.bytes"),
            recovery_threads: values.number("num.recovery.threads.per.data.dir"),
            retention_check_interval_ms: values.number("log.retention.check.interval.ms"),
            high_watermark_checkpoint_interval_ms: values.number("replica.high.watermark.checkpoint.interval.ms"),
            producer_id_expiration_check_interval_ms: values.number("producer.id.expiration.check.interval.ms"),
            producers_max: values.number("fullbore.producers.max"),
            cleaner,
        })
    }
}
