//! Fetch sessions (KIP-227): the broker remembers which partitions a consumer reads, so that requests and responses
//! only contain those that have changed.
//!
//! A session has a list of partitions, with the offsets that were last sent for each partition. Its epoch counts the
//! requests, so that the broker notices a lost request. There are at most `max.incremental.fetch.session.cache.slots`
//! sessions, and at most [`PARTITIONS_MAX`] partitions in all of them. If a new session exceeds these limits, the least
//! recently used one is evicted, and its client opens another. If even that session was used recently, nothing is
//! evicted, and the fetch is served without a session.
//!
//! A session may have half a million partitions. The lock of the cache is therefore held only to search the map of
//! sessions, and no session is locked or freed under it. All fetches of a session share its list. Of the waiting
//! fetches of a session, at most one is registered with the partitions. When a partition changes, it wakes this fetch,
//! which then reads the list as it is at that time. As in Kafka, a fetch is refused once its session has planned a
//! later fetch.
//!
//! In a session that reads ahead (an extension of ours), the broker moves the position in each partition to the end of
//! the records that it sends. The client can therefore send further fetches before it has read the responses. Such
//! responses contain only whole batches, and a partition with an error leaves the session. A session that reads ahead
//! ends with the connection that opened it.

mod partition;
mod request;

#[cfg(test)]
pub use partition::TopicKey;
pub use partition::{Fetched, FetchedTopic, PartitionFetch, PartitionOutcome};
pub use request::SessionRequest;

use crate::partitions::Registration;
use fullbore_host::clock::SteadyClock;
use fullbore_wire::ErrorCode;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Maximum number of partitions in all sessions together. They take about 24 MB, and 30 MB more while fetches wait for
/// all of them. The names of topics take further memory, at most 249 bytes each.
const PARTITIONS_MAX: usize = 500_000;
/// A session that was unused for longer than this can be evicted for a new one (Kafka's
/// `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`).
const EVICTABLE_AFTER_MS: i64 = 120_000;
/// A fetch with this epoch ends its session.
const FINAL_EPOCH: i32 = -1;
/// A fetch with this epoch opens a session.
const INITIAL_EPOCH: i32 = 0;
/// A fetch with this session id does not belong to a session.
const NO_SESSION: i32 = 0;

/// Memory of one registration, which is listed both in the session and in the partition.
const REGISTRATION_BYTES: usize = 64;
/// A session. The fields beside `state` can be read without its lock.
struct SharedSession {
    state: Mutex<Session>,
    last_used_ms: AtomicI64,
    partitions: AtomicUsize,
}

impl SharedSession {
    fn lock(&self) -> MutexGuard<'_, Session> {
        self.state.lock()
    }
}

/// The fetch session of one consumer, which may use it on several connections.
struct Session {
    /// The partitions in the order in which they are read. Besides the session, only the fetch that is reading them has
    /// a reference to the list.
    wanted: Arc<Vec<PartitionFetch>>,
    /// True if the session moves its positions to the end of the records that it sends.
    reads_ahead: bool,
    /// This session's share of [`PARTITIONS_MAX`].
    share: PartitionsPermit,
    /// The epoch that the next request must have.
    next_epoch: i32,
    /// Number of admitted requests that are not answered yet.
    unanswered: usize,
    /// The waiter of the last request, if it waits for records.
    waiting: Option<SessionWaiter>,
}

/// A waiting fetch, with its registrations in partitions, which wake it when they grow.
struct SessionWaiter {
    waiter: Arc<Notify>,
    registered: Vec<Registration>,
}

impl SessionWaiter {
    fn is_over(&self) -> bool {
        self.registered.iter().any(Registration::is_over)
    }
}

/// A share of [`PARTITIONS_MAX`], which is released when dropped.
struct PartitionsPermit {
    all: Arc<AtomicUsize>,
    partitions: usize,
}

impl PartitionsPermit {
    fn none(all: &Arc<AtomicUsize>) -> PartitionsPermit {
        PartitionsPermit { all: Arc::clone(all), partitions: 0 }
    }

    /// Changes the share to `partitions`. If that would exceed the limit, returns false and changes nothing.
    #[must_use]
    fn resize(&mut self, partitions: usize) -> bool {
        let others = |all: usize| all - self.partitions;
        let fits = |all| (others(all) + partitions <= PARTITIONS_MAX).then_some(others(all) + partitions);
        let resized = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if resized {
            self.partitions = partitions;
        }
        resized
    }
}

impl Drop for PartitionsPermit {
    fn drop(&mut self) {
        self.all.fetch_sub(self.partitions, Ordering::Relaxed);
    }
}

/// All fetch sessions of the broker.
pub struct Sessions {
    cache: Arc<Mutex<Cache>>,
    slots: usize,
    /// The number of partitions in all sessions.
    partitions: Arc<AtomicUsize>,
    clock: SteadyClock,
}

#[derive(Default)]
struct Cache {
    sessions: HashMap<i32, Arc<SharedSession>>,
    /// How many sessions were ever opened. `ids` hashes this number into a session's id, so that clients cannot guess
    /// the ids of others and disturb their sessions.
    opened: u64,
    ids: RandomState,
}

/// Ties a session that reads ahead to its connection. Dropping this ends the session.
pub struct ConnectionSession {
    cache: Arc<Mutex<Cache>>,
    id: i32,
    session: Weak<SharedSession>,
}

impl Drop for ConnectionSession {
    fn drop(&mut self) {
        let mut cache = self.cache.lock();
        let ended = match cache.sessions.entry(self.id) {
            Entry::Occupied(place) if std::ptr::eq(Arc::as_ptr(place.get()), self.session.as_ptr()) => {
                Some(place.remove())
            }
            _ => None,
        };
        drop(cache);
        drop(ended);
    }
}

/// The outcome of admitting a fetch.
pub enum FetchAdmission {
    /// The fetch can be carried out now.
    Planned(FetchPlan),
    /// Earlier fetches of the same session are not answered yet, so this one is planned later.
    Behind(Behind),
}

/// A fetch that was admitted before the earlier fetches of its session were answered. It is planned when its response
/// is the next one of its connection.
pub struct Behind {
    requested: SessionRequest,
    turn: SessionTurn,
}

impl Behind {
    /// Returns how many bytes of memory the request takes.
    pub fn bytes_held(&self) -> usize {
        self.requested.bytes_held()
    }

    /// Returns the number of partitions in the request and in its session together.
    pub fn partitions(&self) -> usize {
        self.requested.partitions() + self.turn.session.partitions.load(Ordering::Relaxed)
    }
}

/// The list of partitions that one fetch reads, and the form of its response.
pub struct FetchPlan {
    /// The session id in the response, or 0 without a session.
    pub session_id: i32,
    /// True if the session reads ahead. The response then contains only whole batches. Partitions whose next batch does
    /// not fit into it are left to the next response.
    pub reads_ahead: bool,
    /// True if the response contains only partitions that have changed.
    incremental: bool,
    reads: Reads,
    /// The waiter of a fetch without a session, while the fetch waits.
    waiting: Option<SessionWaiter>,
}

enum Reads {
    /// A fetch without a session: the list of its partitions, and how many bytes the names of its topics take.
    Once(Arc<Vec<PartitionFetch>>, usize),
    /// A fetch in a session. It reads the list of the session.
    Session(SessionTurn),
}

/// A request in a session that has not been answered yet.
struct SessionTurn {
    session: Arc<SharedSession>,
    /// The epoch that the session expects after this request, or 0 while the request is not planned yet.
    next_epoch: i32,
}

impl SessionTurn {
    fn new(session: &Arc<SharedSession>, state: &mut Session, next_epoch: i32) -> SessionTurn {
        state.unanswered += 1;
        SessionTurn { session: Arc::clone(session), next_epoch }
    }

    /// Locks the session. As in Kafka's `IncrementalFetchContext`, fails with INVALID_FETCH_SESSION_EPOCH if the
    /// session has planned a later request.
    fn lock(&self) -> Result<MutexGuard<'_, Session>, ErrorCode> {
        let state = self.session.lock();
        if state.next_epoch == self.next_epoch { Ok(state) } else { Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH) }
    }
}

impl Drop for SessionTurn {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        state.unanswered -= 1;
        let waiting = if state.next_epoch == self.next_epoch { state.waiting.take() } else { None };
        drop(state);
        drop(waiting);
    }
}

impl Sessions {
    /// Creates a cache for up to `slots` sessions.
    pub fn new(slots: usize) -> Self {
        Sessions { cache: Arc::default(), slots, partitions: Arc::default(), clock: SteadyClock::start() }
    }

    /// Returns the number of sessions in the cache.
    pub fn count(&self) -> usize {
        self.cache.lock().sessions.len()
    }

    /// Returns how many partitions a session has, or 0 if there is no such session.
    pub fn partitions_of(&self, id: i32) -> usize {
        self.find(id).map_or(0, |session| session.partitions.load(Ordering::Relaxed))
    }

    /// Removes a session from the cache.
    fn remove(&self, id: i32) {
        let ended = self.cache.lock().sessions.remove(&id);
        // The session may be large, so it is freed after the lock is released.
        drop(ended);
    }

    fn find(&self, id: i32) -> Option<Arc<SharedSession>> {
        self.cache.lock().sessions.get(&id).cloned()
    }

    /// If this plan has opened a session that reads ahead, returns the owner of that session. The session ends when the
    /// owner is dropped, so the connection must keep it.
    pub fn opened_by(&self, plan: &FetchPlan) -> Option<ConnectionSession> {
        match &plan.reads {
            Reads::Session(turn) if plan.reads_ahead && !plan.incremental => Some(ConnectionSession {
                cache: Arc::clone(&self.cache),
                id: plan.session_id,
                session: Arc::downgrade(&turn.session),
            }),
            _ => None,
        }
    }

    /// Finds the session of a request and plans what to read. If earlier requests of the session are not answered yet,
    /// returns [`FetchAdmission::Behind`] instead of a plan.
    ///
    /// # Errors
    /// Fails with FETCH_SESSION_ID_NOT_FOUND if there is no such session, and with INVALID_FETCH_SESSION_EPOCH if the
    /// session expects another epoch.
    pub fn admit(&self, requested: SessionRequest) -> Result<FetchAdmission, ErrorCode> {
        if let Some(session) = self.find(requested.session_id) {
            let mut state = session.lock();
            if state.unanswered > 0 {
                let turn = SessionTurn::new(&session, &mut state, 0);
                return Ok(FetchAdmission::Behind(Behind { requested, turn }));
            }
        }
        self.plan(requested).map(FetchAdmission::Planned)
    }

    /// Plans a fetch for which [`Sessions::admit`] has returned [`FetchAdmission::Behind`].
    ///
    /// # Errors
    /// Fails as [`Sessions::admit`] does.
    pub fn plan_behind(&self, behind: Behind) -> Result<FetchPlan, ErrorCode> {
        let Behind { requested, turn: _turn } = behind;
        self.plan(requested)
    }

    fn plan(&self, requested: SessionRequest) -> Result<FetchPlan, ErrorCode> {
        let (id, epoch) = (requested.session_id, requested.session_epoch);
        if epoch == FINAL_EPOCH || epoch == INITIAL_EPOCH {
            self.remove(id);
            return Ok(if epoch == INITIAL_EPOCH { self.open(requested) } else { FetchPlan::once(requested) });
        }
        let session = self.find(id).ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        let mut state = session.lock();
        if state.next_epoch != epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        state.next_epoch = next(epoch);
        session.last_used_ms.store(self.clock.now_ms(), Ordering::Relaxed);
        // An earlier request on another connection may still be waiting. It is woken below and then refused, because
        // this later request is now planned.
        let before = state.waiting.take();
        let has_room = state.update(requested);
        session.partitions.store(state.wanted.len(), Ordering::Relaxed);
        let reads_ahead = state.reads_ahead;
        let turn = SessionTurn::new(&session, &mut state, next(epoch));
        drop(state);
        if let Some(before) = before {
            before.waiter.notify_one();
        }
        if !has_room {
            self.remove(id);
            // This error makes the client send a full fetch. If the limit is still reached then, that fetch is served
            // without a session.
            return Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        }
        Ok(FetchPlan { session_id: id, reads_ahead, incremental: true, reads: Reads::Session(turn), waiting: None })
    }

    /// Plans a full fetch. If the limits allow, also opens a session for the fetches that follow.
    fn open(&self, requested: SessionRequest) -> FetchPlan {
        if requested.wanted.is_empty() || requested.has_impossible_name {
            return FetchPlan::once(requested);
        }
        let now_ms = self.clock.now_ms();
        let mut cache = self.cache.lock();
        let mut share = PartitionsPermit::none(&self.partitions);
        while cache.sessions.len() >= self.slots || !share.resize(requested.wanted.len()) {
            let Some(oldest) = cache.evict(now_ms) else {
                drop(cache);
                return FetchPlan::once(requested);
            };
            // The evicted session may be large, so it is freed without the lock. Only then do its partitions no longer
            // count towards [`PARTITIONS_MAX`], so the limit is checked again.
            drop(cache);
            drop(oldest);
            cache = self.cache.lock();
        }
        let reads_ahead = requested.read_ahead;
        let session = Arc::new(SharedSession {
            last_used_ms: AtomicI64::new(now_ms),
            partitions: AtomicUsize::new(requested.wanted.len()),
            state: Mutex::new(Session {
                reads_ahead,
                wanted: Arc::new(requested.wanted),
                share,
                next_epoch: next(INITIAL_EPOCH),
                unanswered: 0,
                waiting: None,
            }),
        });
        let turn = SessionTurn::new(&session, &mut session.lock(), next(INITIAL_EPOCH));
        let session_id = cache.free_id();
        cache.sessions.insert(session_id, session);
        FetchPlan { session_id, reads_ahead, incremental: false, reads: Reads::Session(turn), waiting: None }
    }
}

impl Cache {
    /// Removes the least recently used session from the cache. The caller must release the lock before it drops the
    /// session.
    ///
    /// Returns `None` if there is no session, or if even this one was used within [`EVICTABLE_AFTER_MS`].
    fn evict(&mut self, now_ms: i64) -> Option<Arc<SharedSession>> {
        let last_used_ms = |session: &SharedSession| session.last_used_ms.load(Ordering::Relaxed);
        let (used, id) = self.sessions.iter().map(|(id, session)| (last_used_ms(session), *id)).min()?;
        if now_ms - used > EVICTABLE_AFTER_MS { self.sessions.remove(&id) } else { None }
    }

    fn free_id(&mut self) -> i32 {
        loop {
            self.opened += 1;
            let id = (self.ids.hash_one(self.opened) as i32) & i32::MAX;
            if id != NO_SESSION && !self.sessions.contains_key(&id) {
                return id;
            }
        }
    }
}

impl Session {
    /// Applies an incremental request to the list, which removes, changes and adds partitions. Returns false if the
    /// list is then too long, or if the name of a topic is too long to be stored.
    #[must_use]
    fn update(&mut self, requested: SessionRequest) -> bool {
        if requested.has_impossible_name {
            return false;
        }
        let SessionRequest { wanted: changed, forgotten, .. } = requested;
        if !forgotten.is_empty() {
            Arc::make_mut(&mut self.wanted).retain(|wanted| !forgotten.has(wanted));
        }
        if !changed.is_empty() {
            self.change(changed);
        }
        self.share.resize(self.wanted.len())
    }

    /// Applies `changed` to the partitions that are already in the list, and adds the others.
    fn change(&mut self, mut changed: Vec<PartitionFetch>) {
        let places = request::places(&changed);
        let wanted = Arc::make_mut(&mut self.wanted);
        let mut is_new = vec![true; changed.len()];
        for known in wanted.iter_mut() {
            if let Some(at) = places.get(&known.key()) {
                let change = changed[*at].clone();
                let reads_on = self.reads_ahead && change.reads_on();
                known.change(change, reads_on);
                is_new[*at] = false;
            }
        }
        let mut is_new = is_new.into_iter();
        // With `reads_on`, the client continues a partition that it believes to be in the session. If the list lacks
        // the partition, it has left the session after an error that the client has not read yet. It must not be added
        // again.
        changed.retain(|change| is_new.next().unwrap_or(false) && !(self.reads_ahead && change.reads_on()));
        wanted.append(&mut changed);
    }

    /// Applies the outcomes of a read, which are in the order of the list. Stores the offsets that are sent to the
    /// client, and orders the partitions for the next read. If the session reads ahead, also moves its positions.
    ///
    /// Returns the outcomes that have changed, or all of them with `shows_all`.
    fn answered(&mut self, mut fetched: Vec<Fetched>, shows_all: bool) -> Vec<Fetched> {
        let (mut at, reads_ahead) = (0, self.reads_ahead);
        let (mut served, mut failed) = (Vec::new(), Vec::new());
        let wanted = Arc::make_mut(&mut self.wanted);
        fetched.retain_mut(|fetched| {
            let Some(ahead) = wanted[at..].iter().position(|wanted| wanted.is_of(fetched)) else { return true };
            at += ahead;
            let read = &mut wanted[at];
            if reads_ahead && let PartitionOutcome::Read(data) = &mut fetched.outcome {
                read.move_after(data);
                data.in_epoch = -1;
            }
            if reads_ahead && fetched.outcome.is_failed() {
                failed.push(at);
            }
            if fetched.outcome.records_bytes() > 0 {
                served.push(at);
            }
            at += 1;
            read.is_news(fetched) || shows_all
        });
        place_last(wanted, at, &served, &failed);
        fetched
    }
}

/// Reorders the list after its first `looked_at` partitions were read. The partitions at the indexes `served` have
/// returned records. They move to the end, so that no partition starves behind a busy one. If all partitions were
/// served, the order stays.
///
/// The partitions at the indexes `failed` are removed. They belong to a session that reads ahead, which would otherwise
/// return their errors in each response.
fn place_last(wanted: &mut Vec<PartitionFetch>, looked_at: usize, served: &[usize], failed: &[usize]) {
    let rotates = !served.is_empty() && served.len() < wanted.len() - failed.len();
    if !rotates && failed.is_empty() {
        return;
    }
    let (mut served, mut failed) = (served.iter().peekable(), failed.iter().peekable());
    let (mut first, mut last) = (Vec::with_capacity(looked_at), Vec::new());
    for (at, partition) in wanted.drain(..looked_at).enumerate() {
        let is_failed = failed.next_if(|failed| **failed == at).is_some();
        let is_served = served.next_if(|served| **served == at).is_some();
        match (is_failed, is_served && rotates) {
            (true, _) => {}
            (false, true) => last.push(partition),
            (false, false) => first.push(partition),
        }
    }
    wanted.splice(..0, first);
    wanted.append(&mut last);
}

impl FetchPlan {
    /// Creates the plan of a fetch without a session.
    fn once(requested: SessionRequest) -> FetchPlan {
        let reads = Reads::Once(Arc::new(requested.wanted), requested.topics_bytes);
        FetchPlan { session_id: 0, reads_ahead: false, incremental: false, reads, waiting: None }
    }

    /// Returns the partitions in the order in which they are read. The caller must drop the list before it waits, so
    /// that the session can change it.
    ///
    /// # Errors
    /// Fails with INVALID_FETCH_SESSION_EPOCH if the session has planned a later request.
    pub fn wanted(&self) -> Result<Arc<Vec<PartitionFetch>>, ErrorCode> {
        match &self.reads {
            Reads::Once(wanted, _) => Ok(Arc::clone(wanted)),
            Reads::Session(turn) => turn.lock().map(|state| Arc::clone(&state.wanted)),
        }
    }

    /// Keeps the waiter registered with these partitions until the plan is dropped. If the session plans a later
    /// request before, that request wakes the waiter and ends the registration.
    ///
    /// # Errors
    /// Fails as [`FetchPlan::wanted`] does.
    pub fn keep_registered(&mut self, waiter: Arc<Notify>, registered: Vec<Registration>) -> Result<(), ErrorCode> {
        let waiting = Some(SessionWaiter { waiter, registered });
        match &self.reads {
            Reads::Once(..) => self.waiting = waiting,
            Reads::Session(turn) => turn.lock()?.waiting = waiting,
        }
        Ok(())
    }

    /// Returns true if the waiter has lost a registration, because its partition was deleted.
    ///
    /// # Errors
    /// Fails as [`FetchPlan::wanted`] does.
    pub fn has_lost_one(&self) -> Result<bool, ErrorCode> {
        Ok(match &self.reads {
            Reads::Once(..) => self.waiting.as_ref().is_some_and(SessionWaiter::is_over),
            Reads::Session(turn) => turn.lock()?.waiting.as_ref().is_some_and(SessionWaiter::is_over),
        })
    }

    /// Returns how many partitions the plan reads.
    pub fn partitions(&self) -> usize {
        self.wanted().map_or(0, |wanted| wanted.len())
    }

    /// Returns how many bytes of memory the plan takes while it waits. The list of a session does not count, because
    /// all fetches of the session share it.
    pub fn bytes_held(&self) -> usize {
        match &self.reads {
            Reads::Once(wanted, names) => {
                names + wanted.capacity() * size_of::<PartitionFetch>() + wanted.len() * REGISTRATION_BYTES
            }
            Reads::Session(_) => 0,
        }
    }

    /// Returns those outcomes that the response must contain.
    ///
    /// # Errors
    /// Fails as [`FetchPlan::wanted`] does.
    pub fn shown(&self, fetched: Vec<Fetched>) -> Result<Vec<Fetched>, ErrorCode> {
        let Reads::Session(turn) = &self.reads else { return Ok(fetched) };
        Ok(turn.lock()?.answered(fetched, !self.incremental))
    }
}

fn next(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}
