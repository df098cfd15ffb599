//! Planted faults of the world of transactions: one at a time breaks it on purpose, and the checks must find it.

/// Planted fault: a mistake that other implementations have made, or that we could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Markers are sent when the append of the decision begins.
    MarksBeforeDecision,
    /// EndTxn gets its response when the append of the decision begins.
    AnswersBeforeDecision,
    /// A coordinator counts a record as written once its own log has it.
    KeepsOnOneReplica,
    /// A partition of a decided transaction counts as marked without its marker.
    LeavesPartitionUnmarked,
    /// A new coordinator counts its last records as written before they are replicated.
    LoadsUnreplicated,
    /// Markers of the former coordinator are accepted.
    TakesOldCoordinators,
    /// The epoch stays at the end of a transaction of version 2.
    BumpsNoEpoch,
    /// Consumers at read_committed read up to the high watermark.
    StableIsHighWatermark,
    /// A marker moves the last stable offset before it is replicated.
    CountsUnreplicatedMarkers,
    /// A fetch has no list of aborted transactions.
    NoAbortedList,
    /// Offsets in a transaction are valid before its marker.
    OffsetsHoldEarly,
    /// Aborted records supersede other records in compaction.
    AbortedSupersede,
    /// A producer is evicted while its transaction is open.
    EvictsOpenProducer,
    /// A snapshot of producers lacks the open transactions.
    SnapshotsForgetOpen,
    /// A batch opens a transaction in its partition without the coordinator's confirmation (before KIP-890).
    AsksNoCoordinator,
    /// The coordinator's confirmation counts although a marker has arrived after it.
    BelievesOldWord,
    /// The index accepts a marker of the old protocol although another broker has already written it.
    IndexTakesLateMarkers,
    /// A marker counts as written although the upload of its object has failed.
    CountsFailedMarkers,
    /// Consumers at read_committed read a diskless partition up to its end.
    StableIsIndexEnd,
    /// The client gets the response to a commit before the records and the decision are flushed.
    FlushesNothing,
    /// Decisions found after a kill are carried out before they are flushed.
    LoadsUnflushed,
    /// Ids are loaded after a power loss as if none of their records were lost.
    LoadsSure,
    /// After a power loss, logs are not searched for open transactions that no transactional id knows.
    LooksInNoLog,
    /// After a power loss, the index is not searched for open transactions that no transactional id knows.
    LooksInNoIndex,
}

/// All planted faults.
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
    Fault::BelievesOldWord,
    Fault::IndexTakesLateMarkers,
    Fault::CountsFailedMarkers,
    Fault::StableIsIndexEnd,
    Fault::FlushesNothing,
    Fault::LoadsUnflushed,
    Fault::LoadsSure,
    Fault::LooksInNoLog,
    Fault::LooksInNoIndex,
];
