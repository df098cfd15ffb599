//! States of a transaction, and the transaction version of its client (Kafka's `TransactionState` and
//! `TransactionVersion`).

use std::fmt;

/// State of a transactional id, with Kafka's ids in `__transaction_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i8)]
pub enum TransactionState {
    /// No transaction since the last InitProducerId.
    Empty = 0,
    /// Partitions are added, and records are written.
    Ongoing = 1,
    /// The commit is decided; its markers are being written.
    PrepareCommit = 2,
    /// The abort is decided; its markers are being written.
    PrepareAbort = 3,
    /// Every partition has its commit marker.
    CompleteCommit = 4,
    /// Every partition has its abort marker.
    CompleteAbort = 5,
    /// The id has expired. Never in a record, since a tombstone replaces it.
    Dead = 6,
    /// The producer is about to be fenced. Never in a record: Kafka is in this state only within one call, this machine
    /// never.
    PrepareEpochFence = 7,
}

impl TransactionState {
    /// All states, by id.
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

    /// Returns the id in a record.
    pub const fn id(self) -> i8 {
        self as i8
    }

    /// Returns the state with this id; None if Kafka has none.
    pub fn from_id(id: i8) -> Option<TransactionState> {
        TransactionState::ALL.into_iter().find(|state| state.id() == id)
    }

    /// Returns Kafka's name, as in ListTransactions and DescribeTransactions.
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

    /// Returns the state with this name; None if Kafka has none.
    pub fn from_name(name: &str) -> Option<TransactionState> {
        TransactionState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns true if this state may follow `previous` (Kafka's `validPreviousStates`).
    pub const fn follows(self, previous: TransactionState) -> bool {
        use TransactionState::*;
        match self {
            Empty | Dead => matches!(previous, Empty | CompleteCommit | CompleteAbort),
            Ongoing => matches!(previous, Ongoing | Empty | CompleteCommit | CompleteAbort),
            PrepareCommit | PrepareEpochFence => matches!(previous, Ongoing),
            // TV2 aborts a transaction without partitions, and fences directly from Ongoing.
            PrepareAbort => {
                matches!(previous, Ongoing | PrepareEpochFence | Empty | CompleteCommit | CompleteAbort)
            }
            CompleteCommit => matches!(previous, PrepareCommit),
            CompleteAbort => matches!(previous, PrepareAbort),
        }
    }

    /// Returns true if the outcome is decided and markers are still missing.
    pub const fn is_prepared(self) -> bool {
        matches!(self, TransactionState::PrepareCommit | TransactionState::PrepareAbort)
    }

    /// Returns true if all markers are written.
    pub const fn is_complete(self) -> bool {
        matches!(self, TransactionState::CompleteCommit | TransactionState::CompleteAbort)
    }

    /// Returns true if an idle id may expire in this state.
    pub const fn is_expiration_allowed(self) -> bool {
        matches!(self, TransactionState::Empty) || self.is_complete()
    }
}

impl fmt::Display for TransactionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Level of the feature `transaction.version`, of the cluster or of a client's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum TransactionVersion {
    /// Protocol of KIP-98. Kafka also writes 0 for clients of level 1, which have the same protocol.
    V0 = 0,
    /// Flexible records in `__transaction_state`; the protocol is that of level 0.
    V1 = 1,
    /// Protocol of KIP-890 part 2: each end of a transaction bumps the epoch, and Produce adds partitions.
    V2 = 2,
}

impl TransactionVersion {
    /// Returns the feature level, which is also the client's version in a record.
    pub const fn level(self) -> i16 {
        self as i16
    }

    /// Returns the version of a feature level; None for an unknown level.
    pub const fn from_level(level: i16) -> Option<TransactionVersion> {
        match level {
            0 => Some(TransactionVersion::V0),
            1 => Some(TransactionVersion::V1),
            2 => Some(TransactionVersion::V2),
            _ => None,
        }
    }

    /// Returns the transaction version of a client whose AddPartitionsToTxn has this version. The client may have sent
    /// it directly or through a broker.
    pub const fn of_add_partitions(api_version: i16) -> TransactionVersion {
        if api_version > 3 { TransactionVersion::V2 } else { TransactionVersion::V0 }
    }

    /// Returns the transaction version of a client whose EndTxn has this version.
    pub const fn of_end_txn(api_version: i16) -> TransactionVersion {
        if api_version > 4 { TransactionVersion::V2 } else { TransactionVersion::V0 }
    }

    /// Returns true if each end of a transaction bumps the producer epoch.
    pub const fn supports_epoch_bump(self) -> bool {
        matches!(self, TransactionVersion::V2)
    }
}
