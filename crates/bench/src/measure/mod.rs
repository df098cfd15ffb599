//! Counting what was acknowledged or read. Time comes in as an argument; nothing here prints.

mod latency;
mod produced;

pub use latency::{Latencies, Percentiles};
pub use produced::{Acknowledged, IntervalCounts, Produced, Summary};
