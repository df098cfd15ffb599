//! The states of a transaction, and the transaction version of its client (Kafka's `TransactionState` and
//! `TransactionVersion`).

use std::fmt;

/// The state of a transactional id. The number is Kafka's id in `__transaction_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i8)]
pub enum TransactionState {
    /// There was no transaction since the last InitProducerId.
    Empty = 0,
    /// Partitions are being added, and records are written.
    Ongoing = 1,
    /// The commit is decided, and its markers are being written.
    PrepareCommit = 2,
    /// The abort is decided, and its markers are being written.
    PrepareAbort = 3,
    /// Every partition has its commit marker.
    CompleteCommit = 4,
    /// Every partition has its abort marker.
    CompleteAbort = 5,
    /// The id has expired. This state is never in a record, because a tombstone is written instead.
    Dead = 6,
    /// The producer is about to be fenced. This state is never in a record: Kafka uses it only during a call, and this
    /// broker does not use it.
    PrepareEpochFence = 7,
}

impl TransactionState {
    /// All states, in the order of their ids.
    pub const ALL: [TransactionState; 8] = [
        TransactionState::Empty,
        TransactionState::Ongoing,
        TransactionState::PrepareCommit,
        TransactionState::PrepareAbort,
        TransactionState::CompleteCommit,
        TransactionState::CompleteAbort,
        TransactionState::Dead,
        TransactionState::PrepareEpochFence,
    ];

    /// Returns the id that the state has in a record.
    pub const fn id(self) -> i8 {
        self as i8
    }

    /// Returns the state with this id, if Kafka has one.
    pub fn from_id(id: i8) -> Option<TransactionState> {
        TransactionState::ALL.into_iter().find(|state| state.id() == id)
    }

    /// Returns the name that Kafka gives the state in ListTransactions and DescribeTransactions.
    pub const fn name(self) -> &'static str {
        match self {
            TransactionState::Empty => "Empty",
            TransactionState::Ongoing => "Ongoing",
            TransactionState::PrepareCommit => "PrepareCommit",
            TransactionState::PrepareAbort => "PrepareAbort",
            TransactionState::CompleteCommit => "CompleteCommit",
            TransactionState::CompleteAbort => "CompleteAbort",
            TransactionState::Dead => "Dead",
            TransactionState::PrepareEpochFence => "PrepareEpochFence",
        }
    }

    /// Returns the state with this name, if Kafka has one.
    pub fn from_name(name: &str) -> Option<TransactionState> {
        TransactionState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns true if this state can come after `previous` (Kafka's `validPreviousStates`).
    pub const fn follows(self, previous: TransactionState) -> bool {
        use TransactionState::*;
        match self {
            Empty | Dead => matches!(previous, Empty | CompleteCommit | CompleteAbort),
            Ongoing => matches!(previous, Ongoing | Empty | CompleteCommit | CompleteAbort),
            PrepareCommit | PrepareEpochFence => matches!(previous, Ongoing),
            // TV2 can abort a transaction without partitions, and it fences directly from Ongoing.
            PrepareAbort => {
                matches!(previous, Ongoing | PrepareEpochFence | Empty | CompleteCommit | CompleteAbort)
            }
            CompleteCommit => matches!(previous, PrepareCommit),
            CompleteAbort => matches!(previous, PrepareAbort),
        }
    }

    /// Returns true if the outcome is decided but markers are still missing.
    pub const fn is_prepared(self) -> bool {
        matches!(self, TransactionState::PrepareCommit | TransactionState::PrepareAbort)
    }

    /// Returns true if all markers are written.
    pub const fn is_complete(self) -> bool {
        matches!(self, TransactionState::CompleteCommit | TransactionState::CompleteAbort)
    }

    /// Returns true if an idle id can expire in this state.
    pub const fn is_expiration_allowed(self) -> bool {
        matches!(self, TransactionState::Empty) || self.is_complete()
    }
}

impl fmt::Display for TransactionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The level of the feature `transaction.version`, for the cluster or for the protocol that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum TransactionVersion {
    /// Level 0: the protocol of KIP-98. Kafka also writes 0 for clients of level 1, which use the same protocol.
    V0 = 0,
    /// Level 1: as level 0, but the records in `__transaction_state` are flexible.
    V1 = 1,
    /// Level 2: the protocol of KIP-890, part 2. Each end of a transaction raises the epoch, and Produce adds
    /// partitions.
    V2 = 2,
}

impl TransactionVersion {
    /// Returns the level of the feature. In a record, this is also the client's version.
    pub const fn level(self) -> i16 {
        self as i16
    }

    /// Returns the version with this level; None if the level is unknown.
    pub const fn from_level(level: i16) -> Option<TransactionVersion> {
        match level {
            0 => Some(TransactionVersion::V0),
            1 => Some(TransactionVersion::V1),
            2 => Some(TransactionVersion::V2),
            _ => None,
        }
    }

    /// Returns the transaction version of a client that sends AddPartitionsToTxn in this version, directly or through a
    /// broker.
    pub const fn of_add_partitions(api_version: i16) -> TransactionVersion {
        if api_version > 3 { TransactionVersion::V2 } else { TransactionVersion::V0 }
    }

    /// Returns the transaction version of a client that sends EndTxn in this version.
    pub const fn of_end_txn(api_version: i16) -> TransactionVersion {
        if api_version > 4 { TransactionVersion::V2 } else { TransactionVersion::V0 }
    }

    /// Returns true if each end of a transaction raises the producer epoch.
    pub const fn supports_epoch_bump(self) -> bool {
        matches!(self, TransactionVersion::V2)
    }
}
