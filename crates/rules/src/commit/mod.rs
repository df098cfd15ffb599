//! Batch coordinator of diskless topics: which batches of uploaded objects are appended, and at which offsets.
//!
//! A broker gathers batches of any partitions into an object, puts it into the object store, and commits it here. Until
//! then a batch has no offset. One transaction writes a decision together with the state that it was made on. So the
//! coordinator alone orders every partition, whichever brokers take its batches.
//!
//! - [`commit`](fn@commit): takes objects and their partitions, returns verdicts and rows.
//! - [`BatchRun`]: an extent, which is one row for the adjacent batches of a partition in an object.
//! - [`admission`]: the batches of a producer that a broker may take before any of them is committed.
//! - [`rotation`]: the time at which an object is closed and uploaded.
//! - [`ObjectNumbers`]: the ids of objects.
//! - [`fair`]: the order of batches when more wait than an object takes.
//!
//! Not here: tables, the object store, the wire format and clocks.
//!
//! Invariants: offsets are dense, and each is assigned once. An object is committed once, however often that is
//! requested. Within a producer's epoch no sequence is appended twice or skipped. A transaction opens only if the
//! coordinator has confirmed it and no marker has ended it after the confirmation.

pub mod admission;
mod batch;
mod decide;
pub mod fair;
#[cfg(test)]
mod model;
mod numbers;
mod object;
pub mod rotation;
mod run;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transaction_model;
#[cfg(test)]
mod transaction_tests;
mod uploads;

pub use batch::{AppendedBatch, AppendedBatches, BatchKind, DisklessPartitionId, ObjectBatch, ObjectId, Verified};
pub use decide::{CommitDecision, CommittedObject, Coordinator, PartitionAborted, commit};
pub use numbers::ObjectNumbers;
pub use object::{CommitVerdict, FinishedObject, ObjectState, Refusal};
pub use run::{BatchRun, PackedBatch};
pub use state::{PartitionState, last_stable_offset};
pub use uploads::UploadWindow;
