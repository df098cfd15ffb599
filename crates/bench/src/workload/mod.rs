//! The contents of records (payloads) and the times at which they are sent (the schedule). Independent of Kafka.

mod payload;
mod schedule;
mod sequence;

pub use payload::{Payload, PayloadError};
pub use schedule::Schedule;
pub use sequence::{SequenceError, SequenceReader, SequenceWriter, VALUE_LEN_MIN};
