//! The objects of this cluster in the object store: one attempt of each operation, and what went wrong in the store's own words.
//!
//! Not here: whether it is tried again, which [`super::upload`] and [`super::fetch`] know.
//!
//! Invariant: an object that was put is there as it was, also after a power cut; no other cluster's objects are touched.

mod claim;
#[cfg(test)]
pub mod double;
mod error;
mod folder;
mod profile;
mod s3;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::ObjectId;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::time::timeout;

pub use error::ObjectError;

use crate::config::DisklessStorage;
use claim::Claim;

/// How long the start waits for the store.
const START_MAX: Duration = Duration::from_secs(10);

/// The objects of one cluster.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// What is this cluster's, or nobody's.
    prefix: Path,
    /// The front of this cluster's keys: below the prefix, its id.
    root: Path,
    claim: Arc<Claim>,
    /// By how much longer a PUT and a GET take than they would.
    delays: (Duration, Duration),
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("diskless.storage={storage}: {why}")]
pub struct StartObjectsError {
    /// As clients are told it.
    storage: String,
    /// In the store's own words.
    why: String,
}

impl Objects {
    /// Those of a cluster in this store, which lets it put, read and delete them, unless it cannot be reached: then every request finds that
    /// out first. What is put into a folder is on the disk then.
    ///
    /// # Errors
    /// [`StartObjectsError`].
    pub async fn open(storage: &DisklessStorage, cluster_id: &str) -> Result<Objects, StartObjectsError> {
        let failed = |why: &dyn fmt::Display| StartObjectsError { storage: storage.to_string(), why: why.to_string() };
        let (store, prefix) = match storage {
            DisklessStorage::Folder(folder) => (folder::open(folder), Path::default()),
            DisklessStorage::S3(s3) => (s3::open(s3), Path::from(s3.prefix.as_str())),
        };
        let store = store.map_err(|why| failed(&why))?;
        let objects = Objects::below(store, prefix, cluster_id, false);
        let late = |_| ObjectError::Unavailable(format!("no answer within {} s", START_MAX.as_secs()));
        match timeout(START_MAX, objects.claimed()).await.map_err(late).flatten() {
            Ok(()) => Ok(objects),
            Err(error @ ObjectError::Unavailable(_)) if matches!(storage, DisklessStorage::S3(_)) => {
                tracing::warn!(%storage, %error, "the object store is not there; diskless topics wait for it");
                Ok(objects)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// As if the store were far away: each PUT and each GET takes so much longer.
    pub fn delayed(self, put: Duration, get: Duration) -> Objects {
        Objects { delays: (put, get), ..self }
    }

    /// Those in this store.
    #[cfg(test)]
    pub fn over(store: Arc<dyn ObjectStore>, cluster_id: &str) -> Objects {
        Objects::below(store, Path::default(), cluster_id, true)
    }

    fn below(store: Arc<dyn ObjectStore>, prefix: Path, cluster_id: &str, is_claimed: bool) -> Objects {
        let root = prefix.clone().join(cluster_id);
        let claim = Arc::new(Claim::new(cluster_id, is_claimed));
        Objects { store, prefix, root, claim, delays: (Duration::ZERO, Duration::ZERO) }
    }

    /// By which this store is told from another one of the cluster, if it was reached.
    pub fn store_id(&self) -> Option<&str> {
        self.claim.store_id()
    }

    /// The store is this cluster's.
    async fn claimed(&self) -> Result<(), ObjectError> {
        self.claim.make(self.store.as_ref(), &self.prefix, &self.root).await
    }

    /// Puts an object, which has these parts one after the other. The same may be put twice at a time.
    ///
    /// # Errors
    /// [`ObjectError`]; it may be there all the same.
    pub async fn put(&self, id: ObjectId, parts: Vec<Bytes>) -> Result<(), ObjectError> {
        self.claimed().await?;
        delay(self.delays.0).await;
        let put = self.store.put(&self.key(id), PutPayload::from_iter(parts)).await;
        put.map(drop).map_err(ObjectError::of_put)
    }

    /// What an object has of this range, which is less at its end.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn get(&self, id: ObjectId, range: Range<u32>) -> Result<Bytes, ObjectError> {
        self.claimed().await?;
        delay(self.delays.1).await;
        let range = Some(GetRange::Bounded(u64::from(range.start)..u64::from(range.end)));
        let found = self.store.get_opts(&self.key(id), GetOptions { range, ..GetOptions::default() }).await;
        let found = found.map_err(|error| ObjectError::of_object(id, error))?;
        found.bytes().await.map_err(|error| ObjectError::of_object(id, error))
    }

    /// Deletes an object. One that is not there is no error.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn delete(&self, id: ObjectId) -> Result<(), ObjectError> {
        self.claimed().await?;
        match self.store.delete(&self.key(id)).await.map_err(|error| ObjectError::of_object(id, error)) {
            Err(ObjectError::NotFound(_)) => Ok(()),
            deleted => deleted,
        }
    }

    /// Where an object is: numbers that follow each other lie apart, since stores spread their load by the front of the key.
    fn key(&self, id: ObjectId) -> Path {
        self.root.clone().join(format!("{:02x}", id.rem_euclid(256))).join(format!("{id:016x}"))
    }
}

async fn delay(by: Duration) {
    if !by.is_zero() {
        tokio::time::sleep(by).await;
    }
}
