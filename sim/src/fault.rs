//! What is broken on purpose, one at a time: the check must find it.

/// A mistake that others have made, or that we could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// acks=all is answered once the leader has the record.
    AcknowledgesBeforeReplication,
    /// The leader counts what it has sent as what the follower has.
    CountsWhatWasSent,
    /// A follower truncates to its high watermark (before KIP-101).
    TruncatesToHighWatermark,
    /// Fetches, answers and changes of the ISR are believed whatever epochs they are of.
    ComparesNoEpoch,
    /// A leader goes by a smaller ISR that it has only asked for.
    ShrinksBeforeCommit,
    /// A change of the ISR without an answer is held for refused.
    TakesUnknownForFailure,
    /// A broker that lost its log's end says that it was killed.
    ElectsLostTail,
    /// A replica joins the ISR whatever became of its broker since it fetched (KIP-903).
    AdmitsOldBrokerEpoch,
    /// A broker judges by ages alone, right after an outage of the database.
    JudgesAfterOutage,
    /// A broker with an older copy of its folder is held for one that was killed.
    BelievesOlderFolder,
    /// Numbers that a process told with its beats are not compared with that of the folder.
    BelievesCopyOfRunningBroker,
    /// A process has its broker's place before what the former one led is another's.
    RegistersBeforeItHandsOver,
}

/// All of them.
pub const FAULTS: [Fault; 12] = [
    Fault::AcknowledgesBeforeReplication,
    Fault::CountsWhatWasSent,
    Fault::TruncatesToHighWatermark,
    Fault::ComparesNoEpoch,
    Fault::ShrinksBeforeCommit,
    Fault::TakesUnknownForFailure,
    Fault::ElectsLostTail,
    Fault::AdmitsOldBrokerEpoch,
    Fault::JudgesAfterOutage,
    Fault::BelievesOlderFolder,
    Fault::BelievesCopyOfRunningBroker,
    Fault::RegistersBeforeItHandsOver,
];
