//! Keeps the unanswered fetches of a fetcher, in the order of their responses, and the session in which the leader
//! reads ahead.
//!
//! Reading ahead is Fullbore's extension of fetch sessions (KIP-227). The leader starts each response where the
//! previous one ended, so that several fetches may be in flight. The first response shows whether the leader reads
//! ahead. Any other leader gets fetches with offsets and without a session. If the leader had no free session, the
//! fetcher requests one again later. Invariant: a response counts for a partition under two conditions. Its fetch is
//! the one that named the partition, or a later one. Its records begin at or before the next wanted offset.

use fullbore_wire::apis::fetch::{FetchResponse, PartitionData};
use fullbore_wire::{Text, Uuid};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long the fetcher waits before it requests a session again, if the leader had no free session or lost too many
/// sessions.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// How many lost sessions are each replaced by a new session at once. After one more loss, fetches carry offsets for
/// [`AGAIN_AFTER`].
const LOST_MAX: u32 = 8;
/// The epoch of a fetch that opens a session (KIP-227).
const OPENS: i32 = 0;
/// The epoch of a fetch that closes its session, or that belongs to no session.
const NONE: i32 = -1;

/// How a response identifies a partition: by the topic's id from version 13 on, or by the topic's name before.
pub(super) type PartitionKey = (Uuid, Text, i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next fetch opens a session.
    Unopened,
    /// The fetch that opens a session is in flight.
    Opening,
    /// The leader reads ahead in this session. The next fetch has this epoch.
    Ahead { id: i32, epoch: i32 },
    /// The leader has lost the session, so the responses in flight must be ignored.
    Lost,
    /// Fetches carry offsets, one fetch at a time. The next fetch closes the session `unused`, if that is not 0. From
    /// the time `again` on, a fetch requests a session.
    Offsets { unused: i32, again: Option<Instant> },
}

/// A fetch in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) number: u64,
    pub(super) sent: Instant,
}

/// The session id and epoch of the next fetch, and the partitions that it names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Naming {
    pub(super) session_id: i32,
    pub(super) session_epoch: i32,
    pub(super) what: Named,
}

/// The partitions that a fetch names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// All partitions that are read, with their offsets.
    All,
    /// New partitions with their offsets, and partitions that are no longer read. With `sizes`, also all other
    /// partitions, with their new size limits.
    Changes { named: Vec<PartitionKey>, forgotten: Vec<PartitionKey>, sizes: bool },
}

#[derive(Debug)]
pub(super) struct FetchSession {
    state: State,
    under_way: VecDeque<UnderWay>,
    next: u64,
    lost: u32,
    /// For each partition of the session, the number of the fetch that named it.
    named: HashMap<PartitionKey, u64>,
    to_name: Vec<PartitionKey>,
    to_forget: Vec<PartitionKey>,
    sizes_changed: bool,
}

impl FetchSession {
    /// Creates a session. `may_read_ahead` is false if the leader's version of Fetch has no field for reading ahead.
    pub(super) fn new(may_read_ahead: bool) -> Self {
        FetchSession {
            state: if may_read_ahead { State::Unopened } else { State::Offsets { unused: 0, again: None } },
            under_way: VecDeque::new(),
            next: 0,
            lost: 0,
            named: HashMap::new(),
            to_name: Vec::new(),
            to_forget: Vec::new(),
            sizes_changed: false,
        }
    }

    /// Returns how many fetches are in flight.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way.len() as u64
    }

    /// Returns true if the leader reads ahead.
    pub(super) fn is_ahead(&self) -> bool {
        matches!(self.state, State::Ahead { .. })
    }

    /// Returns the id of the session in which the leader reads ahead, if it does.
    pub(super) fn id(&self) -> Option<i32> {
        match self.state {
            State::Ahead { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The epoch of a fetch that closes its session (KIP-227).
    pub(super) const CLOSES: i32 = NONE;

    /// Returns true if fetches carry offsets.
    pub(super) fn is_by_offsets(&self) -> bool {
        matches!(self.state, State::Offsets { .. })
    }

    /// Returns true if one more fetch may be sent. If the leader reads ahead, `ahead` fetches may be in flight.
    pub(super) fn has_room(&self, ahead: u64) -> bool {
        match self.state {
            State::Ahead { .. } => self.under_way() < ahead.max(1) + u64::from(!self.to_name.is_empty()),
            _ => self.under_way.is_empty(),
        }
    }

    /// Makes the next fetch name the partition with its offset.
    pub(super) fn name(&mut self, key: PartitionKey) {
        if self.is_ahead() {
            self.named.remove(&key);
            self.to_name.push(key);
        }
    }

    /// Removes a partition that is no longer read. The next fetch removes it from the session.
    pub(super) fn forget(&mut self, key: &PartitionKey) {
        self.to_name.retain(|named| named != key);
        if self.named.remove(key).is_some() && self.is_ahead() {
            self.to_forget.push(key.clone());
        }
    }

    /// Notes that the leader has removed the partition from the session.
    pub(super) fn dropped(&mut self, key: &PartitionKey) {
        self.to_name.retain(|named| named != key);
        self.named.remove(key);
    }

    /// Makes the next fetch carry the new size limit of each partition.
    pub(super) fn resize(&mut self) {
        self.sizes_changed = true;
    }

    /// Makes the next fetch open a session, if it is time for a new attempt.
    pub(super) fn look_again(&mut self, now: Instant) {
        if let State::Offsets { again: Some(again), .. } = self.state
            && now >= again
            && self.under_way.is_empty()
        {
            (self.state, self.lost) = (State::Unopened, 0);
        }
    }

    /// Adds the next fetch, which is sent at `now`. Returns its session and the partitions to name. `keys` are all
    /// partitions that are read.
    pub(super) fn next(&mut self, now: Instant, keys: impl Iterator<Item = PartitionKey>) -> Naming {
        let number = self.next;
        self.next += 1;
        self.under_way.push_back(UnderWay { number, sent: now });
        if self.state == State::Lost && self.lost > LOST_MAX {
            self.state = State::Offsets { unused: 0, again: Some(now + AGAIN_AFTER) };
        }
        match self.state {
            State::Unopened | State::Lost | State::Opening => {
                self.state = State::Opening;
                self.named = keys.map(|key| (key, number)).collect();
                self.to_name.clear();
                self.to_forget.clear();
                self.sizes_changed = false;
                Naming { session_id: 0, session_epoch: OPENS, what: Named::All }
            }
            State::Offsets { unused, again } => {
                self.state = State::Offsets { unused: 0, again };
                Naming { session_id: unused, session_epoch: NONE, what: Named::All }
            }
            State::Ahead { id, epoch } => {
                self.state = State::Ahead { id, epoch: epoch.checked_add(1).unwrap_or(1) };
                let named = std::mem::take(&mut self.to_name);
                self.named.extend(named.iter().map(|key| (key.clone(), number)));
                let forgotten = std::mem::take(&mut self.to_forget);
                let sizes = std::mem::take(&mut self.sizes_changed);
                let what = Named::Changes { named, forgotten, sizes };
                Naming { session_id: id, session_epoch: epoch, what }
            }
        }
    }

    /// Removes and returns the oldest fetch in flight, whose response has arrived.
    pub(super) fn answered(&mut self) -> Option<UnderWay> {
        self.under_way.pop_front()
    }

    /// Notes the session of a response without an error. Returns false if the response belongs to a lost session and
    /// must be ignored.
    pub(super) fn note(&mut self, response: &FetchResponse, now: Instant) -> bool {
        match self.state {
            State::Opening => {
                let mut partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
                let reads_ahead = response.session_id != 0 && partitions.any(|data| data.from_offset >= 0);
                self.state = match response.session_id {
                    id if reads_ahead => State::Ahead { id, epoch: 1 },
                    0 => State::Offsets { unused: 0, again: Some(now + AGAIN_AFTER) },
                    unused => State::Offsets { unused, again: None },
                };
                true
            }
            State::Lost => false,
            _ => true,
        }
    }

    /// Notes that the leader has lost the session. Returns false if the fetcher has no session.
    pub(super) fn lose(&mut self) -> bool {
        match self.state {
            State::Unopened | State::Offsets { .. } => return false,
            State::Lost => {}
            State::Opening | State::Ahead { .. } => (self.state, self.lost) = (State::Lost, self.lost + 1),
        }
        true
    }

    /// Returns true if the response to fetch `number` counts for a partition whose next offset is `wanted`. If the
    /// response begins after `wanted`, the next fetch names the partition again.
    pub(super) fn accepts(&mut self, number: u64, key: &PartitionKey, data: &PartitionData, wanted: i64) -> bool {
        if !self.is_ahead() {
            return true;
        }
        if self.named.get(key).is_none_or(|named| number < *named) {
            return false;
        }
        if data.from_offset > wanted {
            self.name(key.clone());
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests;
