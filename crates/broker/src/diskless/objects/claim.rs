//! Claim of a store: a cluster claims it before it uses it, and is refused if another one has.
//!
//! A claim says whose the store is, and has a number drawn by who made it, by which a store is told from another one of
//! the same cluster. The index keeps the number: objects in another store are not those that it knows, and an index
//! that knows none is not that of objects that are there. New objects would take their places.
//!
//! Invariants: of two clusters that claim a store one is refused, where the store has no conditional PUT unless their
//! requests take longer than [`CLAIM_SETTLES`]; nothing is put, read or deleted before the index and the store are
//! known to belong together.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::super::index::{IndexOwner, KnownStore};
use super::error::{ObjectError, is_full, is_not_implemented, words};
use fullbore_control::random_id;
use fullbore_db::StoreError;

/// The object that says whose the others are.
const OWNER: &str = "cluster";
/// Bytes of a claim that are read; it has some dozens.
const CLAIM_MAX: usize = 1000;
/// The object with which it is tried what the store allows.
const PROBE: &str = "probe";
/// The part of it that is read: neither its beginning nor its end, as most parts of objects are.
const PROBE_RANGE: Range<u64> = 1..4;
/// Time between an unconditional claim and the look at which claim stayed.
const CLAIM_SETTLES: Duration = Duration::from_secs(2);

/// A cluster's claim of the store whose objects this index knows.
pub struct Claim {
    cluster_id: String,
    /// None where nothing is to be claimed.
    index: Option<IndexOwner>,
    made: OnceCell<()>,
    /// The last time that the store was found to have it still.
    seen: Mutex<Option<Instant>>,
    /// Begin of the store's request that is under way.
    requested: Mutex<Option<tokio::time::Instant>>,
}

/// Part of a store that a cluster claims.
pub struct Claimed<'a> {
    pub store: &'a dyn ObjectStore,
    /// Prefix of keys, below which no other cluster has any.
    pub prefix: &'a Path,
    /// The front of the keys of the cluster's objects.
    pub root: &'a Path,
    /// The claim.
    pub claim: &'a Claim,
}

impl Claimed<'_> {
    /// Waits for the answer to a request of the store.
    async fn answer<T>(&self, request: impl Future<Output = T>) -> T {
        *self.claim.requested.lock() = Some(tokio::time::Instant::now());
        let answer = request.await;
        *self.claim.requested.lock() = None;
        answer
    }

    /// Finds out whether an object can be put, read and deleted. Brokers that do so at a time share it.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn probe(&self) -> Result<(), ObjectError> {
        probe(self, &self.root.clone().join(PROBE)).await
    }
}

impl Claim {
    /// Creates a claim to make.
    pub fn new(cluster_id: &str, index: IndexOwner) -> Claim {
        Claim { index: Some(index), made: OnceCell::new(), ..Claim::needless(cluster_id) }
    }

    /// Creates a claim that need not be made.
    pub fn needless(cluster_id: &str) -> Claim {
        Claim {
            cluster_id: cluster_id.to_owned(),
            index: None,
            made: OnceCell::new_with(Some(())),
            seen: Mutex::default(),
            requested: Mutex::default(),
        }
    }

    /// Returns true once the claim is made.
    pub fn is_made(&self) -> bool {
        self.made.initialized()
    }

    /// Waits until a request of the store has had no answer for `max`.
    pub async fn store_is_silent(&self, max: Duration) {
        loop {
            let left = self.requested.lock().map_or(max, |since| max.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Makes it, unless that is done.
    ///
    /// # Errors
    /// The store does not let it, does not answer, or is not the one that the index knows; the next call tries again.
    pub async fn make(&self, of: Claimed<'_>) -> Result<(), ObjectError> {
        let Some(index) = &self.index else { return Ok(()) };
        self.made.get_or_try_init(|| self.try_to_make(index, of)).await.map(drop)
    }

    async fn try_to_make(&self, index: &IndexOwner, of: Claimed<'_>) -> Result<(), ObjectError> {
        // First, since what is in the index was in the store before.
        let known = known_store(index).await?;
        let key = of.prefix.clone().join(OWNER);
        let store_id = match owner(&of, &key).await? {
            Some(claim) => store_of(&claim, &self.cluster_id)?,
            None if known.is_in_use
                && let Some(store_id) = &known.store_id =>
            {
                let claim = format!("{} {store_id}", self.cluster_id);
                return Err(ObjectError::ClaimGone { key: key.to_string(), claim });
            }
            None => claim(&of, &key, &self.cluster_id).await?,
        };
        if known.store_id.as_ref().is_some_and(|used| known.is_in_use && *used != store_id) {
            return Err(ObjectError::OtherStore);
        }
        of.probe().await?;
        if known.store_id.as_ref() == Some(&store_id) {
            return Ok(());
        }
        // Another broker may have put some meanwhile, and then the index knows the store.
        if !known.is_in_use && has_objects(&of).await? && !known_store(index).await?.is_in_use {
            return Err(ObjectError::UnknownObjects);
        }
        let adopted = index.adopt_store(store_id.clone()).await.map_err(|error| of_index(error.into()))?;
        if adopted == store_id { Ok(()) } else { Err(ObjectError::OtherStore) }
    }

    /// Looks whether the store still has a claim, as one has that was neither emptied nor replaced by an empty one;
    /// unless it was seen less than this time ago.
    ///
    /// # Errors
    /// It has none, or that is not known.
    pub async fn is_there(&self, of: Claimed<'_>, every: Duration) -> Result<(), ObjectError> {
        if self.seen.lock().is_some_and(|seen| seen.elapsed() < every) {
            return Ok(());
        }
        // Not by a HEAD, which not every store has.
        match owner(&of, &of.prefix.clone().join(OWNER)).await? {
            Some(_) => {
                *self.seen.lock() = Some(Instant::now());
                Ok(())
            }
            None => {
                let why = "its claim is gone, as where a folder is not mounted any more or a bucket was emptied";
                Err(ObjectError::Unavailable(why.into()))
            }
        }
    }
}

async fn known_store(index: &IndexOwner) -> Result<KnownStore, ObjectError> {
    index.known_store().await.map_err(of_index)
}

fn of_index(error: StoreError) -> ObjectError {
    match error {
        StoreError::Full | StoreError::Away(_) => ObjectError::Unclaimed(format!("its index: {error}")),
        _ => ObjectError::Index(error.to_string()),
    }
}

/// Returns true if there are objects of the cluster; lists the first at most.
async fn has_objects(of: &Claimed<'_>) -> Result<bool, ObjectError> {
    let probe = of.root.clone().join(PROBE);
    let mut objects = of.store.list(Some(of.root));
    while let Some(object) = of.answer(objects.try_next()).await.map_err(ObjectError::of_put)? {
        if object.location != probe {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes the claim where there is none; the number of the one that is there then.
async fn claim(of: &Claimed<'_>, key: &Path, cluster_id: &str) -> Result<String, ObjectError> {
    let options = |mode| PutOptions { mode, ..PutOptions::default() };
    let claim = format!("{cluster_id} {}", random_id());
    let payload = || Bytes::from(claim.clone()).into();
    match of.answer(of.store.put_opts(key, payload(), options(PutMode::Create))).await {
        Ok(_) => store_of(&claim, cluster_id),
        // Another broker was faster.
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
            store_of(&owner(of, key).await?.unwrap_or_default(), cluster_id)
        }
        // Not every store has conditions; of those that claim at once the last has it.
        Err(error) if is_not_implemented(&error) => {
            of.answer(of.store.put(key, payload())).await.map_err(ObjectError::of_put)?;
            tokio::time::sleep(CLAIM_SETTLES).await;
            store_of(&owner(of, key).await?.unwrap_or_default(), cluster_id)
        }
        Err(error) if is_full(&error) => Err(ObjectError::Unclaimed("there is no room".into())),
        Err(error) => Err(ObjectError::of_put(error)),
    }
}

/// Returns the text of the claim, if there is one; no more is read than a claim has.
async fn owner(of: &Claimed<'_>, key: &Path) -> Result<Option<String>, ObjectError> {
    let found = match of.answer(of.store.get(key)).await {
        Ok(found) => found,
        Err(error @ object_store::Error::NotFound { .. }) if !words(&error).contains("NoSuchBucket") => {
            return Ok(None);
        }
        Err(error) => return Err(ObjectError::of_put(error)),
    };
    let (mut text, mut chunks) = (Vec::new(), found.into_stream());
    while text.len() < CLAIM_MAX
        && let Some(chunk) = of.answer(chunks.try_next()).await.map_err(ObjectError::of_put)?
    {
        text.extend_from_slice(&chunk[..chunk.len().min(CLAIM_MAX - text.len())]);
    }
    Ok(Some(String::from_utf8_lossy(&text).trim().to_owned()))
}

/// Returns the store's number, of a claim of this cluster.
fn store_of(claim: &str, cluster_id: &str) -> Result<String, ObjectError> {
    let (owner, store_id) = claim.split_once(' ').unwrap_or((claim, ""));
    match owner == cluster_id {
        true if store_id.is_empty() => {
            Err(ObjectError::Denied(format!("its claim '{claim}' has no number of the store")))
        }
        true => Ok(store_id.to_owned()),
        false => Err(ObjectError::OtherCluster { owner: owner.to_owned(), cluster_id: cluster_id.to_owned() }),
    }
}

/// Checks that an object can be put, read and deleted. A directory without room passes, since its objects can be read
/// and deleted.
async fn probe(of: &Claimed<'_>, key: &Path) -> Result<(), ObjectError> {
    match of.answer(of.store.put(key, Bytes::from_static(PROBE.as_bytes()).into())).await {
        Ok(_) => {}
        Err(error) if is_full(&error) => return Ok(()),
        Err(error) => return Err(ObjectError::of_put(error)),
    }
    probe_range(of, key).await?;
    match of.answer(of.store.delete(key)).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(ObjectError::of_put(error)),
    }
}

/// Reads a part of an object, which must be that part.
async fn probe_range(of: &Claimed<'_>, key: &Path) -> Result<(), ObjectError> {
    let range = Some(GetRange::Bounded(PROBE_RANGE));
    let found = match of.answer(of.store.get_opts(key, GetOptions { range, ..GetOptions::default() })).await {
        Ok(found) => of.answer(found.bytes()).await.map_err(ObjectError::of_put)?,
        // A broker that starts at the same time may have deleted it.
        Err(object_store::Error::NotFound { .. }) => return Ok(()),
        Err(error) => {
            return Err(match words(&error) {
                words if words.contains(WHOLE_ANSWER) => no_ranges(&words),
                _ => ObjectError::of_put(error),
            });
        }
    };
    let part = &PROBE.as_bytes()[PROBE_RANGE.start as usize..PROBE_RANGE.end as usize];
    if found == part { Ok(()) } else { Err(no_ranges("other bytes than those requested")) }
}

/// The library's words for a whole object in answer to a request of a part.
const WHOLE_ANSWER: &str = "non-partial response";

fn no_ranges(why: &str) -> ObjectError {
    ObjectError::Denied(format!("it does not answer requests of a part of an object (Range), which reads need: {why}"))
}
