//! Counts acknowledged and read records. Times are arguments, and nothing is printed here.

mod cpu;
mod latency;
mod produced;

pub use cpu::{BrokerPlace, CpuTimes, LINK_THREAD};
pub use latency::{Latencies, Percentiles};
pub use produced::{Acknowledged, IntervalCounts, Produced, Summary};
