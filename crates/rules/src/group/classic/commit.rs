//! Checks commits and deletions of offsets, and finds the topics that the members read.

use super::{Classic, GroupState};
use crate::group::Committer;
use fullbore_wire::consumer_protocol::{self, ConsumerProtocolSubscription};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeSet;

/// The protocol type of consumers, the only one whose metadata can be decoded here.
const CONSUMER: &str = "consumer";

impl Classic {
    pub(in crate::group) fn check_commit(&mut self, committer: &Committer<'_>, now: i64) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        let Committer { member_id, instance_id, generation, .. } = *committer;
        if generation < 0 && self.state == GroupState::Empty || committer.is_unnamed_in_transaction() {
            return Ok(());
        }
        if generation < 0 && member_id.is_empty() && instance_id.is_none() {
            return Err(ErrorCode::UNKNOWN_MEMBER_ID);
        }
        self.check_member(member_id, instance_id)?;
        if generation != self.generation {
            return Err(ErrorCode::ILLEGAL_GENERATION);
        }
        if committer.is_transactional {
            return Ok(());
        }
        if self.state == GroupState::CompletingRebalance {
            return Err(ErrorCode::REBALANCE_IN_PROGRESS);
        }
        self.renew(member_id, now);
        Ok(())
    }

    /// Checks that a client may delete single offsets. A group that has members must have the protocol type `consumer`.
    pub(in crate::group) fn check_offset_delete(&self) -> Result<(), ErrorCode> {
        match self.state {
            GroupState::Dead => Err(ErrorCode::GROUP_ID_NOT_FOUND),
            GroupState::Empty => Ok(()),
            _ if self.protocol_type() == Some(CONSUMER) => Ok(()),
            _ => Err(ErrorCode::NON_EMPTY_GROUP),
        }
    }

    pub(in crate::group) fn reads(&self, topic: &str) -> bool {
        match &self.topics {
            Some(topics) => topics.contains(topic),
            None => self.state != GroupState::Empty && self.protocol_type() == Some(CONSUMER),
        }
    }

    /// Sets which topics the members of this generation read: None if their metadata cannot be decoded.
    pub(super) fn note_topics(&mut self) {
        self.topics = self.subscribed();
    }

    fn subscribed(&self) -> Option<BTreeSet<Text>> {
        if self.protocol_type() != Some(CONSUMER) {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            let metadata = member.metadata(self.protocol.as_deref()?);
            let (_, subscription) = consumer_protocol::decode::<ConsumerProtocolSubscription>(metadata).ok()?;
            topics.extend(subscription.topics);
        }
        Some(topics)
    }
}
