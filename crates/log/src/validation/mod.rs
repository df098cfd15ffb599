//! The one stage where a batch becomes one that may be appended. It checks header, size and checksum, and the records
//! where they must be decompressed, and applies the topic's codec (Kafka's `ProduceRequest.validateRecords` and
//! `LogValidator`).
//!
//! Pure: no log, no lock, no clock of its own. A leader's log takes only a [`ValidBatch`], whatever kind of topic it is
//! of. Not the check of the sequence, which is the log's.

mod decompression;
mod destination;
mod refused;
mod valid;
mod validate;
mod wrong_records;

pub use decompression::{Decompression, Invalid, LargeBatchPermit, OPENED_MAX, Opening, OpeningBudget};
pub use destination::Destination;
pub use refused::RefusedBatch;
pub use valid::{InvalidBatch, ValidBatch, claimed_stamp};
pub use validate::{SHORT_MAX, Sender, validate, work_of};
pub use wrong_records::TOLD_MAX;
