//! What the parts of a broker need of the machine: files, room on the disk, tasks and threads, memory, seldom lines of the log.
//!
//! It knows no topic, no protocol and no configuration.

pub mod files;
pub mod long_work;
pub mod memory;
pub mod seldom;
pub mod space;
pub mod task;
