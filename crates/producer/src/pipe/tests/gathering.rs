//! The estimate against a broker that gathers requests into objects, as one does for diskless topics: those of an object are answered together, and
//! when an object is closed is said by the broker's own rule.

use super::*;
use fullbore_rules::commit::rotation::{ActiveObject, Close, Rotation, RotationSettings};

const MIB: usize = 1 << 20;
/// What the wire, the broker and the store carry.
const PATH: f64 = 300.0 * MB;
const SLOTS: usize = 8;
const SETTINGS: RotationSettings = RotationSettings {
    bytes_max: 8 * MIB,
    interval: Duration::from_millis(250),
    slots: SLOTS,
    early_puts_per_second: 10,
};

/// Such a broker, and a producer that has always something to send.
struct Gathering {
    began: Instant,
    now: Instant,
    pipe: Pipe,
    memory: usize,
    put: Duration,
    /// Requests on the wire, by when they are there.
    wire: VecDeque<(Instant, Sent)>,
    wire_free_at: Instant,
    active: Vec<Sent>,
    first_at: Instant,
    rotation: Rotation,
    /// Objects that wait for a slot, and those that are being put, by when they are.
    closed: VecDeque<Vec<Sent>>,
    uploads: VecDeque<(Instant, Vec<Sent>)>,
}

impl Gathering {
    fn new(limit: InFlight, memory: usize, put: Duration) -> Self {
        let now = Instant::now();
        Gathering {
            began: now,
            now,
            pipe: Pipe::new(limit, memory, now),
            memory,
            put,
            wire: VecDeque::new(),
            wire_free_at: now,
            active: Vec::new(),
            first_at: now,
            rotation: Rotation::new(SETTINGS),
            closed: VecDeque::new(),
            uploads: VecDeque::new(),
        }
    }

    fn send(&mut self) {
        let sent = self.pipe.sent(MIB, self.now);
        self.wire_free_at = self.wire_free_at.max(self.now) + Duration::from_secs_f64(MIB as f64 / PATH);
        self.wire.push_back((self.wire_free_at, sent));
    }

    /// Closes what is due, and puts what finds a slot; when the next is due.
    fn close(&mut self) -> Option<Instant> {
        loop {
            let (since, now) = (self.first_at - self.began, self.now - self.began);
            let active = ActiveObject { bytes: self.active.len() * MIB, first_at: since };
            let under_way = self.uploads.len() + self.closed.len();
            let due = (!self.active.is_empty()).then(|| self.rotation.close(active, under_way, now));
            match due {
                Some(Close::Now) => {
                    self.rotation.closed(now);
                    self.closed.push_back(std::mem::take(&mut self.active));
                }
                Some(Close::At(at)) => return Some(self.began + at),
                None => return None,
            }
        }
    }

    fn put(&mut self) {
        while self.uploads.len() < SLOTS
            && let Some(object) = self.closed.pop_front()
        {
            self.uploads.push_back((self.now + self.put, object));
        }
    }

    /// As a producer begins: nothing else leaves before the first answer.
    fn send_one_alone(&mut self) {
        self.send();
        while self.pipe.requests() > 0 {
            self.step();
        }
    }

    /// Runs for a time; returns the bytes answered a second.
    fn run(&mut self, time: Duration) -> f64 {
        let (end, before) = (self.now + time, self.pipe.delivered());
        while self.now < end {
            while self.pipe.has_room() && self.pipe.bytes() + MIB <= self.memory {
                self.send();
            }
            self.step();
        }
        (self.pipe.delivered() - before) as f64 / time.as_secs_f64()
    }

    /// Until the next thing happens.
    fn step(&mut self) {
        let due = self.close();
        self.put();
        let arrives = self.wire.front().map(|(at, _)| *at);
        let stored = self.uploads.front().map(|(at, _)| *at);
        self.now = [due, arrives, stored].into_iter().flatten().min().expect("something comes").max(self.now);
        if arrives.is_some_and(|at| at <= self.now) {
            let (_, sent) = self.wire.pop_front().expect("just seen");
            if self.active.is_empty() {
                self.first_at = self.now;
            }
            self.active.push(sent);
        } else if stored.is_some_and(|at| at <= self.now) {
            let (_, object) = self.uploads.pop_front().expect("just seen");
            for sent in object {
                self.pipe.answered(&sent, self.now);
            }
        }
    }
}

#[test]
fn a_broker_that_gathers_requests_gets_nearly_as_many_as_where_all_of_the_memory_may_be_in_flight() {
    for (memory, first_alone) in [(32 * MIB, false), (32 * MIB, true), (128 * MIB, false), (128 * MIB, true)] {
        for put in [0, 1, 5, 10, 20, 50, 150] {
            let rates = |limit| {
                let mut broker = Gathering::new(limit, memory, ms(put));
                if first_alone {
                    broker.send_one_alone();
                }
                // The start, and some rounds of PROBE_RTT.
                [broker.run(ms(3_000)), broker.run(ms(30_000))]
            };
            let (auto, all) = (rates(InFlight::Auto), rates(InFlight::Requests(memory / MIB)));
            let shares: Vec<f64> = auto.iter().zip(all).map(|(auto, all)| auto / all).collect();
            let what = format!("{} MiB, a PUT takes {put} ms, first alone: {first_alone}: {shares:?}", memory / MIB);
            assert!(shares[0] > 0.8 && shares[1] > 0.9, "{what}");
        }
    }
}
