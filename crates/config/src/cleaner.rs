//! The broker-wide settings of compaction; names are Kafka's.

/// Settings of the cleaner's threads. They may change while the threads run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CleanerSettings {
    /// log.cleaner.enable
    pub enable: bool,
    /// log.cleaner.threads
    pub threads: usize,
    /// log.cleaner.dedupe.buffer.size: bytes of the maps of all threads.
    pub dedupe_buffer_bytes: usize,
    /// log.cleaner.io.buffer.load.factor: largest share of a map in use.
    pub dedupe_load_factor: f64,
    /// log.cleaner.io.buffer.size: bytes that all threads read and write at a time.
    pub io_buffer_bytes: usize,
    /// log.cleaner.io.max.bytes.per.second: most bytes that all threads together read and write a second.
    pub io_max_bytes_per_second: f64,
    /// log.cleaner.backoff.ms
    pub backoff_ms: u64,
}

/// Fewest bytes that a thread reads and writes at a time.
const IO_BUFFER_MIN: usize = 4096;

impl CleanerSettings {
    /// Returns the size of one thread's map in bytes.
    pub fn map_bytes(&self) -> usize {
        self.dedupe_buffer_bytes / self.threads.max(1)
    }

    /// Returns the size in bytes of one thread's read buffer. Its write buffer has the same size.
    pub fn buffer_bytes(&self) -> usize {
        (self.io_buffer_bytes / self.threads.max(1) / 2).max(IO_BUFFER_MIN)
    }
}
