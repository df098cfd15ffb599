//! Every partition that this broker has: which there are, and what is done to all of them.
//!
//! [`Logs`] is the registry of one data folder, a [`Partition`] is this broker's copy of one.

pub(crate) mod cleaner;
pub(crate) mod deletion;
pub(crate) mod housekeeping;
pub(crate) mod registry;

pub use crate::log::aside::SetAside;
pub use crate::log::error::{
    AppendError, Appended, EpochEnd, FlushTicket, Offsets, OpenError, Read, ReadError, StorageError, TimestampOffset,
};
pub use crate::replica::following::{FollowError, FollowerRead, FromLeader};
pub use crate::replica::reorder::{Admission, ParkedAnswer, Reordering};
pub use crate::replica::replica::Partition;
pub use crate::replica::role::{Acks, ReplicationTicket, Ticket, led_by};
pub use crate::replica::waiters::Registration;
pub use cleaner::{CleanerSettings, CleanerStatus, OPENED_MAX};
pub use registry::{Logs, Origin, Settings};
