//! The index of a cluster, in PostgreSQL tables beside those of the control plane. All brokers change these tables.
//!
//! This module makes no decisions. To prevent deadlocks, all transactions take their locks in the same order:
//! partitions by id, then objects by id, then the row of this broker. Changes of the metadata lock the row of
//! `fullbore.cluster`. No transaction here locks it, so commits do not wait for such changes. Transactions are READ
//! COMMITTED: a statement after a lock sees everything that was committed before the lock was granted.
//!
//! - `guarded`: a transaction, which begins only on a database with all changes that this broker knows (see
//!   `super::noted`).
//! - `commits`: the storage of the index, and commits; `topics`: creation and deletion of partitions, and moves of log
//!   starts; `cleaning`: the GC.
//! - `finder`, `changes`: reads over separate connections, which do not wait for commits.
//! - `rows`: conversion of values to SQL literals, and of result rows to values.

mod changes;
mod cleaning;
mod commits;
mod finder;
mod guarded;
mod rows;
#[cfg(test)]
pub mod tests;
mod topics;

use std::path::Path;
use std::sync::Arc;

use fullbore_wire::Uuid;

use super::finder::RunFinder;
use super::noted::{Lacking, NotedChanges, lacking, noted_changes};
use super::store::RunSource;
use finder::PostgresFinder;
use fullbore_config::PlaneSettings;
use fullbore_db::postgres::known_changes::{CHANGE_COUNTS, KnownChanges, change_counts};
use fullbore_db::postgres::rows::next;
use fullbore_db::postgres::{DatabaseConnection, QueryError, Server as DatabaseServer, words_at_start};
use fullbore_db::{Outage, StoreError};
use guarded::Guarded;

pub use changes::PostgresChanges;
pub use commits::PostgresIndex;

/// Number of connections for searches. Each of them serves one search at a time.
const FINDERS: usize = 2;

/// Opens the index in the database of these settings. The database may be down; later calls of the index then return
/// errors until it is up again. The index shares its counts of changes with the control plane, which uses `changes`.
///
/// # Errors
/// Returns a [`StoreError`] if the settings are wrong or the data directory cannot be used.
pub fn open(
    settings: &PlaneSettings,
    broker_id: i32,
    data_dir: &Path,
    cluster_id: Uuid,
    changes: Arc<KnownChanges>,
) -> Result<(PostgresIndex, RunFinder, PostgresChanges), StoreError> {
    let server = DatabaseServer::new(settings, &format!("fullbore {broker_id} diskless"));
    let server = Arc::new(server.map_err(|bad| StoreError::Failed(bad.0))?);
    let connection = || DatabaseConnection::new(Arc::clone(&server)).map_err(|error| failed(&error));
    let noted = NotedChanges::open(data_dir, cluster_id, broker_id).map_err(|error| failed(&error))?;
    let noted = Arc::new(noted.shared_with(changes));
    let index = PostgresIndex::new(Guarded::new(connection()?, broker_id, Arc::clone(&noted)));
    let finders = (0..FINDERS).map(|_| Ok(Box::new(PostgresFinder::new(connection()?)) as Box<dyn RunSource>));
    let finder = RunFinder::over(finders.collect::<Result<_, StoreError>>()?);
    Ok((index, finder, PostgresChanges::new(connection()?, broker_id, noted)))
}

/// Returns a broker if the data directory has counted more changes of it than the index has. The index is then an older
/// copy. Returns `None` if nothing is missing. Then the control plane, which uses `changes`, also refuses a database
/// that lacks them.
///
/// This check must run before the broker registers. A registration in an older copy would create a version of the
/// metadata that the newest database does not have. Blocks the thread.
///
/// # Errors
/// Returns the store's error if the index does not answer.
pub fn lacks(
    settings: &PlaneSettings,
    broker_id: i32,
    data_dir: &Path,
    cluster_id: Uuid,
    changes: &KnownChanges,
) -> Result<Option<Lacking>, StoreError> {
    let known = noted_changes(data_dir, cluster_id);
    if known.is_empty() {
        return Ok(None);
    }
    let server = DatabaseServer::new(settings, &format!("fullbore {broker_id} diskless"));
    let server = Arc::new(server.map_err(|bad| StoreError::Failed(bad.0))?);
    let away = |error: QueryError| {
        let words = format!("{}: {}", server.name(), words_at_start(&server, &error));
        StoreError::Away(Outage { words, is_transient: error.is_transient })
    };
    let mut connection = DatabaseConnection::new(Arc::clone(&server)).map_err(|error| failed(&error))?;
    let answers = connection.begin_with(CHANGE_COUNTS).map_err(away)?;
    let found = change_counts(&next(&mut answers.into_iter())?)?;
    let lacks = lacking(&known, &found);
    if lacks.is_none() {
        changes.raise(&known);
    }
    Ok(lacks)
}

fn failed(error: &std::io::Error) -> StoreError {
    StoreError::Failed(error.to_string())
}
