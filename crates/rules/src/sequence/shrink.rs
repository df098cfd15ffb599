//! Tests a window that becomes smaller before its producer has been notified. The broker must not forget a batch whose
//! response the producer does not have yet.
//!
//! The producer follows KIP-1269: counted from its oldest unresolved batch, it never sends more batches than the last
//! window that it knows. The producer learns the window only from responses, which may arrive late or never. If two
//! responses disagree, the one that the broker made later counts, even if it arrives first.
//!
//! A rare case is not covered. A larger size is configured and reverted between two appends to this partition, and the
//! producer gets it in a response of another partition or to a retry. If a batch is then forgotten, its retry gets
//! DUPLICATE_SEQUENCE_NUMBER. The batch was written once, but its offset is unknown.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// The producer sends as many batches as the grant allows, but at most this number.
    Send(usize),
    /// A response in flight arrives.
    Arrive(prop::sample::Index),
    /// A response in flight is lost, and the producer resends the batch.
    Lose(prop::sample::Index),
    Configure(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..70).prop_map(Step::Send),
        8 => any::<prop::sample::Index>().prop_map(Step::Arrive),
        4 => any::<prop::sample::Index>().prop_map(Step::Lose),
        1 => prop::sample::select(vec![5usize, 20, 64]).prop_map(Step::Configure),
    ]
}

struct Run {
    producers: Producers,
    window: usize,
    /// The window at the last append.
    seen: usize,
    answers: u64,
    /// The latest grant that the producer knows, with its number and the window.
    granted: (u64, usize),
    next: i32,
    /// The unresolved batches, each with the grant in its response.
    under_way: BTreeMap<i32, (u64, usize)>,
}

impl Run {
    fn stamp(n: i32) -> Stamp {
        Stamp { producer_id: 1, producer_epoch: 0, base_sequence: n, record_count: 1 }
    }

    fn may_send(&self) -> bool {
        let oldest = self.under_way.first_key_value().map_or(self.next, |(&n, _)| n);
        ((self.next - oldest) as usize) < self.granted.1
    }

    fn send(&mut self) {
        let stamp = Run::stamp(self.next);
        let offset = i64::from(self.next);
        assert_eq!(self.producers.check(&stamp, offset), Verdict::Append);
        self.producers.append(&stamp, offset, 0, 0, self.window);
        self.seen = self.window;
        self.answer(self.next);
        self.next += 1;
    }

    fn answer(&mut self, n: i32) {
        self.answers += 1;
        self.under_way.insert(n, (self.answers, self.seen));
    }

    fn pick(&self, index: prop::sample::Index) -> Option<i32> {
        let count = self.under_way.len();
        (count > 0).then(|| *self.under_way.keys().nth(index.index(count)).expect("the index is in range"))
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send(most) => (0..most).for_each(|_| {
                if self.may_send() {
                    self.send()
                }
            }),
            Step::Configure(window) => self.window = window,
            Step::Arrive(index) => {
                if let Some((_, granted)) = self.pick(index).and_then(|n| self.under_way.remove_entry(&n)) {
                    self.granted = self.granted.max(granted);
                }
            }
            Step::Lose(index) => {
                if let Some(n) = self.pick(index) {
                    self.answer(n);
                }
            }
        }
        for &n in self.under_way.keys() {
            let original = Verdict::Duplicate { base_offset: i64::from(n), timestamp: 0 };
            assert_eq!(self.producers.check(&Run::stamp(n), i64::from(self.next)), original);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn shrinking_window_retains_every_batch_without_a_response(steps in prop::collection::vec(step(), 1..150)) {
        let mut run = Run {
            producers: Producers::default(),
            window: 64,
            seen: 64,
            answers: 0,
            granted: (0, 5),
            next: 0,
            under_way: BTreeMap::new(),
        };
        steps.iter().for_each(|step| run.step(step));
    }
}
