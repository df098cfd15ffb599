//! Checks which offsets a member may commit or fetch.

use super::heartbeat::unknown_member;
use super::member::{ConsumerGroupMember, TopicIdPartition};
use super::{ConsumerGroup, GroupRefusal};
use crate::group::Committer;
use fullbore_wire::ErrorCode;

/// The first version of OffsetCommit in which the generation may be a member epoch.
const KNOWS_EPOCHS: i16 = 9;

/// The partitions for which a member may commit offsets.
#[derive(Debug)]
pub enum CommitPermission<'a> {
    /// All partitions.
    CommitAll,
    /// Only partitions that the member got in this epoch or earlier (KIP-1251). The member has a higher epoch now, but
    /// no other member has held these partitions since then.
    CommitSince(&'a ConsumerGroupMember, i32),
}

impl CommitPermission<'_> {
    /// Checks that the member may commit offsets of this partition.
    ///
    /// # Errors
    /// Fails if the member must not commit offsets of the partition: with ILLEGAL_GENERATION if the member uses the
    /// classic protocol, and with STALE_MEMBER_EPOCH otherwise.
    pub fn check(&self, partition: &TopicIdPartition) -> Result<(), ErrorCode> {
        let CommitPermission::CommitSince(member, epoch) = self else { return Ok(()) };
        let since = member.assigned.get(partition).or_else(|| member.revoking.get(partition));
        if since.is_some_and(|since| since <= epoch) { Ok(()) } else { Err(stale(member)) }
    }
}

fn stale(member: &ConsumerGroupMember) -> ErrorCode {
    match member.classic {
        None => ErrorCode::STALE_MEMBER_EPOCH,
        Some(_) => ErrorCode::ILLEGAL_GENERATION,
    }
}

impl ConsumerGroup {
    /// Returns the partitions for which an OffsetCommit or TxnOffsetCommit may commit offsets.
    ///
    /// # Errors
    /// Fails like [`ConsumerGroup::check_commit`], with codes that the client's version knows.
    pub fn check_committer(&self, committer: &Committer<'_>) -> Result<CommitPermission<'_>, ErrorCode> {
        if committer.is_unnamed_in_transaction() {
            return Ok(CommitPermission::CommitAll);
        }
        let version = if committer.is_transactional { KNOWS_EPOCHS } else { committer.version };
        let checked = self.check_commit(committer.member_id, committer.generation, version);
        checked.map_err(|refusal| committer.as_known(refusal.code))
    }

    /// Returns the partitions for which a member may commit offsets.
    ///
    /// # Errors
    /// Fails with UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION or UNSUPPORTED_VERSION if the member may
    /// commit no offsets at all.
    pub fn check_commit(
        &self,
        member_id: &str,
        epoch: i32,
        version: i16,
    ) -> Result<CommitPermission<'_>, GroupRefusal> {
        if epoch < 0 && self.members.is_empty() {
            return Ok(CommitPermission::CommitAll);
        }
        let member = self.members.get(member_id).ok_or_else(|| unknown_member(member_id))?;
        if member.classic.is_none() && version < KNOWS_EPOCHS {
            let message = "OffsetCommit version 9 or above must be used by members using the consumer group protocol";
            return Err(GroupRefusal::new(ErrorCode::UNSUPPORTED_VERSION, message));
        }
        match epoch.cmp(&member.epoch) {
            std::cmp::Ordering::Equal => Ok(CommitPermission::CommitAll),
            std::cmp::Ordering::Less => Ok(CommitPermission::CommitSince(member, epoch)),
            std::cmp::Ordering::Greater => {
                let message = format!(
                    "The member epoch {epoch} is newer than the one that the coordinator knows, {}.",
                    member.epoch
                );
                Err(GroupRefusal::new(stale(member), message))
            }
        }
    }

    /// Checks that a member may fetch offsets. A request without a member id is always allowed, and so is one with an
    /// empty id and no epoch.
    ///
    /// # Errors
    /// Fails with UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH or ILLEGAL_GENERATION if the member or its epoch does not
    /// match.
    pub fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), GroupRefusal> {
        let Some(member_id) = member_id.filter(|_| epoch >= 0 || member_id.is_some_and(|id| !id.is_empty())) else {
            return Ok(());
        };
        let member = self.members.get(member_id).ok_or_else(|| unknown_member(member_id))?;
        if epoch == member.epoch {
            return Ok(());
        }
        let message = format!("The member epoch {epoch} is not the one that the coordinator knows, {}.", member.epoch);
        Err(GroupRefusal::new(stale(member), message))
    }
}
