//! Converts a classic group to a group of the consumer protocol, and back.
//!
//! Invariant: each member keeps its partitions and the group's generation.

use super::member::{ClassicGroupMember, Profile};
use super::{Classic, ClassicGroupSettings, GroupState};
use crate::group::consumer::{self, ClassicMember, ConsumerGroup, HeldPartitions, TopicIdPartition, Topics};
use crate::group::{Effects, MemberId};
use fullbore_wire::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};
use fullbore_wire::{Text, Uuid};
use std::collections::BTreeSet;

/// The assignors that are built into clients. An assignor may put data of its own (`user_data`) into an assignment, and
/// a conversion of the group loses this data. Kafka refuses such a conversion. Fullbore allows it for these assignors,
/// because librdkafka's `cooperative-sticky` adds such data.
const BUILT_IN: [&str; 4] = ["range", "roundrobin", "sticky", "cooperative-sticky"];

impl Classic {
    /// Creates an empty group whose next generation follows `generation`.
    pub(in crate::group) fn after(generation: i32, settings: ClassicGroupSettings, now: i64) -> Classic {
        Classic { generation, was_kept: true, ..Classic::new(settings, now) }
    }

    /// Returns this group without its members (see [`Classic::after`]). If the group never had a generation or a
    /// snapshot, the result is a new group.
    pub(in crate::group) fn emptied(&self, now: i64) -> Classic {
        let was_kept = self.was_kept || self.generation > 0;
        Classic { was_kept, ..Classic::after(self.generation, self.settings, now) }
    }

    pub(in crate::group) fn generation(&self) -> i32 {
        self.generation
    }

    pub(in crate::group) fn members_len(&self) -> usize {
        self.members.len()
    }

    /// Starts a rebalance.
    pub(in crate::group) fn rebalance(&mut self, reason: String, now: i64, effects: &mut Effects) {
        self.prepare_rebalance(reason, now, effects);
    }

    /// Converts the group to the consumer protocol, while all its members still use the classic one. A member keeps the
    /// partitions of its assignment. During a rebalance it also keeps the partitions that its JoinGroup lists as owned.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the consumer protocol cannot represent the group.
    pub(in crate::group) fn to_consumer(
        &self,
        parts_id: Uuid,
        topics: &dyn Topics,
        now: i64,
    ) -> Result<ConsumerGroup, &'static str> {
        const MALFORMED: &str = "the embedded consumer protocol is malformed";
        let mut members = Vec::with_capacity(self.members.len());
        for (id, member) in &self.members {
            let first = member.profile.protocols.first().map(|(_, metadata)| metadata.clone()).unwrap_or_default();
            let metadata = self.protocol.as_deref().map_or(first, |protocol| member.metadata(protocol));
            let (_, subscription) =
                consumer_protocol::decode::<ConsumerProtocolSubscription>(metadata).map_err(|_| MALFORMED)?;
            let mut held = HeldPartitions::new();
            if !member.assignment.is_empty() {
                let (_, assignment) =
                    consumer_protocol::decode::<ConsumerProtocolAssignment>(member.assignment.clone())
                        .map_err(|_| MALFORMED)?;
                let data = assignment.user_data.is_some_and(|data| !data.is_empty());
                if data && !self.protocol.as_deref().is_some_and(|protocol| BUILT_IN.contains(&protocol)) {
                    return Err("an unsupported custom assignor is in use");
                }
                hold(&mut held, &assignment.assigned_partitions, topics, self.generation);
            }
            if self.state != GroupState::Stable {
                hold(&mut held, &subscription.owned_partitions, topics, self.generation);
            }
            members.push(self.to_consumer_member(id, member, &subscription, held, now));
        }
        Ok(ConsumerGroup::of_classic(self.generation, parts_id, members, topics, now))
    }

    fn to_consumer_member(
        &self,
        id: &MemberId,
        member: &ClassicGroupMember,
        subscription: &ConsumerProtocolSubscription,
        held: HeldPartitions,
        now: i64,
    ) -> consumer::ConsumerGroupMember {
        let Profile { session_timeout_ms, rebalance_timeout_ms, protocols } = member.profile.clone();
        consumer::ConsumerGroupMember {
            instance_id: member.instance_id.clone(),
            rack_id: subscription.rack_id.as_deref().map(Text::from),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            rebalance_timeout_ms,
            topics: subscription.topics.iter().map(|topic| Text::from(&**topic)).collect::<BTreeSet<_>>(),
            epoch: self.generation,
            previous_epoch: self.generation,
            target: held.keys().copied().collect(),
            assigned: held,
            classic: Some(ClassicMember { session_timeout_ms, protocols, join_by: None, sync_by: None }),
            session_by: now.saturating_add(i64::from(session_timeout_ms)),
            ..consumer::ConsumerGroupMember::new(id.clone())
        }
    }

    /// Converts a group whose members all use the classic protocol to a classic group. The group is stable, and the
    /// members keep their assignments and generation. So they can still commit until they rejoin.
    pub(in crate::group) fn from_consumer(group: &ConsumerGroup, settings: ClassicGroupSettings, now: i64) -> Classic {
        let generation = group.members().map(|member| member.epoch).max().unwrap_or(0).max(0);
        let mut classic = Classic::after(generation, settings, now);
        classic.protocol_type = Some(Text::from_static(consumer::PROTOCOL_TYPE));
        for member in group.members() {
            let Some(speaks) = &member.classic else { continue };
            let mut own = ClassicGroupMember {
                instance_id: member.instance_id.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                profile: Profile {
                    session_timeout_ms: speaks.session_timeout_ms,
                    rebalance_timeout_ms: member.rebalance_timeout_ms,
                    protocols: speaks.protocols.clone(),
                },
                assignment: group.assignment_of(member),
                joining: None,
                syncing: None,
                is_new: false,
                owes_sync: false,
                deadline: 0,
            };
            own.deadline = own.session_end(now);
            classic.insert(member.id.clone(), own);
        }
        classic.protocol = classic.choose_protocol();
        classic.enter(GroupState::Stable, now);
        classic.note_topics();
        classic
    }
}

fn hold(held: &mut HeldPartitions, owned: &[TopicPartition], topics: &dyn Topics, generation: i32) {
    for topic in owned {
        if let Some((id, _)) = topics.find(&topic.topic) {
            held.extend(topic.partitions.iter().map(|&index| (TopicIdPartition { topic: id, index }, generation)));
        }
    }
}
