//! Migrates a group from one protocol to the other (KIP-848), and handles the requests that cause a migration.
//!
//! If a member that uses the consumer protocol joins a classic group, the group becomes a consumer group. Its other
//! members continue with JoinGroup, SyncGroup and Heartbeat. When the last member that uses the consumer protocol
//! leaves, the group becomes classic again, and rebalances. An empty group takes the protocol of its first member.
//!
//! Invariant: in a migration no member loses a partition that it holds, and generations and epochs never go back.

use super::classic::Classic;
use super::consumer::{Call, ConsumerGroup, GroupRefusal, Topics};
use super::observed::{Consumer, observed};
use super::{Change, Effect, Effects, Group, GroupAnswer, GroupSettings, GroupState, Joining, RequestTicket};
use fullbore_wire::apis::consumer_group_heartbeat::ConsumerGroupHeartbeatResponse;
use fullbore_wire::{ErrorCode, Text, Uuid};

impl Group {
    /// Handles a ConsumerGroupHeartbeat, and responds at once. `settings` are the broker's settings, overridden by
    /// those of the group.
    pub fn consumer_heartbeat(
        &mut self,
        call: Call<'_>,
        topics: &dyn Topics,
        settings: GroupSettings,
        ticket: RequestTicket,
        now: i64,
        effects: &mut Effects,
    ) {
        let joins = call.request.member_epoch == super::consumer::JOINING;
        let parts_id = call.fresh_parts_id;
        let answered = match self {
            Group::Consumer(consumer) => {
                consumer.settings = settings;
                observed(&mut consumer.group, effects, |group| group.heartbeat(call, topics, &settings.consumer, now))
            }
            Group::Classic(classic) => match upgraded(classic, joins, parts_id, topics, &settings, now) {
                Err(refusal) => Err(refusal),
                Ok(mut group) => {
                    let answered =
                        observed(&mut group, effects, |group| group.heartbeat(call, topics, &settings.consumer, now));
                    if answered.is_ok() {
                        classic.kill(ErrorCode::REBALANCE_IN_PROGRESS, effects);
                        *self = Group::Consumer(Box::new(Consumer { group, settings }));
                    }
                    answered
                }
            },
        };
        self.keep_if_changed(effects);
        let response = answered.unwrap_or_else(refused);
        effects.push(Effect::Answer(ticket, GroupAnswer::ConsumerHeartbeat(Box::new(response))));
        self.downgrade_if_due(now, effects);
    }

    /// Handles a JoinGroup that is sent to a consumer group.
    pub(super) fn join_consumer(
        &mut self,
        joining: Joining<'_>,
        topics: &dyn Topics,
        ticket: RequestTicket,
        now: i64,
        effects: &mut Effects,
    ) {
        let Group::Consumer(consumer) = self else { return };
        let settings = consumer.settings;
        if consumer.group.state() == GroupState::Empty {
            let mut classic = Classic::after(consumer.group.group_epoch(), settings.classic, now);
            classic.join(joining, ticket, now, effects);
            *self = Group::Classic(Box::new(classic));
            return;
        }
        let range = settings.classic.session_timeout_min_ms..=settings.classic.session_timeout_max_ms;
        let response = if range.contains(&joining.request.session_timeout_ms) {
            observed(&mut consumer.group, effects, |group| group.classic_join(joining, topics, &settings.consumer, now))
        } else {
            fullbore_wire::apis::join_group::JoinGroupResponse {
                error_code: ErrorCode::INVALID_SESSION_TIMEOUT,
                member_id: joining.request.member_id.clone(),
                protocol_name: None,
                ..Default::default()
            }
        };
        self.keep_if_changed(effects);
        effects.push(Effect::Answer(ticket, GroupAnswer::Join(Box::new(response))));
        self.downgrade_if_due(now, effects);
    }

    /// Returns a group without members that has the same protocol and continues after the same generation or epoch. The
    /// new group replaces a group whose code has panicked. Requests of the former members are refused, so they rejoin.
    /// The records of the former members become garbage, because the parts of the new group have another random id,
    /// `parts_id`.
    pub fn emptied(&self, parts_id: Uuid, now: i64) -> Group {
        match self {
            Group::Classic(classic) => Group::Classic(Box::new(classic.emptied(now))),
            Group::Consumer(consumer) => Group::Consumer(Box::new(Consumer {
                group: ConsumerGroup::new(consumer.group.group_epoch(), parts_id, now),
                settings: consumer.settings,
            })),
        }
    }

    /// Adds an [`Effect::Keep`] with the records of a consumer group that have changed, if there are any.
    pub(super) fn keep_if_changed(&mut self, effects: &mut Effects) {
        if let Group::Consumer(consumer) = self
            && let Some(change) = consumer.group.take_change()
        {
            effects.push(Effect::Keep(change));
        }
    }

    /// Converts a group to the classic protocol if all its members use that protocol and the settings allow it.
    pub(super) fn downgrade_if_due(&mut self, now: i64, effects: &mut Effects) {
        let Group::Consumer(consumer) = self else { return };
        let Consumer { group, settings } = &**consumer;
        let members = group.members().len();
        if members == 0
            || group.members().any(|member| member.classic.is_none())
            || !settings.consumer.migration.downgrades()
            || members > settings.classic.members_max
        {
            return;
        }
        let mut classic = Classic::from_consumer(group, settings.classic, now);
        effects.push(Effect::Keep(Change { group: Some(classic.snapshot()), parts: group.tombstones() }));
        classic.rebalance("the last member of the consumer protocol has gone".to_owned(), now, effects);
        *self = Group::Classic(Box::new(classic));
    }
}

/// Creates the consumer group that replaces a classic group when a member that uses the consumer protocol joins.
fn upgraded(
    classic: &Classic,
    joins: bool,
    parts_id: Uuid,
    topics: &dyn Topics,
    settings: &GroupSettings,
    now: i64,
) -> Result<ConsumerGroup, GroupRefusal> {
    let not_found = |why: &str| Err(GroupRefusal { code: ErrorCode::GROUP_ID_NOT_FOUND, message: why.to_owned() });
    if classic.state() == GroupState::Dead || !joins {
        return not_found("The group is not a consumer group.");
    }
    if classic.state() == GroupState::Empty {
        return Ok(ConsumerGroup::new(classic.generation(), parts_id, now));
    }
    let cannot = "Cannot upgrade the classic group to a consumer group because";
    if !settings.consumer.migration.upgrades() {
        return not_found(&format!("{cannot} online upgrade is disabled."));
    }
    if classic.protocol_type() != Some(super::consumer::PROTOCOL_TYPE) {
        return not_found(&format!("{cannot} the group does not use the consumer embedded protocol."));
    }
    if classic.members_len() > settings.consumer.members_max {
        return not_found(&format!("{cannot} the group size exceeds the consumer group maximum size."));
    }
    classic.to_consumer(parts_id, topics, now).or_else(|why| not_found(&format!("{cannot} {why}.")))
}

fn refused(refusal: GroupRefusal) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        error_code: refusal.code,
        error_message: Some(Text::from(refusal.message)),
        ..ConsumerGroupHeartbeatResponse::default()
    }
}
