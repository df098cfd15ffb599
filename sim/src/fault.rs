//! Planted faults: a rule or its environment is broken on purpose, one at a time, and the checks must find it.

/// Planted fault: a mistake that other implementations have made, or that we could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The leader acknowledges acks=all as soon as it has the record itself.
    AcknowledgesBeforeReplication,
    /// The leader counts records as the follower's as soon as it has sent them.
    CountsWhatWasSent,
    /// A follower truncates to its high watermark (before KIP-101).
    TruncatesToHighWatermark,
    /// Fetches, responses and changes of the ISR are accepted with any epochs.
    ComparesNoEpoch,
    /// A leader uses a smaller ISR before its request for it is granted.
    ShrinksBeforeCommit,
    /// A change of the ISR without a response is taken for refused.
    TakesUnknownForFailure,
    /// A broker whose log an unclean shutdown truncated reports that it was only killed.
    ElectsLostTail,
    /// A replica joins the ISR even if its broker has registered again after the fetch (KIP-903).
    AdmitsOldBrokerEpoch,
    /// A broker considers others failed by the ages of their heartbeats alone, right after an outage of the database.
    JudgesAfterOutage,
    /// A broker with an older copy of its directory is taken for one that was killed.
    BelievesOlderFolder,
    /// The numbers reported in a process's heartbeats are not compared with the number in the directory.
    BelievesCopyOfRunningBroker,
    /// A process is registered before the leaderships of the former process are handed over.
    RegistersBeforeItHandsOver,
}

/// All planted faults.
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
