//! Whose objects are in a store: a cluster claims it before it uses it, and finds out whether it may.
//!
//! A claim says whose the store is, and has a number drawn by who made it, by which a store is told from another one of the same cluster.
//!
//! Invariant: of two clusters that claim a store one is refused.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::sync::OnceCell;

use super::error::{ObjectError, is_full, words};
use crate::control::random_id;

/// The object that says whose the others are.
const OWNER: &str = "cluster";
/// The object with which it is tried what the store allows.
const PROBE: &str = "probe";

/// A cluster's claim, as far as it was made.
#[derive(Debug)]
pub struct Claim {
    cluster_id: String,
    /// The store's number, once the claim is made; empty where the claim has none.
    store_id: OnceCell<String>,
}

impl Claim {
    /// It is to be made, or need not be.
    pub fn new(cluster_id: &str, is_made: bool) -> Claim {
        Claim { cluster_id: cluster_id.to_owned(), store_id: OnceCell::new_with(is_made.then(String::new)) }
    }

    /// Claims what is below `prefix` for this cluster, whose objects are below `root`, unless that is done.
    ///
    /// # Errors
    /// The store does not let it, or does not answer; the next call tries again.
    pub async fn make(&self, store: &dyn ObjectStore, prefix: &Path, root: &Path) -> Result<(), ObjectError> {
        let claim = || async {
            let store_id = claim(store, &prefix.clone().join(OWNER), &self.cluster_id).await?;
            probe(store, &root.clone().join(PROBE)).await.map(|()| store_id)
        };
        self.store_id.get_or_try_init(claim).await.map(drop)
    }

    /// The store's number, if it is known.
    pub fn store_id(&self) -> Option<&str> {
        self.store_id.get().map(String::as_str).filter(|id| !id.is_empty())
    }
}

async fn claim(store: &dyn ObjectStore, key: &Path, cluster_id: &str) -> Result<String, ObjectError> {
    if let Some(owner) = owner(store, key).await? {
        return store_of(&owner, cluster_id);
    }
    let options = |mode| PutOptions { mode, ..PutOptions::default() };
    let claim = format!("{cluster_id} {}", random_id());
    let payload = || Bytes::from(claim.clone()).into();
    match store.put_opts(key, payload(), options(PutMode::Create)).await {
        Ok(_) => store_of(&claim, cluster_id),
        // Another broker was faster.
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
            store_of(&owner(store, key).await?.unwrap_or_default(), cluster_id)
        }
        // Not every store has conditions.
        Err(object_store::Error::NotImplemented { .. }) => {
            store.put(key, payload()).await.map_err(ObjectError::of_put)?;
            store_of(&owner(store, key).await?.unwrap_or_default(), cluster_id)
        }
        // It is nobody else's; the next start writes the claim, and until there is room nothing else is written either.
        Err(error) if is_full(&error) => Ok(String::new()),
        Err(error) => Err(ObjectError::of_put(error)),
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

/// The store's number, of a claim of this cluster.
fn store_of(claim: &str, cluster_id: &str) -> Result<String, ObjectError> {
    let (owner, store_id) = claim.split_once(' ').unwrap_or((claim, ""));
    match owner == cluster_id {
        true => Ok(store_id.to_owned()),
        false => Err(ObjectError::OtherCluster { owner: owner.to_owned(), cluster_id: cluster_id.to_owned() }),
    }
}

/// Whether an object can be put, read and deleted; a folder without room is none that refuses, since what it has can be read, and deleted.
async fn probe(store: &dyn ObjectStore, key: &Path) -> Result<(), ObjectError> {
    match store.put(key, Bytes::from_static(PROBE.as_bytes()).into()).await {
        Ok(_) => {}
        Err(error) if is_full(&error) => return Ok(()),
        Err(error) => return Err(ObjectError::of_put(error)),
    }
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
