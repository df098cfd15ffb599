//! The circumstances in which a sender requests batches from partitions.

use crate::grant::Grants;
use crate::transaction_pass::TransactionPass;
use std::time::{Duration, Instant};

/// The circumstances in which a sender requests batches from partitions.
pub(crate) struct Round<'a> {
    pub(crate) now: Instant,
    /// True if batches of any size should leave at once, because of a flush or a caller that waits for memory.
    pub(crate) hurry: bool,
    /// True only for a flush. Batches are then not spaced.
    pub(crate) flush: bool,
    /// The shortest round trip on the connection.
    pub(crate) rtt: Option<Duration>,
    /// How many bytes are left in the request. `None` while the request is empty, because any batch fits then.
    pub(crate) room: Option<usize>,
    /// The broker's grants.
    pub(crate) grants: &'a Grants,
    /// True if the connection is full. A batch may then leave only if other batches wait for it at the broker.
    pub(crate) missing: bool,
    /// The connection that the batches will go over.
    pub(crate) path: Path,
    /// True if a partition may use all connections at once, because the broker puts its batches back in order.
    pub(crate) striped: bool,
    /// True if `striped` would be true with several connections.
    pub(crate) reorders: bool,
    /// The transaction whose batches may leave. `None` if no batch may leave, or if the producer has no transactions.
    pub(crate) pass: Option<TransactionPass>,
}

/// A connection, as partitions see it.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    /// The number of the connection. A later connection never gets the same number.
    pub(crate) connection: u64,
    /// The index of this connection among those to the broker, and their number.
    pub(crate) lane: usize,
    pub(crate) lanes: usize,
}
