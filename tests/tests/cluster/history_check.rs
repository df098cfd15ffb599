//! The history of a topic as its clients saw it, and a check that finds broken promises.
//!
//! The producer is idempotent and numbers its records. A consumer reads during the whole run, and a second one reads
//! everything at the end. Invariant: this module sends no request.

use crate::offsets::Marks;
use fullbore_tests::Consumed;
use std::collections::BTreeMap;

/// Everything that the clients saw.
#[derive(Clone, Default)]
pub struct Seen {
    /// The keys of the records. The value of each record is its index in this list.
    pub sent: Vec<String>,
    /// The partition and offset of each record, as acknowledged.
    pub acknowledged: Vec<(i32, i64)>,
    /// Records read by the first consumer, which reads during the whole run.
    pub polled: Vec<Consumed>,
    /// Records read by the second consumer, which reads after the run.
    pub found: Vec<Consumed>,
    /// The end offset of each partition.
    pub ends: BTreeMap<i32, i64>,
    /// The offsets that leaders have returned, in order.
    pub marks: Vec<Marks>,
}

impl Seen {
    /// Checks all promises and returns a line for each broken one.
    pub fn violations(&self) -> Vec<String> {
        [
            self.lost(),
            self.untrue(),
            self.twice_or_out_of_order(),
            self.skipped(),
            self.differing(),
            self.miscounted(),
            self.gone_back(),
        ]
        .concat()
    }

    /// Reports acknowledged records that were not read, with the same value, at their acknowledged offsets. In a
    /// successful run, every record is acknowledged.
    fn lost(&self) -> Vec<String> {
        let found: BTreeMap<(i32, i64), &Consumed> =
            self.found.iter().map(|of| ((of.partition, of.offset), of)).collect();
        let lost = self.acknowledged.iter().enumerate().filter_map(|(number, place)| {
            let right = found.get(place).is_some_and(|of| of.value == number.to_string());
            (!right).then(|| format!("{number} was acknowledged at {place:?}, where there is {:?}", found.get(place)))
        });
        let unanswered =
            (self.acknowledged.len()..self.sent.len()).map(|number| format!("{number} was not acknowledged"));
        lost.chain(unanswered).collect()
    }

    /// Reports records that were read but never sent.
    fn untrue(&self) -> Vec<String> {
        let was_sent = |of: &&Consumed| {
            let number = of.value.parse::<usize>().ok();
            number.and_then(|number| self.sent.get(number)).is_some_and(|key| *key == of.key)
        };
        self.found.iter().filter(|of| !was_sent(of)).map(|of| format!("{of:?} was never sent")).collect()
    }

    /// Reports records that are in a partition twice or in another order than they were sent.
    fn twice_or_out_of_order(&self) -> Vec<String> {
        let mut last: BTreeMap<i32, usize> = BTreeMap::new();
        let mut places: BTreeMap<&str, i32> = BTreeMap::new();
        let mut violations = Vec::new();
        for of in &self.found {
            let number = of.value.parse::<usize>().unwrap_or_default();
            if let Some(before) = last.insert(of.partition, number).filter(|before| *before >= number) {
                violations.push(format!("{of:?} comes after {before}"));
            }
            let place = *places.entry(&of.key).or_insert(of.partition);
            if place != of.partition {
                violations.push(format!("{of:?} is not in partition {place} as others of its key"));
            }
        }
        violations
    }

    /// Reports offsets that either consumer skipped or repeated.
    fn skipped(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for (who, read) in [("all the time", &self.polled), ("afterwards", &self.found)] {
            let mut next: BTreeMap<i32, i64> = BTreeMap::new();
            for of in read {
                let due = next.entry(of.partition).or_default();
                if of.offset != *due {
                    violations.push(format!("who read {who} got {of:?}, and {due} was next"));
                }
                *due = of.offset + 1;
            }
        }
        violations
    }

    /// Reports offsets at which the two consumers read different values.
    fn differing(&self) -> Vec<String> {
        let found: BTreeMap<(i32, i64), &Consumed> =
            self.found.iter().map(|of| ((of.partition, of.offset), of)).collect();
        let differs = |of: &&Consumed| found.get(&(of.partition, of.offset)).is_none_or(|found| found != of);
        let differing = self.polled.iter().filter(differs);
        differing.map(|of| format!("{of:?} was read, and later {:?}", found.get(&(of.partition, of.offset)))).collect()
    }

    /// Reports partitions whose end offset is not the number of their records.
    fn miscounted(&self) -> Vec<String> {
        let mut counts: BTreeMap<i32, i64> = self.ends.keys().map(|partition| (*partition, 0)).collect();
        self.found.iter().for_each(|of| *counts.entry(of.partition).or_default() += 1);
        match counts == self.ends {
            true => Vec::new(),
            false => vec![format!("partitions end at {:?}, and have records: {counts:?}", self.ends)],
        }
    }

    /// Reports high watermarks, last stable offsets and log starts that decrease within a leader epoch.
    fn gone_back(&self) -> Vec<String> {
        let mut latest = BTreeMap::new();
        let gone_back = self.marks.iter().filter_map(|marks| {
            let before: Marks = latest.insert(marks.of, *marks)?;
            marks.are_behind(&before).then(|| format!("{marks:?} was told after {before:?}"))
        });
        gone_back.collect()
    }
}

/// Returns a history of 12 records in two partitions.
fn seen() -> Seen {
    let sent: Vec<String> = (0..12).map(|number| format!("k{}", number % 4)).collect();
    let place = |number: usize| ((number % 2) as i32, (number / 2) as i64);
    let record = |number: usize| {
        let (partition, offset) = place(number);
        Consumed { partition, offset, key: sent[number].clone(), value: number.to_string() }
    };
    let found: Vec<Consumed> = (0..12).map(record).collect();
    let ends = BTreeMap::from([(0, 6), (1, 6)]);
    let reported =
        |(of, high_watermark)| Marks { of, high_watermark, last_stable_offset: high_watermark, log_start: 1 };
    // In another leader epoch the offsets may be lower.
    let marks = [((1, 0, 0), 4), ((1, 0, 0), 4), ((1, 0, 0), 6), ((2, 0, 1), 5)].map(reported).to_vec();
    Seen { acknowledged: (0..12).map(place).collect(), polled: found.clone(), found, sent, ends, marks }
}

#[test]
fn kept_promises_give_no_violation_of_a_topic() {
    assert_eq!(seen().violations(), [""; 0]);
}

#[test]
fn each_mutation_of_a_topics_history_gives_its_violation() {
    type Plant = fn(&mut Seen);
    let plants: [(&str, Plant); 13] = [
        ("was acknowledged at", |seen| _ = seen.found.pop()),
        ("was acknowledged at", |seen| seen.acknowledged.swap(3, 5)),
        ("was not acknowledged", |seen| _ = seen.acknowledged.pop()),
        ("was never sent", |seen| seen.found[5].value = "99".to_owned()),
        ("was never sent", |seen| seen.found[5].key = "k9".to_owned()),
        ("comes after", |seen| {
            let again = seen.found[11].clone();
            seen.found.push(Consumed { offset: 6, ..again });
        }),
        ("and 2 was next", |seen| _ = seen.polled.remove(4)),
        ("and 4 was next", |seen| seen.polled.swap(8, 10)),
        ("was read, and later", |seen| seen.polled[3].value = "1".to_owned()),
        ("partitions end at", |seen| seen.ends = BTreeMap::from([(0, 6), (1, 7)])),
        ("was told after", |seen| seen.marks[2].high_watermark = 3),
        ("was told after", |seen| seen.marks[1].last_stable_offset = 3),
        ("was told after", |seen| seen.marks[2].log_start = 0),
    ];
    for (expected, plant) in plants {
        let mut seen = seen();
        plant(&mut seen);
        let violations = seen.violations();
        assert!(violations.iter().any(|line| line.contains(expected)), "{expected}: {violations:?}");
    }
}
