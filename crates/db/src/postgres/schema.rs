//! The schema of the database. The first broker creates it, every broker checks it when it starts, and only `fullbore
//! admin` upgrades it.

use fullbore_wire::Uuid;

use super::error::{QueryError, damaged};
use super::rows::{Rows, flag, next, number, text};
use super::session::PostgresSession;
use super::statements::literal;
use crate::{Outage, StoreError};
use std::time::Duration;

/// The tables of the first release. Schemas with smaller versions cannot be upgraded, because they come from builds
/// before that release.
const FIRST_SCHEMA: &str = include_str!("schema.sql");
/// The version of `FIRST_SCHEMA`.
pub const FIRST_VERSION: i64 = 8;
/// The statements that upgrade the schema by one version each.
const MIGRATIONS: &[&str] = &[TRANSACTIONS];
/// The upgrade to version 9, which adds transactions on diskless topics.
const TRANSACTIONS: &str = include_str!("schema_9.sql");
/// The version of the schema that this version of Fullbore reads and writes.
pub const SCHEMA_VERSION: i64 = FIRST_VERSION + MIGRATIONS.len() as i64;
/// The number that `fullbore admin accept-copy` adds to each broker's count of changes to the index of diskless topics.
/// An older copy of the database may lack the last changes, and their numbers must not be used again. Brokers need
/// decades to make this many changes.
pub const CHANGES_SKIPPED: i64 = 1_000_000_000;
/// The advisory lock ("fullbore" in ASCII) that a broker or tool holds while it creates or upgrades the schema.
const ADVISORY_LOCK: i64 = 0x6675_6c6c_626f_7265;

/// The state of the schema in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// There is no schema with the name `fullbore`.
    Empty,
    /// There is a schema `fullbore` without tables.
    EmptySchema,
    /// There is a schema `fullbore`, but its tables belong to another program.
    Foreign,
    /// The database has a schema of Fullbore with this version.
    Version(i64),
}

/// The reason why a schema cannot be used.
#[derive(Debug)]
pub enum SchemaError {
    Ask(QueryError),
    Read(StoreError),
    Empty,
    Foreign,
    Unreleased(i64),
    Older(i64),
    Newer(i64),
}

impl From<QueryError> for SchemaError {
    fn from(error: QueryError) -> Self {
        Self::Ask(error)
    }
}

impl From<StoreError> for SchemaError {
    fn from(error: StoreError) -> Self {
        Self::Read(error)
    }
}

const READ: &str = "SELECT to_regnamespace('fullbore') IS NOT NULL, to_regclass('fullbore.schema_version') IS NOT NULL,
    EXISTS (SELECT 1 FROM pg_catalog.pg_class WHERE relnamespace = to_regnamespace('fullbore'))";

/// Returns the state of the schema in the database.
pub async fn read(session: &PostgresSession, call_max: Duration) -> Result<Found, SchemaError> {
    let rows = one(session.query(READ, call_max).await?)?;
    let row = rows.first().ok_or_else(|| damaged("no answer"))?;
    match (flag(row, 0)?, flag(row, 1)?, flag(row, 2)?) {
        (_, true, _) => {
            let rows = one(session.query("SELECT version FROM fullbore.schema_version", call_max).await?)?;
            match rows.first() {
                Some(row) => Ok(Found::Version(number(row, 0)?)),
                None => Ok(Found::Foreign),
            }
        }
        (false, ..) => Ok(Found::Empty),
        (true, false, false) => Ok(Found::EmptySchema),
        (true, false, true) => Ok(Found::Foreign),
    }
}

/// Returns the cluster's id. If the database is empty, creates the schema with the id `new_cluster_id`. If several
/// brokers start at once, only one of them creates it.
pub async fn ensure(session: &PostgresSession, call_max: Duration, new_cluster_id: Uuid) -> Result<Uuid, SchemaError> {
    let mut found = read(session, call_max).await?;
    if matches!(found, Found::Empty | Found::EmptySchema) {
        session.query(&format!("BEGIN; SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"), call_max).await?;
        found = read(session, call_max).await?;
        if matches!(found, Found::Empty | Found::EmptySchema) {
            session.query(&making(found, new_cluster_id), call_max).await?;
            found = Found::Version(SCHEMA_VERSION);
        }
        session.query("COMMIT", call_max).await?;
    }
    match found {
        Found::Version(SCHEMA_VERSION) => {}
        Found::Version(version) if version < FIRST_VERSION => return Err(SchemaError::Unreleased(version)),
        Found::Version(version) if version < SCHEMA_VERSION => return Err(SchemaError::Older(version)),
        Found::Version(version) => return Err(SchemaError::Newer(version)),
        _ => return Err(SchemaError::Foreign),
    }
    let rows = one(session.query("SELECT cluster_id FROM fullbore.cluster", call_max).await?)?;
    let id = text(rows.first().ok_or_else(|| damaged("the row of the cluster is missing"))?, 0)?;
    Ok(Uuid::parse(id).ok_or_else(|| damaged(format!("'{id}' is not a cluster id")))?)
}

fn making(found: Found, cluster_id: Uuid) -> String {
    let schema = if found == Found::Empty { "CREATE SCHEMA fullbore;" } else { "" };
    let (tables, cluster_id) = ([&[FIRST_SCHEMA], MIGRATIONS].concat().join("\n;"), literal(&cluster_id));
    format!(
        "{schema} {tables};
         INSERT INTO fullbore.schema_version VALUES (1, {SCHEMA_VERSION});
         INSERT INTO fullbore.versions (version, mark, at) VALUES
           (0, ('x' || left(md5(random()::text || clock_timestamp()::text), 16))::bit(64)::bigint, clock_timestamp());
         INSERT INTO fullbore.cluster VALUES (1, {cluster_id}, 0, 0)"
    )
}

/// Upgrades an older schema to `SCHEMA_VERSION`, and returns the version before the upgrade. Running brokers of the
/// older version then behave as if the database were unavailable, until these brokers are upgraded to this version.
pub async fn migrate(session: &PostgresSession, call_max: Duration) -> Result<i64, SchemaError> {
    upgrade(session, call_max, MIGRATIONS).await
}

/// Applies those `migrations` that the schema lacks, and returns the version before the upgrade.
pub async fn upgrade(session: &PostgresSession, call_max: Duration, migrations: &[&str]) -> Result<i64, SchemaError> {
    let known = FIRST_VERSION + migrations.len() as i64;
    session.query(&format!("BEGIN; SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"), call_max).await?;
    let found = match read(session, call_max).await? {
        Found::Version(version) => version,
        Found::Empty | Found::EmptySchema => return Err(SchemaError::Empty),
        Found::Foreign => return Err(SchemaError::Foreign),
    };
    if found > known {
        return Err(SchemaError::Newer(found));
    }
    let done = usize::try_from(found - FIRST_VERSION).map_err(|_| SchemaError::Unreleased(found))?;
    let statements = migrations[done..].join("\n;");
    let stamp = format!("UPDATE fullbore.schema_version SET version = {known}");
    // Wait for the metadata lock, so that the transaction that holds this lock can end first.
    let lock = "SELECT version FROM fullbore.cluster FOR UPDATE";
    session.query(&format!("{lock}; {statements}; {stamp}; COMMIT"), call_max).await?;
    Ok(found)
}

/// Checks that the second column of the only row is `SCHEMA_VERSION`.
pub fn check_schema(rows: &Rows) -> Result<(), StoreError> {
    let row = rows.first().ok_or_else(|| damaged("the row of the cluster is missing"))?;
    match number::<i64>(row, 1)? {
        SCHEMA_VERSION => Ok(()),
        found => Err(StoreError::Away(Outage::lasting(format!(
            "the database has schema {found} now, but this Fullbore knows only {SCHEMA_VERSION}"
        )))),
    }
}

fn one(answers: Vec<Rows>) -> Result<Rows, StoreError> {
    next(&mut answers.into_iter())
}
