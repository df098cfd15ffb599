//! What passes between a partition and the sender that asks it for batches.

use super::Partition;
use crate::batch::Batch;
use crate::broker::Broker;
use crate::grant::Grants;
use crate::window::Ticket;
use fullbore_wire::batch::Stamp;
use std::sync::Arc;
use std::time::Instant;

/// A partition in a broker's list of work. A leader may change and change back before the list is looked at: of several
/// listings of a partition the newest counts.
pub(crate) struct Listing {
    pub(crate) partition: Arc<Partition>,
    pub(crate) serial: u64,
}

impl Listing {
    /// See [`Partition::take`].
    pub(crate) fn take(&self, broker: &Arc<Broker>, round: &Round<'_>) -> Take {
        self.partition.take(broker, self.serial, round)
    }

    /// See [`Partition::leaves`].
    pub(crate) fn leaves(&self, broker: &Arc<Broker>) -> bool {
        self.partition.leaves(broker, self.serial)
    }
}

/// What the sender may do with a partition.
pub(crate) enum Take {
    /// This batch is to be sent.
    Batch(Outgoing),
    /// Nothing before this time; `None` when an event will tell.
    NotYet(Option<Instant>),
    /// It does not fit the request any more.
    NoRoom,
    /// It needs a producer id, other than the one given.
    Identity(Option<i64>),
    /// Another broker's, or nothing to send: off the list.
    Gone,
}

/// A batch between `take` and its result.
pub(crate) struct Outgoing {
    pub(crate) partition: Arc<Partition>,
    pub(crate) ticket: Ticket,
    pub(crate) stamp: Stamp,
    pub(crate) batch: Batch,
    /// Whether the broker should hold it if it is early.
    pub(crate) reorder: bool,
}

/// What the sender goes by when it asks for batches.
pub(crate) struct Round<'a> {
    pub(crate) now: Instant,
    /// Batches leave however small they are: a flush, or someone waits for memory.
    pub(crate) hurry: bool,
    /// Bytes left in the request; `None` while it is empty, when any batch fits.
    pub(crate) room: Option<usize>,
    /// What the broker said of windows.
    pub(crate) grants: &'a Grants,
    /// Only what batches at the broker wait for: the lane is full.
    pub(crate) missing: bool,
    /// The lane that asks.
    pub(crate) path: Path,
    /// Whether a partition's batches may go over any lane, the broker putting them back in order.
    pub(crate) striped: bool,
    /// Whether it would, if there were several lanes.
    pub(crate) reorders: bool,
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
