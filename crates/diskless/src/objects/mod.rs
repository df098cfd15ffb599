//! The objects of this cluster in the object store. Each operation makes one attempt, and errors have the messages that
//! the store returns.
//!
//! Retries are in [`super::pipeline::upload`] and [`super::fetch`].
//!
//! Invariant: an object that was put stays as it is, even after a power loss. Objects of other clusters are never
//! touched.

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
/// How long a starting broker waits for a single answer of a bucket. Some services accept connections but never answer,
/// and the broker serves nothing until its start ends.
const SILENT_MAX: Duration = Duration::from_secs(1);
/// Time limit of a probe of a bucket.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// How long an ownership marker in a bucket counts as present after it was seen. Each check costs a request. After this
/// time, a PUT or DELETE checks the marker again, and a GET does so only if its object is missing.
const BUCKET_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The objects of one cluster.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// The prefix of all keys. No other cluster has objects below it.
    prefix: Path,
    /// The beginning of this cluster's keys, which is its id below the prefix.
    root: Path,
    ownership: Arc<Ownership>,
    /// The directory of the store, if the store is one. If its file system is unmounted, an empty directory may appear
    /// in its place at any time.
    directory: Option<PathBuf>,
    /// How long the ownership marker counts as present after it was seen. A later PUT or DELETE checks it again. `None`
    /// if it is never checked again.
    checks_every: Option<Duration>,
    /// See [`s3::Bucket::requests_metadata`].
    requests_metadata: bool,
    /// The delays that are added to each PUT and each GET.
    delays: (Duration, Duration),
    /// The pace of requests, which is unlimited for a directory.
    pace: Arc<Pace>,
}

/// The reason why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("diskless.storage={storage}: {why}")]
pub struct StartObjectsError {
    /// The value of `diskless.storage`, without secrets.
    storage: String,
    /// The reason, with the message that the store returned.
    why: String,
}

impl Objects {
    /// Opens the objects of a cluster in a store. The store must let this broker put, read and delete, and must be the
    /// store whose objects `index` knows. If this cannot be checked during the start of the broker, each request checks
    /// it first until a check succeeds.
    ///
    /// # Errors
    /// Returns a [`StartObjectsError`] if the store refuses, does not belong to `index`, or is a directory that cannot
    /// be used.
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

    /// Verifies or writes the ownership marker during the start of the broker. If a bucket does not answer, gives up; a
    /// later request then verifies the marker.
    async fn verified_at_start(&self) -> Result<(), ObjectError> {
        let is_silent = async {
            match self.directory {
                // A directory may take the whole `VERIFIED_WITHIN`. If it still hangs then, the broker must not start.
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

    /// Verifies or writes the ownership marker, unless an earlier call has succeeded. Gives up after
    /// [`VERIFIED_WITHIN`].
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

    /// Verifies or writes the ownership marker, unless an earlier call has succeeded. If `checks_every` is set, also
    /// checks that the store still has the marker, unless it was seen within that time.
    async fn still_verified(&self) -> Result<(), ObjectError> {
        self.verified().await?;
        match self.checks_every {
            Some(every) => self.ownership.is_there(self.cluster_store(), every).await,
            None => Ok(()),
        }
    }

    /// Checks that the store can currently put, read and delete an object of this cluster. The probe of a bucket has a
    /// time limit. The probe of a directory has none, because its thread would stay blocked anyway.
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

    /// Puts an object that consists of `parts` in this order, and reports to `progress` as bytes are sent. Two PUTs of
    /// the same object may run at the same time.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the PUT fails. The object may still be in the store.
    pub async fn put(&self, id: ObjectId, parts: Vec<Bytes>, progress: BodyProgress) -> Result<(), ObjectError> {
        self.still_verified().await?;
        self.pace.admit(RequestKind::Write, &progress).await;
        delay(self.delays.0).await;
        let mut options = PutOptions::default();
        options.extensions.insert(progress);
        let put = self.store.put_opts(&self.key(id), PutPayload::from_iter(parts), options).await;
        put.map(drop).map_err(ObjectError::of_put)
    }

    /// Reads a range of an object, and reports to `progress` as bytes arrive. If the object ends within the range,
    /// returns the bytes up to the end of the object.
    ///
    /// # Errors
    /// Returns an [`ObjectError`] if the GET fails, or if the object is missing or ends before the start of the range.
    pub async fn get(&self, id: ObjectId, range: Range<u32>, progress: BodyProgress) -> Result<Bytes, ObjectError> {
        self.verified().await?;
        self.pace.admit(RequestKind::Read, &progress).await;
        delay(self.delays.1).await;
        let (len, start) = (range.len(), range.start);
        let range = Some(GetRange::Bounded(u64::from(range.start)..u64::from(range.end)));
        let found = self.store.get_opts(&self.key(id), GetOptions { range, ..GetOptions::default() }).await;
        let found = match found.map_err(|error| ObjectError::of_range(id, start, error)) {
            Ok(found) => found,
            Err(gone @ ObjectError::NotFound(_)) => {
                // If the directory is no longer mounted, the store has no ownership marker either. In that case, this
                // check fails, and its error is returned instead of `gone`.
                self.still_verified().await?;
                return Err(gone);
            }
            Err(error) => return Err(error),
        };
        let (mut bytes, mut chunks) = (BytesMut::with_capacity(len), found.into_stream());
        while let Some(chunk) = chunks.try_next().await.map_err(|error| ObjectError::of_object(id, error))? {
            progress.moved(chunk.len());
            if chunk.len() > len - bytes.len() {
                return Err(ObjectError::Unavailable(format!(
                    "the store returned more than the requested part of object {id}"
                )));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }

    /// Deletes an object, and any files that interrupted PUTs of it have left. If the object is missing, the call still
    /// succeeds.
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
            Err(ObjectError::NotFound(_)) => Ok(()),
            deleted => deleted,
        }
    }

    /// Returns the key of an object. The keys of consecutive ids begin differently, because stores distribute load by
    /// the beginning of a key.
    fn key(&self, id: ObjectId) -> Path {
        self.root.clone().join(format!("{:02x}", id.rem_euclid(256))).join(format!("{id:016x}"))
    }
}

async fn delay(by: Duration) {
    if !by.is_zero() {
        tokio::time::sleep(by).await;
    }
}
