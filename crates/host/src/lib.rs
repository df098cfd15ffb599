//! The machine that a broker runs on: files, disk space, tasks and threads, memory, counters, a clock, pauses
//! and retries, and limits for log lines.
//!
//! This crate knows nothing about topics, requests or settings.

pub mod backoff;
pub mod clock;
pub mod disk_space;
pub mod fault_point;
pub mod files;
pub mod log_rate_limit;
pub mod long_work;
pub mod memory;
pub mod metrics;
mod random;
pub mod sockets;
pub mod start_retries;
pub mod task;
pub mod unread_responses;
pub mod wide_work;

pub use random::random_id;
