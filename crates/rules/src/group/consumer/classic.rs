//! Handles members that still use the classic protocol in a consumer group ("online migration" in KIP-848).
//!
//! Such a member joins, syncs and sends heartbeats of the classic protocol, with its member epoch as the generation. A
//! heartbeat makes it rejoin in three cases: the group has a newer epoch, it must give partitions up, or partitions of
//! its target have become free. The coordinator assigns the partitions, so no member is the leader.
//!
//! The conversion of whole groups is in `group/migration.rs`.

use super::classic_member::ClassicMember;
use super::heartbeat::unknown_member;
use super::member::{ConsumerGroupMember, MemberState, PartitionSet, TopicIdPartition};
use super::{ConsumerGroup, ConsumerGroupSettings, Migration, PROTOCOL_TYPE, Topics};
use crate::group::Joining;
use crate::group::MemberId;
use bytes::Bytes;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::join_group::JoinGroupResponse;
use fullbore_wire::apis::leave_group::{MemberIdentity, MemberResponse};
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupResponse};
use fullbore_wire::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, HashMap};

/// The first version of JoinGroup in which a client without a member id is given one and must join again with it
/// (KIP-394).
const MEMBER_ID_REQUIRED_FROM: i16 = 4;

impl ConsumerGroup {
    /// Handles a JoinGroup. The response is returned at once.
    pub fn classic_join(
        &mut self,
        joining: Joining<'_>,
        topics: &(impl Topics + ?Sized),
        settings: &ConsumerGroupSettings,
        now: i64,
    ) -> JoinGroupResponse {
        let request = joining.request;
        let refused = |member_id: Text, error_code| JoinGroupResponse {
            error_code,
            member_id,
            protocol_name: None,
            ..JoinGroupResponse::default()
        };
        let is_unknown = request.member_id.is_empty();
        let id = if is_unknown { joining.new_member_id.clone() } else { Text::from(&*request.member_id) };
        if let Err(code) = self.check_classic_join(&joining, &id, settings) {
            return refused(Text::from(&*request.member_id), code);
        }
        if is_unknown && request.group_instance_id.is_none() && joining.version >= MEMBER_ID_REQUIRED_FROM {
            return refused(id, ErrorCode::MEMBER_ID_REQUIRED);
        }
        let metadata = request.protocols.first().map(|protocol| protocol.metadata.clone()).unwrap_or_default();
        let Ok((_, subscription)) = consumer_protocol::decode::<ConsumerProtocolSubscription>(metadata) else {
            return refused(id, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        };
        let before = match self.find_joining(&id, request.group_instance_id.as_deref(), is_unknown) {
            Ok(member) => member,
            Err(code) => return refused(id, code),
        };
        let member = noted(before.clone(), &joining, &subscription, now);
        let subscription_changed = member.topics != before.topics || member.regex != before.regex;
        let id = member.id.clone();
        self.put(member);
        self.strike_regexes();
        self.renew(subscription_changed, &id, topics, settings, now);
        let owned = self.by_id(&subscription.owned_partitions, topics);
        self.reconcile(&id, Some(&owned), subscription_changed, topics, now);
        let member = &self.members[&id];
        JoinGroupResponse {
            generation_id: member.epoch,
            protocol_type: Some(Text::from_static(PROTOCOL_TYPE)),
            protocol_name: request.protocols.first().map(|protocol| Text::from(&*protocol.name)),
            member_id: id,
            ..JoinGroupResponse::default()
        }
    }

    fn check_classic_join(
        &self,
        joining: &Joining<'_>,
        id: &str,
        settings: &ConsumerGroupSettings,
    ) -> Result<(), ErrorCode> {
        self.check_size(id, settings).map_err(|refusal| refusal.code)?;
        let request = joining.request;
        let all = self.members.values().filter(|member| member.classic.is_some() && *member.id != *id).count();
        let offers = |name: &Text| {
            let classic = |member: &&ConsumerGroupMember| *member.id != *id && member.classic.is_some();
            let offers = |member: &ConsumerGroupMember| {
                member.classic.as_ref().is_some_and(|classic| classic.protocols.iter().any(|(known, _)| known == name))
            };
            self.members.values().filter(classic).filter(|member| offers(member)).count()
        };
        let agrees = *request.protocol_type == *PROTOCOL_TYPE
            && request.protocols.iter().any(|protocol| offers(&protocol.name) == all);
        if settings.migration == Migration::Disabled || !agrees {
            return Err(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        Ok(())
    }

    /// Finds or creates the joining member. A static member that joins without a member id takes over the member with
    /// its instance id, whatever that member's state.
    fn find_joining(
        &mut self,
        id: &MemberId,
        instance_id: Option<&str>,
        is_unknown: bool,
    ) -> Result<ConsumerGroupMember, ErrorCode> {
        let known =
            |group: &Self| group.members.get(id).cloned().unwrap_or_else(|| ConsumerGroupMember::new(id.clone()));
        let Some(instance_id) = instance_id else { return Ok(known(self)) };
        match self.statics.get(instance_id).cloned() {
            None if is_unknown => Ok(known(self)),
            None => Err(ErrorCode::UNKNOWN_MEMBER_ID),
            Some(existing) if is_unknown => Ok(self.replace(&existing, id.clone())),
            Some(existing) if existing == *id => Ok(self.members[id].clone()),
            Some(_) => Err(ErrorCode::FENCED_INSTANCE_ID),
        }
    }

    /// Converts partitions from topic names to topic ids. Partitions of unknown topics are left out.
    fn by_id(&self, owned: &[TopicPartition], topics: &(impl Topics + ?Sized)) -> PartitionSet {
        let of = |topic: &TopicPartition| {
            let id = topics.find(&topic.topic).or_else(|| self.topics.get(&topic.topic));
            let partitions = topic.partitions.clone();
            id.into_iter().flat_map(move |(id, _)| {
                partitions.clone().into_iter().map(move |index| TopicIdPartition { topic: id, index })
            })
        };
        owned.iter().flat_map(of).collect()
    }

    /// Handles a SyncGroup. The response has the member's assignment.
    pub fn classic_sync(&mut self, request: &SyncGroupRequest, now: i64) -> SyncGroupResponse {
        let refused = |error_code| SyncGroupResponse { error_code, ..SyncGroupResponse::default() };
        let instance_id = request.group_instance_id.as_deref();
        let id = match self.find_classic(&request.member_id, instance_id, request.generation_id) {
            Ok(id) => id,
            Err(code) => return refused(code),
        };
        let member = &self.members[&id];
        let protocol = member.classic.as_ref().and_then(|classic| classic.protocols.first()).map(|(name, _)| name);
        let differs = |named: &Option<Text>, is: Option<&str>| named.as_deref().is_some_and(|named| Some(named) != is);
        if differs(&request.protocol_type, Some(PROTOCOL_TYPE))
            || differs(&request.protocol_name, protocol.map(|name| &**name))
        {
            return refused(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        if self.group_epoch > member.epoch && member.state != MemberState::UnrevokedPartitions {
            self.request_join(&id, now);
            return refused(ErrorCode::REBALANCE_IN_PROGRESS);
        }
        let (assignment, protocol_name) = (self.assignment_of(member), protocol.cloned());
        if let Some(member) = self.members.get_mut(&id)
            && let Some(classic) = &mut member.classic
        {
            classic.sync_by = None;
            member.session_by = now + i64::from(classic.session_timeout_ms);
        }
        SyncGroupResponse {
            protocol_type: Some(Text::from_static(PROTOCOL_TYPE)),
            protocol_name,
            assignment,
            ..SyncGroupResponse::default()
        }
    }

    /// Handles a Heartbeat. The result is REBALANCE_IN_PROGRESS if the member must rejoin.
    pub fn classic_heartbeat(&mut self, request: &HeartbeatRequest, now: i64) -> ErrorCode {
        let instance_id = request.group_instance_id.as_deref();
        let id = match self.find_classic(&request.member_id, instance_id, request.generation_id) {
            Ok(id) => id,
            Err(code) => return code,
        };
        if let Some(member) = self.members.get_mut(&id)
            && let Some(classic) = &member.classic
        {
            member.session_by = now + i64::from(classic.session_timeout_ms);
        }
        let member = &self.members[&id];
        let waits_in_vain = member.state == MemberState::UnreleasedPartitions && !self.waits_for_others(member);
        if member.epoch < self.group_epoch || member.state == MemberState::UnrevokedPartitions || waits_in_vain {
            self.request_join(&id, now);
            return ErrorCode::REBALANCE_IN_PROGRESS;
        }
        ErrorCode::NONE
    }

    /// Removes the members in a LeaveGroup request. A member without an id is identified by its instance id.
    pub fn classic_leave(&mut self, identities: &[MemberIdentity], now: i64) -> Vec<MemberResponse> {
        let mut leaving: Vec<MemberId> = Vec::new();
        let mut responses = Vec::with_capacity(identities.len());
        for identity in identities {
            let found = self.find_classic_leaving(identity);
            let error_code = found.as_ref().err().copied().unwrap_or(ErrorCode::NONE);
            leaving.extend(found);
            responses.push(MemberResponse {
                member_id: identity.member_id.clone(),
                group_instance_id: identity.group_instance_id.clone(),
                error_code,
                ..MemberResponse::default()
            });
        }
        leaving.retain(|id| self.members.contains_key(id));
        if !leaving.is_empty() {
            self.remove(&leaving, now);
        }
        responses
    }

    fn find_classic_leaving(&self, identity: &MemberIdentity) -> Result<MemberId, ErrorCode> {
        let id = match &identity.group_instance_id {
            None => self.members.get(&identity.member_id).map(|member| member.id.clone()),
            Some(instance_id) => match self.statics.get(instance_id) {
                Some(id) if !identity.member_id.is_empty() && *id != identity.member_id => {
                    return Err(ErrorCode::FENCED_INSTANCE_ID);
                }
                found => found.cloned(),
            },
        };
        let id = id.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
        // An administrator may remove static members by instance id, whichever protocol they use. Other members can
        // leave only by the protocol that they use.
        let is_classic = self.members[&id].classic.is_some();
        if is_classic || identity.group_instance_id.is_some() { Ok(id) } else { Err(ErrorCode::UNKNOWN_MEMBER_ID) }
    }

    fn find_classic(&self, id: &str, instance_id: Option<&str>, generation: i32) -> Result<MemberId, ErrorCode> {
        if let Some(instance_id) = instance_id {
            match self.statics.get(instance_id) {
                None => return Err(ErrorCode::UNKNOWN_MEMBER_ID),
                Some(known) if **known != *id => return Err(ErrorCode::FENCED_INSTANCE_ID),
                Some(_) => {}
            }
        }
        let member = self.members.get(id).filter(|member| member.classic.is_some());
        let member = member.ok_or_else(|| unknown_member(id).code)?;
        if member.epoch != generation { Err(ErrorCode::ILLEGAL_GENERATION) } else { Ok(member.id.clone()) }
    }

    fn waits_for_others(&self, member: &ConsumerGroupMember) -> bool {
        let held =
            |partition: &TopicIdPartition| self.holders.get(partition).is_some_and(|holder| *holder != member.id);
        member.target.iter().any(|partition| !member.assigned.contains_key(partition) && held(partition))
    }

    /// Gives the member a deadline to rejoin, unless it already has one.
    fn request_join(&mut self, id: &MemberId, now: i64) {
        if let Some(member) = self.members.get_mut(id)
            && let Some(classic) = &mut member.classic
        {
            classic.join_by.get_or_insert(now + i64::from(member.rebalance_timeout_ms));
        }
    }

    /// Returns a member's assignment in the encoding of its client, without deleted topics.
    pub(in crate::group) fn assignment_of(&self, member: &ConsumerGroupMember) -> Bytes {
        let names: HashMap<Uuid, &Text> = self.topics.iter().map(|(name, (id, _))| (*id, name)).collect();
        let mut assigned: BTreeMap<&Text, Vec<i32>> = BTreeMap::new();
        for partition in member.assigned.keys() {
            if let Some(name) = names.get(&partition.topic) {
                assigned.entry(name).or_default().push(partition.index);
            }
        }
        let topic = |(name, partitions): (&Text, Vec<i32>)| TopicPartition {
            topic: name.clone(),
            partitions,
            ..TopicPartition::default()
        };
        let assignment = ConsumerProtocolAssignment {
            assigned_partitions: assigned.into_iter().map(topic).collect(),
            ..ConsumerProtocolAssignment::default()
        };
        let version = member.classic.as_ref().map_or(0, ClassicMember::version);
        consumer_protocol::encode(&assignment, version)
            .expect("the version is known, names and counts came in requests")
    }
}

/// Returns the member with the fields of its JoinGroup.
fn noted(
    mut member: ConsumerGroupMember,
    joining: &Joining<'_>,
    subscription: &ConsumerProtocolSubscription,
    now: i64,
) -> ConsumerGroupMember {
    let request = joining.request;
    let rebalance_timeout_ms = match request.rebalance_timeout_ms {
        -1 => request.session_timeout_ms,
        ms => ms.max(0),
    };
    member.instance_id = request.group_instance_id.as_deref().map(Text::from).or(member.instance_id);
    member.rack_id = subscription.rack_id.as_deref().map(Text::from);
    member.client_id = Text::from(joining.client_id);
    member.client_host = Text::from(joining.client_host);
    member.rebalance_timeout_ms = rebalance_timeout_ms;
    member.topics = subscription.topics.iter().map(|topic| Text::from(&**topic)).collect();
    member.regex = None;
    member.assignor = None;
    member.revoke_by = None;
    member.session_by = now + i64::from(request.session_timeout_ms);
    let own = |protocol: &fullbore_wire::apis::join_group::JoinGroupRequestProtocol| {
        (Text::from(&*protocol.name), Bytes::copy_from_slice(&protocol.metadata))
    };
    member.classic = Some(ClassicMember {
        session_timeout_ms: request.session_timeout_ms,
        protocols: request.protocols.iter().map(own).collect(),
        join_by: None,
        sync_by: Some(now + i64::from(rebalance_timeout_ms)),
    });
    member
}
