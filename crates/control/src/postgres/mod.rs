//! The metadata store of a cluster: a PostgreSQL database.
//!
//! This module contains all SQL for the metadata. The crate `db` contains the schema and the connections. This module
//! makes no decisions: it writes changes as rows, and reads rows back as changes. The metadata lock is a row lock on
//! the only row of `cluster`, so it ends with its session. The server ends a session that is idle in a transaction for
//! too long. A transaction needs two round trips. The first one locks, and reads the commits of other brokers. The
//! second one writes and commits. The first one also ensures that the database has every change to diskless topics that
//! this process knows (`known_changes` in `db`).
//!
//! - `read` converts rows to changes, and `write` converts changes to statements. `registrations` has the statements
//!   for partitions, and `record` the JSON form of changes.
//! - `heartbeat` has the second connection, with heartbeats and notifications of new commits.
//! - `check` examines a database, and `offline` finds partitions without a leader. `of_directory` returns what the
//!   database knows of a broker's data directory. `accept` makes an older copy of a database usable.

mod accept;
mod check;
mod heartbeat;
mod of_directory;
mod offline;
mod read;
mod record;
mod registrations;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;
use std::time::Duration;

use fullbore_wire::Uuid;
use tokio::sync::watch;

use super::change::{Change, Version};
use super::store::{Progress, Store, Transaction};
use fullbore_config::PlaneSettings;
use fullbore_db::postgres::known_changes::{CHANGE_COUNTS, ChangeCounts, change_counts};
use fullbore_db::postgres::rows::{Rows, next, number};
use fullbore_db::postgres::schema::{self, SCHEMA_VERSION, SchemaError, check_schema};
use fullbore_db::postgres::{DatabaseConnection, PostgresSession, QueryError, Server, literal, words_at_start};
use fullbore_db::{CommitError, Outage, StoreError};
use read::Since;

pub use accept::{AcceptedCopy, accept_copy};
pub use check::{BrokerFound, Finding, check};
pub use heartbeat::Heartbeats;
pub use of_directory::{DirectoryInDatabase, RegisteredDirectory, identity_of, look_up_directory};
pub use offline::find_offline;

/// Maximum duration of a schema upgrade.
const MIGRATION_MAX: Duration = Duration::from_secs(3600);

const READ_ONLY: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// Takes the lock, and returns the newest metadata version and the version of the schema.
const LOCK: &str = "SELECT cluster.version, schema_version.version FROM fullbore.cluster, fullbore.schema_version
    FOR UPDATE OF cluster";

/// The database of a cluster. It reconnects when necessary.
pub struct Postgres {
    connection: DatabaseConnection,
}

/// A transaction, which holds the metadata lock until it is committed or dropped.
pub struct PostgresTransaction<'a> {
    store: &'a mut Postgres,
    is_open: bool,
}

/// The reason why a broker cannot use a database.
#[derive(Debug, thiserror::Error)]
pub enum UnusableDatabase {
    #[error("{0}")]
    Away(Outage),
    #[error("the database has a schema named fullbore that another program created; use another database")]
    Foreign,
    #[error("the database is empty, so there is nothing to upgrade; the first start of a broker fills it")]
    Empty,
    #[error(
        "the database is empty, so there is no copy to accept; restore the newest copy into it, or name the database \
         that has it"
    )]
    EmptyCopy,
    #[error(
        "the database has schema {0} of a build before the first release, which this Fullbore neither reads nor \
         upgrades; use another database"
    )]
    Unreleased(i64),
    #[error("the database has schema {0}, and this Fullbore needs {SCHEMA_VERSION}: run fullbore admin migrate")]
    Older(i64),
    #[error(
        "the database was written by a newer Fullbore (schema {0}, this one knows {SCHEMA_VERSION}); run that version"
    )]
    Newer(i64),
    #[error("broker {0} sent a heartbeat within the last seconds; stop all brokers, and try again after 10 s")]
    InUse(i32),
    #[error("{0}")]
    Store(#[from] StoreError),
}

impl UnusableDatabase {
    /// Returns true if the same call may succeed a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Away(outage) => outage.is_transient,
            Self::Store(error) => error.is_transient(),
            _ => false,
        }
    }
}

impl From<SchemaError> for UnusableDatabase {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Ask(error) => Self::Away(error.outage()),
            SchemaError::Read(error) => Self::Store(error),
            SchemaError::Foreign => Self::Foreign,
            SchemaError::Empty => Self::Empty,
            SchemaError::Unreleased(found) => Self::Unreleased(found),
            SchemaError::Older(found) => Self::Older(found),
            SchemaError::Newer(found) => Self::Newer(found),
        }
    }
}

impl Postgres {
    /// Connects to the database and returns the cluster's id. If the database is empty, creates the schema with the id
    /// `new_cluster_id`. Blocks.
    pub fn open(server: Arc<Server>, new_cluster_id: Uuid) -> Result<(Self, Uuid), UnusableDatabase> {
        let refused = |error: QueryError| {
            let words = words_at_start(&server, &error);
            UnusableDatabase::Away(Outage { words, is_transient: error.is_transient })
        };
        let connection = DatabaseConnection::new(Arc::clone(&server));
        let mut connection = connection.map_err(|error| UnusableDatabase::Away(Outage::lasting(error.to_string())))?;
        connection.connect().map_err(refused)?;
        let ensured = connection.with_session(|session, call_max| schema::ensure(session, call_max, new_cluster_id));
        let cluster_id = ensured.expect("it is connected").map_err(|error| match error {
            SchemaError::Ask(error) => refused(error),
            other => other.into(),
        })?;
        Ok((Self { connection }, cluster_id))
    }

    /// Takes the lock, and returns the commits after version `at`.
    fn lock(&mut self, at: Option<Version>) -> Result<Progress, StoreError> {
        let since = at.map(read::query_since).unwrap_or_default();
        let known = self.connection.server().changes.counts();
        let answers = self.connection.begin_with(&format!("BEGIN; {LOCK}; {CHANGE_COUNTS}; {since}"));
        let mut answers = answers.map_err(QueryError::failed)?.into_iter();
        check_schema(&next(&mut answers)?)?;
        let found = change_counts(&next(&mut answers)?)?;
        let progress = self.progress(at, &mut answers)?;
        self.check_changes(&known, &found)?;
        let progress = match progress {
            Some(progress) => progress,
            None => {
                let answers = self.connection.query(&read::query_everything()).map_err(QueryError::failed)?;
                Progress::Whole(read::everything(answers.into_iter())?)
            }
        };
        Ok(self.noted(progress))
    }

    /// Returns the commits after version `at` one by one. Returns `None` if the caller must read the whole state
    /// instead, because `at` is `None` or too much has changed since then.
    fn progress(
        &self,
        at: Option<Version>,
        answers: &mut std::vec::IntoIter<Rows>,
    ) -> Result<Option<Progress>, StoreError> {
        let Some(at) = at else { return Ok(None) };
        match read::since(at, &next(answers)?)? {
            Since::Commits(commits) => Ok(Some(Progress::Since(commits))),
            Since::TooMuch => Ok(None),
            Since::WentBack => Err(StoreError::WentBack(at.number)),
        }
    }

    /// Reads the commits after version `at` in one snapshot, without the lock.
    fn peek(&mut self, at: Option<Version>) -> Result<Progress, StoreError> {
        let checks = format!("SELECT 0, version FROM fullbore.schema_version; {CHANGE_COUNTS}");
        let changes = self.connection.server().changes.counts();
        if let Some(known) = at {
            let since = read::query_since(known);
            let answers = self.connection.begin_with(&format!("{READ_ONLY}; {checks}; {since}; COMMIT"));
            let mut answers = answers.map_err(QueryError::failed)?.into_iter();
            check_schema(&next(&mut answers)?)?;
            let found = change_counts(&next(&mut answers)?)?;
            let progress = self.progress(at, &mut answers)?;
            self.check_changes(&changes, &found)?;
            if let Some(progress) = progress {
                return Ok(self.noted(progress));
            }
        }
        let everything = read::query_everything();
        let answers = self.connection.begin_with(&format!("{READ_ONLY}; {checks}; {everything}; COMMIT"));
        let mut answers = answers.map_err(QueryError::failed)?.into_iter();
        check_schema(&next(&mut answers)?)?;
        let found = change_counts(&next(&mut answers)?)?;
        self.check_changes(&changes, &found)?;
        Ok(self.noted(Progress::Whole(read::everything(answers)?)))
    }

    /// Compares `found`, the rows of [`CHANGE_COUNTS`], with `known`, which the caller has read before the query. Fails
    /// if the database lacks one of these changes. If the broker changed the metadata of such an older copy, it would
    /// refuse the newest database later, because that lacks the change.
    ///
    /// The caller has checked that the database has the newest known version. Otherwise `found` might include changes
    /// that only an older copy has.
    fn check_changes(&self, known: &ChangeCounts, found: &ChangeCounts) -> Result<(), StoreError> {
        self.connection.server().changes.check(known, found)
    }

    /// Records the newest version of `progress` for the other connections of this process.
    fn noted(&self, progress: Progress) -> Progress {
        let newest = match &progress {
            Progress::Since(commits) => commits.last(),
            Progress::Whole(commit) => Some(commit),
        };
        if let Some(newest) = newest {
            self.connection.server().changes.raise_version(newest.version);
        }
        progress
    }

    /// Returns one column of this process's last heartbeat, or 0 if it has sent none.
    fn last_heartbeat(&mut self, column: &str, broker: i32, process: Uuid) -> Result<u64, StoreError> {
        let process = literal(&process);
        let last = format!("SELECT {column} FROM fullbore.beats WHERE broker_id = {broker} AND process = {process}");
        let answers = self.connection.begin_with(&last).map_err(QueryError::failed)?;
        match next(&mut answers.into_iter())?.first() {
            Some(row) => Ok(number::<i64>(row, 0)?.cast_unsigned()),
            None => Ok(0),
        }
    }

    /// Returns true if this version was committed to the database, or is older than all versions that the database
    /// still lists.
    pub fn knows(&mut self, version: Version) -> Result<bool, StoreError> {
        let since = read::query_since(version);
        let answers = self.connection.begin_with(&since).map_err(QueryError::failed)?;
        Ok(!matches!(read::since(version, &next(&mut answers.into_iter())?)?, Since::WentBack))
    }
}

/// Upgrades the schema of the configured database, and returns the versions before and after. Running brokers of the
/// older version then behave as if the database were unavailable. Blocks.
///
/// # Errors
/// Returns [`UnusableDatabase`] if the database cannot be upgraded. In that case the database is unchanged.
pub fn migrate(settings: &PlaneSettings) -> Result<Migrated, UnusableDatabase> {
    let away = |reason: String| UnusableDatabase::Away(reason.into());
    let server = Server::new(settings, "fullbore admin migrate").map_err(|bad| away(bad.0))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| away(error.to_string()))?.block_on(async {
        let session = PostgresSession::open(&server, "-c statement_timeout=0", watch::channel(0).0).await;
        let session = session.map_err(|error| away(error.words))?;
        let before = schema::migrate(&session, MIGRATION_MAX).await?;
        Ok(Migrated { before, now: SCHEMA_VERSION })
    })
}

/// The versions of the schema before and after an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The version before the upgrade.
    pub before: i64,
    /// The version after the upgrade, which this version of Fullbore needs.
    pub now: i64,
}

impl Store for Postgres {
    type Transaction<'a> = PostgresTransaction<'a>;

    fn begin(&mut self, at: Option<Version>) -> Result<(PostgresTransaction<'_>, Progress), StoreError> {
        let locked = self.lock(at);
        self.connection.hang_up_if_behind(&locked);
        match locked {
            Ok(progress) => Ok((PostgresTransaction { store: self, is_open: true }, progress)),
            Err(error) => {
                // The session may hold the lock. Close the connection, which also releases the lock.
                self.connection.hang_up();
                Err(error)
            }
        }
    }

    fn read_since(&mut self, at: Option<Version>) -> Result<Progress, StoreError> {
        let read = self.peek(at);
        self.connection.hang_up_if_behind(&read);
        read
    }

    fn heartbeats_of(&mut self, broker: i32, process: Uuid) -> Result<Option<u64>, StoreError> {
        Ok(Some(self.last_heartbeat("number", broker, process)?))
    }

    fn noted_by(&mut self, broker: i32, process: Uuid) -> Result<u64, StoreError> {
        self.last_heartbeat("noted", broker, process)
    }

    fn wait_max(&self) -> Option<Duration> {
        Some(self.connection.server().call_max)
    }
}

impl Transaction for PostgresTransaction<'_> {
    fn includes(&mut self, version: Version) -> Result<bool, StoreError> {
        let query = format!("SELECT version, mark FROM fullbore.versions WHERE version = {}", version.number);
        let answers = self.store.connection.query(&query).map_err(QueryError::failed)?;
        match next(&mut answers.into_iter())?.first() {
            Some(row) => Ok(read::version(row)? == version),
            None => Ok(false),
        }
    }

    fn commit(mut self, changes: &[Change], version: Version) -> Result<(), CommitError> {
        self.is_open = false;
        let statements = write::all(changes, version);
        match self.store.connection.query(&format!("{statements}COMMIT")) {
            Ok(_) => {
                self.store.connection.server().changes.raise_version(version);
                Ok(())
            }
            Err(error) => Err(error.not_committed()),
        }
    }
}

impl Drop for PostgresTransaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.store.connection.roll_back();
        }
    }
}
