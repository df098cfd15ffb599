//! The heartbeat interval in a response: the time at which the member sends its next heartbeat.
//!
//! The response to a heartbeat requests an old owner to give partitions up, and assigns the free ones to a new owner.
//! So all members get a short interval for 3 s after a change of the group. While a member waits for partitions, its
//! interval grows to an eighth of the time since the change. All other intervals are the configured one, which is also
//! the longest.
//!
//! The interval is no time limit: sessions and the time to revoke are the same with any interval.
//!
//! Invariant: a change costs each member a bounded number of additional heartbeats, however slow other members are.

use super::member::{ConsumerGroupMember, MemberState};
use super::{ConsumerGroup, ConsumerGroupSettings};

/// Time after a change in which further changes are likely, as in the rollout of an application. In this time all
/// members get a short interval.
pub(super) const GRACE_MS: i64 = 3_000;
/// Divisor of the time since a change. The quotient is the interval of a member that waits for partitions.
const PART_OF_WAIT: i64 = 8;

impl ConsumerGroup {
    /// Returns the interval for this member, after its latest step towards its target.
    pub(super) fn interval_ms(&self, member: &ConsumerGroupMember, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        if member.state == MemberState::UnreleasedPartitions || self.group_epoch > self.assignment_epoch {
            return self.waiting_interval_ms(settings, now);
        }
        // A member that must give partitions up sends a heartbeat of its own accord once it has given them up.
        self.settled_interval_ms(settings, now)
    }

    /// Returns the interval for a member that does not wait for other members.
    pub(super) fn settled_interval_ms(&self, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        match self.changed_ms {
            Some(at) if now - at < GRACE_MS => self.short_interval_ms(settings),
            _ => settings.heartbeat_interval_ms,
        }
    }

    /// Returns the interval for a member that waits for other members to give partitions up.
    fn waiting_interval_ms(&self, settings: &ConsumerGroupSettings, now: i64) -> i32 {
        let Some(at) = self.changed_ms else { return settings.heartbeat_interval_ms };
        let part = i32::try_from((now - at) / PART_OF_WAIT).unwrap_or(i32::MAX);
        self.short_interval_ms(settings).max(part).min(settings.heartbeat_interval_ms)
    }

    /// Returns the short interval, which has at least a millisecond for each member. All members together thus send at
    /// most a thousand heartbeats a second.
    fn short_interval_ms(&self, settings: &ConsumerGroupSettings) -> i32 {
        let members = i32::try_from(self.members.len()).unwrap_or(i32::MAX);
        match settings.unsettled_interval_ms {
            0 => settings.heartbeat_interval_ms,
            short => short.max(members).min(settings.heartbeat_interval_ms),
        }
    }
}
