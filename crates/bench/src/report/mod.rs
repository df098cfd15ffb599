//! Formats the output lines of the tools, and the files and pages of a sweep.
//!
//! Functions have the argument `kafkas` if Kafka's tool prints the same line. Invariant: if `kafkas` is true, the line
//! equals that of Kafka's tool byte by byte for the same figures. If it is false, rates of four digits or more have no
//! decimals.

mod consume;
mod java;
pub mod json;
mod metrics;
mod produce;
pub mod sweep;
mod table;

pub use consume::{
    CONSUME_HEADER, CONSUME_HEADER_DETAILED, Consumed, DateFormat, DateFormatError, consume_progress_line,
};
pub use consume::{consume_json, consume_line, consume_timeout_line};
pub use metrics::metrics_lines;
pub use produce::{
    STEADY_LINE, precise_latency_lines, summary_json, summary_line, warmup_line, window_json, window_line,
};
pub use table::table;
