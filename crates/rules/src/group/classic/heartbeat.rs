//! Heartbeat: a member shows that it is alive, and learns if it must rejoin.

use super::Classic;
use crate::group::GroupState;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;

impl Classic {
    /// Handles a Heartbeat, and returns the error code of the response.
    pub fn heartbeat(&mut self, request: &HeartbeatRequest, now: i64) -> ErrorCode {
        if self.state == GroupState::Dead {
            return ErrorCode::COORDINATOR_NOT_AVAILABLE;
        }
        if let Err(code) = self.check_member(&request.member_id, request.group_instance_id.as_deref()) {
            return code;
        }
        if request.generation_id != self.generation {
            return ErrorCode::ILLEGAL_GENERATION;
        }
        self.renew(&request.member_id, now);
        match self.state {
            GroupState::PreparingRebalance => ErrorCode::REBALANCE_IN_PROGRESS,
            _ => ErrorCode::NONE,
        }
    }
}
