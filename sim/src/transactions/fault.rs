//! What is broken on purpose in a world of transactions, one at a time: the check must find it.

/// A mistake that others have made, or that we could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Markers leave when the append of the decision begins.
    MarksBeforeDecision,
    /// EndTxn is answered when the append of the decision begins.
    AnswersBeforeDecision,
    /// A coordinator counts a record as kept once its own log has it.
    KeepsOnOneReplica,
    /// A partition of a decided transaction counts as marked without its marker.
    LeavesPartitionUnmarked,
    /// A new coordinator takes its last records for kept before they are replicated.
    LoadsUnreplicated,
    /// Markers of the coordinator before are taken.
    TakesOldCoordinators,
    /// The epoch stays at the end of a transaction of version 2.
    BumpsNoEpoch,
    /// Consumers at read_committed read up to the high watermark.
    StableIsHighWatermark,
    /// A marker that is not replicated moves the last stable offset.
    CountsUnreplicatedMarkers,
    /// A fetch has no list of aborted transactions.
    NoAbortedList,
    /// Offsets in a transaction hold before its marker.
    OffsetsHoldEarly,
    /// Aborted records supersede others in compaction.
    AbortedSupersede,
    /// A producer is forgotten while its transaction is open.
    EvictsOpenProducer,
    /// A snapshot of producers does not say which transactions are open.
    SnapshotsForgetOpen,
    /// A batch opens a transaction in its partition without the coordinator's word (before KIP-890).
    AsksNoCoordinator,
    /// The coordinator's word holds although a marker has come since.
    BelievesOldWord,
    /// The index takes a marker of the old protocol that another broker has written meanwhile.
    IndexTakesLateMarkers,
    /// A marker counts as written whose object did not get into the store.
    CountsFailedMarkers,
    /// Consumers at read_committed read a diskless partition up to its end.
    StableIsIndexEnd,
    /// A commit is answered before its records and its decision are on the disk.
    FlushesNothing,
    /// Decisions that a kill has left are carried out before they are on the disk.
    LoadsUnflushed,
    /// Ids are loaded after a power cut as if no record of theirs were lost.
    LoadsSure,
    /// Transactions that no id has are not looked for in logs after a power cut.
    LooksInNoLog,
    /// Transactions that no id has are not looked for in the index after a power cut.
    LooksInNoIndex,
}

/// All of them.
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
