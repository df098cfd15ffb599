//! Accepts a database that is an older copy, after the newest one was lost. All brokers must be stopped.
//!
//! The data directories of the brokers name versions and numbers that the copy lacks. Therefore the copy skips all
//! numbers that brokers may have used since: versions of the metadata, leader epochs, ids of producers, and the numbers
//! of changes to diskless topics. Changes made since the copy stay lost. Invariant: no number is used for two changes.
//!
//! A broker that was frozen sends no heartbeats, so it may still run. When it continues, it commits nothing to the
//! copy: its process is not registered, so it ends. Until then the index refuses it because of the skipped numbers.
//!
//! Diskless partitions keep their leader epochs, since no replica leads them. With a later epoch, consumers would read
//! all their records again.
//!
//! The copy does not know which replicas were in sync at the end, so none counts as such. Every data directory counts
//! as an older copy, and the longest log of a partition leads it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::offline::IS_CLASSIC;
use super::{LOCK, UnusableDatabase};
use crate::image::FIRST_LEADER_EPOCH_MAX;
use fullbore_config::PlaneSettings;
use fullbore_db::StoreError;
use fullbore_db::postgres::rows::{next, number};
use fullbore_db::postgres::schema::{self, CHANGES_SKIPPED, Found, check_schema};
use fullbore_db::postgres::{PostgresSession, QueryError, Server, damaged};

/// How many versions are skipped. A cluster that commits ten times a second needs four months for as many. Leader
/// epochs of topics that are created again come from versions and have only 32 bits, so no more can be skipped.
const VERSIONS_SKIPPED: i64 = 100_000_000;
/// How many ids of producers are skipped.
const IDS_SKIPPED: i64 = 1_000_000_000;
/// How many epochs of each partition are skipped, beyond those in which a topic may have been created again.
const EPOCHS_SKIPPED: i32 = 100_000;
/// A broker runs if its last heartbeat is not older than this.
const ALIVE_MAX: Duration = Duration::from_secs(10);

/// The versions of the metadata before and after an older copy was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedCopy {
    /// The newest version that the copy had.
    pub before: i64,
    /// The version from which brokers continue.
    pub now: i64,
}

/// Accepts the database of these settings, so that brokers start on it although it lacks changes that they have seen.
/// Blocks.
///
/// # Errors
/// Returns [`UnusableDatabase`] if a broker runs, or if the database cannot be used. The database is unchanged then.
pub fn accept_copy(settings: &PlaneSettings) -> Result<AcceptedCopy, UnusableDatabase> {
    let server = Server::new(settings, "fullbore admin accept-copy").map_err(|bad| UnusableDatabase::Away(bad.0))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| UnusableDatabase::Away(error.to_string()))?.block_on(accept(&Arc::new(server)))
}

async fn accept(server: &Server) -> Result<AcceptedCopy, UnusableDatabase> {
    let away = |error: QueryError| UnusableDatabase::Away(error.words);
    let session = PostgresSession::open(server, "", watch::channel(0).0).await.map_err(away)?;
    match schema::read(&session, server.call_max).await? {
        Found::Version(_) => {}
        Found::Empty | Found::EmptySchema => return Err(UnusableDatabase::EmptyCopy),
        Found::Foreign => return Err(UnusableDatabase::Foreign),
    }
    let alive = format!(
        "SELECT broker_id FROM fullbore.beats WHERE at > clock_timestamp() - interval '{} seconds' ORDER BY at DESC",
        ALIVE_MAX.as_secs()
    );
    // If this function returns early, the end of the session rolls the transaction back.
    let answers = session.query(&format!("BEGIN; {LOCK}; {alive}"), server.call_max).await.map_err(away)?;
    let mut answers = answers.into_iter();
    let locked = next(&mut answers)?;
    check_schema(&locked)?;
    let before = number(locked.first().ok_or_else(|| damaged("the row of the cluster is missing"))?, 0)?;
    if let Some(row) = next(&mut answers)?.first() {
        return Err(UnusableDatabase::InUse(number(row, 0)?));
    }
    let now = i64::checked_add(before, VERSIONS_SKIPPED)
        .ok_or_else(|| StoreError::Damaged("its version is too large".into()))?;
    session.query(&skipping(now), server.call_max).await.map_err(away)?;
    Ok(AcceptedCopy { before, now })
}

/// Returns the statements that skip the numbers. The new version has no list of changes, so brokers read everything.
fn skipping(now: i64) -> String {
    let again = now.saturating_mul(2).min(i64::from(FIRST_LEADER_EPOCH_MAX));
    format!(
        "UPDATE fullbore.partitions
           SET leader_epoch = greatest(leader_epoch, {again}) + {EPOCHS_SKIPPED},
             partition_epoch = partition_epoch + {EPOCHS_SKIPPED}
           FROM fullbore.topics WHERE topics.id = topic_id AND {IS_CLASSIC};
         UPDATE fullbore.brokers SET process =
           translate(rtrim(encode(decode(md5(random()::text || broker_id), 'hex'), 'base64'), '='), '+/', '-_');
         DELETE FROM fullbore.log_ends;
         INSERT INTO fullbore.diskless_brokers (broker_id, counter) SELECT broker_id, 0 FROM fullbore.brokers
           ON CONFLICT DO NOTHING;
         UPDATE fullbore.diskless_brokers SET counter = counter + {CHANGES_SKIPPED};
         DELETE FROM fullbore.versions;
         INSERT INTO fullbore.versions (version, mark, at) VALUES
           ({now}, ('x' || left(md5(random()::text || clock_timestamp()::text), 16))::bit(64)::bigint, clock_timestamp());
         UPDATE fullbore.cluster SET version = {now}, next_producer_id = next_producer_id + {IDS_SKIPPED};
         COMMIT"
    )
}
