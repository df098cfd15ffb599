//! Stores the index in PostgreSQL. A commit takes two round trips.
//!
//! Invariant: nothing is committed to a partition whose next offset is lower than this broker has seen before.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_rules::commit::{AppendedBatch, BatchRun, DisklessPartitionId, ObjectId, ObjectNumbers, ObjectState};
use fullbore_wire::Uuid;

use super::super::packed::{pack_producer, pack_run};
use super::super::store::{
    ClassicTails, CommitFound, CommitQuestion, CommitWrite, IndexStore, KnownStore, PartitionRow, ProducerRow,
    ProducerRowPlace, UnusedObject, length_bits,
};
use super::super::{damaged, random_numbers};
use super::guarded::Guarded;
use super::rows::{
    DELETE_FAILED, DELETED, IndexAnswers, LIVE, PARTITION, PRODUCER, REGISTERED, RUN, UNUSED, array, each, hex,
    partition, producer, run,
};
use super::{cleaning, topics};
use crate::append_clock::AppendClock;
use fullbore_db::postgres::rows::{Rows, next, number};
use fullbore_db::{CommitError, StoreError};

/// The index of a cluster, which this broker accesses over its own connection.
pub struct PostgresIndex {
    pub(super) session: Guarded,
    numbers: ObjectNumbers,
    /// The largest next offset of each partition that this broker has seen.
    ends: HashMap<DisklessPartitionId, i64>,
    /// True once this broker has deleted the partitions whose topics are not in the metadata. Each broker does so once
    /// after it starts.
    has_looked_for_unknown: bool,
}

impl PostgresIndex {
    /// Creates the index over this connection.
    pub fn new(session: Guarded) -> PostgresIndex {
        PostgresIndex { session, numbers: random_numbers(), ends: HashMap::new(), has_looked_for_unknown: false }
    }

    fn found(&mut self, question: &CommitQuestion, mut answers: IndexAnswers) -> Result<CommitFound, StoreError> {
        let partitions = each(&next(&mut answers)?, partition)?;
        let producers = each(&next(&mut answers)?, producer)?;
        let objects = match question.objects.is_empty() {
            true => HashMap::new(),
            false => objects(&next(&mut answers)?, &next(&mut answers)?)?,
        };
        self.check_ends(question, &partitions)?;
        Ok(CommitFound { partitions, producers, objects })
    }

    fn check_ends(&mut self, question: &CommitQuestion, found: &[PartitionRow]) -> Result<(), StoreError> {
        let known: HashMap<_, _> = question.partitions.iter().copied().collect();
        for row in found {
            let seen = self.ends.get(&row.id).copied().unwrap_or(0).max(known.get(&row.id).copied().unwrap_or(0));
            if row.next_offset < seen {
                let lacks = format!(
                    "partition {} ends at offset {} there, but ended at {seen} before",
                    row.id, row.next_offset
                );
                return Err(self.session.has_gone_back(&lacks, seen));
            }
        }
        for (id, _) in &question.partitions {
            self.ends.remove(id);
        }
        self.saw(found);
        Ok(())
    }

    fn saw(&mut self, rows: &[PartitionRow]) {
        self.ends.extend(rows.iter().map(|row| (row.id, row.next_offset)));
    }
}

impl IndexStore for PostgresIndex {
    fn begin(&mut self, question: &CommitQuestion) -> Result<CommitFound, StoreError> {
        // A request without objects commits nothing, and only reads the partitions and their producers. The read takes
        // no locks, so it does not wait for commits of other brokers.
        let is_read = question.objects.is_empty();
        let answers = match is_read {
            true => self.session.read(&query_partitions(question, ""))?,
            false => {
                let partitions = query_partitions(question, "FOR UPDATE OF p");
                self.session.begin(&format!("{partitions}; {}", query_objects(&question.objects)))?
            }
        };
        let found = self.found(question, answers);
        if found.is_err() {
            self.session.abandon();
        }
        found
    }

    fn commit(&mut self, write: &CommitWrite) -> Result<(), CommitError> {
        let mut statements =
            vec![set_partitions(write, &self.session), set_objects(write), add_runs(write), add_producers(write)];
        if !write.decision.aborted.is_empty() {
            statements.push(add_aborted(write));
        }
        self.session.end_counted(&statements.join("; "))?;
        self.saw(&write.partitions);
        Ok(())
    }

    fn abandon(&mut self) {
        self.session.abandon();
    }

    fn register(&mut self, count: usize, now_ms: i64) -> Result<Vec<ObjectId>, CommitError> {
        let drawn = self.numbers.draw(count, now_ms);
        cleaning::register(&mut self.session, &drawn)
    }

    fn create(&mut self, name: &str, topic_id: Uuid, count: i32) -> Result<Vec<PartitionRow>, CommitError> {
        topics::create(&mut self.session, name, topic_id, count)
    }

    fn succeed_classic(&mut self, name: &str, topic_id: Uuid, before: &[ClassicTails]) -> Result<(), CommitError> {
        topics::succeed_classic(&mut self.session, name, topic_id, before)
    }

    fn predecessors(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<ProducerRow>, StoreError> {
        topics::predecessors(&mut self.session, ids)
    }

    fn delete(&mut self, topic_id: Uuid, known: &[DisklessPartitionId]) -> Result<(), CommitError> {
        topics::delete(&mut self.session, topic_id)?;
        known.iter().for_each(|id| _ = self.ends.remove(id));
        Ok(())
    }

    fn move_log_starts(
        &mut self,
        moves: &[(DisklessPartitionId, i64)],
    ) -> Result<Vec<Option<PartitionRow>>, CommitError> {
        topics::move_log_starts(&mut self.session, moves)
    }

    fn clear(&mut self, runs_max: usize, _now_ms: i64) -> Result<bool, CommitError> {
        if !self.has_looked_for_unknown {
            // If this deletion fails, the other steps of the GC still run. The next call repeats the deletion.
            self.has_looked_for_unknown = topics::delete_unknown(&mut self.session).is_ok();
        }
        cleaning::clear(&mut self.session, runs_max)
    }

    fn retain_batches(&mut self, partitions: &[DisklessPartitionId], window: usize) -> Result<(), CommitError> {
        topics::retain_batches(&mut self.session, partitions, window)
    }

    fn producers_from(
        &mut self,
        id: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<ProducerRowPlace>, StoreError> {
        cleaning::producers_from(&mut self.session, id, offset, count)
    }

    fn remove_producers(&mut self, id: DisklessPartitionId, base_offsets: &[i64]) -> Result<(), CommitError> {
        cleaning::remove_producers(&mut self.session, id, base_offsets)
    }

    fn expire_producers(
        &mut self,
        after: DisklessPartitionId,
        before_ms: i64,
        producers_max: usize,
    ) -> Result<Option<(DisklessPartitionId, bool)>, CommitError> {
        cleaning::expire_producers(&mut self.session, after, before_ms, producers_max)
    }

    fn unused(&mut self, count: usize, for_ms: u64, _now_ms: i64) -> Result<Vec<UnusedObject>, CommitError> {
        cleaning::unused(&mut self.session, count, for_ms)
    }

    fn delete_failed(&mut self, ids: &[ObjectId], _now_ms: i64) -> Result<(), CommitError> {
        cleaning::delete_failed(&mut self.session, ids)
    }

    fn forget(&mut self, ids: &[ObjectId]) -> Result<(), CommitError> {
        cleaning::forget(&mut self.session, ids)
    }

    fn judged_at(&mut self, now_ms: i64) -> Result<i64, StoreError> {
        cleaning::clock_ms(&mut self.session).map(|clock_ms| now_ms.min(clock_ms))
    }

    fn append_clock(&self) -> Arc<AppendClock> {
        self.session.clock()
    }

    fn known_store(&mut self) -> Result<KnownStore, StoreError> {
        topics::known_store(&mut self.session)
    }

    fn adopt_store(&mut self, store_id: &str) -> Result<String, CommitError> {
        topics::adopt_store(&mut self.session, store_id)
    }
}

/// Returns two statements. The first reads the partitions, ordered by id. The second reads the rows of their producers,
/// in each partition from the known offset on.
fn query_partitions(question: &CommitQuestion, lock: &str) -> String {
    let ids = array(question.partitions.iter().map(|(id, _)| id));
    let known = array(question.partitions.iter().map(|(_, known_to)| known_to));
    // `LATERAL` makes PostgreSQL search the primary key once for each partition, whatever the planner estimates for all
    // partitions together.
    format!(
        "SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.id = ANY({ids}::bigint[]) ORDER BY p.id {lock};
         SELECT {PRODUCER} FROM unnest({ids}::bigint[], {known}::bigint[]) AS known (id, known_to)
           CROSS JOIN LATERAL (SELECT * FROM fullbore.diskless_producers AS of
             WHERE of.partition = known.id AND of.base_offset >= known.known_to ORDER BY of.base_offset) AS r
           ORDER BY r.partition, r.base_offset"
    )
}

/// Returns two statements. The first reads and locks the objects, so that no object is both committed and deleted. The
/// second reads the extents of those objects that are committed.
fn query_objects(ids: &[ObjectId]) -> String {
    let ids = array(ids.iter());
    format!(
        "SELECT id, state FROM fullbore.diskless_objects WHERE id = ANY({ids}::bigint[]) ORDER BY id FOR UPDATE;
         SELECT {RUN} FROM fullbore.diskless_runs WHERE object = ANY({ids}::bigint[]) ORDER BY object, position"
    )
}

fn objects(states: &Rows, runs: &Rows) -> Result<HashMap<ObjectId, ObjectState>, StoreError> {
    let mut of: HashMap<ObjectId, Vec<BatchRun>> = HashMap::new();
    for run in each(runs, run)? {
        of.entry(run.object).or_default().push(run);
    }
    let mut found = HashMap::new();
    for (id, state) in each(states, |row| Ok((number(row, 0)?, number(row, 1)?)))? {
        let state = match state {
            REGISTERED => ObjectState::Registered,
            LIVE | UNUSED => ObjectState::Live(of.remove(&id).unwrap_or_default()),
            DELETED | DELETE_FAILED => ObjectState::Gone,
            other => return Err(damaged(format!("object {id} has state {other}"))),
        };
        found.insert(id, state);
    }
    Ok(found)
}

fn set_partitions(write: &CommitWrite, session: &Guarded) -> String {
    let rows = &write.partitions;
    format!(
        "UPDATE fullbore.diskless_partitions AS p SET next_offset = after.next_offset, bytes = after.bytes,
           max_timestamp = after.max_timestamp, has_forgotten = after.has_forgotten,
           first_unstable = nullif(after.first_unstable, -1), aborted_to = after.aborted_to, {}
         FROM unnest({}::bigint[], {}::bigint[], {}::bigint[], {}::bigint[], {}::boolean[], {}::bigint[], {}::bigint[])
           AS after (id, next_offset, bytes, max_timestamp, has_forgotten, first_unstable, aborted_to) WHERE p.id = after.id",
        session.changed_by(),
        array(rows.iter().map(|row| row.id)),
        array(rows.iter().map(|row| row.next_offset)),
        array(rows.iter().map(|row| row.bytes)),
        array(rows.iter().map(|row| row.max_timestamp)),
        array(rows.iter().map(|row| row.has_forgotten)),
        array(rows.iter().map(|row| row.first_unstable.unwrap_or(-1))),
        array(rows.iter().map(|row| row.aborted_to)),
    )
}

fn set_objects(write: &CommitWrite) -> String {
    let objects = &write.decision.objects;
    // An object without live bytes has no extents. Mark it as unused here, because no later removal of an extent will
    // do so.
    let state = |live_bytes: i64| if live_bytes > 0 { LIVE } else { UNUSED };
    format!(
        "UPDATE fullbore.diskless_objects AS o
           SET state = after.state, live_bytes = after.live_bytes, changed_at = clock_timestamp()
         FROM unnest({}::bigint[], {}::integer[], {}::bigint[]) AS after (id, state, live_bytes) WHERE o.id = after.id",
        array(objects.iter().map(|object| object.id)),
        array(objects.iter().map(|object| state(object.live_bytes))),
        array(objects.iter().map(|object| object.live_bytes)),
    )
}

fn add_runs(write: &CommitWrite) -> String {
    let runs = &write.decision.runs;
    format!(
        "INSERT INTO fullbore.diskless_runs (partition, base_offset, object, position, max_timestamp_so_far, batches)
         SELECT partition, base_offset, object, position, max_timestamp_so_far, decode(batches, 'hex')
         FROM unnest({}::bigint[], {}::bigint[], {}::bigint[], {}::bigint[], {}::bigint[], {}::text[])
           AS run (partition, base_offset, object, position, max_timestamp_so_far, batches)",
        array(runs.iter().map(|run| run.partition)),
        array(runs.iter().map(|run| run.base_offset)),
        array(runs.iter().map(|run| run.object)),
        array(runs.iter().map(|run| run.position)),
        array(runs.iter().map(|run| run.max_timestamp_so_far)),
        array(runs.iter().map(|run| hex(&pack_run(&run.batches)))),
    )
}

fn add_producers(write: &CommitWrite) -> String {
    let first_offset = |batches: &[AppendedBatch]| batches.first().map(|batch| batch.base_offset);
    let producers = write.decision.producers.iter();
    let rows: Vec<_> = producers.filter_map(|of| Some((of, first_offset(&of.batches)?))).collect();
    format!(
        "INSERT INTO fullbore.diskless_producers (partition, base_offset, producer_id, written_ms, batches)
         SELECT partition, base_offset, producer_id, {}, decode(batches, 'hex')
         FROM unnest({}::bigint[], {}::bigint[], {}::bigint[], {}::text[])
           AS of (partition, base_offset, producer_id, batches)",
        write.now_ms,
        array(rows.iter().map(|(of, _)| of.partition)),
        array(rows.iter().map(|(_, base_offset)| base_offset)),
        array(rows.iter().map(|(of, _)| of.producer_id)),
        array(rows.iter().map(|(of, _)| hex(&pack_producer(&of.batches)))),
    )
}

fn add_aborted(write: &CommitWrite) -> String {
    let rows = || write.decision.aborted.iter();
    format!(
        "INSERT INTO fullbore.diskless_aborted
           (partition, last_offset, first_offset, last_stable_offset, producer_id, length_bits)
         SELECT * FROM unnest({}::bigint[], {}::bigint[], {}::bigint[], {}::bigint[], {}::bigint[], {}::smallint[])",
        array(rows().map(|of| of.partition)),
        array(rows().map(|of| of.transaction.last_offset)),
        array(rows().map(|of| of.transaction.first_offset)),
        array(rows().map(|of| of.transaction.last_stable_offset)),
        array(rows().map(|of| of.transaction.producer_id)),
        array(rows().map(|of| length_bits(&of.transaction))),
    )
}
