//! Compares the rules with a naive model, which is a list of all appends that is searched from end to end.
//!
//! A client numbers its records without wrapping around, so the model knows which record a sequence stands for. After
//! any steps, the log must have each record of a client once, without a gap after the first one.

use fullbore_schedules::{Random, run_each_list};

use super::*;

const CLIENTS: usize = 3;
const EXPIRATION_MS: i64 = 1_000;

#[derive(Clone, Debug)]
enum Step {
    /// A client sends `batches` new batches in a row, with `records` records each.
    Send {
        client: usize,
        batches: usize,
        records: i32,
    },
    /// A client resends the batch that is `back` positions before its newest.
    Retry {
        client: usize,
        back: usize,
    },
    /// A client sends a batch of any size that begins `skip` records after its next record. A negative `skip` stands
    /// for a batch that begins before the next record.
    Stray {
        client: usize,
        skip: i32,
        records: i32,
    },
    /// A client begins a new epoch, and then sends a batch of the old epoch.
    Bump {
        client: usize,
        first: i32,
    },
    Restart,
    /// The topic is deleted and recreated. Each client has lost the responses to its last `lost` batches.
    MakeAgain {
        lost: usize,
    },
    /// All clients are idle until they expire, except one that keeps writing.
    Expire {
        survivor: usize,
    },
}

/// An appended batch. `first` is the client's number of its first record within the epoch.
#[derive(Clone, Debug)]
struct Appended {
    client: usize,
    epoch: i16,
    first: i64,
    records: i32,
    base_offset: i64,
    timestamp: i64,
}

#[derive(Clone, Debug, Default)]
struct Client {
    epoch: i16,
    /// The number of the next record in this epoch. The record's sequence is this number modulo 2^31.
    next: i64,
    /// The index in [`Model::log`] from which the broker knows the batches of this epoch; None if the broker has no
    /// state of the epoch.
    known_from: Option<usize>,
    /// The epoch of the client's last batch on the deleted partition, and the number of the record after that batch.
    /// None once the client has written to the recreated partition.
    stop: Option<(i16, i64)>,
}

struct Model {
    window: usize,
    producers: Producers,
    log: Vec<Appended>,
    log_end_offset: i64,
    now_ms: i64,
    clients: Vec<Client>,
    /// Clients with an index below this one may have written to this partition or to the deleted one without being
    /// known to the broker.
    unknown_below: usize,
    /// When silent producers of the deleted partition were first removed.
    succeeding_since_ms: Option<i64>,
}

impl Model {
    /// Creates the model. If the partition was `written` before, clients may begin with any sequence. They begin
    /// shortly before the numbers wrap around.
    fn new(window: usize, written: bool) -> Model {
        let next = if written { i64::from(i32::MAX) - 40 } else { 0 };
        Model {
            window,
            producers: Producers::default(),
            log: Vec::new(),
            log_end_offset: if written { 1 } else { 0 },
            now_ms: 0,
            clients: vec![Client { next, ..Client::default() }; CLIENTS],
            unknown_below: 0,
            succeeding_since_ms: None,
        }
    }

    fn stamp(client: usize, epoch: i16, first: i64, records: i32) -> Stamp {
        let base_sequence = first.rem_euclid(1 << 31) as i32;
        Stamp { producer_id: client as i64, producer_epoch: epoch, base_sequence, record_count: records }
    }

    /// Returns the expected decision, which is found by reading the whole list.
    fn expected(&self, client: usize, epoch: i16, first: i64, records: i32) -> Verdict {
        let known = &self.clients[client];
        let Some(from) = known.known_from else {
            let is_written = self.log_end_offset > 0;
            let free = Model::stamp(client, epoch, first, records).base_sequence == 0
                || match known.stop {
                    Some((of, next)) if of == epoch => first <= next,
                    Some(_) => is_written,
                    None => is_written || client < self.unknown_below,
                };
            return if free { Verdict::Append } else { Verdict::Refuse(SequenceRefusal::OutOfOrderSequence) };
        };
        let own: Vec<&Appended> = self.log[from..].iter().filter(|batch| batch.client == client).collect();
        let current = own.last().expect("a known client has appended").epoch;
        if epoch < current {
            return Verdict::Refuse(SequenceRefusal::InvalidProducerEpoch);
        }
        let own: Vec<_> = own.into_iter().filter(|batch| batch.epoch == epoch).collect();
        let Some(newest) = own.last() else {
            return if first == 0 { Verdict::Append } else { Verdict::Refuse(SequenceRefusal::OutOfOrderSequence) };
        };
        if first == newest.first + i64::from(newest.records) {
            return Verdict::Append;
        }
        let (older, retained) = own.split_at(own.len().saturating_sub(self.window));
        if let Some(same) = retained.iter().find(|batch| (batch.first, batch.records) == (first, records)) {
            return Verdict::Duplicate { base_offset: same.base_offset, timestamp: same.timestamp };
        }
        let begin = own[0].first;
        let end = older.last().map_or(begin, |batch| batch.first + i64::from(batch.records));
        let proven = begin <= first && first + i64::from(records) <= end;
        Verdict::Refuse(if proven { SequenceRefusal::DuplicateSequence } else { SequenceRefusal::OutOfOrderSequence })
    }

    fn produce(&mut self, client: usize, epoch: i16, first: i64, records: i32) -> Verdict {
        let stamp = Model::stamp(client, epoch, first, records);
        let verdict = self.producers.check(&stamp, self.log_end_offset);
        assert_eq!(verdict, self.expected(client, epoch, first, records), "{stamp:?}");
        if verdict == Verdict::Append {
            let (base_offset, timestamp) = (self.log_end_offset, self.now_ms * 7);
            self.clients[client].known_from.get_or_insert(self.log.len());
            self.clients[client].stop = None;
            self.producers.append(&stamp, base_offset, timestamp, self.now_ms, self.window);
            self.log.push(Appended { client, epoch, first, records, base_offset, timestamp });
            self.log_end_offset += i64::from(records);
            self.now_ms += 1;
        }
        verdict
    }

    /// Sends a client's next batch. If the broker has no state of the client, the client begins again.
    fn send(&mut self, client: usize, records: i32) {
        let Client { epoch, next, known_from, .. } = self.clients[client];
        if known_from.is_none() && self.expected(client, epoch, next, records) != Verdict::Append {
            (self.clients[client].epoch, self.clients[client].next) = (epoch + 1, 0);
        }
        let Client { epoch, next, .. } = self.clients[client];
        assert_eq!(self.produce(client, epoch, next, records), Verdict::Append);
        self.clients[client].next += i64::from(records);
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Send { client, batches, records } => (0..batches).for_each(|_| self.send(client, records)),
            Step::Retry { client, back } => self.retry(client, back),
            Step::Stray { client, skip, records } => self.stray(client, skip, records),
            Step::Bump { client, first } => self.bump(client, first),
            Step::Restart => self.restart(),
            Step::MakeAgain { lost } => self.make_again(lost),
            Step::Expire { survivor } => self.expire(survivor),
        }
        assert_eq!(self.producers.idle.len(), self.producers.by_id.len());
    }

    /// Resends a batch, if the broker has state of the client. Without state, the broker could not distinguish a retry
    /// from a new batch. A real client does not resend then: its state expires only when it is idle, and by then it has
    /// all its responses.
    fn retry(&mut self, client: usize, back: usize) {
        let mut own = self.log.iter().rev().filter(|batch| batch.client == client);
        let Some(batch) = own.clone().nth(back).or(own.next_back()).cloned() else {
            return;
        };
        if self.clients[client].known_from.is_some() {
            assert_ne!(self.produce(client, batch.epoch, batch.first, batch.records), Verdict::Append);
        }
    }

    fn stray(&mut self, client: usize, skip: i32, records: i32) {
        let Client { epoch, next, known_from, stop } = self.clients[client];
        let first = next + i64::from(skip);
        let is_sure = match stop {
            Some((_, stopped)) => first > stopped,
            None => known_from.is_some() || self.log_end_offset == 0 && client >= self.unknown_below,
        };
        // After `i32::MAX`, the next sequence is 0. If the broker has no state of the client, a batch with sequence 0
        // counts as the first of its epoch.
        let begins = known_from.is_none() && first % (1 << 31) == 0;
        if skip != 0 && first >= 0 && is_sure && !begins {
            assert_ne!(self.produce(client, epoch, first, records), Verdict::Append);
        }
    }

    fn bump(&mut self, client: usize, first: i32) {
        let Client { epoch, next, known_from, .. } = self.clients[client];
        if known_from.is_none() {
            return;
        }
        if first > 0 {
            assert_ne!(self.produce(client, epoch + 1, i64::from(first), 1), Verdict::Append);
        }
        self.clients[client].epoch += 1;
        self.clients[client].next = 0;
        self.send(client, 2);
        assert_ne!(self.produce(client, epoch, next, 1), Verdict::Append);
    }

    fn restart(&mut self) {
        let mut restored = Producers::default();
        restored.restore(self.producers.snapshot(), self.now_ms, self.producers.window());
        assert!(restored.snapshot().eq(self.producers.snapshot()));
        self.producers = restored;
    }

    fn make_again(&mut self, lost: usize) {
        let mut made = Producers::default();
        made.succeed(self.producers.tails());
        for (at, client) in self.clients.iter_mut().enumerate() {
            let Some(from) = client.known_from.take() else { continue };
            let own = self.log[from..].iter().rev().filter(|batch| batch.client == at && batch.epoch == client.epoch);
            let newest = own.clone().next().expect("a known client has appended");
            client.stop = Some((client.epoch, newest.first + i64::from(newest.records)));
            client.next = own.take(lost).last().map_or(client.next, |batch| batch.first);
        }
        self.succeeding_since_ms = None;
        self.log.clear();
        (self.producers, self.log_end_offset) = (made, 0);
    }

    fn expire(&mut self, survivor: usize) {
        self.now_ms += EXPIRATION_MS;
        self.send(survivor, 1);
        self.producers.expire(self.now_ms, EXPIRATION_MS);
        let others = self.clients.iter_mut().enumerate().filter(|(client, _)| *client != survivor);
        let forgotten = others.filter_map(|(at, client)| client.known_from.take().map(|_| at)).last();
        let stopped = self.clients.iter().rposition(|client| client.stop.is_some());
        let since_ms = stopped.map(|_| *self.succeeding_since_ms.get_or_insert(self.now_ms));
        let is_over = since_ms.is_some_and(|since_ms| self.now_ms - since_ms >= EXPIRATION_MS);
        if is_over {
            self.clients.iter_mut().for_each(|client| client.stop = None);
        }
        let last = forgotten.max(stopped.filter(|_| is_over));
        self.unknown_below = self.unknown_below.max(last.map_or(0, |at| at + 1));
    }

    /// If nothing has expired, the state that is rebuilt from the log and from the deleted partition must equal the
    /// live state.
    fn replay(&self) {
        let mut replayed = Producers::default();
        replayed.succeed(self.producers.tails_to_keep());
        for &Appended { client, epoch, first, records, base_offset, timestamp } in &self.log {
            let stamp = Model::stamp(client, epoch, first, records);
            replayed.append(&stamp, base_offset, timestamp, self.now_ms, self.window);
        }
        assert!(replayed.snapshot().eq(self.producers.snapshot()));
    }

    /// Checks that a consumer finds every record once, in order and without a gap.
    fn read_back(&self) {
        for client in 0..CLIENTS {
            let mut last: Option<&Appended> = None;
            for batch in self.log.iter().filter(|batch| batch.client == client) {
                match last {
                    Some(before) if before.epoch == batch.epoch => {
                        assert_eq!(batch.first, before.first + i64::from(before.records));
                    }
                    Some(before) => assert!(before.epoch < batch.epoch && batch.first == 0),
                    None => {}
                }
                last = Some(batch);
            }
        }
    }

    /// Resends the last `window` batches of every client, and the two before them. None may be appended again.
    fn retry_all(&mut self) {
        for client in 0..CLIENTS {
            (0..self.window + 2).for_each(|back| self.retry(client, back));
        }
    }
}

fn step(window: usize, random: &mut Random) -> Step {
    let client = random.below(CLIENTS);
    match random.below(31) {
        0..4 => {
            Step::Send { client, batches: random.between(1, window + window / 2 + 1), records: random.between(1, 6) }
        }
        4..8 => Step::Send { client, batches: random.between(1, 4), records: random.between(1, 6) },
        8..16 => Step::Retry { client, back: random.below(2 * window) },
        16..24 => Step::Stray { client, skip: random.between(-40, 40), records: random.between(1, 12) },
        24..26 => Step::Bump { client, first: random.between(0, 9) },
        26..28 => Step::Restart,
        28..30 => Step::MakeAgain { lost: random.below(2 * window) },
        _ => Step::Expire { survivor: client },
    }
}

fn holds(window: usize, written: bool, steps: &[Step]) {
    let mut model = Model::new(window, written);
    steps.iter().for_each(|step| model.run(step));
    model.read_back();
    if !steps.iter().any(|step| matches!(step, Step::Expire { .. })) {
        model.replay();
    }
    model.retry_all();
    model.restart();
    model.retry_all();
}

#[test]
fn window_agrees_with_the_list() {
    for (window, schedules, steps_max) in [(5, 300, 120), (64, 60, 60), (1024, 4, 12)] {
        let draw = |random: &mut Random| (random.one_in(2), random.list(1..steps_max, |random| step(window, random)));
        run_each_list(schedules, draw, |written, steps| {
            holds(window, *written, steps);
            Ok(())
        });
    }
}
