//! The only stage that turns a client's batch into a [`ValidBatch`]. It checks header, size, checksum and records, and
//! applies the topic's codec (Kafka's `ProduceRequest.validateRecords` and `LogValidator`). A setting exempts
//! compressed records from the check.
//!
//! Pure: no log, no lock, no clock of its own. A leader appends only a [`ValidBatch`], to classic and diskless topics.
//! Not here: the check of the sequence, which the log makes.

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
