//! Decides when committed offsets expire (KIP-211), and checks whether a request may delete them (KIP-496).
//!
//! The group knows which topics its members read ([`Group::reads`]). Offsets of these topics neither expire nor can
//! they be deleted.

use super::{Group, GroupState, Protocol};
use fullbore_wire::ErrorCode;

/// The protocol type of groups that know which topics their members read.
const CONSUMER: &str = "consumer";

/// The time from which the retention of a group's offsets is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The offsets do not expire, however old they are.
    Never,
    /// The time at which the group lost its last member, in milliseconds since 1970.
    Empty(i64),
    /// The time at which each offset was committed.
    Committed,
}

/// Returns when the retention starts for offsets of topics that the group does not read.
pub fn since(group: &Group) -> Since {
    if group.protocol() == Protocol::Consumer {
        return Since::Committed;
    }
    match (group.state(), group.empty_since()) {
        // The group never had a member.
        (GroupState::Empty, _) if group.protocol_type().is_empty() => Since::Committed,
        (GroupState::Empty, Some(since)) => Since::Empty(since),
        (GroupState::Stable, _) if group.protocol_type() == CONSUMER => Since::Committed,
        _ => Since::Never,
    }
}

/// Returns true if an offset that was committed at `committed_ms` has expired. `expires_ms` is the expiration time in
/// the OffsetCommit, which only old versions of the request have.
pub fn is_expired(since: Since, committed_ms: i64, expires_ms: Option<i64>, retention_ms: i64, now: i64) -> bool {
    let base = match since {
        Since::Never => return false,
        Since::Empty(empty) => empty,
        Since::Committed => committed_ms,
    };
    match expires_ms {
        Some(expires) => now >= expires,
        None => now.saturating_sub(base) >= retention_ms,
    }
}

/// Checks that a request may delete the group's offsets of topics that no member reads.
///
/// # Errors
/// Fails with GROUP_ID_NOT_FOUND if the group is dead. Fails with NON_EMPTY_GROUP if it has members that are not
/// consumers, because their topics are unknown.
pub fn check_delete_offsets(group: &Group) -> Result<(), ErrorCode> {
    match group.state() {
        GroupState::Dead => Err(ErrorCode::GROUP_ID_NOT_FOUND),
        GroupState::Empty => Ok(()),
        _ if group.protocol_type() == CONSUMER => Ok(()),
        _ => Err(ErrorCode::NON_EMPTY_GROUP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{GroupSettings, classic};

    fn empty_group() -> Group {
        let classic = classic::ClassicGroupSettings {
            session_timeout_min_ms: 1,
            session_timeout_max_ms: 1_000,
            initial_rebalance_delay_ms: 0,
            members_max: 10,
        };
        Group::new(GroupSettings { classic, consumer: Default::default() }, 50)
    }

    #[test]
    fn group_without_members_ever_retains_from_each_commit() {
        assert_eq!(since(&empty_group()), Since::Committed);
        assert_eq!(check_delete_offsets(&empty_group()), Ok(()));
    }

    #[test]
    fn retention_counts_from_its_start() {
        let cases = [
            (Since::Never, 0, i64::MAX, false),
            (Since::Committed, 100, 1_099, false),
            (Since::Committed, 100, 1_100, true),
            (Since::Empty(500), 100, 1_499, false),
            (Since::Empty(500), 100, 1_500, true),
            // The clock was set back in this case.
            (Since::Committed, 5_000, 100, false),
        ];
        for (since, committed, now, expected) in cases {
            assert_eq!(is_expired(since, committed, None, 1_000, now), expected, "{since:?} {committed} {now}");
        }
    }

    #[test]
    fn expiration_of_the_client_overrides_the_retention_but_not_the_group() {
        for since in [Since::Committed, Since::Empty(0)] {
            assert!(!is_expired(since, 0, Some(700), 10, 699));
            assert!(is_expired(since, 0, Some(700), 10_000, 700));
        }
        assert!(!is_expired(Since::Never, 0, Some(700), 10, i64::MAX));
    }
}
