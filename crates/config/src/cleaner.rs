//! The broker-wide settings of log compaction. The names are Kafka's.

/// Settings of the cleaner threads, which compact logs. They may change while the threads run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CleanerSettings {
    /// log.cleaner.enable
    pub enable: bool,
    /// log.cleaner.threads
    pub threads: usize,
    /// log.cleaner.dedupe.buffer.size: the memory in bytes that the maps of all threads share.
    pub dedupe_buffer_bytes: usize,
    /// log.cleaner.io.buffer.load.factor: the largest share of a map that may be filled.
    pub dedupe_load_factor: f64,
    /// log.cleaner.io.buffer.size: the memory in bytes that the read and write buffers of all threads share.
    pub io_buffer_bytes: usize,
    /// log.cleaner.io.max.bytes.per.second: how many bytes all threads together may read and write per second.
    pub io_max_bytes_per_second: f64,
    /// log.cleaner.backoff.ms
    pub backoff_ms: u64,
}

/// The smallest read or write buffer of a thread, in bytes.
const IO_BUFFER_MIN: usize = 4096;

impl CleanerSettings {
    /// Returns the size in bytes of the map that each thread may use.
    pub fn map_bytes(&self) -> usize {
        self.dedupe_buffer_bytes / self.threads.max(1)
    }

    /// Returns the size in bytes of one thread's read buffer. Its write buffer has the same size.
    pub fn buffer_bytes(&self) -> usize {
        (self.io_buffer_bytes / self.threads.max(1) / 2).max(IO_BUFFER_MIN)
    }
}
