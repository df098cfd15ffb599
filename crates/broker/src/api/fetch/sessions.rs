//! Fetch sessions (KIP-227): the broker remembers what a consumer reads, so that neither side repeats it.
//!
//! A session is a list of partitions with what was last said of each. Its epoch counts requests, so that a lost one is
//! noticed. Invariants: at most `max.incremental.fetch.session.cache.slots` sessions, and at most [`PARTITIONS_MAX`]
//! partitions in all of them; where there is no room a fetch is served without a session. A full cache forgets the
//! longest unused session, and the client starts another.

use super::{Fetched, PartitionKey, Wanted, keys};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::{FetchRequest, PartitionData};
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Partitions of all sessions: about 150 MB.
const PARTITIONS_MAX: usize = 500_000;
/// A session unused for this long gives way to a new one (Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`).
const EVICTABLE_AFTER_MS: i64 = 120_000;
/// The epochs with a meaning of their own.
const FINAL_EPOCH: i32 = -1;
const INITIAL_EPOCH: i32 = 0;

/// What was last told of a partition.
#[derive(Clone, Copy, Default, PartialEq)]
struct Told {
    high_watermark: i64,
    log_start_offset: i64,
}

/// What one consumer reads on one connection or over several.
struct Session {
    /// In the order in which they are looked at.
    wanted: Vec<Wanted>,
    /// How many of the broker's session partitions these are.
    share: Share,
    told: HashMap<PartitionKey, Told>,
    /// The epoch the next request must have.
    next_epoch: i32,
    last_used_ms: i64,
}

/// A part of [`PARTITIONS_MAX`], given back when dropped.
struct Share {
    all: Arc<AtomicUsize>,
    partitions: usize,
}

impl Share {
    fn none(all: &Arc<AtomicUsize>) -> Share {
        Share { all: Arc::clone(all), partitions: 0 }
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

impl Drop for Share {
    fn drop(&mut self) {
        self.all.fetch_sub(self.partitions, Ordering::Relaxed);
    }
}

/// All sessions of the broker.
pub struct Sessions {
    cache: Mutex<Cache>,
    slots: usize,
    /// Partitions of all sessions.
    partitions: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Cache {
    sessions: HashMap<i32, Arc<Mutex<Session>>>,
    last_id: i32,
}

/// What one fetch reads, and how its answer is cut.
pub struct Plan {
    /// The session to name in the response; 0 for none.
    pub session_id: i32,
    /// The partitions, in order.
    pub wanted: Vec<Wanted>,
    /// Set when only what changed is to be shown.
    incremental: bool,
    session: Option<Arc<Mutex<Session>>>,
}

impl Sessions {
    /// A cache of so many slots.
    pub fn new(slots: usize) -> Self {
        Sessions { cache: Mutex::new(Cache::default()), slots, partitions: Arc::default() }
    }

    /// Sessions in the cache.
    pub fn count(&self) -> usize {
        self.cache.lock().sessions.len()
    }

    /// Settles which session a request belongs to and what it reads.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH.
    pub fn plan(&self, request: FetchRequest, now_ms: i64) -> Result<Plan, ErrorCode> {
        let (id, epoch) = (request.session_id, request.session_epoch);
        if epoch == FINAL_EPOCH || epoch == INITIAL_EPOCH {
            self.cache.lock().sessions.remove(&id);
            let wanted = wanted_once(&request);
            return Ok(match epoch {
                INITIAL_EPOCH => self.open(wanted, now_ms),
                _ => Plan { session_id: 0, wanted, incremental: false, session: None },
            });
        }
        let session = self.cache.lock().sessions.get(&id).cloned().ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        let mut state = session.lock();
        if state.next_epoch != epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        state.next_epoch = next(epoch);
        state.last_used_ms = now_ms;
        if !state.update(&request) {
            drop(state);
            self.cache.lock().sessions.remove(&id);
            // The client begins again with a full fetch, which is served without a session.
            return Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        }
        let wanted = state.wanted.clone();
        drop(state);
        Ok(Plan { session_id: id, wanted, incremental: true, session: Some(session) })
    }

    /// A full fetch; opens a session for the next ones if there is room.
    fn open(&self, wanted: Vec<Wanted>, now_ms: i64) -> Plan {
        let without = |wanted| Plan { session_id: 0, wanted, incremental: false, session: None };
        if wanted.is_empty() {
            return without(wanted);
        }
        let mut cache = self.cache.lock();
        let mut share = Share::none(&self.partitions);
        while cache.sessions.len() >= self.slots || !share.resize(wanted.len()) {
            if !cache.evict(now_ms) {
                return without(wanted);
            }
        }
        let session = Session {
            wanted: wanted.clone(),
            share,
            told: HashMap::new(),
            next_epoch: next(INITIAL_EPOCH),
            last_used_ms: now_ms,
        };
        let session = Arc::new(Mutex::new(session));
        let session_id = cache.free_id();
        cache.sessions.insert(session_id, Arc::clone(&session));
        Plan { session_id, wanted, incremental: false, session: Some(session) }
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
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.sessions.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }
}

impl Session {
    /// Takes over what an incremental request adds, changes and forgets. False if there is no room for it.
    #[must_use]
    fn update(&mut self, request: &FetchRequest) -> bool {
        let forgotten: HashSet<PartitionKey> = request
            .forgotten_topics_data
            .iter()
            .flat_map(|topic| keys(&topic.topic, topic.topic_id, &topic.partitions, |index| *index))
            .collect();
        if !forgotten.is_empty() {
            self.wanted.retain(|wanted| !forgotten.contains(&wanted.key));
            self.told.retain(|key, _| !forgotten.contains(key));
        }
        if request.topics.is_empty() {
            return self.share.resize(self.wanted.len());
        }
        let mut places: HashMap<PartitionKey, usize> =
            self.wanted.iter().enumerate().map(|(at, wanted)| (wanted.key.clone(), at)).collect();
        for wanted in wanted(request) {
            match places.get(&wanted.key) {
                Some(at) => self.wanted[*at] = wanted,
                None => {
                    places.insert(wanted.key.clone(), self.wanted.len());
                    self.wanted.push(wanted);
                }
            }
        }
        self.share.resize(self.wanted.len())
    }

    /// Whether a partition's outcome must be in an incremental response; remembers it as told.
    fn is_news(&mut self, key: &PartitionKey, data: &PartitionData) -> bool {
        let told = Told { high_watermark: data.high_watermark, log_start_offset: data.log_start_offset };
        let changed = self.told.insert(key.clone(), told) != Some(told);
        changed || data.error_code.is_err() || data.records.as_ref().is_some_and(|records| !records.is_empty())
    }

    /// Partitions that returned data go to the end, so that none starves behind a busy one.
    fn rotate(&mut self, served: &HashSet<PartitionKey>) {
        if !served.is_empty() && served.len() < self.wanted.len() {
            let (served, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.wanted).into_iter().partition(|wanted| served.contains(&wanted.key));
            self.wanted = rest;
            self.wanted.extend(served);
        }
    }
}

impl Plan {
    /// The part of the outcome the client has to be told.
    pub fn shown(&self, fetched: Vec<Fetched>) -> Vec<Fetched> {
        let Some(session) = &self.session else { return fetched };
        let mut session = session.lock();
        let mut served = HashSet::new();
        let shown = fetched
            .into_iter()
            .filter(|Fetched { key, data }| {
                if data.records.as_ref().is_some_and(|records| !records.is_empty()) {
                    served.insert(key.clone());
                }
                session.is_news(key, data) || !self.incremental
            })
            .collect();
        session.rotate(&served);
        shown
    }
}

fn next(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

/// As Kafka has it: of a partition named twice, the last one counts.
fn wanted_once(request: &FetchRequest) -> Vec<Wanted> {
    let mut once: Vec<Wanted> = Vec::new();
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

fn wanted(request: &FetchRequest) -> impl Iterator<Item = Wanted> + '_ {
    request.topics.iter().flat_map(|topic| {
        keys(&topic.topic, topic.topic_id, &topic.partitions, |p| p.partition)
            .zip(&topic.partitions)
            .map(|(key, fetch)| Wanted { key, fetch: fetch.clone() })
    })
}
