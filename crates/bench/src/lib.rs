//! Measuring what goes in and out of a Kafka cluster: workload -> run -> measure -> report.
//!
//! * [`client`]: a blocking client.
//! * [`workload`]: the payloads and the times at which they should leave.
//! * [`measure`]: counts and latencies in bounded memory.
//! * [`link`]: distance, made on one machine.
//! * [`report`]: the exact lines of Kafka's perf tools.
//!
//! Works against any Kafka; nothing here knows Fullbore's broker.

pub mod client;
pub mod consume;
pub mod link;
pub mod measure;
pub mod produce;
pub mod report;
pub mod workload;
