//! The objects of this cluster in the object store. Each operation makes one attempt. Errors contain the messages of
//! the store.
//!
//! Retries are in [`super::pipeline::upload`] and [`super::fetch`].
//!
//! Invariant: an object that was put does not change, even after a power loss. The broker never changes or deletes
//! objects of other clusters.

mod container;
pub mod counts;
mod credentials;
mod directory;
#[cfg(test)]
pub mod double;
mod error;
mod http;
mod ownership;
mod pace;
mod profile;
mod progress;
mod s3;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fullbore_rules::commit::ObjectId;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutOptions, PutPayload};
use tokio::time::timeout;

pub use error::ObjectError;
pub use progress::{AnyProgress, BodyProgress};

use super::index::IndexOwner;
use fullbore_config::DisklessStorage;
use ownership::ClusterStore;
pub use ownership::Ownership;
use pace::{Pace, RequestKind};
use s3::Bucket;

/// Time limit of each check that the store belongs to this cluster.
const VERIFIED_WITHIN: Duration = Duration::from_secs(10);
/// How long a starting broker waits for each answer of a bucket. Some services accept connections but never answer, and
/// until the start ends, the broker serves no client.
const SILENT_MAX: Duration = Duration::from_secs(1);
/// Time limit of a probe of a bucket.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// How long the ownership marker of a bucket counts as present after a check, because each check costs a request. After
/// this time, the next PUT or DELETE checks again. A GET checks if its object is missing, even within this time.
const BUCKET_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum number of bytes of a response that was cut short, so that the rest is requested.
const PART_MIN: usize = 64 << 10;

/// The objects of one cluster.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// The prefix of all keys. No other cluster has objects below it.
    prefix: Path,
    /// The path of this cluster's objects: the cluster id below the prefix.
    root: Path,
    ownership: Arc<Ownership>,
    /// The directory of the store. `None` for a bucket. If the file system is unmounted, an empty directory may appear
    /// here at any time.
    directory: Option<PathBuf>,
    /// How long the ownership marker counts as present after a check. The first PUT or DELETE after this time checks
    /// again. `None` if the marker is checked only once.
    checks_every: Option<Duration>,
    /// See [`s3::Bucket::requests_metadata`].
    requests_metadata: bool,
    /// The delays before each PUT and before each GET.
    delays: (Duration, Duration),
    /// The pace of requests. Requests to a directory are never limited.
    pace: Arc<Pace>,
}

/// The reason why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("diskless.storage={storage}: {why}")]
pub struct StartObjectsError {
    /// The value of `diskless.storage`, without secrets.
    storage: String,
    /// The reason, with the message of the store.
    why: String,
}

impl Objects {
    /// Opens the objects of a cluster in a store. The store must allow this broker to put, read and delete objects, and
    /// must be the store whose objects `index` knows. If this check fails for a temporary reason while the broker
    /// starts, later requests repeat the check before they do anything else.
    ///
    /// # Errors
    /// Returns a [`StartObjectsError`] if the store refuses a request, does not belong to `index`, or is a directory
    /// that cannot be used.
    pub async fn open(
        storage: &DisklessStorage,
        cluster_id: &str,
        index: IndexOwner,
    ) -> Result<Objects, StartObjectsError> {
        let failed = |why: &dyn fmt::Display| StartObjectsError { storage: storage.to_string(), why: why.to_string() };
        let opened = match storage {
            DisklessStorage::Directory(directory) => {
                directory::open(directory).map(|store| (Bucket::over(store), Path::default()))
            }
            DisklessStorage::S3(s3) => s3::open(s3).map(|bucket| (bucket, Path::from(s3.prefix.as_str()))),
        };
        let (Bucket { store, pace, requests_metadata }, prefix) = opened.map_err(|why| failed(&why))?;
        let directory = match storage {
            DisklessStorage::Directory(directory) => Some(directory.clone()),
            DisklessStorage::S3(_) => None,
        };
        let is_directory = directory.is_some();
        let checks_every = Some(if is_directory { Duration::ZERO } else { BUCKET_CHECK_INTERVAL });
        let below = Objects::below(store, prefix, Ownership::new(cluster_id, index), cluster_id);
        let objects = Objects { directory, checks_every, requests_metadata, pace, ..below };
        match objects.verified_at_start().await {
            Ok(()) => Ok(objects),
            Err(error)
                if error.is_retriable()
                    && !(is_directory && matches!(error, ObjectError::Unavailable(_) | ObjectError::Full(_))) =>
            {
                tracing::warn!(%storage, %error, "cannot open the object store: this broker's diskless topics accept no records until a retry succeeds; see the error");
                Ok(objects)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// Adds a delay to each PUT and each GET, as if the store were far away.
    pub fn delayed(self, put: Duration, get: Duration) -> Objects {
        Objects { delays: (put, get), ..self }
    }

    /// Makes each change check the ownership marker first.
    #[cfg(test)]
    pub fn checking_always(self) -> Objects {
        Objects { checks_every: Some(Duration::ZERO), ..self }
    }

    /// Returns the objects of a cluster in `store`, which does not need an ownership marker.
    #[cfg(test)]
    pub fn over(store: Arc<dyn ObjectStore>, cluster_id: &str) -> Objects {
        Objects::below(store, Path::default(), Ownership::needless(cluster_id), cluster_id)
    }

    fn below(store: Arc<dyn ObjectStore>, prefix: Path, ownership: Ownership, cluster_id: &str) -> Objects {
        let root = prefix.clone().join(cluster_id);
        let ownership = Arc::new(ownership);
        let delays = (Duration::ZERO, Duration::ZERO);
        Objects {
            store,
            prefix,
            root,
            ownership,
            directory: None,
            checks_every: None,
            requests_metadata: false,
            delays,
            pace: Arc::default(),
        }
    }

    /// Returns the state of the ownership marker.
    pub fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    /// Verifies the ownership marker during the start of the broker, or writes it if there is none. If a bucket does
    /// not answer, returns an error; a later request then verifies the marker.
    async fn verified_at_start(&self) -> Result<(), ObjectError> {
        let is_silent = async {
            match self.directory {
                // A directory may use the whole time of `VERIFIED_WITHIN`. If it hangs even longer, the broker must not
                // start.
                Some(_) => std::future::pending().await,
                None => self.ownership.store_is_silent(SILENT_MAX).await,
            }
        };
        tokio::select! {
            biased;
            verified = self.verified_in_time() => verified,
            () = is_silent => Err(self.late(SILENT_MAX)),
        }
    }

    /// Verifies the ownership marker, or writes it if there is none. If an earlier call has succeeded, does nothing.
    /// Gives up after [`VERIFIED_WITHIN`].
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the store refuses, does not answer, or does not belong to the index. The caller
    /// may try again.
    pub async fn verified_in_time(&self) -> Result<(), ObjectError> {
        timeout(VERIFIED_WITHIN, self.verified()).await.map_err(|_| self.late(VERIFIED_WITHIN)).flatten()
    }

    fn late(&self, after: Duration) -> ObjectError {
        let why = match self.requests_metadata {
            true => "; no credentials are set, and this machine's metadata service may not answer",
            false => "",
        };
        ObjectError::Unavailable(format!("no answer within {} s{why}", after.as_secs()))
    }

    async fn verified(&self) -> Result<(), ObjectError> {
        self.ownership.verify(self.cluster_store()).await
    }

    fn cluster_store(&self) -> ClusterStore<'_> {
        ClusterStore { store: self.store.as_ref(), prefix: &self.prefix, root: &self.root, ownership: &self.ownership }
    }

    /// Verifies the ownership marker, or writes it if there is none, unless an earlier call has succeeded. Then checks
    /// that the store still has the marker, unless the last check is less than `checks_every` ago.
    async fn still_verified(&self) -> Result<(), ObjectError> {
        self.verified().await?;
        match self.checks_every {
            Some(every) => self.ownership.is_there(self.cluster_store(), every).await,
            None => Ok(()),
        }
    }

    /// Checks that the store still has this cluster's marker. Must be called before an object counts as missing, short
    /// or changed. The whole store may be gone, because the directory is not mounted or the bucket was emptied, or
    /// another store may have taken its place. An earlier check does not count.
    ///
    /// # Errors
    /// Returns a retriable [`ObjectError`] if the store does not have the marker. Also returns an error if the store
    /// does not answer.
    pub async fn is_still_ours(&self) -> Result<(), ObjectError> {
        if self.checks_every.is_none() {
            return Ok(());
        }
        let check = self.ownership.is_there(self.cluster_store(), Duration::ZERO);
        timeout(VERIFIED_WITHIN, check).await.map_err(|_| self.late(VERIFIED_WITHIN)).flatten()
    }

    /// Checks that an object of this cluster can currently be put, read and deleted. A probe of a bucket has a time
    /// limit. A probe of a directory has none, because its thread would hang even after the limit.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the ownership marker is not verified or one of these requests fails.
    pub async fn probe(&self) -> Result<(), ObjectError> {
        let probe = async {
            self.still_verified().await?;
            self.cluster_store().probe().await
        };
        if self.directory.is_some() {
            return probe.await;
        }
        let late = |_| ObjectError::Unavailable(format!("no answer within {} s", PROBE_MAX.as_secs()));
        timeout(PROBE_MAX, probe).await.map_err(late).flatten()
    }

    /// Puts an object that consists of `parts`, in this order. Reports to `progress` each time that bytes are sent. Two
    /// PUTs of the same object may run at the same time.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the PUT fails. The store may have the object nevertheless.
    pub async fn put(&self, id: ObjectId, parts: Vec<Bytes>, progress: BodyProgress) -> Result<(), ObjectError> {
        self.still_verified().await?;
        self.pace.admit(RequestKind::Write, &progress).await;
        delay(self.delays.0).await;
        let mut options = PutOptions::default();
        options.extensions.insert(progress);
        let put = self.store.put_opts(&self.key(id), PutPayload::from_iter(parts), options).await;
        put.map(drop).map_err(ObjectError::of_put)
    }

    /// Reads a range of an object. Reports to `progress` each time that bytes arrive. If the object ends within the
    /// range, returns the bytes up to the end of the object. If a response is cut short after [`PART_MIN`] bytes, or
    /// after a quarter of the rest, requests what is missing. Only the response's header Content-Range, or the status
    /// 416, shows that the object ends. A body that is shorter than its Content-Range was cut.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the GET fails, or if the object is missing or ends before the start of the range.
    pub async fn get(&self, id: ObjectId, range: Range<u32>, progress: BodyProgress) -> Result<Bytes, ObjectError> {
        self.verified().await?;
        let mut bytes = BytesMut::with_capacity(range.len());
        loop {
            let before = bytes.len();
            let rest = range.start + before as u32..range.end;
            let enough = PART_MIN.min(rest.len().div_ceil(4)).max(1);
            match self.get_rest(id, rest, &progress, &mut bytes).await {
                Ok(()) => return Ok(bytes.freeze()),
                // The response was cut at the end of the object.
                Err(ObjectError::Short { .. }) if before > 0 => return Ok(bytes.freeze()),
                Err(error) => {
                    let is_cut = error.is_retriable() && bytes.len() < range.len();
                    if !is_cut || bytes.len() - before < enough {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Reads a range of an object with one request, and adds the bytes to `bytes`, even if the response is cut short.
    /// If the store returns more than the range, its bytes may be those of another range, so none of them is added.
    async fn get_rest(
        &self,
        id: ObjectId,
        range: Range<u32>,
        progress: &BodyProgress,
        bytes: &mut BytesMut,
    ) -> Result<(), ObjectError> {
        self.pace.admit(RequestKind::Read, progress).await;
        delay(self.delays.1).await;
        let (mut left, start, before) = (range.len(), range.start, bytes.len());
        let range = Some(GetRange::Bounded(u64::from(range.start)..u64::from(range.end)));
        let found = self.store.get_opts(&self.key(id), GetOptions { range, ..GetOptions::default() }).await;
        let found = match found.map_err(|error| ObjectError::of_range(id, start, error)) {
            Ok(found) => found,
            Err(gone @ (ObjectError::NotFound(_) | ObjectError::Short { .. })) => {
                self.is_still_ours().await?;
                return Err(gone);
            }
            Err(error) => return Err(error),
        };
        let (promised, mut chunks) = ((found.range.end - found.range.start) as usize, found.into_stream());
        while let Some(chunk) = chunks.try_next().await.map_err(|error| ObjectError::of_object(id, error))? {
            progress.moved(chunk.len());
            let Some(still) = left.checked_sub(chunk.len()) else {
                bytes.truncate(before);
                let why = format!("the store returned more than the requested part of object {id}");
                return Err(ObjectError::Unavailable(why));
            };
            left = still;
            bytes.extend_from_slice(&chunk);
        }
        let got = bytes.len() - before;
        if got < promised {
            let why = format!("the store returned {got} of {promised} bytes of object {id:016x}");
            return Err(ObjectError::Unavailable(why));
        }
        Ok(())
    }

    /// Deletes an object, and any files that interrupted PUTs of this object have left. Succeeds even if the object is
    /// missing.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the DELETE fails.
    pub async fn delete(&self, id: ObjectId) -> Result<(), ObjectError> {
        self.still_verified().await?;
        if let Some(directory) = &self.directory {
            let object = directory.join(self.key(id).as_ref());
            // If a file cannot be removed now, the next DELETE may remove it.
            let _ = tokio::task::spawn_blocking(move || directory::remove_unfinished(&object)).await;
        }
        self.pace.admit(RequestKind::Delete, &BodyProgress::default()).await;
        match self.store.delete(&self.key(id)).await.map_err(|error| ObjectError::of_object(id, error)) {
            Err(ObjectError::NotFound(_)) => self.is_still_ours().await,
            deleted => deleted,
        }
    }

    /// Returns the key of an object. Consecutive ids get keys that begin differently, because stores distribute their
    /// load by the beginning of the keys.
    fn key(&self, id: ObjectId) -> Path {
        self.root.clone().join(format!("{:02x}", id.rem_euclid(256))).join(format!("{id:016x}"))
    }
}

async fn delay(by: Duration) {
    if !by.is_zero() {
        tokio::time::sleep(by).await;
    }
}
