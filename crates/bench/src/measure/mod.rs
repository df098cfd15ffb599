//! Counts of acknowledged and read records. Time comes in as an argument; nothing here prints.

mod cpu;
mod latency;
mod produced;

pub use cpu::{BrokerPlace, CpuTimes, LINK_THREAD};
pub use latency::{Latencies, Percentiles};
pub use produced::{Acknowledged, IntervalCounts, Produced, Summary};
