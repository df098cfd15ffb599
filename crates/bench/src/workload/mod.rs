//! The contents and times of records: payloads and the schedule. Nothing here knows of Kafka.

mod payload;
mod schedule;
mod sequence;

pub use payload::{Payload, PayloadError};
pub use schedule::Schedule;
pub use sequence::{SequenceError, SequenceReader, SequenceWriter, VALUE_LEN_MIN};
