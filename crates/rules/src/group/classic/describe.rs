//! Describes a group for administration tools.

use super::{Classic, ClassicGroupMember, GroupState, MemberId};
use fullbore_wire::Text;
use fullbore_wire::apis::describe_groups::{DescribedGroup, DescribedGroupMember};

impl Classic {
    /// Returns the group as DescribeGroups shows it. The caller adds the group's id.
    pub fn describe(&self) -> DescribedGroup {
        let protocol = self.protocol.clone().filter(|_| self.state == GroupState::Stable);
        let one = |(id, member): (&MemberId, &ClassicGroupMember)| DescribedGroupMember {
            member_id: id.clone(),
            group_instance_id: member.instance_id.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            member_metadata: protocol.as_deref().map(|protocol| member.metadata(protocol)).unwrap_or_default(),
            member_assignment: member.assignment.clone(),
            ..Default::default()
        };
        DescribedGroup {
            group_state: Text::from_static(self.state.name()),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol_data: protocol.clone().unwrap_or_default(),
            members: self.members.iter().map(one).collect(),
            ..Default::default()
        }
    }
}
