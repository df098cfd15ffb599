//! The objects of this cluster in the object store: one attempt of each operation, and what went wrong in the store's own words.
//!
//! Not here: whether it is tried again, which [`super::upload`] and [`super::fetch`] know.
//!
//! Invariant: an object that was put is there as it was, also after a power cut; no other cluster's objects are touched.

#[cfg(test)]
pub mod double;

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::ObjectId;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload};

/// In a folder: whose objects are in it.
const OWNER: &str = "cluster";

/// The objects of one cluster.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    cluster_id: Arc<str>,
    /// By how much longer a PUT and a GET take than they would.
    delays: (Duration, Duration),
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartObjectsError {
    /// The folder of objects.
    #[error("diskless.storage={}: {why}", folder.display())]
    Folder {
        /// As configured.
        folder: PathBuf,
        /// What the system says.
        why: String,
    },
    /// Another cluster has its objects there.
    #[error("diskless.storage={}: it has objects of the cluster {owner}, and this is {cluster_id}", folder.display())]
    OtherCluster {
        /// As configured.
        folder: PathBuf,
        /// Whose it is.
        owner: String,
        /// Who wants it.
        cluster_id: String,
    },
}

/// Why an object was not put, read or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is none of this number.
    #[error("the object {0} is not in the store")]
    NotFound(ObjectId),
    /// The store does not let this broker.
    #[error("the object store refuses: {0}")]
    Denied(String),
    /// Anything else: it may be tried again.
    #[error("the object store fails: {0}")]
    Unavailable(String),
}

impl ObjectError {
    /// Whether another attempt may do.
    pub fn is_retriable(&self) -> bool {
        matches!(self, ObjectError::Unavailable(_))
    }
}

impl Objects {
    /// Those in a folder, which is made if it is not there. What is put is on the disk then.
    ///
    /// # Errors
    /// [`StartObjectsError`].
    pub fn open_folder(folder: &FilePath, cluster_id: &str) -> Result<Objects, StartObjectsError> {
        let failed = |why: &dyn fmt::Display| StartObjectsError::Folder { folder: folder.into(), why: why.to_string() };
        fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        let file = folder.join(OWNER);
        match fs::read_to_string(&file) {
            Ok(owner) if owner.trim() == cluster_id => {}
            Ok(owner) => {
                let (folder, owner) = (folder.into(), owner.trim().to_owned());
                return Err(StartObjectsError::OtherCluster { folder, owner, cluster_id: cluster_id.to_owned() });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                write_owner(folder, cluster_id).map_err(|error| failed(&error))?;
            }
            Err(error) => return Err(failed(&error)),
        }
        let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| failed(&error))?.with_fsync(true);
        Ok(Objects::over(Arc::new(store), cluster_id))
    }

    /// As if the store were far away: each PUT and each GET takes so much longer.
    pub fn delayed(self, put: Duration, get: Duration) -> Objects {
        Objects { delays: (put, get), ..self }
    }

    /// Those in this store.
    pub fn over(store: Arc<dyn ObjectStore>, cluster_id: &str) -> Objects {
        Objects { store, cluster_id: cluster_id.into(), delays: (Duration::ZERO, Duration::ZERO) }
    }

    /// Puts an object, which has these parts one after the other. The same may be put twice at a time.
    ///
    /// # Errors
    /// [`ObjectError`]; it may be there all the same.
    pub async fn put(&self, id: ObjectId, parts: Vec<Bytes>) -> Result<(), ObjectError> {
        delay(self.delays.0).await;
        let put = self.store.put(&self.key(id), PutPayload::from_iter(parts)).await;
        put.map(drop).map_err(|error| why(id, error))
    }

    /// What an object has of this range, which is less at its end.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn get(&self, id: ObjectId, range: Range<u32>) -> Result<Bytes, ObjectError> {
        delay(self.delays.1).await;
        let range = Some(GetRange::Bounded(u64::from(range.start)..u64::from(range.end)));
        let found = self.store.get_opts(&self.key(id), GetOptions { range, ..GetOptions::default() }).await;
        let found = found.map_err(|error| why(id, error))?;
        found.bytes().await.map_err(|error| why(id, error))
    }

    /// Deletes an object. One that is not there is no error.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn delete(&self, id: ObjectId) -> Result<(), ObjectError> {
        match self.store.delete(&self.key(id)).await.map_err(|error| why(id, error)) {
            Err(ObjectError::NotFound(_)) => Ok(()),
            deleted => deleted,
        }
    }

    /// Where an object is: numbers that follow each other lie apart, since stores spread their load by the front of the key.
    fn key(&self, id: ObjectId) -> Path {
        let Objects { cluster_id, .. } = self;
        Path::from(format!("{cluster_id}/{:02x}/{id:016x}", id.rem_euclid(256)))
    }
}

async fn delay(by: Duration) {
    if !by.is_zero() {
        tokio::time::sleep(by).await;
    }
}

fn write_owner(folder: &FilePath, cluster_id: &str) -> std::io::Result<()> {
    let mut file = File::create(folder.join(OWNER))?;
    file.write_all(cluster_id.as_bytes())?;
    file.sync_all()?;
    File::open(folder)?.sync_all()?;
    // The folder itself is an entry of another one.
    folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn why(id: ObjectId, error: object_store::Error) -> ObjectError {
    match error {
        object_store::Error::NotFound { .. } => ObjectError::NotFound(id),
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            ObjectError::Denied(error.to_string())
        }
        _ => ObjectError::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(folder: &FilePath) -> Objects {
        Objects::open_folder(folder, "one").expect("opened")
    }

    #[tokio::test]
    async fn an_object_is_there_until_it_is_deleted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path().join("made/here");
        let objects = opened(&folder);
        let parts = vec![Bytes::from_static(b"some"), Bytes::from_static(b"thing")];
        let twice = tokio::join!(objects.put(7, parts.clone()), objects.put(7, parts));
        assert_eq!(twice, (Ok(()), Ok(())));
        let objects = opened(&folder);
        assert_eq!(objects.get(7, 2..6).await, Ok(Bytes::from_static(b"meth")));
        assert_eq!(objects.get(7, 4..100).await, Ok(Bytes::from_static(b"thing")), "up to its end");
        assert_eq!(objects.get(8, 0..1).await, Err(ObjectError::NotFound(8)));
        assert_eq!((objects.delete(7).await, objects.delete(7).await), (Ok(()), Ok(())));
        assert_eq!(objects.get(7, 0..1).await, Err(ObjectError::NotFound(7)));
    }

    #[test]
    fn another_clusters_folder_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        opened(folder.path());
        let refused = Objects::open_folder(folder.path(), "other").err().expect("refused").to_string();
        assert!(refused.ends_with("it has objects of the cluster one, and this is other"), "{refused}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("file"), b"").expect("written");
        let refused = Objects::open_folder(&folder.path().join("file/in"), "one").err().expect("refused").to_string();
        assert!(refused.contains("diskless.storage=") && refused.contains("file/in"), "{refused}");
    }
}
