//! Chooses the heartbeat interval in a response, which decides when the member sends its next heartbeat.
//!
//! A member learns only from the responses to its heartbeats that it must give partitions up, or that free partitions
//! are assigned to it. So for 3 s after a change of the group, all members get a short interval. Later, a member that
//! waits for partitions gets an eighth of the time since the change. Every other member gets the configured interval,
//! which is also the maximum.
//!
//! The interval is no deadline: the length of a session and the time to revoke partitions do not depend on it.
//!
//! Invariant: after a change, each member sends a bounded number of additional heartbeats, however slow other members
//! are.

use super::member::{ConsumerGroupMember, MemberState};
use super::{ConsumerGroup, ConsumerGroupSettings};

/// How long all members get a short interval after a change. In this time further changes are likely, as when an
/// application is rolled out.
pub(super) const GRACE_MS: i64 = 3_000;
/// While a member waits for partitions, its interval is the time since the change divided by this number.
const PART_OF_WAIT: i64 = 8;

impl ConsumerGroup {
    /// Returns the interval for a member that has just made a step towards its target.
    pub(super) fn interval_ms(&self, member: &ConsumerGroupMember, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        if member.state == MemberState::UnreleasedPartitions || self.group_epoch > self.assignment_epoch {
            return self.waiting_interval_ms(settings, now);
        }
        // A member that must give up partitions does not wait for the interval. It sends a heartbeat as soon as it has
        // given them up.
        self.settled_interval_ms(settings, now)
    }

    /// Returns the interval for a member that does not wait for other members.
    pub(super) fn settled_interval_ms(&self, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        match self.changed_ms {
            Some(at) if now - at < GRACE_MS => self.short_interval_ms(settings),
            _ => settings.heartbeat_interval_ms,
        }
    }

    /// Returns the interval for a member that waits for a new target, or for other members to give partitions up.
    fn waiting_interval_ms(&self, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        let Some(at) = self.changed_ms else { return settings.heartbeat_interval_ms };
        let part = i32::try_from((now - at) / PART_OF_WAIT).unwrap_or(i32::MAX);
        self.short_interval_ms(settings).max(part).min(settings.heartbeat_interval_ms)
    }

    /// Returns the short interval, which is at least a millisecond per member. So all members together send at most a
    /// thousand heartbeats a second.
    fn short_interval_ms(&self, settings: &ConsumerGroupSettings) -> i32 {
        let members = i32::try_from(self.members.len()).unwrap_or(i32::MAX);
        match settings.unsettled_interval_ms {
            0 => settings.heartbeat_interval_ms,
            short => short.max(members).min(settings.heartbeat_interval_ms),
        }
    }
}
