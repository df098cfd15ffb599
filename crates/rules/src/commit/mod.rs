//! The batch coordinator of diskless topics: which batches of finished objects are appended, and at which offsets.
//!
//! A broker gathers batches of any partitions into an object, puts it into the object store, and commits it here. Until
//! then a batch has no offset. What a commit decides is written in one transaction together with what it was decided
//! on, so that this is the one authority on the order of every partition, whichever brokers take its batches.
//!
//! - [`commit`](fn@commit): objects and the partitions that they touch in, verdicts and rows out.
//! - [`BatchRun`]: a row, one for the adjacent batches of a partition in an object.
//! - [`admission`]: what a broker may take of a producer before anything of it is committed.
//! - [`rotation`]: when an object is closed and uploaded.
//! - [`ObjectNumbers`]: which numbers objects have.
//! - [`fair`]: whose batches go first where there are more than an object takes.
//!
//! What it is not: it knows no tables, no object store, no wire format and no clock.
//!
//! Invariants: offsets are dense and given once; an object is committed once, however often that is requested; within a
//! producer's epoch no sequence is appended twice and none is skipped; no transaction opens that the coordinator has
//! not confirmed, or whose marker came meanwhile.

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
