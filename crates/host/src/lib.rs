//! The machine as the parts of a broker use it: files, disk space, tasks and threads, memory, counters, rate limits of
//! log lines.
//!
//! Not here: topics, requests, configuration.

pub mod disk_space;
pub mod fault_point;
pub mod files;
pub mod log_rate_limit;
pub mod long_work;
pub mod memory;
pub mod metrics;
pub mod task;
pub mod wide_work;
