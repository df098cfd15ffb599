//! State of one follower at its leader (Kafka's `Replica` and `ReplicaState`).
//!
//! Invariant: a follower is caught up at a time only if at that time it had all that its leader then had.

use super::FollowerFetch;
use fullbore_wire::ErrorCode;

/// A log end that nobody knows yet.
const UNKNOWN: i64 = -1;
/// A time before every lag.
const NEVER_MS: i64 = i64::MIN / 2;

/// Follower, by its fetches under the present leader epoch.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub broker_id: i32,
    /// End of its log, or -1 before its first fetch.
    pub log_end_offset: i64,
    /// Start of its log, or -1 before a fetch had it.
    pub log_start_offset: i64,
    /// The broker epoch of its fetches.
    pub broker_epoch: Option<i64>,
    /// End of the leader's log at its last fetch.
    last_fetch_leader_log_end_offset: i64,
    last_fetch_ms: i64,
    /// The last time when it is known to have had everything.
    last_caught_up_ms: i64,
}

impl Replica {
    /// Creates a follower before its first fetch. One that is in sync when a leader begins has the whole lag time from
    /// then on.
    pub fn new(broker_id: i32, is_in_sync: bool, now_ms: i64) -> Replica {
        Replica {
            broker_id,
            log_end_offset: UNKNOWN,
            log_start_offset: UNKNOWN,
            broker_epoch: None,
            last_fetch_leader_log_end_offset: UNKNOWN,
            last_fetch_ms: 0,
            last_caught_up_ms: if is_in_sync { now_ms } else { NEVER_MS },
        }
    }

    /// Takes note of a fetch. One that begins at what the leader had at the fetch before had everything then.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER for a fetch from before the follower registered anew (KIP-903).
    pub fn fetched(&mut self, fetch: &FollowerFetch, leader_log_end: i64, now_ms: i64) -> Result<(), ErrorCode> {
        if self.broker_epoch.is_some_and(|known| fetch.broker_epoch < known) {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        let is_first = self.log_end_offset == UNKNOWN;
        if fetch.offset >= leader_log_end {
            self.last_caught_up_ms = self.last_caught_up_ms.max(now_ms);
        } else if !is_first && fetch.offset >= self.last_fetch_leader_log_end_offset {
            self.last_caught_up_ms = self.last_caught_up_ms.max(self.last_fetch_ms);
        }
        // One connection may overtake another. A log that was found to be the leader's so far does not shrink while its
        // process lives.
        let is_of_same_process = self.broker_epoch == Some(fetch.broker_epoch);
        self.log_end_offset = if is_of_same_process { self.log_end_offset.max(fetch.offset) } else { fetch.offset };
        self.broker_epoch = Some(fetch.broker_epoch);
        self.last_fetch_leader_log_end_offset = self.last_fetch_leader_log_end_offset.max(leader_log_end);
        self.last_fetch_ms = now_ms;
        Ok(())
    }

    /// Forgets when it had everything: it has left the ISR, and is waited for again once it has fetched everything.
    pub fn left_isr(&mut self) {
        self.last_caught_up_ms = NEVER_MS;
    }

    /// The leader appends: one that has everything until then, and so may not fetch anew before, lacks something from
    /// now on.
    pub fn lacks_from_now_on(&mut self, leader_log_end: i64, now_ms: i64) {
        if self.log_end_offset == leader_log_end {
            self.last_caught_up_ms = self.last_caught_up_ms.max(now_ms);
        }
    }

    /// Returns true if it has everything, or had not longer ago than `lag_ms`.
    pub fn is_caught_up(&self, leader_log_end: i64, now_ms: i64, lag_ms: i64) -> bool {
        self.log_end_offset == leader_log_end || now_ms.saturating_sub(self.last_caught_up_ms) <= lag_ms
    }
}
