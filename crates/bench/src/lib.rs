//! Measures the traffic of a Kafka cluster: workload -> run -> measure -> report.
//!
//! * [`workload`]: the payloads and the times at which they should leave.
//! * [`produce`]: a load that a producer sends.
//! * [`measure`]: counts and latencies in bounded memory.
//! * [`link`]: distance, simulated on one machine.
//! * [`sweep`]: one workload, measured for every combination of settings.
//! * [`report`]: the exact lines of Kafka's perf tools, and a sweep's files and page.
//!
//! The crate works against any Kafka cluster. Nothing here depends on Fullbore's broker.

pub mod link;
pub mod measure;
pub mod produce;
pub mod report;
pub mod sweep;
pub mod workload;
