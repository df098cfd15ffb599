//! The session of one follower at its leader. The session knows which partitions the follower follows, which of their
//! records it was sent, and which high watermarks it must still be sent.
//!
//! Each partition has a slot in the session. A partition that changes marks its slot as dirty ([`DirtyPartitions`]), so
//! an answer only looks at partitions that have changed. The replica stores how many records the follower has
//! ([`Replica::followed_from`]), and the session stores how many it was sent.
//!
//! Lock order: `state` before the lock of a partition. A partition marks its slot without locking `state`.

use super::timer::Timer;
use crate::partitions::{DirtyPartitions, FollowerPlace, LeaderRead, Partitions, Registration, Replica};
use crate::replication::IsrChanges;
use fullbore_rules::replica::spacing::{SPACING_BYTES_MAX, Spacing};
use fullbore_rules::replica::{BrokerState, FollowerFetch};
use fullbore_wire::apis::fetch::{EpochEndOffset, FetchPartition, FetchRequest, PartitionData};
use fullbore_wire::{ErrorCode, Records, Uuid};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Topic id and partition number.
type PartitionId = (Uuid, i32);

/// Unknown offset.
const UNKNOWN: i64 = -1;

/// The session of one follower.
pub struct FollowerSession {
    /// Session id.
    pub id: i32,
    follower: BrokerState,
    began: Instant,
    marks: Arc<DirtyPartitions>,
    isr: Arc<IsrChanges>,
    /// The timer of the fetch that will be answered next.
    timer: Mutex<Timer>,
    state: Mutex<SessionState>,
}

struct SessionState {
    next_epoch: i32,
    places: HashMap<PartitionId, u32>,
    followed: Vec<Option<FollowerState>>,
    free: Vec<u32>,
    /// The slots that may have records to send. Each is listed once.
    ready: VecDeque<u32>,
    /// The slots whose high watermark has changed.
    news: Vec<u32>,
    /// Entries that must not wait for the next records.
    urgent: Vec<(Uuid, PartitionData)>,
    spacing: Spacing,
    /// Number of answers that were taken out of the session.
    answered: i64,
    /// True if the last answer had no space for all records.
    is_cut: bool,
}

/// The state of one partition in a follower's session.
struct FollowerState {
    id: PartitionId,
    replica: Arc<Replica>,
    _registered: Registration,
    leader_epoch: i32,
    /// The session epoch of the request that last set the position from which the follower is sent records. This
    /// position is the end of the follower's log.
    requested_in: i32,
    /// The offset after the last record that was sent to the follower.
    cursor: i64,
    /// Log start of the follower, as its last fetch reported it.
    begins_at: i64,
    max_bytes: u32,
    /// The high watermark and the log start that were last sent.
    sent: (i64, i64),
    is_ready: bool,
    /// A fetch that waits until the log is open, and the time at which it began to wait.
    waiting: Option<(Instant, FetchPartition)>,
}

/// The fields with which an entry identifies the follower's fetch that it answers, and the end of the leader's log.
#[derive(Clone, Copy)]
struct FetchOrigin {
    in_epoch: i32,
    requested_in: i32,
    from_offset: i64,
    log_end_offset: i64,
}

impl FetchOrigin {
    const UNKNOWN: FetchOrigin =
        FetchOrigin { in_epoch: -1, requested_in: -1, from_offset: UNKNOWN, log_end_offset: UNKNOWN };

    /// Returns an entry with only these fields set.
    fn entry(self) -> PartitionData {
        let FetchOrigin { in_epoch, requested_in, from_offset, log_end_offset } = self;
        PartitionData { in_epoch, requested_in, from_offset, log_end_offset, ..Default::default() }
    }
}

/// The limits of one answer: its maximum size, and the time at which it must be sent.
pub struct AnswerLimits {
    pub max_bytes: usize,
    pub deadline: tokio::time::Instant,
}

/// When the next answer should be sent.
pub enum AnswerDue {
    Now,
    In(Duration),
    /// As soon as a partition has records or an urgent entry is queued. A new high watermark alone does not cause an
    /// answer. The next answer contains it.
    WhenMarked,
}

impl FollowerSession {
    /// Creates a session without partitions. The follower keeps up to `depth` fetches in flight.
    pub fn new(follower: BrokerState, depth: usize, isr: Arc<IsrChanges>) -> FollowerSession {
        // Only the connection that opened the session can use it, so the id need not be secret. It only has to differ
        // from the ids of earlier sessions.
        let id = (RandomState::new().hash_one(0) as i32) & i32::MAX;
        let state = SessionState {
            next_epoch: 1,
            places: HashMap::new(),
            followed: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            news: Vec::new(),
            urgent: Vec::new(),
            spacing: Spacing::new(depth, 0),
            answered: 0,
            is_cut: false,
        };
        FollowerSession {
            id: id.max(1),
            follower,
            began: Instant::now(),
            marks: Arc::default(),
            isr,
            timer: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// Checks that this is the next request of the session, and that it comes from the same follower.
    ///
    /// # Errors
    /// Fails with STALE_BROKER_EPOCH if another follower sent it, and with INVALID_FETCH_SESSION_EPOCH if it is not the
    /// next request.
    pub fn follows_on(&self, follower: BrokerState, epoch: i32) -> Result<(), ErrorCode> {
        if self.follower != follower {
            return Err(ErrorCode::STALE_BROKER_EPOCH);
        }
        let mut state = self.state.lock();
        if state.next_epoch != epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        state.next_epoch = epoch.checked_add(1).unwrap_or(1);
        Ok(())
    }

    /// Stores the contents of a fetch: which partitions the follower follows, and the offset that it has reached in
    /// each.
    pub fn note(&self, partitions: &Partitions, request: &FetchRequest) {
        let now_us = self.now_us();
        let mut state = self.state.lock();
        state.spacing.acknowledged(request.carried_out, now_us);
        for forgotten in &request.forgotten_topics_data {
            for index in &forgotten.partitions {
                state.forget((forgotten.topic_id, *index));
            }
        }
        for topic in &request.topics {
            for fetch in &topic.partitions {
                let id = (topic.topic_id, fetch.partition);
                self.note_partition(&mut state, partitions, id, request.session_epoch, fetch);
            }
        }
        if !state.urgent.is_empty() {
            drop(state);
            // An earlier fetch of the session may be waiting. Wakes it, because its answer can contain the urgent
            // entries.
            self.marks.wake();
        }
    }

    fn note_partition(
        &self,
        state: &mut SessionState,
        partitions: &Partitions,
        id: PartitionId,
        number: i32,
        fetch: &FetchPartition,
    ) {
        let known = state.places.get(&id).copied();
        let is_followed = known.is_some_and(|place| {
            state.at(place).is_some_and(|of| of.leader_epoch == fetch.current_leader_epoch && of.waiting.is_none())
        });
        if fetch.read_on && !is_followed {
            // The follower requests to continue a partition that has left the session, because it has not read the
            // answer that reports this yet. The request is ignored. After that answer, the follower sends the partition
            // anew.
            return;
        }
        let place = match known.filter(|_| is_followed) {
            Some(place) => place,
            None => {
                state.forget(id);
                let Some(replica) = partitions.find(&id.0, id.1) else {
                    let origin = FetchOrigin { requested_in: number, ..FetchOrigin::UNKNOWN };
                    state.urgent.push((id.0, refused(id.1, origin, ErrorCode::UNKNOWN_TOPIC_ID)));
                    return;
                };
                state.add(id, replica, fetch, &self.marks)
            }
        };
        if let Some(followed) = state.at_mut(place).filter(|_| !fetch.read_on) {
            followed.requested_in = number;
        }
        self.note_place(state, place, fetch);
    }

    /// Stores the follower's position in a partition. While the log is not open, the fetch is stored instead.
    fn note_place(&self, state: &mut SessionState, place: u32, fetch: &FetchPartition) {
        let Some(followed) = state.at_mut(place) else { return };
        let (id, origin, replica) = (followed.id, followed.origin(), Arc::clone(&followed.replica));
        let began = Instant::now();
        if !replica.phase().is_settled() {
            replica.request_open();
            followed.waiting = Some((began, fetch.clone()));
            return;
        }
        followed.waiting = None;
        let position = FollowerFetch {
            broker_id: self.follower.broker_id,
            broker_epoch: self.follower.broker_epoch,
            leader_epoch: fetch.current_leader_epoch,
            offset: fetch.fetch_offset,
        };
        let last_epoch = Some(fetch.last_fetched_epoch).filter(|epoch| *epoch >= 0);
        match replica.followed_from(&position, last_epoch) {
            Ok(FollowerPlace::Noted(propose)) => {
                let begins_at = fetch.log_start_offset;
                let begins_elsewhere = std::mem::replace(&mut followed.begins_at, begins_at) != begins_at;
                if !fetch.read_on {
                    followed.cursor = fetch.fetch_offset;
                    followed.sent = (UNKNOWN, UNKNOWN);
                    state.make_ready(place);
                }
                if begins_elsewhere {
                    replica.follower_begins_at(&position, begins_at);
                }
                if let Some(proposal) = propose {
                    self.isr.request(replica, proposal);
                }
            }
            Ok(FollowerPlace::Diverging(end)) => {
                let diverging_epoch =
                    EpochEndOffset { epoch: end.epoch, end_offset: end.end_offset, ..Default::default() };
                state.say_at_once(place, PartitionData { diverging_epoch, ..refused(id.1, origin, ErrorCode::NONE) });
            }
            Ok(FollowerPlace::OutOfRange { log_start, log_end }) => {
                let origin = FetchOrigin { log_end_offset: log_end, ..origin };
                let refused = refused(id.1, origin, ErrorCode::OFFSET_OUT_OF_RANGE);
                state.say_at_once(place, PartitionData { log_start_offset: log_start, ..refused });
            }
            Err(code) => state.say_at_once(place, refused(id.1, origin, code)),
        }
    }

    /// Returns when the oldest waiting fetch should be answered.
    pub fn next(&self) -> AnswerDue {
        let now_us = self.now_us();
        let mut state = self.state.lock();
        self.collect(&mut state);
        if !state.urgent.is_empty() {
            return AnswerDue::Now;
        }
        if state.ready.is_empty() {
            return AnswerDue::WhenMarked;
        }
        let waiting_bytes = if state.is_cut { SPACING_BYTES_MAX } else { 0 };
        match state.spacing.due_us(waiting_bytes, now_us) - now_us {
            wait @ 1.. => AnswerDue::In(Duration::from_micros(wait.unsigned_abs())),
            _ => AnswerDue::Now,
        }
    }

    /// Waits until a partition has changed or an urgent entry was queued.
    pub async fn marked(&self) {
        self.marks.marked().await;
    }

    /// Takes the timer that the fetches of this session share. The caller uses it to wait until an answer is due, and
    /// must then return it with [`FollowerSession::give_back`].
    pub fn timer(&self) -> Timer {
        std::mem::take(&mut self.timer.lock())
    }

    /// Returns the timer, so that the next fetch can use it.
    pub fn give_back(&self, timer: Timer) {
        *self.timer.lock() = timer;
    }

    /// Removes the entries of the next answer from the session and returns them.
    pub fn take(&self, limits: &AnswerLimits) -> Vec<(Uuid, PartitionData)> {
        let mut state = self.state.lock();
        self.collect(&mut state);
        let mut answered = std::mem::take(&mut state.urgent);
        let mut bytes = 0;
        state.is_cut = false;
        for _ in 0..state.ready.len() {
            if bytes >= limits.max_bytes && bytes > 0 {
                state.is_cut = true;
                break;
            }
            let Some(place) = state.ready.pop_front() else { break };
            let left = limits.max_bytes.saturating_sub(bytes);
            let Some((data, has_more)) = state.read(place, left, bytes == 0) else { continue };
            bytes += data.1.records.as_ref().map_or(0, Records::len);
            if has_more {
                state.is_cut = true;
                state.make_ready(place);
            }
            answered.push(data);
        }
        for place in std::mem::take(&mut state.news) {
            answered.extend(state.news_of(place));
        }
        state.answered += 1;
        if bytes > 0 {
            let (end, now_us) = (state.answered, self.now_us());
            state.spacing.answered(end, now_us);
        }
        answered
    }

    /// Removes the changed partitions from the dirty set. Those with new records are added to `ready`, and those with a
    /// new high watermark to `news`.
    fn collect(&self, state: &mut SessionState) {
        let (records, high_watermarks) = self.marks.take();
        for place in records {
            let Some(followed) = state.at(place) else { continue };
            match &followed.waiting {
                Some((_, fetch)) if followed.replica.phase().is_settled() => {
                    let fetch = fetch.clone();
                    self.note_place(state, place, &fetch);
                }
                // The log could not be opened, and this broker does not try again by itself. The follower sends the
                // fetch again after a pause.
                Some((began, _)) if followed.replica.open_failure_since(*began).is_some() => {
                    let refused = refused(followed.id.1, followed.origin(), ErrorCode::KAFKA_STORAGE_ERROR);
                    state.say_at_once(place, refused);
                }
                Some(_) => {}
                None => state.make_ready(place),
            }
        }
        state.news.extend(high_watermarks);
    }

    fn now_us(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

impl SessionState {
    fn at(&self, place: u32) -> Option<&FollowerState> {
        self.followed.get(place as usize)?.as_ref()
    }

    fn at_mut(&mut self, place: u32) -> Option<&mut FollowerState> {
        self.followed.get_mut(place as usize)?.as_mut()
    }

    fn add(
        &mut self,
        id: PartitionId,
        replica: Arc<Replica>,
        fetch: &FetchPartition,
        marks: &Arc<DirtyPartitions>,
    ) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.followed.push(None);
            u32::try_from(self.followed.len() - 1).expect("there are not so many partitions")
        });
        let followed = FollowerState {
            id,
            _registered: replica.mark(marks, place),
            replica,
            leader_epoch: fetch.current_leader_epoch,
            requested_in: 0,
            cursor: fetch.fetch_offset,
            begins_at: UNKNOWN,
            max_bytes: u32::try_from(fetch.partition_max_bytes).unwrap_or(0),
            sent: (UNKNOWN, UNKNOWN),
            is_ready: false,
            waiting: None,
        };
        self.followed[place as usize] = Some(followed);
        self.places.insert(id, place);
        place
    }

    fn forget(&mut self, id: PartitionId) {
        if let Some(place) = self.places.remove(&id) {
            self.followed[place as usize] = None;
            self.ready.retain(|ready| *ready != place);
            self.news.retain(|news| *news != place);
            self.free.push(place);
        }
    }

    fn make_ready(&mut self, place: u32) {
        let Some(followed) = self.at_mut(place) else { return };
        if followed.waiting.is_none() && !std::mem::replace(&mut followed.is_ready, true) {
            self.ready.push_back(place);
        }
    }

    /// Queues an entry to be sent at once and removes the partition from the session. The follower will request it
    /// again.
    fn say_at_once(&mut self, place: u32, data: PartitionData) {
        if let Some(id) = self.at(place).map(|followed| followed.id) {
            self.forget(id);
            self.urgent.push((id.0, data));
        }
    }

    /// Reads the records that the follower was not sent yet. Returns an entry, and true if the log has more records. If
    /// the partition cannot be read, the entry has an error, and the partition leaves the session.
    ///
    /// Returns `None` if nothing is new, or if the next batch is larger than `left`.
    fn read(&mut self, place: u32, left: usize, is_first: bool) -> Option<((Uuid, PartitionData), bool)> {
        let followed = self.at_mut(place)?;
        followed.is_ready = false;
        let (id, origin) = (followed.id, FetchOrigin { from_offset: followed.cursor, ..followed.origin() });
        let max_bytes = followed.max_bytes.min(u32::try_from(left).unwrap_or(u32::MAX));
        match followed.replica.read_on(followed.leader_epoch, followed.cursor, max_bytes, is_first) {
            Ok(read) => {
                let has_more = read.end_offset < read.log_end;
                followed.cursor = read.end_offset;
                let is_news = followed.is_news(&read);
                if read.read.records.is_empty() && has_more {
                    // The next batch does not fit into this answer and is sent with the next one.
                    self.make_ready(place);
                    self.is_cut = true;
                    return None;
                }
                is_news.then(|| ((id.0, read_entry(id.1, origin, read)), has_more))
            }
            Err(code) => {
                self.forget(id);
                Some(((id.0, refused(id.1, origin, code)), false))
            }
        }
    }

    /// Returns an entry with the high watermark and the log start, or `None` if the follower already has both.
    fn news_of(&mut self, place: u32) -> Option<(Uuid, PartitionData)> {
        let followed = self.at_mut(place).filter(|followed| followed.waiting.is_none())?;
        // With a limit of 0 bytes, only the offsets are read. If the partition has new records, `ready` contains it and
        // `take` reads them.
        let read = followed.replica.read_on(followed.leader_epoch, followed.cursor, 0, false).ok()?;
        let is_news = followed.is_news(&read) && read.read.records.is_empty();
        let origin = FetchOrigin { from_offset: followed.cursor, ..followed.origin() };
        is_news.then(|| (followed.id.0, read_entry(followed.id.1, origin, read)))
    }
}

impl FollowerState {
    /// Returns the fields that do not depend on the records.
    fn origin(&self) -> FetchOrigin {
        FetchOrigin { in_epoch: self.leader_epoch, requested_in: self.requested_in, ..FetchOrigin::UNKNOWN }
    }

    /// Returns true if the read has something that the follower was not sent yet, and remembers it as sent.
    fn is_news(&mut self, read: &LeaderRead) -> bool {
        let sent = (read.read.high_watermark, read.read.log_start_offset);
        std::mem::replace(&mut self.sent, sent) != sent || !read.read.records.is_empty()
    }
}

fn read_entry(partition_index: i32, origin: FetchOrigin, read: LeaderRead) -> PartitionData {
    PartitionData {
        partition_index,
        high_watermark: read.read.high_watermark,
        last_stable_offset: read.read.last_stable_offset,
        log_start_offset: read.read.log_start_offset,
        aborted_transactions: None,
        records: Some(read.read.records),
        ..FetchOrigin { log_end_offset: read.log_end, ..origin }.entry()
    }
}

fn refused(partition_index: i32, origin: FetchOrigin, error_code: ErrorCode) -> PartitionData {
    PartitionData {
        partition_index,
        error_code,
        high_watermark: UNKNOWN,
        log_start_offset: UNKNOWN,
        aborted_transactions: None,
        records: Some(Records::default()),
        ..origin.entry()
    }
}
