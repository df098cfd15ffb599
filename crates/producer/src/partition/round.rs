//! Circumstances of the sender when it requests batches from partitions.

use crate::grant::Grants;
use crate::transaction_pass::TransactionPass;
use std::time::{Duration, Instant};

/// Circumstances of the sender when it requests batches.
pub(crate) struct Round<'a> {
    pub(crate) now: Instant,
    /// True if batches of any size leave at once: for a flush, or because a caller waits for memory.
    pub(crate) hurry: bool,
    /// True for a flush alone: batches are not spaced.
    pub(crate) flush: bool,
    /// Shortest round trip on the connection.
    pub(crate) rtt: Option<Duration>,
    /// Bytes left in the request; `None` while it is empty, when any batch fits.
    pub(crate) room: Option<usize>,
    /// The broker's grants.
    pub(crate) grants: &'a Grants,
    /// True if the connection is full. Then a batch may leave only if other batches wait for it at the broker.
    pub(crate) missing: bool,
    /// Connection for which batches are requested.
    pub(crate) path: Path,
    /// True if a partition's batches may go over any connection, since the broker puts them back in order.
    pub(crate) striped: bool,
    /// True if `striped` would be true with several connections.
    pub(crate) reorders: bool,
    /// Transaction whose batches may leave; `None` if no batch may leave, or if the producer has no transactions.
    pub(crate) pass: Option<TransactionPass>,
}

/// Connection as partitions see it.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    /// Number of the connection, which is never used again.
    pub(crate) connection: u64,
    /// Index of the connection among those to the broker, and the number of these connections.
    pub(crate) lane: usize,
    pub(crate) lanes: usize,
}
