//! Fetch sessions (KIP-227): the broker remembers what a consumer reads, so that neither side repeats it.
//!
//! A session is a list of partitions with what was last said of each. Its epoch counts requests, so that a lost one is
//! noticed. Invariants: at most `max.incremental.fetch.session.cache.slots` sessions, and at most [`PARTITIONS_MAX`]
//! partitions in all of them; where there is no room a fetch is served without a session. A full cache forgets the
//! longest unused session, and the client starts another. However many fetches of a session are pending, its list is
//! there once, and registered with its partitions once: a fetch refers to the session as it is, and is refused once the
//! session has gone on without it, as Kafka does.
//!
//! In a session that reads ahead (a field of ours) each answer moves its partitions to where their records ended, so
//! that a client may send the next fetches without having read the answers. Such an answer has whole batches only,
//! and a partition that has an error leaves the session, which ends with the connection that opened it.

mod partition;

pub use partition::{Fetched, PartitionFetch, PartitionKey};

use crate::partitions::Registration;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::{FetchRequest, PartitionData};
use parking_lot::{Mutex, MutexGuard};
use partition::keys;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Partitions of all sessions: about 150 MB, and 30 MB while all of them are waited for.
const PARTITIONS_MAX: usize = 500_000;
/// A session unused for this long gives way to a new one (Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`).
const EVICTABLE_AFTER_MS: i64 = 120_000;
/// The epochs with a meaning of their own.
const FINAL_EPOCH: i32 = -1;
const INITIAL_EPOCH: i32 = 0;
/// The id that is none.
const NO_SESSION: i32 = 0;

/// What was last told of a partition.
#[derive(Clone, Copy, Default, PartialEq)]
struct Told {
    high_watermark: i64,
    log_start_offset: i64,
}

/// Bytes that a registration takes, here and in the list of its partition.
const REGISTRATION_BYTES: usize = 64;
/// Bytes that a topic's name takes beside itself.
const NAME_BYTES: usize = 64;

/// What one consumer reads on one connection or over several.
struct Session {
    /// In the order in which they are looked at. Shared only with who looks at them at the moment.
    wanted: Arc<Vec<PartitionFetch>>,
    /// True if each answer moves the partitions to where it ended.
    reads_ahead: bool,
    /// How many of the broker's session partitions these are.
    share: PartitionsPermit,
    told: HashMap<PartitionKey, Told>,
    /// The epoch the next request must have.
    next_epoch: i32,
    last_used_ms: i64,
    /// Requests admitted and not yet answered.
    unanswered: usize,
    /// Who is woken for the last request, if it waits for records.
    waiting: Option<SessionWaiter>,
}

/// Who is woken when one of many partitions grows.
struct SessionWaiter {
    waiter: Arc<Notify>,
    registered: Vec<Registration>,
}

impl SessionWaiter {
    fn is_over(&self) -> bool {
        self.registered.iter().any(Registration::is_over)
    }
}

/// A part of [`PARTITIONS_MAX`], given back when dropped.
struct PartitionsPermit {
    all: Arc<AtomicUsize>,
    partitions: usize,
}

impl PartitionsPermit {
    fn none(all: &Arc<AtomicUsize>) -> PartitionsPermit {
        PartitionsPermit { all: Arc::clone(all), partitions: 0 }
    }

    /// Changes the part to this many partitions, if there is room.
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

/// All sessions of the broker.
pub struct Sessions {
    cache: Arc<Mutex<Cache>>,
    slots: usize,
    /// Partitions of all sessions.
    partitions: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Cache {
    sessions: HashMap<i32, Arc<Mutex<Session>>>,
    /// How many there were, and what makes ids of that which nobody can guess: who knows an id can disturb the session.
    opened: u64,
    ids: RandomState,
}

/// A connection's session that reads ahead, which ends when this is dropped.
pub struct ConnectionSession {
    cache: Arc<Mutex<Cache>>,
    id: i32,
    session: Weak<Mutex<Session>>,
}

impl Drop for ConnectionSession {
    fn drop(&mut self) {
        if let Entry::Occupied(place) = self.cache.lock().sessions.entry(self.id)
            && std::ptr::eq(Arc::as_ptr(place.get()), self.session.as_ptr())
        {
            place.remove();
        }
    }
}

/// What a fetch says of its session and its partitions. Nothing of the request's frame is in it.
pub struct SessionRequest {
    session_id: i32,
    session_epoch: i32,
    read_ahead: bool,
    wanted: Vec<PartitionFetch>,
    forgotten: HashSet<PartitionKey>,
    names_bytes: usize,
}

impl SessionRequest {
    /// What this request says.
    pub fn of(request: &FetchRequest) -> SessionRequest {
        let wanted = wanted_once(request);
        let forgotten = &request.forgotten_topics_data;
        let names = request.topics.iter().map(|topic| &topic.topic).chain(forgotten.iter().map(|topic| &topic.topic));
        SessionRequest {
            session_id: request.session_id,
            session_epoch: request.session_epoch,
            read_ahead: request.read_ahead,
            wanted,
            names_bytes: names.map(|name| name.len() + NAME_BYTES).sum(),
            forgotten: forgotten
                .iter()
                .flat_map(|topic| keys(&topic.topic, topic.topic_id, &topic.partitions, |index| *index))
                .collect(),
        }
    }

    /// Bytes of memory it takes.
    pub fn bytes_held(&self) -> usize {
        let forgotten = self.forgotten.capacity() * (size_of::<PartitionKey>() + 1);
        self.names_bytes + self.wanted.capacity() * size_of::<PartitionFetch>() + forgotten
    }
}

/// What becomes of a fetch at its admission.
pub enum FetchAdmission {
    /// The fetch may be carried out.
    Planned(FetchPlan),
    /// Another of its session is not answered yet: it is to be planned when its turn comes.
    Behind(Behind),
}

/// A fetch behind another of its session.
pub struct Behind {
    asked: SessionRequest,
    _turn: SessionTurn,
}

impl Behind {
    /// Bytes of memory it takes.
    pub fn bytes_held(&self) -> usize {
        self.asked.bytes_held()
    }
}

/// What one fetch reads, and how its answer is cut.
pub struct FetchPlan {
    /// The session to name in the response; 0 for none.
    pub session_id: i32,
    /// True if the session wants whole batches, and no reads of partitions for which the answer has no room.
    pub reads_ahead: bool,
    /// Set when only what changed is to be shown.
    incremental: bool,
    reads: Reads,
    /// Without a session, while it waits.
    waiting: Option<SessionWaiter>,
}

enum Reads {
    /// A list of its own, whose names take so many bytes.
    Once(Arc<Vec<PartitionFetch>>, usize),
    /// That of a session.
    Session(SessionTurn),
}

/// A request of a session that is not answered yet.
struct SessionTurn {
    session: Arc<Mutex<Session>>,
    /// What the session expects next as long as this is its last request; 0 before it was planned.
    next_epoch: i32,
}

impl SessionTurn {
    fn new(session: &Arc<Mutex<Session>>, state: &mut Session, next_epoch: i32) -> SessionTurn {
        state.unanswered += 1;
        SessionTurn { session: Arc::clone(session), next_epoch }
    }

    /// The session, as long as this is its last request (as in Kafka's `IncrementalFetchContext`).
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
    /// A cache of so many slots.
    pub fn new(slots: usize) -> Self {
        Sessions { cache: Arc::default(), slots, partitions: Arc::default() }
    }

    /// Sessions in the cache.
    pub fn count(&self) -> usize {
        self.cache.lock().sessions.len()
    }

    fn find(&self, id: i32) -> Option<Arc<Mutex<Session>>> {
        self.cache.lock().sessions.get(&id).cloned()
    }

    /// Returns the session that this plan has opened, if it reads ahead. Its connection is to keep it.
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

    /// Settles which session a request belongs to and what it reads, unless it must wait for its turn.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH.
    pub fn admit(&self, asked: SessionRequest, now_ms: i64) -> Result<FetchAdmission, ErrorCode> {
        if let Some(session) = self.find(asked.session_id) {
            let mut state = session.lock();
            if state.unanswered > 0 {
                let turn = SessionTurn::new(&session, &mut state, 0);
                return Ok(FetchAdmission::Behind(Behind { asked, _turn: turn }));
            }
        }
        self.plan(asked, now_ms).map(FetchAdmission::Planned)
    }

    /// What [`Sessions::admit`] has left for later.
    ///
    /// # Errors
    /// As of [`Sessions::admit`].
    pub fn plan_behind(&self, behind: Behind, now_ms: i64) -> Result<FetchPlan, ErrorCode> {
        let Behind { asked, _turn } = behind;
        self.plan(asked, now_ms)
    }

    fn plan(&self, asked: SessionRequest, now_ms: i64) -> Result<FetchPlan, ErrorCode> {
        let (id, epoch) = (asked.session_id, asked.session_epoch);
        if epoch == FINAL_EPOCH || epoch == INITIAL_EPOCH {
            self.cache.lock().sessions.remove(&id);
            return Ok(if epoch == INITIAL_EPOCH { self.open(asked, now_ms) } else { FetchPlan::once(asked) });
        }
        let session = self.find(id).ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        let mut state = session.lock();
        if state.next_epoch != epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        state.next_epoch = next(epoch);
        state.last_used_ms = now_ms;
        // Of a request on another connection, which hears that the session has gone on.
        let before = state.waiting.take();
        let has_room = state.update(asked);
        let reads_ahead = state.reads_ahead;
        let turn = SessionTurn::new(&session, &mut state, next(epoch));
        drop(state);
        if let Some(before) = before {
            before.waiter.notify_one();
        }
        if !has_room {
            self.cache.lock().sessions.remove(&id);
            // The client begins again with a full fetch, which is served without a session.
            return Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        }
        Ok(FetchPlan { session_id: id, reads_ahead, incremental: true, reads: Reads::Session(turn), waiting: None })
    }

    /// A full fetch; opens a session for the next ones if there is room.
    fn open(&self, asked: SessionRequest, now_ms: i64) -> FetchPlan {
        if asked.wanted.is_empty() {
            return FetchPlan::once(asked);
        }
        let mut cache = self.cache.lock();
        let mut share = PartitionsPermit::none(&self.partitions);
        while cache.sessions.len() >= self.slots || !share.resize(asked.wanted.len()) {
            if !cache.evict(now_ms) {
                return FetchPlan::once(asked);
            }
        }
        let reads_ahead = asked.read_ahead;
        let session = Arc::new(Mutex::new(Session {
            reads_ahead,
            wanted: Arc::new(asked.wanted),
            share,
            told: HashMap::new(),
            next_epoch: next(INITIAL_EPOCH),
            last_used_ms: now_ms,
            unanswered: 0,
            waiting: None,
        }));
        let turn = SessionTurn::new(&session, &mut session.lock(), next(INITIAL_EPOCH));
        let session_id = cache.free_id();
        cache.sessions.insert(session_id, session);
        FetchPlan { session_id, reads_ahead, incremental: false, reads: Reads::Session(turn), waiting: None }
    }
}

impl Cache {
    /// Forgets the session that was unused for longest, if that is long enough.
    fn evict(&mut self, now_ms: i64) -> bool {
        let oldest = self.sessions.iter().map(|(id, session)| (session.lock().last_used_ms, *id)).min();
        match oldest {
            Some((used, id)) if now_ms - used > EVICTABLE_AFTER_MS => self.sessions.remove(&id).is_some(),
            _ => false,
        }
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
    /// Takes over what an incremental request adds, changes and forgets. False if there is no room for it.
    #[must_use]
    fn update(&mut self, asked: SessionRequest) -> bool {
        let SessionRequest { wanted: changed, forgotten, .. } = asked;
        if !forgotten.is_empty() {
            Arc::make_mut(&mut self.wanted).retain(|wanted| !forgotten.contains(&wanted.key));
            self.told.retain(|key, _| !forgotten.contains(key));
        }
        if !changed.is_empty() {
            let wanted = Arc::make_mut(&mut self.wanted);
            let places: HashMap<PartitionKey, usize> =
                wanted.iter().enumerate().map(|(at, wanted)| (wanted.key.clone(), at)).collect();
            for mut change in changed {
                let reads_on = self.reads_ahead && change.fetch.read_on;
                match places.get(&change.key) {
                    Some(at) => {
                        if reads_on {
                            change.fetch.fetch_offset = wanted[*at].fetch.fetch_offset;
                        }
                        wanted[*at] = change;
                    }
                    // The partition had an error, which the client reads later.
                    None if reads_on => {}
                    None => wanted.push(change),
                }
            }
        }
        self.share.resize(self.wanted.len())
    }

    /// Whether a partition's outcome must be in an incremental response; remembers it as told.
    fn is_news(&mut self, key: &PartitionKey, data: &PartitionData) -> bool {
        let told = Told { high_watermark: data.high_watermark, log_start_offset: data.log_start_offset };
        let changed = self.told.insert(key.clone(), told) != Some(told);
        let is_elsewhere = data.preferred_read_replica != PartitionData::default().preferred_read_replica;
        let has_records = data.records.as_ref().is_some_and(|records| !records.is_empty());
        changed || is_elsewhere || data.error_code.is_err() || has_records
    }

    /// Moves the partitions to where their records in the answer end. Those with an error leave the session, which
    /// would return it with each answer. The partitions looked at are the first ones, in the same order.
    fn read_on(&mut self, fetched: &[Fetched]) {
        let is_moved = |of: &Fetched| of.end_offset.is_some_and(|end| end != of.data.from_offset);
        if fetched.iter().any(is_moved) {
            for (wanted, read) in Arc::make_mut(&mut self.wanted).iter_mut().zip(fetched) {
                if let Some(end) = read.end_offset.filter(|_| wanted.key == read.key) {
                    wanted.fetch.fetch_offset = end;
                }
            }
        }
        let failed: HashSet<_> = fetched.iter().filter(|of| of.data.error_code.is_err()).map(|of| &of.key).collect();
        if !failed.is_empty() {
            Arc::make_mut(&mut self.wanted).retain(|wanted| !failed.contains(&wanted.key));
        }
    }

    /// Partitions that returned data go to the end, so that none starves behind a busy one. No more than the first
    /// `looked_at` are among them.
    fn rotate(&mut self, served: &HashSet<PartitionKey>, looked_at: usize) {
        if !served.is_empty() && served.len() < self.wanted.len() {
            let wanted = Arc::make_mut(&mut self.wanted);
            let first = wanted.drain(..looked_at.min(wanted.len()));
            let (served, rest): (Vec<_>, Vec<_>) = first.partition(|wanted| served.contains(&wanted.key));
            wanted.splice(..0, rest);
            wanted.extend(served);
        }
    }
}

impl FetchPlan {
    /// Without a session.
    fn once(asked: SessionRequest) -> FetchPlan {
        let reads = Reads::Once(Arc::new(asked.wanted), asked.names_bytes);
        FetchPlan { session_id: 0, reads_ahead: false, incremental: false, reads, waiting: None }
    }

    /// The partitions, in order; not to be kept while it waits.
    ///
    /// # Errors
    /// INVALID_FETCH_SESSION_EPOCH when the session has gone on.
    pub fn wanted(&self) -> Result<Arc<Vec<PartitionFetch>>, ErrorCode> {
        match &self.reads {
            Reads::Once(wanted, _) => Ok(Arc::clone(wanted)),
            Reads::Session(turn) => turn.lock().map(|state| Arc::clone(&state.wanted)),
        }
    }

    /// Keeps the waiter registered with these partitions for as long as there is the plan, or until its session goes on,
    /// which wakes it.
    ///
    /// # Errors
    /// As of [`FetchPlan::wanted`].
    pub fn keep_registered(&mut self, waiter: Arc<Notify>, registered: Vec<Registration>) -> Result<(), ErrorCode> {
        let waiting = Some(SessionWaiter { waiter, registered });
        match &self.reads {
            Reads::Once(..) => self.waiting = waiting,
            Reads::Session(turn) => turn.lock()?.waiting = waiting,
        }
        Ok(())
    }

    /// Whether one of the partitions that it is registered with is gone.
    ///
    /// # Errors
    /// As of [`FetchPlan::wanted`].
    pub fn has_lost_one(&self) -> Result<bool, ErrorCode> {
        Ok(match &self.reads {
            Reads::Once(..) => self.waiting.as_ref().is_some_and(SessionWaiter::is_over),
            Reads::Session(turn) => turn.lock()?.waiting.as_ref().is_some_and(SessionWaiter::is_over),
        })
    }

    /// Bytes of memory it takes while it waits. What is its session's is not the fetch's: there is one list and one
    /// waiting fetch a session.
    pub fn bytes_held(&self) -> usize {
        match &self.reads {
            Reads::Once(wanted, names) => {
                names + wanted.capacity() * size_of::<PartitionFetch>() + wanted.len() * REGISTRATION_BYTES
            }
            Reads::Session(_) => 0,
        }
    }

    /// The part of the outcome the client has to be told.
    ///
    /// # Errors
    /// As of [`FetchPlan::wanted`].
    pub fn shown(&self, fetched: Vec<Fetched>) -> Result<Vec<Fetched>, ErrorCode> {
        let Reads::Session(turn) = &self.reads else { return Ok(fetched) };
        let mut session = turn.lock()?;
        let looked_at = fetched.len();
        if self.reads_ahead {
            session.read_on(&fetched);
        }
        let mut served = HashSet::new();
        let shown = fetched
            .into_iter()
            .filter(|Fetched { key, data, .. }| {
                if data.records.as_ref().is_some_and(|records| !records.is_empty()) {
                    served.insert(key.clone());
                }
                let is_news = session.is_news(key, data);
                if self.reads_ahead && data.error_code.is_err() {
                    session.told.remove(key);
                }
                is_news || !self.incremental
            })
            .collect();
        session.rotate(&served, looked_at);
        Ok(shown)
    }
}

fn next(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

/// As Kafka has it: of a partition named twice, the last one counts.
fn wanted_once(request: &FetchRequest) -> Vec<PartitionFetch> {
    let mut once: Vec<PartitionFetch> =
        Vec::with_capacity(request.topics.iter().map(|topic| topic.partitions.len()).sum());
    let mut places = HashMap::new();
    for wanted in wanted(request) {
        match places.entry(wanted.key.clone()) {
            Entry::Occupied(place) => once[*place.get()] = wanted,
            Entry::Vacant(place) => {
                place.insert(once.len());
                once.push(wanted);
            }
        }
    }
    once
}

fn wanted(request: &FetchRequest) -> impl Iterator<Item = PartitionFetch> + '_ {
    request.topics.iter().flat_map(|topic| {
        keys(&topic.topic, topic.topic_id, &topic.partitions, |p| p.partition)
            .zip(&topic.partitions)
            .map(|(key, fetch)| PartitionFetch { key, fetch: fetch.clone() })
    })
}
