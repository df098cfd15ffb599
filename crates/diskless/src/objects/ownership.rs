//! The ownership marker of a store: an object that names the cluster that owns the store. A cluster writes its marker
//! before it uses a store. It never uses a store with the marker of another cluster.
//!
//! The marker also contains a random id of the store, and the index records this id. If the two ids differ, the index
//! belongs to another store. An index without a recorded id must not use a store that already has objects of the
//! cluster. These objects may belong to another index, perhaps a lost one.
//!
//! [`super::Objects`] decides when the marker is checked. Each check compares the text of the marker, because another
//! store may appear under the same name while the broker runs. Any other text that a store returns, such as a page of a
//! proxy, is no marker, and the check is repeated later.
//!
//! Invariants: if two clusters begin to use a store, one of them is refused. Some stores have no conditional PUTs or
//! ignore the condition. With such a store, the refusal is certain only if the requests of both clusters take at most
//! [`MARKER_SETTLES`]. A cluster does not put, read or delete any object before it knows that its index and the store
//! belong together.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::super::index::{IndexOwner, KnownStore};
use super::error::{ObjectError, is_full, is_not_implemented, is_temporary, words};
use fullbore_db::StoreError;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::random_id;
use fullbore_wire::Uuid;

/// The key of the ownership marker, below the prefix.
const OWNER: &str = "cluster";
/// Maximum number of bytes that are read of an ownership marker. A marker has less than 100 bytes.
const MARKER_LEN_MAX: usize = 1000;
/// Maximum number of characters that an error shows of a text that is no marker.
const SHOWN_MAX: usize = 60;
/// The key of the object that a probe puts, below `ClusterStore::root`.
const PROBE: &str = "probe";
/// The range of the object that a probe reads. Like the range of most reads, it includes neither the first nor the last
/// byte.
const PROBE_RANGE: Range<u64> = 1..4;
/// How long the broker waits after it has put its marker, before it reads which marker is in the store. It waits only
/// if the store has no conditional PUTs or ignores the condition.
const MARKER_SETTLES: Duration = Duration::from_secs(2);

/// The state of a store's ownership marker: verified, or not yet.
pub struct Ownership {
    cluster_id: String,
    /// The index that has the extents of the store's objects. `None` if the store needs no marker.
    index: Option<IndexOwner>,
    /// The text of the marker, once it is verified. Empty if the store needs no marker.
    verified: OnceCell<String>,
    /// When the marker was last seen in the store. `None` before the first check.
    seen: Mutex<Option<Instant>>,
    /// When the current request to the store was sent. `None` if no request is under way.
    requested: Mutex<Option<tokio::time::Instant>>,
    /// The limit of the line about another store.
    others: LogRateLimit,
}

/// An object store, as one cluster uses it. Other clusters may use the same store with other prefixes.
pub struct ClusterStore<'a> {
    pub store: &'a dyn ObjectStore,
    /// The prefix of all keys. No other cluster has objects below it.
    pub prefix: &'a Path,
    /// The path of the cluster's objects.
    pub root: &'a Path,
    /// The state of the ownership marker.
    pub ownership: &'a Ownership,
}

impl ClusterStore<'_> {
    /// Waits for the answer to a request. In the meantime, `Ownership::requested` has the time at which the request was
    /// sent.
    async fn answer<T>(&self, request: impl Future<Output = T>) -> T {
        *self.ownership.requested.lock() = Some(tokio::time::Instant::now());
        let answer = request.await;
        *self.ownership.requested.lock() = None;
        answer
    }

    /// Checks that an object can be put, read and deleted. Brokers that probe at the same time use the same object.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if one of these requests fails.
    pub async fn probe(&self) -> Result<(), ObjectError> {
        probe(self, &self.root.clone().join(PROBE)).await
    }
}

impl Ownership {
    /// Creates the state of a marker that is not verified yet.
    pub fn new(cluster_id: &str, index: IndexOwner) -> Ownership {
        Ownership { index: Some(index), verified: OnceCell::new(), ..Ownership::needless(cluster_id) }
    }

    /// Creates the state for a store that needs no marker.
    pub fn needless(cluster_id: &str) -> Ownership {
        Ownership {
            cluster_id: cluster_id.to_owned(),
            index: None,
            verified: OnceCell::new_with(Some(String::new())),
            seen: Mutex::default(),
            requested: Mutex::default(),
            others: LogRateLimit::default(),
        }
    }

    /// Returns true once the marker is verified.
    pub fn is_verified(&self) -> bool {
        self.verified.initialized()
    }

    /// Waits until some request to the store has had no answer for the time `max`.
    pub async fn store_is_silent(&self, max: Duration) {
        loop {
            let left = self.requested.lock().map_or(max, |since| max.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Verifies the marker of the store, or writes a marker if there is none. Does nothing if an earlier call has
    /// succeeded.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the store refuses, does not answer, or does not belong to the index. The next call
    /// repeats the check.
    pub async fn verify(&self, of: ClusterStore<'_>) -> Result<(), ObjectError> {
        let Some(index) = &self.index else { return Ok(()) };
        let text = |store_id| format!("{} {store_id}", self.cluster_id);
        let verify = || async { self.try_to_verify(index, of).await.map(text) };
        self.verified.get_or_try_init(verify).await.map(drop)
    }

    /// Verifies the marker, and returns the store id in it.
    async fn try_to_verify(&self, index: &IndexOwner, of: ClusterStore<'_>) -> Result<String, ObjectError> {
        // The index must be read before the store. Then every committed object that the index knows is already in the
        // store.
        let known = known_store(index).await?;
        let key = of.prefix.clone().join(OWNER);
        let store_id = match owner(&of, &key).await? {
            Some(text) => store_of(&text, &self.cluster_id)?,
            None if known.is_in_use
                && let Some(store_id) = &known.store_id =>
            {
                let text = format!("{} {store_id}", self.cluster_id);
                return Err(ObjectError::MarkerGone { key: key.to_string(), text });
            }
            None => write_marker(&of, &key, &self.cluster_id).await?,
        };
        if known.store_id.as_ref().is_some_and(|used| known.is_in_use && *used != store_id) {
            return Err(ObjectError::OtherStore);
        }
        of.probe().await?;
        if known.store_id.as_ref() == Some(&store_id) {
            return Ok(store_id);
        }
        // Another broker may have put these objects after the index was read above. If so, a second query shows the
        // store as in use.
        if !known.is_in_use && has_objects(&of).await? && !known_store(index).await?.is_in_use {
            return Err(ObjectError::UnknownObjects);
        }
        let adopted = index.adopt_store(store_id.clone()).await.map_err(|error| of_index(error.into()))?;
        if adopted == store_id { Ok(store_id) } else { Err(ObjectError::OtherStore) }
    }

    /// Checks that the store still has the marker that was verified. A store that was emptied or is not mounted has
    /// none, and another store has another one. Does nothing if the last check is less than `every` ago.
    ///
    /// # Errors
    /// Returns a retriable [`ObjectError`] if the store does not have this marker. Also returns an error if the store
    /// does not answer.
    pub async fn is_there(&self, of: ClusterStore<'_>, every: Duration) -> Result<(), ObjectError> {
        if self.seen.lock().is_some_and(|seen| seen.elapsed() < every) {
            return Ok(());
        }
        // The check is a GET, because not every store answers a HEAD.
        let found = owner(&of, &of.prefix.clone().join(OWNER)).await?;
        let is_ours = found.is_some() && found.as_ref() == self.verified.get();
        // Another check that succeeded shortly before does not count any more.
        *self.seen.lock() = is_ours.then(Instant::now);
        match found {
            _ if is_ours => Ok(()),
            Some(text) => Err(self.not_ours(&text)),
            None => {
                let why =
                    "the store's ownership marker is gone: the directory is not mounted, or the bucket was emptied";
                Err(ObjectError::Unavailable(why.into()))
            }
        }
    }

    /// Returns the error for a store that has another text than the verified marker, and logs if this is a marker.
    fn not_ours(&self, text: &str) -> ObjectError {
        if let Err(unknown @ ObjectError::Unavailable(_)) = store_of(text, &self.cluster_id) {
            return unknown;
        }
        let of = self.verified.get().map(String::as_str).unwrap_or_default();
        let error = format!("another store has taken its place: its ownership marker is '{text}' instead of '{of}'");
        if let Some(left_out) = self.others.due() {
            tracing::error!(
                error,
                left_out,
                "cannot use the object store: clients get KAFKA_STORAGE_ERROR and retry, and the broker changes \
                 nothing there; put the store that diskless.storage names back in its place"
            );
        }
        ObjectError::Unavailable(error)
    }
}

async fn known_store(index: &IndexOwner) -> Result<KnownStore, ObjectError> {
    index.known_store().await.map_err(of_index)
}

fn of_index(error: StoreError) -> ObjectError {
    match error {
        StoreError::Full | StoreError::Away(_) => ObjectError::Unverified(format!("its index: {error}")),
        _ => ObjectError::Index(error.to_string()),
    }
}

/// Returns true if the store has objects of the cluster. The listing stops at the first one.
async fn has_objects(of: &ClusterStore<'_>) -> Result<bool, ObjectError> {
    let probe = of.root.clone().join(PROBE);
    let mut objects = of.store.list(Some(of.root));
    while let Some(object) = of.answer(objects.try_next()).await.map_err(ObjectError::of_put)? {
        if object.location != probe {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes the marker if there is none. Returns the store id in the marker that is then in the store.
async fn write_marker(of: &ClusterStore<'_>, key: &Path, cluster_id: &str) -> Result<String, ObjectError> {
    let text = format!("{cluster_id} {}", random_id());
    let mut put = put_if_absent(of, key, &text).await?;
    // Some stores accept a PUT with a condition but ignore the condition. The first PUT may then have replaced another
    // broker's marker. Only if the store refuses a second PUT is it known to check conditions.
    if put == ConditionalPut::Written && put_if_absent(of, key, &text).await? == ConditionalPut::Refused {
        return store_of(&text, cluster_id);
    }
    if put == ConditionalPut::Unsupported {
        of.answer(of.store.put(key, Bytes::from(text).into())).await.map_err(ObjectError::of_put)?;
        put = ConditionalPut::Written;
    }
    // Without conditional PUTs, a later marker replaces an earlier one. After a pause, all brokers have written their
    // markers, and the last one is read.
    if put == ConditionalPut::Written {
        tokio::time::sleep(MARKER_SETTLES).await;
    }
    store_of(&owner(of, key).await?.unwrap_or_default(), cluster_id)
}

/// The outcome of a PUT that must not replace an object.
#[derive(PartialEq, Eq)]
enum ConditionalPut {
    Written,
    /// The store already has an object with this key.
    Refused,
    /// The store has no conditional PUTs.
    Unsupported,
}

async fn put_if_absent(of: &ClusterStore<'_>, key: &Path, text: &str) -> Result<ConditionalPut, ObjectError> {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match of.answer(of.store.put_opts(key, Bytes::from(text.to_owned()).into(), options)).await {
        Ok(_) => Ok(ConditionalPut::Written),
        // The library converts each answer with status 409 to `AlreadyExists`.
        Err(error) if is_temporary(&error) => Err(ObjectError::of_put(error)),
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
            Ok(ConditionalPut::Refused)
        }
        Err(error) if is_not_implemented(&error) => Ok(ConditionalPut::Unsupported),
        Err(error) if is_full(&error) => Err(ObjectError::Unverified("its disk is full".into())),
        Err(error) => Err(ObjectError::of_put(error)),
    }
}

/// Returns the first [`MARKER_LEN_MAX`] bytes of the marker as text, or `None` if there is no marker.
async fn owner(of: &ClusterStore<'_>, key: &Path) -> Result<Option<String>, ObjectError> {
    let found = match of.answer(of.store.get(key)).await {
        Ok(found) => found,
        Err(error @ object_store::Error::NotFound { .. }) if !words(&error).contains("NoSuchBucket") => {
            return Ok(None);
        }
        Err(error) => return Err(ObjectError::of_put(error)),
    };
    let (mut text, mut chunks) = (Vec::new(), found.into_stream());
    while text.len() < MARKER_LEN_MAX
        && let Some(chunk) = of.answer(chunks.try_next()).await.map_err(ObjectError::of_put)?
    {
        text.extend_from_slice(&chunk[..chunk.len().min(MARKER_LEN_MAX - text.len())]);
    }
    Ok(Some(String::from_utf8_lossy(&text).trim().to_owned()))
}

/// Returns the store id in the text of a marker. Fails if the marker names another cluster or has further words, which
/// only a later version writes. If the text is no marker, or only its beginning, the error is retriable.
fn store_of(text: &str, cluster_id: &str) -> Result<String, ObjectError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_name = |word: &str| !word.is_empty() && word.bytes().all(is_letter);
    let mut words = text.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some(owner), Some(store_id), further) if is_name(owner) && Uuid::parse(store_id).is_some() => match further {
            _ if owner != cluster_id => {
                Err(ObjectError::OtherCluster { owner: owner.to_owned(), cluster_id: cluster_id.to_owned() })
            }
            Some(_) => Err(ObjectError::Denied(format!("the ownership marker '{text}' is of a later version"))),
            None => Ok(store_id.to_owned()),
        },
        _ => {
            let begin: String = text.chars().take(SHOWN_MAX).collect();
            let why = format!("it returned no whole ownership marker, but '{}'", begin.escape_debug());
            Err(ObjectError::Unavailable(why))
        }
    }
}

/// Checks that an object can be put, read and deleted. Succeeds if the disk of a directory is full, because its objects
/// can still be read and deleted.
async fn probe(of: &ClusterStore<'_>, key: &Path) -> Result<(), ObjectError> {
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

/// Checks that a request for a part of an object returns exactly that part.
async fn probe_range(of: &ClusterStore<'_>, key: &Path) -> Result<(), ObjectError> {
    let range = Some(GetRange::Bounded(PROBE_RANGE));
    let found = match of.answer(of.store.get_opts(key, GetOptions { range, ..GetOptions::default() })).await {
        Ok(found) => of.answer(found.bytes()).await.map_err(ObjectError::of_put)?,
        // Another broker that probes at the same time may have deleted the object.
        Err(object_store::Error::NotFound { .. }) => return Ok(()),
        Err(error) => {
            return Err(match words(&error) {
                words if words.contains(WHOLE_ANSWER) => no_ranges(&words),
                _ => ObjectError::of_put(error),
            });
        }
    };
    let part = &PROBE.as_bytes()[PROBE_RANGE.start as usize..PROBE_RANGE.end as usize];
    if found == part { Ok(()) } else { Err(no_ranges("the store returned other bytes than those requested")) }
}

/// Part of the message of `object_store` if a server returns the whole object instead of the requested part.
const WHOLE_ANSWER: &str = "non-partial response";

fn no_ranges(why: &str) -> ObjectError {
    ObjectError::Denied(format!(
        "the store does not return a requested part of an object (HTTP header Range), which the broker needs to read \
         records: {why}"
    ))
}
