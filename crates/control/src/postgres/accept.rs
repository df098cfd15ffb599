//! Accepts a database that is an older copy, after the newest one was lost. All brokers must be stopped.
//!
//! The brokers' data directories contain versions and numbers that the copy lacks. Therefore the copy skips all numbers
//! that brokers may have used since: metadata versions, leader epochs, producer ids, and the numbers of changes to
//! diskless topics. Changes that were made after the copy remain lost. Invariant: no number is used for two changes,
//! and no classic partition is in the same leader epoch twice. The copy stores the acceptance ([`CopyAcceptance`]),
//! since partitions that are added or created later must also begin above the skipped epochs.
//!
//! A frozen broker sends no heartbeats, so the check for running brokers does not find it. When it continues, it
//! commits nothing to the copy: its process is no longer registered, so it ends. Until then the index refuses its
//! changes because of the skipped numbers.
//!
//! Diskless partitions keep their leader epochs, since no replica leads them. With a later epoch, consumers would read
//! all their records again.
//!
//! The copy does not show which replicas were in sync at the end, so no replica counts as in sync. Every data directory
//! counts as an older copy, and the replica with the longest log leads a partition.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::offline::IS_CLASSIC;
use super::write::copy_acceptance;
use super::{LOCK, UnusableDatabase};
use crate::change::{ACCEPTANCE_RESOURCE, CopyAcceptance};
use crate::image::FIRST_LEADER_EPOCH_MAX;
use fullbore_config::PlaneSettings;
use fullbore_db::StoreError;
use fullbore_db::postgres::rows::{next, number, optional, optional_number};
use fullbore_db::postgres::schema::{self, CHANGES_SKIPPED, Found, check_schema};
use fullbore_db::postgres::statements::Statements;
use fullbore_db::postgres::{PostgresSession, QueryError, Server, damaged};

/// Number of skipped versions. A cluster with ten commits per second needs four months for this many. A larger number
/// is not possible, because the leader epochs of recreated topics are computed from versions and have only 32 bits.
const VERSIONS_SKIPPED: i64 = 100_000_000;
/// Number of skipped producer ids.
const IDS_SKIPPED: i64 = 1_000_000_000;
/// Minimum number of skipped leader epochs. Many more are skipped while the version number is below 400 million.
const EPOCHS_SKIPPED: i32 = 100_000;
/// Maximum age of the last heartbeat of a broker that counts as running.
const ALIVE_MAX: Duration = Duration::from_secs(10);

/// The metadata versions before and after an older copy was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedCopy {
    /// The newest version that the copy had.
    pub before: i64,
    /// The version from which the brokers continue.
    pub now: i64,
}

/// Accepts the configured database, so that brokers start with it although it lacks changes that they have seen.
/// Blocks.
///
/// # Errors
/// Returns [`UnusableDatabase`] if a broker is running, or if the database cannot be used. In both cases the database
/// is unchanged.
pub fn accept_copy(settings: &PlaneSettings) -> Result<AcceptedCopy, UnusableDatabase> {
    let server =
        Server::new(settings, "fullbore admin accept-copy").map_err(|bad| UnusableDatabase::Away(bad.0.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| UnusableDatabase::Away(error.to_string().into()))?.block_on(accept(&Arc::new(server)))
}

async fn accept(server: &Server) -> Result<AcceptedCopy, UnusableDatabase> {
    let away = |error: QueryError| UnusableDatabase::Away(error.outage());
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
    // If this function returns early, the session ends and the server rolls the transaction back.
    let epochs = format!(
        "SELECT max(leader_epoch), floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
           (SELECT value FROM fullbore.resource_configs WHERE resource_type = {ACCEPTANCE_RESOURCE})
           FROM fullbore.partitions"
    );
    let answers = session.query(&format!("BEGIN; {LOCK}; {alive}; {epochs}"), server.call_max).await.map_err(away)?;
    let mut answers = answers.into_iter();
    let locked = next(&mut answers)?;
    check_schema(&locked)?;
    let before = number(locked.first().ok_or_else(|| damaged("the row of the cluster is missing"))?, 0)?;
    if let Some(row) = next(&mut answers)?.first() {
        return Err(UnusableDatabase::InUse(number(row, 0)?));
    }
    let now = i64::checked_add(before, VERSIONS_SKIPPED)
        .ok_or_else(|| StoreError::Damaged("its version is too large".into()))?;
    let epochs = next(&mut answers)?;
    let row = epochs.first().ok_or_else(|| damaged("no answer"))?;
    let last = optional(row, 2)?.and_then(CopyAcceptance::parse).map(|last| last.first_leader_epoch);
    let accepted = CopyAcceptance {
        version: now.cast_unsigned(),
        first_leader_epoch: first_leader_epoch(now, optional_number(row, 0)?.max(last)),
        at_ms: number(row, 1)?,
    };
    session.query(&skipping(now, accepted), server.call_max).await.map_err(away)?;
    Ok(AcceptedCopy { before, now })
}

/// Returns the leader epoch from which classic partitions continue at version `now`. `newest` is the newest epoch in
/// the copy. An epoch is at most twice the version number, so twice `now` is larger than all epochs that the copy
/// lacks. With very large version numbers, epochs are no longer computed from versions. In that case the result is at
/// least `newest` plus a fixed number.
fn first_leader_epoch(now: i64, newest: Option<i32>) -> i32 {
    let raised = now.saturating_mul(2).min(i64::from(FIRST_LEADER_EPOCH_MAX));
    let raised = i32::try_from(raised).unwrap_or(FIRST_LEADER_EPOCH_MAX);
    newest.map_or(raised, |newest| newest.saturating_add(EPOCHS_SKIPPED).max(raised))
}

/// Returns the statements that raise versions, epochs and other counters above all numbers that brokers may have used.
/// The new version has no list of changes, so that brokers read the whole state.
fn skipping(now: i64, accepted: CopyAcceptance) -> String {
    let mut keep = Statements::default();
    copy_acceptance(&mut keep, &accepted);
    let (keep, first) = (keep.text(), accepted.first_leader_epoch);
    format!(
        "UPDATE fullbore.partitions
           SET leader_epoch = {first}, partition_epoch = partition_epoch + {EPOCHS_SKIPPED}
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
         {keep}
         COMMIT"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_epoch_after_a_copy_is_above_all_epochs_of_versions_that_it_lacks() {
        let now = 7 + VERSIONS_SKIPPED;
        for newest in [None, Some(0), Some(14)] {
            assert_eq!(first_leader_epoch(now, newest), 200_000_014);
        }
        // At this version, leader epochs have reached their limit and are no longer computed from versions.
        let (now, first) = (20 * VERSIONS_SKIPPED, FIRST_LEADER_EPOCH_MAX);
        assert_eq!(first_leader_epoch(now, None), first);
        assert_eq!(first_leader_epoch(now, Some(first + 5)), first + 5 + EPOCHS_SKIPPED);
        assert_eq!(first_leader_epoch(i64::MAX, Some(i32::MAX)), i32::MAX);
    }

    #[test]
    fn acceptance_is_read_as_written() {
        let accepted = CopyAcceptance { version: u64::MAX, first_leader_epoch: 7, at_ms: -1 };
        assert_eq!(CopyAcceptance::parse(&accepted.text()), Some(accepted));
        assert_eq!(CopyAcceptance::parse("7 8"), None);
    }
}
