//! Faults planted to test the checks. Each breaks one rule or a part of its environment, and the checks must find it.

/// A mistake that other implementations have made, or that we could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The leader acknowledges acks=all as soon as it has the record itself.
    AcknowledgesBeforeReplication,
    /// The leader assumes that a follower has the records that the leader has only sent so far.
    CountsWhatWasSent,
    /// A follower truncates to its high watermark, as in Kafka before KIP-101.
    TruncatesToHighWatermark,
    /// Fetches, responses and changes of the ISR are accepted whatever their epochs are.
    ComparesNoEpoch,
    /// A leader uses a smaller ISR before the cluster has granted it.
    ShrinksBeforeCommit,
    /// A leader that gets no response to a change of the ISR treats the change as refused.
    TakesUnknownForFailure,
    /// A broker that lost the end of its log in a power loss reports that it was only killed.
    ElectsLostTail,
    /// A replica joins the ISR although its broker has registered again since the fetch, as in Kafka before KIP-903.
    AdmitsOldBrokerEpoch,
    /// Right after an outage of the database, a broker considers others failed because their heartbeats are old.
    JudgesAfterOutage,
    /// A broker that starts from an older copy of its directory is treated as one that was killed.
    BelievesOlderDirectory,
    /// When a process joins, the database does not compare the heartbeat number in the process's directory with the one
    /// in the last heartbeat.
    BelievesCopyOfRunningBroker,
    /// A process is registered before its predecessor's leaderships are handed over.
    RegistersBeforeItHandsOver,
}

/// Every fault that can be planted.
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
    Fault::BelievesOlderDirectory,
    Fault::BelievesCopyOfRunningBroker,
    Fault::RegistersBeforeItHandsOver,
];
