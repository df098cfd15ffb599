//! Decides a member's next step after a response from its coordinator.
//!
//! Invariant: every error code has exactly one next step. A member that may have lost its partitions takes no step in
//! which it commits offsets.

use fullbore_wire::ErrorCode;

/// The next step of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The request succeeded, so continue.
    Go,
    /// Send the request to the same coordinator again, after a pause.
    Again,
    /// Look up the coordinator and send the request again.
    Find,
    /// Rejoin. The member still owns its partitions.
    Rejoin,
    /// Rejoin. Other members may already own the member's partitions.
    RejoinLost,
    /// Rejoin as a new member, because the group has removed the member.
    RejoinNew,
    /// Give up, because no retry can succeed.
    Fatal,
}

/// Returns the step after a response to any request of a member.
pub fn next(code: ErrorCode) -> Next {
    match code {
        ErrorCode::NONE => Next::Go,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS | ErrorCode::UNSTABLE_OFFSET_COMMIT => Next::Again,
        ErrorCode::NOT_COORDINATOR | ErrorCode::COORDINATOR_NOT_AVAILABLE => Next::Find,
        ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::STALE_MEMBER_EPOCH => Next::Rejoin,
        ErrorCode::ILLEGAL_GENERATION | ErrorCode::FENCED_MEMBER_EPOCH => Next::RejoinLost,
        ErrorCode::UNKNOWN_MEMBER_ID => Next::RejoinNew,
        code if code.is_retriable() => Next::Again,
        _ => Next::Fatal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_may_have_lost_its_partitions_rejoins_without_them() {
        for (code, step) in [
            (ErrorCode::NONE, Next::Go),
            (ErrorCode::REBALANCE_IN_PROGRESS, Next::Rejoin),
            (ErrorCode::ILLEGAL_GENERATION, Next::RejoinLost),
            (ErrorCode::UNKNOWN_MEMBER_ID, Next::RejoinNew),
            (ErrorCode::NOT_COORDINATOR, Next::Find),
            (ErrorCode::REQUEST_TIMED_OUT, Next::Again),
            (ErrorCode::FENCED_INSTANCE_ID, Next::Fatal),
            (ErrorCode::INCONSISTENT_GROUP_PROTOCOL, Next::Fatal),
            (ErrorCode::GROUP_MAX_SIZE_REACHED, Next::Fatal),
        ] {
            assert_eq!(next(code), step, "{code}");
        }
    }
}
