//! When a member is to come again: which heartbeat interval its answer tells.
//!
//! Members learn of a change by nothing but their heartbeats: an old owner hears that it is to give something up, a new
//! one that it was given up. So those whom a change concerns are told a short interval while it lasts, and everybody
//! else the configured one, which is also the longest that anybody is told.
//!
//! What it is not: a time limit. Sessions and the time to revoke are the same whatever the interval.
//!
//! Invariant: after a change a member sends a bounded number of heartbeats more than it would have, however long others
//! take over it: 3 s of short intervals, and while it waits longer than that an eighth of the time since the change
//! each.

use super::member::{ConsumerGroupMember, MemberState};
use super::{ConsumerGroup, ConsumerGroupSettings};

/// After a change others are likely, as when an application is rolled out: everybody who comes is told to come again
/// soon.
pub(super) const GRACE_MS: i64 = 3_000;
/// Largest delay of a waiting member's heartbeat, as a part of the time since the change.
const PART_OF_WAIT: i64 = 8;

impl ConsumerGroup {
    /// The interval for this member, which has just been brought as near to its target as it can be.
    pub(super) fn interval_ms(&self, member: &ConsumerGroupMember, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        if member.state == MemberState::UnreleasedPartitions || self.group_epoch > self.assignment_epoch {
            return self.waiting_interval_ms(settings, now);
        }
        // One that has to give something up says so of its own accord, as soon as it has.
        self.settled_interval_ms(settings, now)
    }

    /// The interval for a member that waits for nothing.
    pub(super) fn settled_interval_ms(&self, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        match self.changed_ms {
            Some(at) if now - at < GRACE_MS => self.short_interval_ms(settings),
            _ => settings.heartbeat_interval_ms,
        }
    }

    /// The interval for a member to which nothing is left but to hear that others have moved.
    fn waiting_interval_ms(&self, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        let Some(at) = self.changed_ms else { return settings.heartbeat_interval_ms };
        let part = i32::try_from((now - at) / PART_OF_WAIT).unwrap_or(i32::MAX);
        self.short_interval_ms(settings).max(part).min(settings.heartbeat_interval_ms)
    }

    /// A millisecond for each member at least: together they send no more than a thousand heartbeats a second.
    fn short_interval_ms(&self, settings: &ConsumerGroupSettings) -> i32 {
        let members = i32::try_from(self.members.len()).unwrap_or(i32::MAX);
        match settings.unsettled_interval_ms {
            0 => settings.heartbeat_interval_ms,
            short => short.max(members).min(settings.heartbeat_interval_ms),
        }
    }
}
