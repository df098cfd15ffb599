//! LeaveGroup: members leave on their own or by an administrator's request.

use super::{Classic, MemberId};
use crate::group::{Effect, Effects, Event, GroupAnswer, GroupState, RequestTicket};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::leave_group::{LeaveGroupResponse, MemberIdentity, MemberResponse};

impl Classic {
    /// Handles a LeaveGroup request, which can name several members.
    pub fn leave(&mut self, members: &[MemberIdentity], ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let mut response = LeaveGroupResponse::default();
        if self.state == GroupState::Dead {
            response.error_code = ErrorCode::COORDINATOR_NOT_AVAILABLE;
            effects.push(Effect::Answer(ticket, GroupAnswer::Leave(Box::new(response))));
            return;
        }
        let before = (self.members.len(), self.pending.len());
        let mut last = None;
        for leaving in members {
            let left = self.leave_one(leaving, effects);
            response.members.push(MemberResponse {
                member_id: leaving.member_id.clone(),
                group_instance_id: leaving.group_instance_id.clone(),
                error_code: left.as_ref().err().copied().unwrap_or_default(),
                ..Default::default()
            });
            last = left.ok().or(last);
        }
        let gone = before.0 - self.members.len();
        match (self.state, last) {
            (GroupState::Stable | GroupState::CompletingRebalance, Some(last)) if gone > 0 => {
                self.prepare_rebalance(format!("{gone} members left, among them {last}"), now, effects);
            }
            (GroupState::PreparingRebalance, Some(_)) => self.complete_join_if_all_there(now, effects),
            _ => {}
        }
        effects.push(Effect::Answer(ticket, GroupAnswer::Leave(Box::new(response))));
    }

    fn leave_one(&mut self, leaving: &MemberIdentity, effects: &mut Effects) -> Result<MemberId, ErrorCode> {
        let instance_id = leaving.group_instance_id.as_deref();
        let member_id = if leaving.member_id.is_empty() {
            // In an administrator's request, a member may be identified by its instance id alone.
            let known = instance_id.and_then(|instance_id| self.instances.get(instance_id));
            known.cloned().ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?
        } else if self.forget_pending(&leaving.member_id) {
            return Ok(leaving.member_id.clone());
        } else {
            self.check_member(&leaving.member_id, instance_id)?;
            leaving.member_id.clone()
        };
        self.remove(&member_id, effects);
        let reason = leaving.reason.as_deref().unwrap_or("not provided").to_owned();
        effects.push(Effect::Report(Event::Left { member_id: member_id.clone(), reason }));
        Ok(member_id)
    }
}
