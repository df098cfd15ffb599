//! The state of a follower, as its leader knows it (Kafka's `Replica` and `ReplicaState`).
//!
//! Invariant: a follower counts as caught up at a time only if it had all of the leader's records at that time.

use super::FollowerFetch;
use fullbore_wire::ErrorCode;

/// The value of an offset that no fetch of the follower has reported yet.
const UNKNOWN: i64 = -1;
/// A time that is earlier than any time with which a lag is compared.
const NEVER_MS: i64 = i64::MIN / 2;

/// The state of a follower, as its fetches in the current leader epoch show it.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub broker_id: i32,
    /// The offset at which the follower's log ends; -1 before its first fetch.
    pub log_end_offset: i64,
    /// The offset at which the follower's log starts; -1 until a fetch reports it.
    pub log_start_offset: i64,
    /// The broker epoch in the follower's fetches.
    pub broker_epoch: Option<i64>,
    /// The offset at which the leader's log ended at the follower's last fetch.
    last_fetch_leader_log_end_offset: i64,
    last_fetch_ms: i64,
    /// The last time at which the follower is known to have had all records.
    last_caught_up_ms: i64,
}

impl Replica {
    /// Creates a follower that has not fetched yet. A follower in sync counts as caught up at the start of the leader
    /// epoch, so it starts to lag only after the whole lag time.
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

    /// Notes a fetch. If the follower now has all records, it counts as caught up now. If it has only those that the
    /// leader had at the follower's previous fetch, it counts as caught up at the time of that fetch.
    ///
    /// # Errors
    ///
    /// Fails with NOT_LEADER_OR_FOLLOWER if the follower sent the fetch before it registered again (KIP-903).
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
        // A follower that changes its connection may have fetches in flight on the old one and the new one, and one may
        // overtake another. The matching part of its log never shrinks. So a smaller offset from the same process comes
        // from an older fetch.
        let is_of_same_process = self.broker_epoch == Some(fetch.broker_epoch);
        self.log_end_offset = if is_of_same_process { self.log_end_offset.max(fetch.offset) } else { fetch.offset };
        self.broker_epoch = Some(fetch.broker_epoch);
        self.last_fetch_leader_log_end_offset = self.last_fetch_leader_log_end_offset.max(leader_log_end);
        self.last_fetch_ms = now_ms;
        Ok(())
    }

    /// Notes that the follower has left the ISR. Until it has caught up again, the high watermark does not wait for it.
    pub fn left_isr(&mut self) {
        self.last_caught_up_ms = NEVER_MS;
    }

    /// Notes that the leader is about to append at `leader_log_end`. If the follower has all records before, its lag
    /// begins only now: its fetch may have waited for a new record for a long time.
    pub fn lacks_from_now_on(&mut self, leader_log_end: i64, now_ms: i64) {
        if self.log_end_offset == leader_log_end {
            self.last_caught_up_ms = self.last_caught_up_ms.max(now_ms);
        }
    }

    /// Returns true if the follower has all records, or had all of them within the last `lag_ms`.
    pub fn is_caught_up(&self, leader_log_end: i64, now_ms: i64, lag_ms: i64) -> bool {
        self.log_end_offset == leader_log_end || now_ms.saturating_sub(self.last_caught_up_ms) <= lag_ms
    }
}
