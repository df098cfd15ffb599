//! Effects of an event, which the caller carries out in order.
//!
//! Invariant: no client sees an effect that follows an [`Effect::Keep`] before the snapshot is written.

use super::Snapshot;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::consumer_group_heartbeat::ConsumerGroupHeartbeatResponse;
use fullbore_wire::apis::join_group::JoinGroupResponse;
use fullbore_wire::apis::leave_group::LeaveGroupResponse;
use fullbore_wire::apis::sync_group::SyncGroupResponse;

/// Id of a waiting request, unique within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTicket(pub u64);

/// Effects in their order.
pub type Effects = Vec<Effect>;

/// Effect of an event.
#[derive(Debug)]
pub enum Effect {
    /// Write the snapshot before any later effect.
    Keep(Snapshot),
    /// Respond to the waiting request.
    Answer(RequestTicket, GroupAnswer),
    /// Write a log line, or count the event.
    Tell(Event),
}

/// Response to a request.
#[derive(Debug, PartialEq)]
pub enum GroupAnswer {
    /// Response to JoinGroup.
    Join(Box<JoinGroupResponse>),
    /// Response to SyncGroup.
    Sync(Box<SyncGroupResponse>),
    /// Response to Heartbeat.
    Heartbeat(ErrorCode),
    /// Response to LeaveGroup.
    Leave(Box<LeaveGroupResponse>),
    /// Response to ConsumerGroupHeartbeat.
    ConsumerHeartbeat(Box<ConsumerGroupHeartbeatResponse>),
    /// Refusal of any request: the coordinator does not serve this group now.
    Refused(ErrorCode),
}

/// Event for the log and the metrics.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// Members must rejoin.
    RebalanceBegun {
        /// Generation that ends.
        generation: i32,
        /// Reason as a sentence.
        reason: String,
    },
    /// The members of a new generation are known.
    RebalanceCompleted {
        /// New generation.
        generation: i32,
        /// Number of members in the new generation.
        members: usize,
    },
    /// All assignments of a generation are known.
    Assigned {
        /// Generation of the assignments.
        generation: i32,
    },
    /// A member missed a deadline.
    Expired {
        member_id: super::MemberId,
        /// Step that the member did not take in time.
        waited_for: &'static str,
    },
    /// A member left of its own accord.
    Left {
        member_id: super::MemberId,
        /// Reason given by the client.
        reason: String,
    },
    /// A static member returned under a new id.
    Replaced {
        /// Instance id of the member.
        instance_id: fullbore_wire::Text,
        /// Former member id, which is fenced from now on.
        old: super::MemberId,
        /// New member id.
        new: super::MemberId,
    },
}
