//! Fetches of a lane that are under way, in the order of their answers, and the
//! session in which the leader reads ahead.
//!
//! In such a session (a field of ours in KIP-227's) each fetch goes on where the answer before ends, so that several
//! may be under way. Whether the leader does that is seen by its first answer; any other one is asked for offsets,
//! without a session: for good where it does not know the field, and for a while where it has no room for a session.
//! Invariant: an answer counts for a partition only if it belongs to a fetch that came with or after the one that named
//! the partition, and begins at or before the next offset wanted.

use fullbore_wire::apis::fetch::{FetchResponse, PartitionData};
use fullbore_wire::{Text, Uuid};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The time after which a leader that had no room for a session, or lost too many, is asked for one again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// After this many sessions that the leader has lost it is asked for offsets for a while.
const LOST_MAX: u32 = 8;
/// The epochs with a meaning of their own (KIP-227).
const OPENS: i32 = 0;
const NONE: i32 = -1;

/// How a response names a partition: by id and no name from version 13 on, by name and no id before.
pub(super) type PartitionKey = (Uuid, Text, i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next fetch opens a session.
    Unopened,
    /// The fetch that opens it is under way.
    Opening,
    /// The leader reads ahead in this session; the next fetch has this epoch.
    Ahead { id: i32, epoch: i32 },
    /// The leader has lost it: answers under way say nothing.
    Lost,
    /// Fetches say offsets, one at a time. The next one closes a session of no use; a leader that may read ahead later
    /// is asked for a session again.
    Offsets { unused: i32, again: Option<Instant> },
}

/// A fetch under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) number: u64,
    pub(super) sent: Instant,
}

/// Session id and epoch of the next fetch, and what it says of partitions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Naming {
    pub(super) session_id: i32,
    pub(super) session_epoch: i32,
    pub(super) what: Named,
}

/// Partitions that a fetch names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// All that are read, with their offsets.
    All,
    /// These with their offsets, and those that are not read any more; the sizes of all others too, if `sizes`.
    Changes { named: Vec<PartitionKey>, forgotten: Vec<PartitionKey>, sizes: bool },
}

#[derive(Debug)]
pub(super) struct FetchSession {
    state: State,
    under_way: VecDeque<UnderWay>,
    next: u64,
    lost: u32,
    /// The number of the fetch that named each partition of the session.
    named: HashMap<PartitionKey, u64>,
    to_name: Vec<PartitionKey>,
    to_forget: Vec<PartitionKey>,
    sizes_changed: bool,
}

impl FetchSession {
    /// With a leader that may read ahead, or has no field for it.
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

    /// Fetches under way.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way.len() as u64
    }

    /// Returns true if the leader reads ahead.
    pub(super) fn is_ahead(&self) -> bool {
        matches!(self.state, State::Ahead { .. })
    }

    /// The leader's session, if it reads ahead in one.
    pub(super) fn id(&self) -> Option<i32> {
        match self.state {
            State::Ahead { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The epoch that ends a session (KIP-227).
    pub(super) const CLOSES: i32 = NONE;

    /// Returns true if fetches say offsets.
    pub(super) fn is_by_offsets(&self) -> bool {
        matches!(self.state, State::Offsets { .. })
    }

    /// Returns true if one more fetch may be sent, with at most `ahead` under way at a leader that reads ahead.
    pub(super) fn has_room(&self, ahead: u64) -> bool {
        match self.state {
            State::Ahead { .. } => self.under_way() < ahead.max(1) + u64::from(!self.to_name.is_empty()),
            _ => self.under_way.is_empty(),
        }
    }

    /// The partition is to be named by the next fetch, with its offset.
    pub(super) fn name(&mut self, key: PartitionKey) {
        if self.is_ahead() {
            self.named.remove(&key);
            self.to_name.push(key);
        }
    }

    /// The partition is not read any more.
    pub(super) fn forget(&mut self, key: &PartitionKey) {
        self.to_name.retain(|named| named != key);
        if self.named.remove(key).is_some() && self.is_ahead() {
            self.to_forget.push(key.clone());
        }
    }

    /// The leader has taken the partition out of the session.
    pub(super) fn dropped(&mut self, key: &PartitionKey) {
        self.to_name.retain(|named| named != key);
        self.named.remove(key);
    }

    /// Answers are to have another size.
    pub(super) fn resize(&mut self) {
        self.sizes_changed = true;
    }

    /// Lets the next fetch open a session, if it is time to try again.
    pub(super) fn look_again(&mut self, now: Instant) {
        if let State::Offsets { again: Some(again), .. } = self.state
            && now >= again
            && self.under_way.is_empty()
        {
            (self.state, self.lost) = (State::Unopened, 0);
        }
    }

    /// Returns the naming of the next fetch, which is sent now. `keys` are the partitions that are read.
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

    /// The fetch whose answer comes next is answered.
    pub(super) fn answered(&mut self) -> Option<UnderWay> {
        self.under_way.pop_front()
    }

    /// Takes note of what an answer without an error says of the session. Returns false if nothing of it counts.
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

    /// Takes note of an answer that says that the leader has lost the session. Returns false if there is none.
    pub(super) fn lose(&mut self) -> bool {
        match self.state {
            State::Unopened | State::Offsets { .. } => return false,
            State::Lost => {}
            State::Opening | State::Ahead { .. } => (self.state, self.lost) = (State::Lost, self.lost + 1),
        }
        true
    }

    /// Returns true if the answer of this fetch counts for a partition of which this offset is wanted next. One that
    /// leaves some out has the partition named again.
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
