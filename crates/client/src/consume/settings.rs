//! The settings of a consumer's fetches.

use super::start::StartOffset;

/// The settings of a consumer's fetches, with Kafka's names and defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchSettings {
    /// fetch.max.wait.ms.
    pub max_wait_ms: i32,
    /// fetch.min.bytes.
    pub min_bytes: i32,
    /// fetch.max.bytes.
    pub max_bytes: i32,
    /// max.partition.fetch.bytes. This is the limit for the first fetches, and later ones may be larger.
    pub partition_max_bytes: i32,
    /// fetch.buffer.memory, which limits the requested and unread bytes of all leaders together.
    pub buffer_memory: i32,
    /// check.crcs.
    pub check_crcs: bool,
    /// If true, batches that a producer has sent broken are skipped, and so are records whose object is lost.
    pub skip_bad_batches: bool,
    /// If true, records of aborted and open transactions are left out (isolation.level=read_committed).
    pub read_committed: bool,
    /// auto.offset.reset, which decides where a partition continues if its unread records were deleted. `None` ends the
    /// run.
    pub reset: Option<StartOffset>,
}

impl Default for FetchSettings {
    fn default() -> Self {
        FetchSettings {
            max_wait_ms: 500,
            min_bytes: 1,
            max_bytes: 50 << 20,
            partition_max_bytes: 1 << 20,
            buffer_memory: 64 << 20,
            check_crcs: true,
            skip_bad_batches: false,
            read_committed: false,
            reset: Some(StartOffset::Earliest),
        }
    }
}
