//! Whose objects are in a store: a cluster claims it before it uses it, and finds out whether it may.
//!
//! Invariant: of two clusters that claim a store one is refused.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::sync::OnceCell;

use super::error::{ObjectError, words};

/// The object that says whose the others are.
const OWNER: &str = "cluster";
/// The object with which it is tried what the store allows.
const PROBE: &str = "probe";

/// A cluster's claim, as far as it was made.
#[derive(Debug)]
pub struct Claim {
    cluster_id: String,
    is_made: OnceCell<()>,
}

impl Claim {
    /// It is to be made, or need not be.
    pub fn new(cluster_id: &str, is_made: bool) -> Claim {
        Claim { cluster_id: cluster_id.to_owned(), is_made: OnceCell::new_with(is_made.then_some(())) }
    }

    /// Claims what is below `prefix` for this cluster, whose objects are below `root`, unless that is done.
    ///
    /// # Errors
    /// The store does not let it, or does not answer; the next call tries again.
    pub async fn make(&self, store: &dyn ObjectStore, prefix: &Path, root: &Path) -> Result<(), ObjectError> {
        let claim = || async {
            claim(store, &prefix.clone().join(OWNER), &self.cluster_id).await?;
            probe(store, &root.clone().join(PROBE)).await
        };
        self.is_made.get_or_try_init(claim).await.map(drop)
    }
}

async fn claim(store: &dyn ObjectStore, key: &Path, cluster_id: &str) -> Result<(), ObjectError> {
    match owner(store, key).await? {
        Some(owner) => is_same(&owner, cluster_id),
        None => {
            let options = |mode| PutOptions { mode, ..PutOptions::default() };
            let payload = || Bytes::copy_from_slice(cluster_id.as_bytes()).into();
            match store.put_opts(key, payload(), options(PutMode::Create)).await {
                Ok(_) => Ok(()),
                // Another broker was faster.
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    let owner = owner(store, key).await?;
                    is_same(&owner.unwrap_or_default(), cluster_id)
                }
                // Not every store has conditions.
                Err(object_store::Error::NotImplemented { .. }) => {
                    store.put(key, payload()).await.map(drop).map_err(ObjectError::of_put)
                }
                Err(error) => Err(ObjectError::of_put(error)),
            }
        }
    }
}

async fn owner(store: &dyn ObjectStore, key: &Path) -> Result<Option<String>, ObjectError> {
    let found = match store.get(key).await {
        Ok(found) => found,
        Err(error @ object_store::Error::NotFound { .. }) if !words(&error).contains("NoSuchBucket") => {
            return Ok(None);
        }
        Err(error) => return Err(ObjectError::of_put(error)),
    };
    let text = found.bytes().await.map_err(ObjectError::of_put)?;
    Ok(Some(String::from_utf8_lossy(&text).trim().to_owned()))
}

fn is_same(owner: &str, cluster_id: &str) -> Result<(), ObjectError> {
    match owner == cluster_id {
        true => Ok(()),
        false => Err(ObjectError::OtherCluster { owner: owner.to_owned(), cluster_id: cluster_id.to_owned() }),
    }
}

/// Whether an object can be put, read and deleted.
async fn probe(store: &dyn ObjectStore, key: &Path) -> Result<(), ObjectError> {
    store.put(key, Bytes::from_static(PROBE.as_bytes()).into()).await.map_err(ObjectError::of_put)?;
    match store.get(key).await {
        // A broker that starts at the same time may have deleted it.
        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
        Err(error) => return Err(ObjectError::of_put(error)),
    }
    match store.delete(key).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(ObjectError::of_put(error)),
    }
}
