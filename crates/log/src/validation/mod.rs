//! The one stop at which a batch becomes one that may be appended: its header and size, its checksum, its records where
//! they have to be opened, and the codec it is stored with (Kafka's
//! `ProduceRequest.validateRecords` and `LogValidator`).
//!
//! Pure: no log, no lock, no clock of its own. [`ValidBatch`] is the only thing that a leader's log takes, whatever
//! kind of topic it is of. Not its sequence, which the log knows.

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
