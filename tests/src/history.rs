//! The history of one transactional id as its clients saw it, and a check of the guarantees of transactions.
//!
//! In each transaction, a client copies numbers and commits its group's offset. If a transaction is not committed,
//! its numbers are copied again later. Invariant: this module sends no request.

use std::collections::{BTreeMap, BTreeSet};

/// Outcome of a transaction as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client did not request a commit.
    Aborted,
    /// The broker acknowledged the commit.
    Committed,
    /// The client requested a commit and got no response. The output must have all records of the transaction or none.
    InDoubt,
}

/// A transaction as its client saw it.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The partition and value of each record, in the order of sending. Every value is unique in the history.
    pub records: Vec<(i32, String)>,
    /// The offset that the transaction commits for the group.
    pub offset: i64,
    pub outcome: Outcome,
}

/// Offsets in a leader's response. The key is the broker id, partition and leader epoch, and the values are the last
/// stable offset and the high watermark.
pub type Reported = ((i32, i32, i32), (i64, i64));

/// The history of one transactional id.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// All transactions, in order.
    pub attempts: Vec<Attempt>,
    /// The partition and value of each record that a read_committed consumer gets at the end. The records of each
    /// partition are in order.
    pub found: Vec<(i32, String)>,
    /// The partition and value of each record that a second read_committed consumer has read. This consumer reads
    /// during the whole run.
    pub polled: Vec<(i32, String)>,
    /// The group's committed offset at the end.
    pub offset: i64,
    /// The last stable offset and end offset of each partition at the end.
    pub ends: BTreeMap<i32, (i64, i64)>,
    /// The offsets that leaders have reported, in the order of their responses.
    pub reported: Vec<Reported>,
}

impl History {
    /// Checks all promises and returns a line for each broken one.
    pub fn violations(&self) -> Vec<String> {
        [self.torn(), self.untrue(), self.out_of_order(), self.differing(), self.misplaced_offset(), self.unstable()]
            .concat()
    }

    fn is_there(&self) -> BTreeMap<&(i32, String), usize> {
        let mut there = BTreeMap::new();
        self.found.iter().for_each(|record| *there.entry(record).or_default() += 1);
        there
    }

    /// Reports transactions that the output contradicts. The output must have all records of a committed transaction
    /// once, none of an aborted one, and all or none of one in doubt.
    fn torn(&self) -> Vec<String> {
        let there = self.is_there();
        let mut violations = Vec::new();
        for attempt in &self.attempts {
            let counts: BTreeSet<usize> =
                attempt.records.iter().map(|record| there.get(record).copied().unwrap_or_default()).collect();
            let allowed: &[usize] = match attempt.outcome {
                Outcome::Aborted => &[0],
                Outcome::Committed => &[1],
                Outcome::InDoubt => &[0, 1],
            };
            if counts.len() > 1 || counts.iter().any(|count| !allowed.contains(count)) {
                violations.push(format!("{attempt:?} is there {counts:?} times"));
            }
        }
        violations
    }

    /// Reports numbers in the output that the client never sent.
    fn untrue(&self) -> Vec<String> {
        let sent: BTreeSet<_> = self.attempts.iter().flat_map(|attempt| &attempt.records).collect();
        let untrue = self.found.iter().filter(|record| !sent.contains(record));
        untrue.map(|record| format!("{record:?} was never sent")).collect()
    }

    /// Reports records of a partition that are in another order than they were sent.
    fn out_of_order(&self) -> Vec<String> {
        let sent = self.attempts.iter().flat_map(|attempt| &attempt.records).zip(0..);
        let order: BTreeMap<_, usize> = sent.collect();
        let mut last = BTreeMap::new();
        let mut violations = Vec::new();
        for record in &self.found {
            let Some(&place) = order.get(record) else { continue };
            if let Some(before) = last.insert(record.0, place).filter(|before| *before >= place) {
                violations.push(format!("{record:?} comes after number {before}"));
            }
        }
        violations
    }

    /// Reports differences between the consumer that read during the run and the one that read at the end.
    fn differing(&self) -> Vec<String> {
        let of = |records: &[(i32, String)], partition| {
            let of = records.iter().filter(|record| record.0 == partition);
            of.map(|record| record.1.clone()).collect::<Vec<_>>()
        };
        let partitions: BTreeSet<i32> = self.polled.iter().map(|record| record.0).collect();
        let differs = |partition: &i32| !of(&self.found, *partition).starts_with(&of(&self.polled, *partition));
        partitions
            .into_iter()
            .filter(differs)
            .map(|partition| format!("{partition} was read otherwise before"))
            .collect()
    }

    /// Reports a committed offset of the group other than that of the last transaction in the output.
    fn misplaced_offset(&self) -> Vec<String> {
        let there = self.is_there();
        let is_there = |attempt: &&Attempt| attempt.records.iter().any(|record| there.contains_key(record));
        let last = self.attempts.iter().rfind(is_there).map_or(0, |attempt| attempt.offset);
        if last == self.offset { Vec::new() } else { vec![format!("the offset is {}, not {last}", self.offset)] }
    }

    /// Reports last stable offsets that exceed the high watermark, or decrease within a leader epoch. At the end, they
    /// must equal the end offsets.
    fn unstable(&self) -> Vec<String> {
        let mut latest: BTreeMap<_, (i64, i64)> = BTreeMap::new();
        let mut violations = Vec::new();
        for (of, (stable, high_watermark)) in &self.reported {
            let before = latest.insert(*of, (*stable, *high_watermark));
            if stable > high_watermark || before.is_some_and(|before| before.0 > *stable) {
                violations.push(format!("{of:?} was stable up to {stable} of {high_watermark}, and before {before:?}"));
            }
        }
        let short = self.ends.iter().filter(|(_, (stable, end))| stable != end);
        violations.extend(short.map(|(of, (stable, end))| format!("{of} is stable up to {stable} of {end}")));
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a history of two committed transactions with an aborted one between them, followed by one in doubt.
    fn seen() -> History {
        let outcomes = [Outcome::Committed, Outcome::Aborted, Outcome::Committed, Outcome::InDoubt];
        let attempt = |(at, outcome)| Attempt {
            records: (0..4).map(|n| (n % 2, format!("{n}.{at}"))).collect(),
            offset: [4, 8, 8, 12][at],
            outcome,
        };
        let attempts: Vec<Attempt> = outcomes.into_iter().enumerate().map(attempt).collect();
        let found: Vec<_> = [0, 2].into_iter().flat_map(|at: usize| attempts[at].records.clone()).collect();
        let reported = [(0, 2), (2, 4), (4, 4)].map(|marks| ((1, 0, 0), marks)).to_vec();
        let ends = BTreeMap::from([(0, (6, 6)), (1, (6, 6))]);
        History { polled: found[..5].to_vec(), found, attempts, offset: 8, ends, reported }
    }

    #[test]
    fn kept_promises_give_no_violation() {
        assert_eq!(seen().violations(), [""; 0]);
        let mut in_doubt = seen();
        in_doubt.found.extend(in_doubt.attempts[3].records.clone());
        in_doubt.offset = 12;
        assert_eq!(in_doubt.violations(), [""; 0]);
    }

    #[test]
    fn each_mutation_of_a_history_gives_its_violation() {
        type Plant = fn(&mut History);
        let plants: [(&str, Plant); 14] = [
            ("times", |seen| _ = seen.found.remove(2)),
            ("times", |seen| seen.found.truncate(4)),
            ("times", |seen| seen.found.push(seen.found[7].clone())),
            ("times", |seen| seen.found.insert(4, seen.attempts[1].records[0].clone())),
            ("times", |seen| seen.found.extend(seen.attempts[3].records[..2].to_vec())),
            ("was never sent", |seen| seen.found[3].1.push('x')),
            ("was never sent", |seen| seen.found[3].0 = 0),
            ("comes after", |seen| seen.found.swap(0, 2)),
            ("was read otherwise", |seen| seen.polled.insert(4, seen.attempts[1].records[0].clone())),
            ("was read otherwise", |seen| _ = seen.polled.remove(0)),
            ("the offset is", |seen| seen.offset = 12),
            ("the offset is", |seen| seen.offset = 4),
            ("was stable up to", |seen| seen.reported.swap(0, 1)),
            ("is stable up to", |seen| seen.ends = BTreeMap::from([(0, (5, 6))])),
        ];
        for (expected, plant) in plants {
            let mut seen = seen();
            plant(&mut seen);
            let violations = seen.violations();
            assert!(violations.iter().any(|line| line.contains(expected)), "{expected}: {violations:?}");
        }
        let mut seen = seen();
        seen.reported[1].1 = (5, 4);
        assert!(!seen.violations().is_empty(), "stable past the high watermark");
    }
}
