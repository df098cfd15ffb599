//! The conditions under which a sender gathers batches for one request.

use crate::grant::Grants;
use crate::transaction_pass::TransactionPass;
use std::time::{Duration, Instant};

/// The conditions under which a sender gathers batches for one request.
pub(crate) struct Round<'a> {
    pub(crate) now: Instant,
    /// True if batches should be sent without lingering, because a caller waits for a flush or for memory.
    pub(crate) hurry: bool,
    /// True if a caller waits for a flush. Batches are then not spaced.
    pub(crate) flush: bool,
    /// The shortest round trip on the connection.
    pub(crate) rtt: Option<Duration>,
    /// How many bytes still fit into the request. `None` while the request is empty, because any batch then fits.
    pub(crate) room: Option<usize>,
    /// The broker's grants.
    pub(crate) grants: &'a Grants,
    /// True if the connection is full. Only a batch for which other batches may wait at the broker can then be sent.
    pub(crate) missing: bool,
    /// The connection over which the request will be sent.
    pub(crate) path: Path,
    /// True if a partition may use all connections at once, because the broker parks batches that are out of order.
    pub(crate) striped: bool,
    /// True if the broker parks batches that are out of order. With several connections, `striped` is then true as
    /// well.
    pub(crate) reorders: bool,
    /// The transaction whose batches may be sent. `None` if no batch may be sent, or if the producer has no
    /// transactions.
    pub(crate) pass: Option<TransactionPass>,
}

/// The facts about a connection that partitions need.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    /// The number of the connection. No other connection to the broker ever gets the same number.
    pub(crate) connection: u64,
    /// The index of this connection among the connections to the broker. `lanes` is their number.
    pub(crate) lane: usize,
    pub(crate) lanes: usize,
}
