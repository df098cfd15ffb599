//! The effects of an event on a group, which the caller carries out in order.
//!
//! Invariant: no client sees an effect that comes after an [`Effect::Keep`] before the records are written.

use super::Change;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::consumer_group_heartbeat::ConsumerGroupHeartbeatResponse;
use fullbore_wire::apis::join_group::JoinGroupResponse;
use fullbore_wire::apis::leave_group::LeaveGroupResponse;
use fullbore_wire::apis::sync_group::SyncGroupResponse;

/// Identifies a waiting request within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTicket(pub u64);

/// Effects, in the order in which they must be carried out.
pub type Effects = Vec<Effect>;

/// A single instruction to the caller.
#[derive(Debug)]
pub enum Effect {
    /// The caller writes these records before it carries out any later effect. It calls
    /// [`Group::take_snapshot`](super::Group::take_snapshot) just before the write, and writes the result with them.
    /// A single write may contain several changes.
    Keep(Change),
    /// The caller responds to the waiting request.
    Answer(RequestTicket, GroupAnswer),
    /// The caller logs or counts the event.
    Report(Event),
}

/// A response to a request.
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
    /// An error response to any kind of request, because the coordinator does not serve this group now.
    Refused(ErrorCode),
}

/// An event that is logged or counted.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// Members must rejoin.
    RebalanceBegun {
        /// The generation that ends.
        generation: i32,
        /// The reason, for the log.
        reason: String,
    },
    /// A new generation begins, and its members are known.
    RebalanceCompleted {
        /// The new generation.
        generation: i32,
        /// Number of members in the new generation.
        members: usize,
    },
    /// The leader of a generation has sent the assignments.
    Assigned {
        /// The generation that the assignments belong to.
        generation: i32,
    },
    /// A member missed a deadline.
    Expired {
        member_id: super::MemberId,
        /// The step that the member has not taken in time.
        waited_for: &'static str,
    },
    /// A member left, or an administrator removed it.
    Left {
        member_id: super::MemberId,
        /// The reason in the LeaveGroup request.
        reason: String,
    },
    /// A static member returned under a new id.
    Replaced {
        /// The instance id of the member.
        instance_id: fullbore_wire::Text,
        /// The former member id, which is fenced from now on.
        old: super::MemberId,
        /// The new member id.
        new: super::MemberId,
    },
}
