//! When a committed offset has served its time (KIP-211), and when it may be deleted by hand (KIP-496).
//!
//! What members read is the group's to say ([`Group::reads`]); offsets of such topics neither expire nor are deleted.

use super::{Group, GroupState, Protocol};
use fullbore_wire::ErrorCode;

/// The protocol type of those that read topics, and say which.
const CONSUMER: &str = "consumer";

/// Begin of the retention of a group's offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// None: they are kept.
    Never,
    /// When the group lost its last member, in milliseconds since 1970.
    Empty(i64),
    /// When each was committed.
    Committed,
}

/// Returns the begin of the retention in this group, of topics that it does not read.
pub fn since(group: &Group) -> Since {
    if group.protocol() == Protocol::Consumer {
        return Since::Committed;
    }
    match (group.state(), group.empty_since()) {
        // Nobody was ever in it.
        (GroupState::Empty, _) if group.protocol_type().is_empty() => Since::Committed,
        (GroupState::Empty, Some(since)) => Since::Empty(since),
        (GroupState::Stable, _) if group.protocol_type() == CONSUMER => Since::Committed,
        _ => Since::Never,
    }
}

/// Returns true if an offset committed at `committed_ms` has served its time. `expires_ms` is what the client said
/// itself, in versions of OffsetCommit that could.
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

/// Checks that offsets of topics that nobody in the group reads may be deleted by hand.
///
/// # Errors
/// GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP when nobody can tell what its members read.
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
    fn a_group_nobody_was_in_counts_from_each_commit() {
        assert_eq!(since(&empty_group()), Since::Committed);
        assert_eq!(check_delete_offsets(&empty_group()), Ok(()));
    }

    #[test]
    fn retention_counts_from_its_base() {
        let cases = [
            (Since::Never, 0, i64::MAX, false),
            (Since::Committed, 100, 1_099, false),
            (Since::Committed, 100, 1_100, true),
            (Since::Empty(500), 100, 1_499, false),
            (Since::Empty(500), 100, 1_500, true),
            // A clock that was put back.
            (Since::Committed, 5_000, 100, false),
        ];
        for (since, committed, now, expected) in cases {
            assert_eq!(is_expired(since, committed, None, 1_000, now), expected, "{since:?} {committed} {now}");
        }
    }

    #[test]
    fn what_the_client_said_goes_before_the_retention_but_not_before_the_group() {
        for since in [Since::Committed, Since::Empty(0)] {
            assert!(!is_expired(since, 0, Some(700), 10, 699));
            assert!(is_expired(since, 0, Some(700), 10_000, 700));
        }
        assert!(!is_expired(Since::Never, 0, Some(700), 10, i64::MAX));
    }
}
