//! The rules of the index of diskless topics. They decide which batches of uploaded objects are appended, and at which
//! offsets.
//!
//! A broker gathers batches of any partitions into an object, puts the object into the object store, and commits it to
//! the index. Until then a batch has no offset. The same database transaction reads the state and writes the decision.
//! So the index alone determines the order of a partition's batches, whichever brokers have accepted them.
//!
//! - [`commit`](fn@commit): decides on objects, and returns verdicts and rows to write.
//! - [`BatchRun`]: an extent, which is one row for adjacent batches of a partition in an object.
//! - [`admission`]: which batches of a producer a broker may take before any of them is committed.
//! - [`rotation`]: when an object is closed and uploaded.
//! - [`ObjectNumbers`]: the ids of objects.
//! - [`fair`]: the order of batches if more of them are waiting than fit into an object.
//!
//! Tables, the object store, the wire format and clocks are in other crates.
//!
//! Invariants: offsets are dense, and each is assigned once. An object is committed only once, however often that is
//! requested. Within a producer's epoch, no sequence is appended twice or skipped. A transaction opens only if the
//! transaction coordinator has confirmed it and no marker has ended it after the confirmation.

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

pub use batch::{AppendedBatch, AppendedBatches, BatchKind, Confirmation, DisklessPartitionId, ObjectBatch, ObjectId};
pub use decide::{CommitDecision, CommitState, CommittedObject, PartitionAborted, commit};
pub use numbers::{ObjectNumbers, drawn_ms, first_drawn_at};
pub use object::{CommitVerdict, FinishedObject, ObjectState, Refusal};
pub use run::{BatchRun, PackedBatch};
pub use state::{PartitionState, last_stable_offset};
pub use uploads::UploadWindow;
