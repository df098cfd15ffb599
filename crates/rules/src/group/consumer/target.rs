//! The subscriptions, the topics and the target of a group. The group epoch rises when they change.
//!
//! `reconcile.rs` decides which partitions the members have, and brings them to the target.

use super::assignor::{Assignor, MemberIndex, NO_MEMBER, Owners, Subscriptions};
use super::heartbeat::Resolved;
use super::member::{ConsumerGroupMember, PartitionSet, TopicIdPartition};
use super::{ConsumerGroup, ConsumerGroupSettings, Matched, MemberId, TEXT_BYTES, Topics};
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, HashMap};

impl ConsumerGroup {
    /// Returns the names of the topics that a member subscribes to, by name or by expression. A name may occur twice.
    pub(super) fn subscribed<'a>(&'a self, member: &'a ConsumerGroupMember) -> impl Iterator<Item = &'a Text> {
        let matched = member.regex.as_ref().and_then(|regex| self.regexes.get(regex));
        member.topics.iter().chain(matched.into_iter().flat_map(|matched| &matched.topics))
    }

    /// Adds the member's expression if the group lacks it, so that the next heartbeat resolves it. This happens if the
    /// expression was in use when the caller looked for new ones, but the last member that used it has left since then.
    pub(super) fn ask_for_regex(&mut self, id: &MemberId) {
        let regex = self.members[id].regex.clone().filter(|regex| !self.regexes.contains_key(regex));
        if let Some(regex) = regex {
            self.regexes.insert(regex, Matched::default());
            self.note_regexes();
        }
    }

    /// Stores the topics that regular expressions match at a `version` of the topics. An expression that was already
    /// resolved for a later version is skipped, and expressions that are no longer in use are removed. Returns true if
    /// the topics of an expression in use have changed.
    pub(super) fn resolve(&mut self, resolved: Vec<Resolved>, version: u64, now: i64) -> bool {
        let mut changed = false;
        if !resolved.is_empty() {
            self.resolved_ms = Some(now);
        }
        for (regex, topics) in resolved {
            let before = self.regexes.get(&regex);
            let is_overtaken = before.is_some_and(|before| before.version > Some(version));
            if !is_overtaken && self.members.values().any(|member| member.regex.as_ref() == Some(&regex)) {
                changed |= before.is_none_or(|before| before.topics != topics);
                self.regexes.insert(regex, Matched { topics, version: Some(version) });
            }
        }
        self.strike_regexes();
        if changed {
            self.note_regexes();
        }
        changed
    }

    pub(super) fn strike_regexes(&mut self) {
        let before = self.regexes.len();
        if before > 0 {
            let members = &self.members;
            self.regexes.retain(|regex, _| members.values().any(|member| member.regex.as_ref() == Some(regex)));
        }
        if self.regexes.len() != before {
            self.note_regexes();
        }
    }

    /// Counts the memory of the expressions and their topics again.
    pub(super) fn note_regexes(&mut self) {
        let bytes = |text: &Text| text.len() + TEXT_BYTES;
        let held = |(regex, matched): (&Text, &Matched)| bytes(regex) + matched.topics.iter().map(bytes).sum::<usize>();
        self.regexes_bytes = self.regexes.iter().map(held).sum();
    }

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
        if changed || self.topics_version != Some(topics.version()) {
            // If a new target is already due, changed topics need no further epoch, because the target is computed from
            // them.
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
        self.dirty = true;
    }

    /// Reads the subscribed topics again. Returns true if one of them has changed.
    pub(super) fn refresh_topics(&mut self, topics: &(impl Topics + ?Sized)) -> bool {
        let mut found = BTreeMap::new();
        for member in self.members.values() {
            for name in self.subscribed(member) {
                if !found.contains_key(name)
                    && let Some(topic) = topics.find(name)
                {
                    found.insert(name.clone(), topic);
                }
            }
        }
        self.topics_version = Some(topics.version());
        if found == self.topics {
            return false;
        }
        self.topics = found;
        self.dirty = true;
        true
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
        let topics: Vec<(Uuid, i32)> = self.topics.values().copied().collect();
        let by_name: HashMap<&Text, usize> = self.topics.keys().enumerate().map(|(n, name)| (name, n)).collect();
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
            if let Some(member) = self.members.get_mut(&id) {
                member.target = target;
            }
        }
        self.assignment_epoch = self.group_epoch;
        self.assigned_ms = Some(now);
        self.dirty = true;
    }

    /// Returns the members in the order that `range` assigns in: static members by instance id, then the others by
    /// member id. So static members keep their ranges when their member ids change.
    fn order_by_name(&self) -> Vec<MemberId> {
        let mut members: Vec<&ConsumerGroupMember> = self.members.values().collect();
        members.sort_by_key(|member| (member.instance_id.is_none(), member.instance_id.clone(), member.id.clone()));
        members.into_iter().map(|member| member.id.clone()).collect()
    }

    /// Returns the members in the order in which they will learn of a new target. The sender of this heartbeat is the
    /// first, and the others follow by the time of their next heartbeat. Members whose heartbeat is overdue come last,
    /// because they may have died.
    fn order_by_time(&self, caller: &MemberId, now: i64) -> Vec<MemberId> {
        let mut members: Vec<&ConsumerGroupMember> = self.members.values().collect();
        members.sort_by_key(|member| (member.id != *caller, member.expected_by < now, member.expected_by));
        members.into_iter().map(|member| member.id.clone()).collect()
    }
}
