//! What the sender goes by when it asks partitions for batches.

use crate::grant::Grants;
use crate::transaction_pass::TransactionPass;
use std::time::{Duration, Instant};

/// What the sender goes by when it asks for batches.
pub(crate) struct Round<'a> {
    pub(crate) now: Instant,
    /// Batches leave however small they are: a flush, or someone waits for memory.
    pub(crate) hurry: bool,
    /// The same for a flush alone: nothing is spaced.
    pub(crate) flush: bool,
    /// The least time that a request took on the lane.
    pub(crate) rtt: Option<Duration>,
    /// Bytes left in the request; `None` while it is empty, when any batch fits.
    pub(crate) room: Option<usize>,
    /// What the broker said of windows.
    pub(crate) grants: &'a Grants,
    /// Only what batches at the broker wait for: the lane is full.
    pub(crate) missing: bool,
    /// The lane that asks.
    pub(crate) path: Path,
    /// True if a partition's batches may go over any lane, the broker putting them back in order.
    pub(crate) striped: bool,
    /// True if it would, if there were several lanes.
    pub(crate) reorders: bool,
    /// The transaction whose batches may leave; `None` for none, and without transactions.
    pub(crate) pass: Option<TransactionPass>,
}

/// A lane as partitions see it.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    /// Never used again, whatever becomes of the connection.
    pub(crate) connection: u64,
    /// Its place among the lanes, and how many there are.
    pub(crate) lane: usize,
    pub(crate) lanes: usize,
}
