//! Effects of an event, for the caller to carry out in order.
//!
//! Invariant: no client sees an effect after a [`Effect::Keep`] before the snapshot is kept.

use super::Snapshot;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::consumer_group_heartbeat::ConsumerGroupHeartbeatResponse;
use fullbore_wire::apis::join_group::JoinGroupResponse;
use fullbore_wire::apis::leave_group::LeaveGroupResponse;
use fullbore_wire::apis::sync_group::SyncGroupResponse;

/// Stands for one request that waits for its answer; unique within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTicket(pub u64);

/// In order.
pub type Effects = Vec<Effect>;

/// Effect of an event.
#[derive(Debug)]
pub enum Effect {
    /// Keep the group as it is; what follows waits until that is done.
    Keep(Snapshot),
    /// Answer who waits.
    Answer(RequestTicket, GroupAnswer),
    /// For the log and the counters.
    Tell(Event),
}

/// Answer to a request.
#[derive(Debug, PartialEq)]
pub enum GroupAnswer {
    /// To JoinGroup.
    Join(Box<JoinGroupResponse>),
    /// To SyncGroup.
    Sync(Box<SyncGroupResponse>),
    /// To Heartbeat.
    Heartbeat(ErrorCode),
    /// To LeaveGroup.
    Leave(Box<LeaveGroupResponse>),
    /// To ConsumerGroupHeartbeat.
    ConsumerHeartbeat(Box<ConsumerGroupHeartbeatResponse>),
    /// To any request: the coordinator does not answer for this group now.
    Refused(ErrorCode),
}

/// Something worth a line in the log, or a count.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// Members are asked to join again.
    RebalanceBegun {
        /// The generation that ends.
        generation: i32,
        /// Why, as a sentence.
        reason: String,
    },
    /// The members of a new generation are known.
    RebalanceCompleted {
        /// The new generation.
        generation: i32,
        /// How many members it has.
        members: usize,
    },
    /// Everybody's assignment is known.
    Assigned {
        /// The generation.
        generation: i32,
    },
    /// A member was silent for its session.
    Expired {
        /// The member's id.
        member_id: super::MemberId,
        /// Which time it let pass.
        waited_for: &'static str,
    },
    /// A member left of its own accord.
    Left {
        /// The member's id.
        member_id: super::MemberId,
        /// The client's reason.
        reason: String,
    },
    /// A static member came back under a new id.
    Replaced {
        /// The static name.
        instance_id: fullbore_wire::Text,
        /// The id that is fenced from now on.
        old: super::MemberId,
        /// The id of the member that takes its place.
        new: super::MemberId,
    },
}
