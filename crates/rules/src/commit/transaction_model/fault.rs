//! The rules that the model of transactions breaks on purpose.

/// A rule that the model breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Brokers treat every batch as verified, without a request to the coordinator.
    SkipsVerification,
    /// A broker records a larger next offset with the coordinator's confirmation, so no marker seems to be newer.
    BelievesAnOldConfirmation,
    /// Markers of transaction version 2 have the epoch of the transaction instead of the next one, but are recorded as
    /// usual.
    BumpsNoEpoch,
    /// A marker is dropped when batches before it are refused.
    DropsMarkersBehindRefused,
    /// Markers of an older coordinator are accepted like those of the newest one.
    TakesOldMarkers,
    /// Aborted transactions are missing from the list by which consumers skip aborted records.
    ListsNoAborted,
    /// The next offset is used as the last stable offset.
    ReadsTheUndecided,
    /// The rows of producers do not show that batches are transactional.
    HidesOpenings,
    /// The state of a silent producer is dropped although its transaction is open.
    ForgetsOpen,
}
