//! Mutations: the rules or their surroundings are broken on purpose, one at a time, and the checks must find it.

/// Mutation: a mistake that others have made, or that we could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// acks=all is acknowledged once the leader has the record.
    AcknowledgesBeforeReplication,
    /// The leader counts the records that it has sent as the follower's.
    CountsWhatWasSent,
    /// A follower truncates to its high watermark (before KIP-101).
    TruncatesToHighWatermark,
    /// Fetches, responses and changes of the ISR are accepted with any epochs.
    ComparesNoEpoch,
    /// A leader uses a smaller ISR that it has only requested.
    ShrinksBeforeCommit,
    /// A change of the ISR without a response is taken for refused.
    TakesUnknownForFailure,
    /// A broker that an unclean shutdown truncated reports that it was killed.
    ElectsLostTail,
    /// A replica joins the ISR even if its broker has registered again since it fetched (KIP-903).
    AdmitsOldBrokerEpoch,
    /// A broker considers others failed by ages alone, right after an outage of the database.
    JudgesAfterOutage,
    /// A broker with an older copy of its directory is taken for one that was killed.
    BelievesOlderFolder,
    /// Numbers reported with a process's heartbeats are not compared with that of the directory.
    BelievesCopyOfRunningBroker,
    /// A process is registered before the leadership of the former one is handed over.
    RegistersBeforeItHandsOver,
}

/// All mutations.
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
