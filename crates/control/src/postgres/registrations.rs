//! Writes changed registrations to the rows of partitions. The number of statements does not depend on the number of
//! partitions.
//!
//! Consecutive partitions with equal registrations share one row. A stretch is a range of consecutive partitions that
//! change. Invariant: after each change, every partition is in exactly one row.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::Uuid;

use super::super::change::Partitions;
use super::record;
use fullbore_db::postgres::statements::{Statements, Value};

/// The ranges of consecutive partitions that change (*stretches*). They do not overlap.
#[derive(Default)]
pub struct Registrations {
    /// The end (exclusive) of each range of changed partitions. The key is the topic and the number of the range's
    /// first partition.
    stretches: BTreeMap<(Uuid, usize), usize>,
    rows: Vec<Row>,
}

/// Consecutive partitions with equal registrations.
struct Row {
    topic: Uuid,
    first: usize,
    count: usize,
    registered: Arc<PartitionRegistration>,
}

/// A range of a topic's partitions.
struct Span {
    topic: Uuid,
    first: usize,
    end: usize,
}

impl Registrations {
    /// Adds partitions of a topic, whose numbers begin at `first`. If one of them was added before, adds none and
    /// returns false.
    pub fn add(&mut self, topic: Uuid, first: usize, partitions: &Partitions) -> bool {
        let end = first + partitions.len();
        let before = self.stretches.range(..(topic, end)).next_back();
        if before.is_some_and(|((other, _), before_end)| *other == topic && *before_end > first) {
            return false;
        }
        self.stretches.insert((topic, first), end);
        let row = |(number, count, registered): (usize, usize, &Arc<PartitionRegistration>)| Row {
            topic,
            first: first + number,
            count,
            registered: Arc::clone(registered),
        };
        self.rows.extend(record::runs(partitions).into_iter().map(row));
        true
    }

    /// Adds the statements that write the new registrations of all added partitions.
    pub fn write(self, statements: &mut Statements) {
        if self.rows.is_empty() {
            return;
        }
        self.cut(statements);
        self.insert(statements);
        self.delete_covered(statements);
        self.forget_log_ends(statements);
    }

    /// Splits each row that contains the start or end of a range of changed partitions. Afterwards each row is
    /// completely inside or outside such a range.
    fn cut(&self, statements: &mut Statements) {
        let bound = |topic: &Uuid, number: usize| Span { topic: *topic, first: number, end: number };
        let bounds = self.stretches.iter().flat_map(|((topic, first), end)| [bound(topic, *first), bound(topic, *end)]);
        begin_with(statements, bounds.collect());
        statements.add(
            ", cut AS MATERIALIZED (
               SELECT kept.*, number, coalesce(lead(number) OVER numbers, kept.first + kept.count) AS next,
                 first_value(number) OVER numbers AS nearest
               FROM (SELECT DISTINCT topic_id, first AS number FROM span) bound CROSS JOIN LATERAL (
                 SELECT * FROM fullbore.partitions WHERE topic_id = bound.topic_id AND first < number
                   ORDER BY first DESC LIMIT 1) kept
               WHERE kept.first + kept.count > number
               WINDOW numbers AS (PARTITION BY kept.topic_id, kept.first ORDER BY number)),
             shorter AS (
               UPDATE fullbore.partitions SET count = nearest - cut.first FROM cut
               WHERE number = nearest AND partitions.topic_id = cut.topic_id AND partitions.first = cut.first)
             INSERT INTO fullbore.partitions
               (topic_id, first, count, replicas, isr, elr, lost, leader, leader_epoch, partition_epoch)
             SELECT topic_id, number, next - number, replicas, isr, elr, lost, leader, leader_epoch, partition_epoch
               FROM cut",
            &[],
        );
    }

    /// Adds the statement that inserts the rows. If the table already has a row with the same first partition, the
    /// statement updates that row instead, which saves the check of the foreign key.
    pub fn insert(&self, statements: &mut Statements) {
        if self.rows.is_empty() {
            return;
        }
        // Many rows have the same brokers, so send each distinct set of broker lists only once. Send the rows as arrays
        // of numbers, which the database parses fastest.
        let (mut lists, mut numbers): (Vec<&PartitionRegistration>, _) = (Vec::new(), HashMap::new());
        let mut of_rows: Vec<i32> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let of = &*row.registered;
            let number = numbers.entry((&of.replicas, &of.isr, &of.elr, &of.lost)).or_insert_with(|| {
                lists.push(of);
                integer(lists.len())
            });
            of_rows.push(*number);
        }
        let spans = self.rows.iter().map(|row| Span { topic: row.topic, first: row.first, end: row.first + row.count });
        begin_with(statements, spans.collect());
        statements.fill(", lists (number, replicas, isr, elr, lost) AS (VALUES ", &[]);
        statements.list(lists.iter().enumerate(), |statements, (at, of)| {
            let number = integer(at + 1);
            let values: [&dyn Value; 5] = [&number, &of.replicas, &of.isr, &of.elr, &of.lost];
            statements.fill("(?,?::int[],?::int[],?::int[],?::int[])", &values);
        });
        let of = |of: fn(&PartitionRegistration) -> i32| -> Vec<i32> {
            self.rows.iter().map(|row| of(&row.registered)).collect()
        };
        let leaders: Vec<Option<i32>> = self.rows.iter().map(|row| row.registered.leader).collect();
        let (leader_epochs, partition_epochs) = (of(|of| of.leader_epoch), of(|of| of.partition_epoch));
        statements.add(
            ") INSERT INTO fullbore.partitions
               (topic_id, first, count, replicas, isr, elr, lost, leader, leader_epoch, partition_epoch)
             SELECT topic_id, first, upto - first, replicas, isr, elr, lost, leader, leader_epoch, partition_epoch
               FROM span
               JOIN unnest(?::int[], ?::int[], ?::int[], ?::int[])
                 WITH ORDINALITY state (list, leader, leader_epoch, partition_epoch, place) ON state.place = span.place
               JOIN lists ON lists.number = state.list
             ON CONFLICT (topic_id, first) DO UPDATE SET count = excluded.count, replicas = excluded.replicas,
               isr = excluded.isr, elr = excluded.elr, lost = excluded.lost, leader = excluded.leader,
               leader_epoch = excluded.leader_epoch, partition_epoch = excluded.partition_epoch",
            &[&of_rows, &leaders, &leader_epochs, &partition_epochs],
        );
    }

    /// Deletes the old rows whose first partition is inside one of the new rows.
    fn delete_covered(&self, statements: &mut Statements) {
        let covered = |row: &Row| Span { topic: row.topic, first: row.first + 1, end: row.first + row.count };
        let covered = self.rows.iter().filter(|row| row.count > 1).map(covered);
        let rows = "SELECT ctid FROM fullbore.partitions
            WHERE topic_id = span.topic_id AND first >= span.first AND first < span.upto";
        delete_within(statements, "fullbore.partitions", covered.collect(), rows);
    }

    /// Deletes the reported log ends of partitions that now have a leader.
    fn forget_log_ends(&self, statements: &mut Statements) {
        let mut led: Vec<Span> = Vec::new();
        for Row { topic, first, count, .. } in self.rows.iter().filter(|row| row.registered.leader.is_some()) {
            match led.last_mut() {
                Some(last) if last.topic == *topic && last.end == *first => last.end += count,
                _ => led.push(Span { topic: *topic, first: *first, end: first + count }),
            }
        }
        let rows = "SELECT ctid FROM fullbore.log_ends
            WHERE topic_id = span.topic_id AND partition >= span.first AND partition < span.upto";
        delete_within(statements, "fullbore.log_ends", led, rows);
    }
}

/// Begins a statement with a table `span` of these ranges. Its columns are topic_id, first, upto and place, where place
/// is the number of the range, from 1.
fn begin_with(statements: &mut Statements, spans: Vec<Span>) {
    let mut topics: Vec<Uuid> = spans.iter().map(|span| span.topic).collect();
    topics.sort_unstable();
    topics.dedup();
    let number_of = |span: &Span| topics.binary_search(&span.topic).map_or(0, |at| integer(at + 1));
    let numbers: Vec<i32> = spans.iter().map(number_of).collect();
    let [firsts, ends]: [Vec<i32>; 2] =
        [spans.iter().map(|span| integer(span.first)).collect(), spans.iter().map(|span| integer(span.end)).collect()];
    statements.fill("WITH topic (number, id) AS (VALUES ", &[]);
    statements.list(topics.iter().enumerate(), |statements, (at, topic)| {
        statements.fill("(?,?)", &[&integer(at + 1), topic]);
    });
    statements.fill(
        "), span AS (
           SELECT topic.id AS topic_id, first, upto, place
           FROM unnest(?::int[], ?::int[], ?::int[]) WITH ORDINALITY given (topic, first, upto, place)
             JOIN topic ON topic.number = given.topic)",
        &[&numbers, &firsts, &ends],
    );
}

/// Converts a number of partitions or rows. These numbers always fit into an i32.
fn integer(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Adds a statement that deletes rows from `table`. The query `rows` finds the rows of each span. If the table is
/// empty, the database skips the search.
fn delete_within(statements: &mut Statements, table: &str, spans: Vec<Span>, rows: &str) {
    if spans.is_empty() {
        return;
    }
    begin_with(statements, spans);
    // With OFFSET 0, the planner uses the index for each span, even if the table's statistics are outdated.
    let delete = format!(
        " DELETE FROM {table} WHERE ctid = ANY (ARRAY(
            SELECT found.ctid FROM span CROSS JOIN LATERAL ({rows} OFFSET 0) found WHERE EXISTS (SELECT FROM {table})))"
    );
    statements.add(&delete, &[]);
}
