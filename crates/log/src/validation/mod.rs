//! Turns a client's batch into a [`ValidBatch`]: checks its header, size, checksum and records, and compresses it with
//! the topic's codec if necessary (Kafka's `ProduceRequest.validateRecords` and `LogValidator`). The setting
//! `fullbore.produce.validation` can turn off the check of compressed records.
//!
//! This is a pure computation: it uses no log and no lock, and gets the time as an argument. A leader appends only a
//! [`ValidBatch`], to classic and diskless topics alike. The log checks the sequence number later.

mod decompression;
mod destination;
mod refused;
mod validate;
mod wrong_records;

pub use decompression::{
    BATCH_BYTES_MAX, DECOMPRESSED_MAX, Decompressing, Decompression, DecompressionBudget, Invalid, LargeBatchPermit,
};
pub use destination::Destination;
pub use refused::RefusedBatch;
pub use validate::{InvalidBatch, SHORT_MAX, Sender, ValidBatch, claimed_stamp, validate, work_of};
pub use wrong_records::REPORTED_RECORDS_MAX;
