//! Opens the metadata store that is configured, after a check that the data directory belongs to that store.
//!
//! Invariant: once a directory was used with one store, it cannot be used with another.

use std::path::Path;
use std::sync::Arc;

use super::error::OpenError;
use super::identity::{ClusterDirectory, FILE, Identity, StoreName, UsedDirectory};
use super::postgres::{Postgres, UnusableDatabase};
use super::sqlite::{self, Sqlite};
use fullbore_config::{BrokerConfig, PlaneSettings};
use fullbore_db::StoreError;
use fullbore_db::postgres::{BadServer, Server};
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::random_id;

/// Opens `control.db` in this directory, for a standalone broker.
///
/// # Errors
/// Returns [`OpenError`] if the directory was used in a cluster, or if the file cannot be used.
pub fn on_one_machine(
    directory: &Path,
    broker: &BrokerConfig,
    space: Arc<DiskSpace>,
) -> Result<(Sqlite, Identity), OpenError> {
    let file = directory.join(FILE);
    if file.exists() {
        return Err(OpenError::OfCluster { file });
    }
    Sqlite::open(directory, broker, space, random_id())
}

/// Returns the database that is configured in `settings`.
///
/// # Errors
/// Returns [`OpenError::Setting`] if the settings are invalid.
pub fn server(settings: &PlaneSettings, node_id: i32) -> Result<Server, OpenError> {
    let refused = |bad: BadServer| OpenError::Setting { key: "control.plane", reason: bad.0 };
    Server::new(settings, &format!("fullbore {node_id}")).map_err(refused)
}

/// Opens the database of a cluster for the broker that owns this directory. For a new directory, the broker writes the
/// file `cluster` later, after the registration.
///
/// # Errors
/// Returns [`OpenError`] if the directory belongs to another broker or store, or if the database cannot be used.
pub fn of_cluster(
    directory: &Path,
    node_id: i32,
    server: Arc<Server>,
) -> Result<(Postgres, Identity, ClusterDirectory), OpenError> {
    if directory.join(sqlite::FILE).exists() {
        return Err(OpenError::OnOneMachine { file: directory.join(sqlite::FILE) });
    }
    let file = directory.join(FILE);
    let unusable = |source: std::io::Error| OpenError::DirectoryIdentity { file: file.clone(), source };
    let known = ClusterDirectory::read(directory).map_err(unusable)?;
    if let Some(known) = known.filter(|known| known.node_id != node_id) {
        return Err(OpenError::OtherNode { file, stored: known.node_id, configured: node_id });
    }
    let database = server.name().to_owned();
    let name = StoreName::Database(database.clone());
    let refused = |error: UnusableDatabase| {
        let (database, is_transient) = (database.clone(), error.is_transient());
        OpenError::Database { database, reason: error.to_string(), is_transient }
    };
    let (mut store, cluster_id) = Postgres::open(server, random_id()).map_err(refused)?;
    let of_directory = match known {
        Some(known) if known.cluster_id != cluster_id => {
            return Err(OpenError::OtherCluster { file, stored: known.cluster_id, database, found: cluster_id });
        }
        Some(known) => known,
        None => ClusterDirectory { cluster_id, node_id, directory: random_id(), seen: None, noted: 0, users: None },
    };
    if let Some(seen) = of_directory.seen {
        let knows = store.knows(seen).map_err(|error| OpenError::of_store(name.clone(), error))?;
        if !knows {
            return Err(OpenError::of_store(name, StoreError::WentBack(seen.number)));
        }
    }
    let used = known.map(|known| UsedDirectory::new(directory, known));
    let identity = Identity { cluster_id, directory: of_directory.directory, used, store: name };
    Ok((store, identity, of_directory))
}
