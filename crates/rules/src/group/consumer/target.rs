//! The topics and the target of a group. When a subscription or a subscribed topic changes, the group epoch rises and a
//! new target becomes due.
//!
//! `reconcile.rs` then moves each member from its present partitions to its target.

use super::assignor::{Assignor, MemberIndex, NO_MEMBER, Owners, Subscriptions};
use super::member::{ConsumerGroupMember, PartitionSet, TopicIdPartition};
use super::topics::SubscribedTopics;
use super::{ConsumerGroup, ConsumerGroupSettings, MemberId, Topics};
use crate::group::PartKind;
use fullbore_wire::{Text, Uuid};
use std::collections::HashMap;

impl ConsumerGroup {
    /// Raises the group epoch if the group is new, or if a subscription or a subscribed topic has changed. Then
    /// computes a new target, unless the last one is too recent.
    pub(super) fn renew(
        &mut self,
        subscription_changed: bool,
        caller: &MemberId,
        topics: &(impl Topics + ?Sized),
        settings: &ConsumerGroupSettings,
        now: i64,
    ) {
        let mut changed = subscription_changed || self.group_epoch == 0;
        let is_outdated = self.topics_version != Some(topics.version()) || !self.subscriptions.touched.is_empty();
        if changed || is_outdated {
            // If a new target is already due, changed topics do not raise the epoch again, because that target will be
            // computed from the changed topics.
            changed |= self.refresh_topics(topics) && self.group_epoch == self.assignment_epoch;
        }
        if changed {
            self.bump(now);
        }
        if self.group_epoch > self.assignment_epoch && self.may_assign(settings, now) {
            self.assign(caller, settings, now);
        }
    }

    /// Raises the group epoch. After two billion changes it stays at its maximum.
    pub(super) fn bump(&mut self, now: i64) {
        self.group_epoch = self.group_epoch.saturating_add(1);
        self.changed_ms = Some(now);
        self.unsaved.is_dirty = true;
    }

    /// Looks up the subscribed topics again: all of them if the topics of the cluster have a new version, and otherwise
    /// only those whose subscriptions have changed. Returns true if the subscribed topics have changed.
    pub(super) fn refresh_topics(&mut self, topics: &(impl Topics + ?Sized)) -> bool {
        let touched = std::mem::take(&mut self.subscriptions.touched);
        if self.topics_version == Some(topics.version()) {
            for name in touched {
                let is_subscribed = self.subscriptions.names.contains_key(&name);
                let topic = topics.find(&name).filter(|_| is_subscribed);
                self.topics.set(name, topic);
            }
        } else {
            self.look_up_topics(topics);
            self.topics_version = Some(topics.version());
        }
        let hash = self.topics.hash();
        if hash == std::mem::replace(&mut self.topics_hash, hash) {
            return false;
        }
        self.unsaved.is_dirty = true;
        true
    }

    /// Looks up all subscribed topics.
    pub(super) fn look_up_topics(&mut self, topics: &(impl Topics + ?Sized)) {
        self.topics = SubscribedTopics::default();
        for name in self.subscriptions.names.keys() {
            self.topics.set(name.clone(), topics.find(name));
        }
    }

    /// Returns true if the last target is old enough for a new one, or if the group has only one member.
    fn may_assign(&self, settings: &ConsumerGroupSettings, now: i64) -> bool {
        self.assigned_ms.is_none_or(|at| now >= at + i64::from(settings.assignment_interval_ms))
            || self.members.len() == 1
    }

    /// Computes the target for the current group epoch.
    fn assign(&mut self, caller: &MemberId, settings: &ConsumerGroupSettings, now: i64) {
        let assignor = self.assignor(settings);
        let order = match assignor {
            Assignor::Range => self.order_by_name(),
            Assignor::Uniform => self.order_by_time(caller, now),
        };
        let topics: Vec<(Uuid, i32)> = self.topics.iter().map(|(_, topic)| *topic).collect();
        let by_name: HashMap<&Text, usize> = self.topics.names().enumerate().map(|(n, name)| (name, n)).collect();
        let by_id: HashMap<Uuid, usize> = topics.iter().enumerate().map(|(n, &(id, _))| (id, n)).collect();
        let mut group = Subscriptions { members: order.len(), subscribers: vec![Vec::new(); topics.len()] };
        let mut owners: Owners =
            topics.iter().map(|&(_, count)| vec![NO_MEMBER; usize::try_from(count).unwrap_or(0)]).collect();
        for (n, id) in order.iter().enumerate() {
            let member = &self.members[id];
            for topic in self.subscribed(member).filter_map(|name| by_name.get(name)) {
                let subscribers = &mut group.subscribers[*topic];
                if subscribers.last() != Some(&(n as MemberIndex)) {
                    subscribers.push(n as MemberIndex);
                }
            }
            for partition in &member.target {
                let row = by_id.get(&partition.topic).map(|&topic| &mut owners[topic]);
                let index = usize::try_from(partition.index).unwrap_or(usize::MAX);
                if let Some(owner) = row.and_then(|row| row.get_mut(index)) {
                    *owner = n as MemberIndex;
                }
            }
        }
        assignor.assign(&group, &mut owners);
        let mut targets = vec![PartitionSet::new(); order.len()];
        for (row, &(topic, _)) in owners.iter().zip(&topics) {
            for (&owner, index) in row.iter().zip(0..).filter(|&(&owner, _)| owner != NO_MEMBER) {
                targets[owner as usize].insert(TopicIdPartition { topic, index });
            }
        }
        for (id, target) in order.into_iter().zip(targets) {
            if let Some(member) = self.members.get_mut(&id).filter(|member| member.target != target) {
                member.target = target;
                self.unsaved.mark_member(PartKind::Assignment, member);
            }
        }
        self.assignment_epoch = self.group_epoch;
        self.assigned_ms = Some(now);
        self.unsaved.is_dirty = true;
    }

    /// Returns the members in the order in which `range` assigns partitions to them: static members by instance id,
    /// then the others by member id. So static members keep their ranges when their member ids change.
    fn order_by_name(&self) -> Vec<MemberId> {
        let mut members: Vec<&ConsumerGroupMember> = self.members.values().collect();
        members.sort_by_key(|member| (member.instance_id.is_none(), member.instance_id.clone(), member.id.clone()));
        members.into_iter().map(|member| member.id.clone()).collect()
    }

    /// Returns the members in the order in which they will get a new target. The sender of the present heartbeat is the
    /// first, and the others follow by the expected time of their next heartbeat. Members whose heartbeat is overdue
    /// come last, because they may have died.
    fn order_by_time(&self, caller: &MemberId, now: i64) -> Vec<MemberId> {
        let mut members: Vec<&ConsumerGroupMember> = self.members.values().collect();
        members.sort_by_key(|member| (member.id != *caller, member.expected_by < now, member.expected_by));
        members.into_iter().map(|member| member.id.clone()).collect()
    }
}
