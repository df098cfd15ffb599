//! The rules that the model of transactions breaks on purpose.

/// A rule that the model breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Brokers do not let the coordinator verify batches.
    SkipsVerification,
    /// A broker records a later time for the coordinator's confirmation than the true one.
    BelievesAnOldConfirmation,
    /// Markers of transaction version 2 do not have the next epoch, but are recorded as if they had.
    BumpsNoEpoch,
    /// A marker is dropped when batches before it are refused.
    DropsMarkersBehindRefused,
    /// Markers of an older coordinator are accepted like those of the newest one.
    TakesOldMarkers,
    /// Aborted transactions are missing from the list that consumers use.
    ListsNoAborted,
    /// The next offset is used as the last stable offset.
    ReadsTheUndecided,
    /// The rows of producers do not show that batches are transactional.
    HidesOpenings,
    /// The state of a silent producer is dropped although its transaction is open.
    ForgetsOpen,
}
