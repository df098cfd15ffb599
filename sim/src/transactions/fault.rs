//! Faults planted in the world of transactions. Each breaks one rule, and the checks must find the fault.

/// A mistake that other implementations have made, or that we could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Markers are sent before the decision is replicated.
    MarksBeforeDecision,
    /// The client gets the response to EndTxn before the decision is replicated.
    AnswersBeforeDecision,
    /// A coordinator counts a record as written once its own log has it.
    KeepsOnOneReplica,
    /// A partition counts as marked although its marker was never written.
    LeavesPartitionUnmarked,
    /// A new coordinator counts the last records in its log as written before they are replicated.
    LoadsUnreplicated,
    /// Markers of a replaced coordinator are accepted.
    TakesOldCoordinators,
    /// The epoch is not increased at the end of a transaction of version 2.
    BumpsNoEpoch,
    /// Consumers at read_committed read up to the high watermark.
    StableIsHighWatermark,
    /// A marker moves the last stable offset before the marker is replicated.
    CountsUnreplicatedMarkers,
    /// Fetches return no list of aborted transactions.
    NoAbortedList,
    /// Offsets committed in a transaction take effect before its marker.
    OffsetsHoldEarly,
    /// Compaction removes records because a newer, aborted record has the same key.
    AbortedSupersede,
    /// A producer is evicted while its transaction is open.
    EvictsOpenProducer,
    /// Snapshots of producers leave out their open transactions.
    SnapshotsForgetOpen,
    /// A batch opens a transaction in its partition although the coordinator has not confirmed the batch, as in Kafka
    /// before KIP-890.
    AsksNoCoordinator,
    /// A batch is appended on the coordinator's confirmation, although a marker has ended the transaction meanwhile.
    BelievesOldConfirmation,
    /// The index accepts a marker of the old protocol although another broker has already written it.
    IndexTakesLateMarkers,
    /// A marker counts as written although the upload of its object has failed.
    CountsFailedMarkers,
    /// Consumers at read_committed read a diskless partition up to its end.
    StableIsIndexEnd,
    /// The client gets the response to a commit before the records and the decision are flushed.
    FlushesNothing,
    /// After a kill, decisions in the log are carried out before they are flushed.
    LoadsUnflushed,
    /// After a power loss, the states of transactional ids are loaded as if none of their last records could be lost.
    LoadsSure,
    /// After a power loss, logs are not searched for open transactions that no transactional id knows of.
    LooksInNoLog,
    /// After a power loss, the index is not searched for open transactions that no transactional id knows of.
    LooksInNoIndex,
}

/// Every fault that can be planted.
pub const FAULTS: [Fault; 24] = [
    Fault::MarksBeforeDecision,
    Fault::AnswersBeforeDecision,
    Fault::KeepsOnOneReplica,
    Fault::LeavesPartitionUnmarked,
    Fault::LoadsUnreplicated,
    Fault::TakesOldCoordinators,
    Fault::BumpsNoEpoch,
    Fault::StableIsHighWatermark,
    Fault::CountsUnreplicatedMarkers,
    Fault::NoAbortedList,
    Fault::OffsetsHoldEarly,
    Fault::AbortedSupersede,
    Fault::EvictsOpenProducer,
    Fault::SnapshotsForgetOpen,
    Fault::AsksNoCoordinator,
    Fault::BelievesOldConfirmation,
    Fault::IndexTakesLateMarkers,
    Fault::CountsFailedMarkers,
    Fault::StableIsIndexEnd,
    Fault::FlushesNothing,
    Fault::LoadsUnflushed,
    Fault::LoadsSure,
    Fault::LooksInNoLog,
    Fault::LooksInNoIndex,
];
