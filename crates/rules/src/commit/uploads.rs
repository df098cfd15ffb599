//! Adapts the number of concurrent uploads to the object store.
//!
//! A distant store responds late, so only many concurrent uploads can fill the link to it. A narrow link is filled by
//! one upload. More uploads carry no more bytes there, and each takes longer. Objects are committed in order, so all
//! commits wait for the oldest upload, which then ends about as late as the others. So the number of concurrent uploads
//! (the *window*) grows while uploads are quick, and shrinks step by step while they are slow. If the rate of bytes
//! falls after a step down, the step is undone. Some stores limit the rate of each connection. So from time to time the
//! window also tries a step up, and keeps it if the rate clearly rises. The step after a kept step up is twice as
//! large.
//!
//! Quick uploads prove only as many concurrent uploads as there were, and only for objects of about their size. So the
//! window grows only while it is full, and opens anew for much larger objects. An upload that has failed after a long
//! time halves the window, since a link that is too narrow for all uploads may let none of them succeed. So does one
//! that has succeeded only after a much longer time than usual, since the link has become narrow.
//!
//! The caller has the clock and makes the requests. Invariant: there is at least one upload, and at most as many as
//! there are slots.

use std::time::Duration;

/// Number of concurrent uploads before the first one has ended.
const OPENS_WITH: usize = 2;
/// Uploads are slow if they take longer than this on average.
const SLOW: Duration = Duration::from_secs(2);
/// An upload shows that the link has become narrow if it takes longer than this, and [`NARROW_TIMES`] as long as usual.
const NARROW: Duration = Duration::from_secs(8);
/// See [`NARROW`].
const NARROW_TIMES: u32 = 4;
/// Uploads are quick if they take less time than this.
const QUICK: Duration = Duration::from_secs(1);
/// The window opens anew for an object that is this many times as large as the largest one before it.
const LARGER: u64 = 4;
/// A step down is kept if the rate of bytes is still at least this many tenths of the former rate.
const KEPT_TENTHS: u64 = 9;
/// How many rounds ([`UploadRound`]) the window waits after it has undone a step, before it tries another one in the
/// same direction. The number doubles with each undone step, and a kept step resets it.
const HELD_ROUNDS: u32 = 8;
/// Maximum number of rounds that the window waits after it has undone a step down.
const HELD_ROUNDS_MAX: u32 = 256;
/// Maximum number of rounds that the window waits after it has undone a step up.
const LOW_ROUNDS_MAX: u32 = 64;
/// Maximum time that the window waits after it has undone a step up, unless fewer than [`LOW_ROUNDS_MIN`] rounds have
/// passed. The wait is limited, because the store may have begun to limit each connection.
const LOW_MAX: Duration = Duration::from_secs(120);
/// Minimum number of rounds that the window waits after it has undone a step up. On a narrow link, a step up makes all
/// commits slower, so the window must not try one most of the time.
const LOW_ROUNDS_MIN: u32 = 4;
/// How many rounds a new window waits before its first step up.
const FIRST_LOW_ROUNDS: u32 = 2;

/// Limits how many uploads a broker runs at a time.
#[derive(Debug)]
pub struct UploadWindow {
    slots_max: usize,
    size: usize,
    /// True until the first upload that is not quick.
    is_opening: bool,
    /// Size of the largest of the recent objects, in bytes. Falls by an eighth in each round with smaller ones only.
    largest: u64,
    /// When the window was last halved.
    halved: Duration,
    /// Mean time of the uploads of the last round.
    usual: Option<Duration>,
    round: UploadRound,
    /// The last step, until the window has decided whether to keep it.
    step: Option<Step>,
    down: Hold,
    up: Hold,
    /// By how many uploads the next step up raises the size.
    stride: usize,
}

/// A round of uploads. It ends once as many uploads have ended as the window's size, but at least two. The window may
/// then change its size.
#[derive(Debug, Default)]
struct UploadRound {
    began: Duration,
    count: usize,
    bytes: u64,
    took: Duration,
    /// True if as many uploads were running at one time as the window allows, and one of them was large.
    is_full: bool,
    /// Size of the largest object, in bytes.
    largest: u64,
}

/// A pause in which the window takes no step in one direction (up or down). It is counted in rounds ([`UploadRound`]).
#[derive(Debug)]
struct Hold {
    /// Remaining number of rounds until the pause ends.
    rounds: u32,
    /// Number of rounds since the pause began.
    waited: u32,
    /// When the pause began.
    since: Duration,
    /// Number of rounds of the next pause, which begins when the window undoes another step in this direction.
    next: u32,
    /// Maximum of `next`.
    max: u32,
}

impl Hold {
    fn new(rounds: u32, max: u32) -> Hold {
        Hold { rounds, waited: 0, since: Duration::ZERO, next: HELD_ROUNDS, max }
    }

    fn undone(&mut self, now: Duration) {
        (self.rounds, self.next) = (self.next, (2 * self.next).min(self.max));
        (self.waited, self.since) = (0, now);
    }

    fn round_passed(&mut self) {
        self.rounds = self.rounds.saturating_sub(1);
        self.waited = self.waited.saturating_add(1);
    }

    /// Returns true if the pause before a step up is over: after its rounds, or after the time [`LOW_MAX`] if at least
    /// [`LOW_ROUNDS_MIN`] rounds have passed.
    fn is_over_in_time(&self, now: Duration) -> bool {
        self.rounds == 0 || self.waited >= LOW_ROUNDS_MIN && now.saturating_sub(self.since) >= LOW_MAX
    }

    fn kept(&mut self) {
        self.next = HELD_ROUNDS;
    }
}

/// A step: a change of the window's size that is undone if the rate of bytes gets worse, or does not clearly rise after
/// a step up. `size` and `bytes_per_second` are the size and the rate before the step.
#[derive(Debug)]
struct Step {
    is_up: bool,
    size: usize,
    /// The size after the step.
    to: usize,
    bytes_per_second: u64,
    /// False in the first round after the step. The rate of that round does not count, because some of its uploads
    /// began before the step.
    is_settled: bool,
}

impl Step {
    /// Returns true if the step is kept at this rate. A step up must raise the rate by at least half as much as if each
    /// upload kept its former rate.
    fn is_kept_at(&self, rate: u64) -> bool {
        let (from, to) = (self.size as u64, self.to as u64);
        match self.is_up {
            true => rate.saturating_mul(2 * from) >= self.bytes_per_second.saturating_mul(from + to),
            false => rate >= self.bytes_per_second / 10 * KEPT_TENTHS,
        }
    }
}

impl UploadWindow {
    /// Creates a window for at most `slots_max` uploads, which is at least one.
    pub fn new(slots_max: usize) -> UploadWindow {
        let slots_max = slots_max.max(1);
        UploadWindow {
            slots_max,
            size: OPENS_WITH.min(slots_max),
            is_opening: true,
            largest: 0,
            halved: Duration::ZERO,
            usual: None,
            round: UploadRound::default(),
            step: None,
            down: Hold::new(0, HELD_ROUNDS_MAX),
            up: Hold::new(FIRST_LOW_ROUNDS, LOW_ROUNDS_MAX),
            stride: 1,
        }
    }

    /// Returns how many uploads may run at a time now.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Notes that an upload of `bytes` is about to begin. If the object is much larger than all before it, the window
    /// opens anew.
    pub fn begins(&mut self, bytes: u64) {
        if bytes < self.largest.saturating_mul(LARGER) {
            self.largest = self.largest.max(bytes);
            return;
        }
        self.largest = bytes;
        if self.size > OPENS_WITH {
            (self.size, self.is_opening) = (OPENS_WITH, true);
            self.forget_steps();
        }
    }

    /// Notes that an upload of `bytes`, which took `took`, has succeeded at `now`. `under_way` is the number of uploads
    /// that were running, including this one. The clock may be any monotonic one.
    pub fn note(&mut self, now: Duration, took: Duration, bytes: u64, under_way: usize) {
        if took > NARROW && self.usual.is_some_and(|usual| took > usual * NARROW_TIMES) {
            self.halve(now, took);
        }
        let is_full = under_way >= self.size && bytes.saturating_mul(LARGER) >= self.largest;
        if !self.is_opening || took >= QUICK {
            self.is_opening = false;
        } else if is_full {
            self.size = (self.size + 1).min(self.slots_max);
        }
        self.round.is_full |= is_full;
        if self.round.count == 0 {
            // If no upload was running when the round began, the round counts from the start of its first upload.
            self.round.began = self.round.began.max(now.saturating_sub(took));
        }
        self.round.count += 1;
        self.round.bytes += bytes;
        self.round.largest = self.round.largest.max(bytes);
        self.round.took += took;
        if self.round.count >= self.size.max(2) {
            let round = std::mem::replace(&mut self.round, UploadRound { began: now, ..UploadRound::default() });
            self.judge(&round, now);
        }
    }

    /// Notes that an upload has failed at `now`, `took` after its start. Halves the window if the upload was slow and
    /// has begun after the window was last halved.
    pub fn failed(&mut self, now: Duration, took: Duration) {
        if took > SLOW {
            self.halve(now, took);
        }
    }

    /// Halves the window because of an upload that has ended at `now` and took `took`. Does nothing if the upload began
    /// before the window was last halved.
    fn halve(&mut self, now: Duration, took: Duration) {
        if now.saturating_sub(took) < self.halved {
            return;
        }
        (self.size, self.is_opening, self.halved) = ((self.size / 2).max(1), false, now);
        self.forget_steps();
    }

    /// Drops the current round and step, because the uploads of the round began with another size.
    fn forget_steps(&mut self) {
        (self.round, self.step, self.stride) = (UploadRound::default(), None, 1);
    }

    fn judge(&mut self, round: &UploadRound, now: Duration) {
        let millis = u64::try_from(now.saturating_sub(round.began).as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = round.bytes.saturating_mul(1000) / millis;
        self.largest = round.largest.max(self.largest - self.largest / 8);
        let mean = round.took / u32::try_from(round.count).unwrap_or(u32::MAX).max(1);
        self.usual = Some(mean);
        if let Some(step) = self.step.take() {
            if !step.is_settled {
                self.step = Some(Step { is_settled: true, ..step });
                return;
            }
            let hold = if step.is_up { &mut self.up } else { &mut self.down };
            if !step.is_kept_at(rate) {
                self.size = step.size;
                self.stride = 1;
                hold.undone(now);
                return;
            }
            hold.kept();
            if step.is_up {
                self.stride *= 2;
                // The step up was kept because fewer bytes arrived before it. So a step down need not be tried soon.
                self.down.rounds = self.down.rounds.max(HELD_ROUNDS);
            }
        }
        self.down.round_passed();
        self.up.round_passed();
        if mean > SLOW && self.size > 1 && self.down.rounds == 0 {
            self.stride = 1;
            self.take_step(self.size - (self.size / 4).max(1), rate);
        } else if mean < QUICK {
            self.size = (self.size + usize::from(round.is_full)).min(self.slots_max);
        } else if self.size < self.slots_max && self.up.is_over_in_time(now) {
            self.take_step((self.size + self.stride).min(self.slots_max), rate);
        }
    }

    fn take_step(&mut self, to: usize, bytes_per_second: u64) {
        let is_up = to > self.size;
        self.step = Some(Step { is_up, size: self.size, to, bytes_per_second, is_settled: false });
        self.size = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A simulated store that responds after a latency, and a link that concurrent uploads share.
    struct Store {
        latency: Duration,
        bytes_per_second: u64,
        /// The maximum rate of each connection, in bytes per second.
        each_max: u64,
        /// The remaining bytes and the start of each upload whose bytes are not all sent. The latency is added after
        /// the last byte.
        under_way: Vec<(f64, Duration)>,
        answering: Vec<(Duration, Duration)>,
        now: Duration,
        /// The sum of the window's sizes over all steps of the simulation, and the number of steps.
        sizes: (usize, usize),
    }

    impl Store {
        fn new(latency_ms: u64, bytes_per_second: u64) -> Store {
            let (under_way, answering) = (Vec::new(), Vec::new());
            Store {
                latency: Duration::from_millis(latency_ms),
                bytes_per_second,
                each_max: u64::MAX,
                under_way,
                answering,
                now: Duration::ZERO,
                sizes: (0, 0),
            }
        }

        /// Keeps the window full for `seconds`. Returns how many bytes arrived per second.
        fn run(&mut self, window: &mut UploadWindow, seconds: u64, object: u64) -> u64 {
            let (step, until) = (Duration::from_millis(10), self.now + Duration::from_secs(seconds));
            let mut arrived = 0;
            while self.now < until {
                while self.under_way.len() + self.answering.len() < window.size() {
                    window.begins(object);
                    self.under_way.push((object as f64, self.now));
                }
                self.now += step;
                self.sizes = (self.sizes.0 + window.size(), self.sizes.1 + 1);
                // The streams share the link unequally, in the proportion of 8, 9, 10 and so on.
                let parts: f64 = (0..self.under_way.len()).map(|nth| 8.0 + nth as f64).sum();
                let part = self.bytes_per_second as f64 * step.as_secs_f64() / parts;
                let each_max = self.each_max as f64 * step.as_secs_f64();
                let takes = |nth| (part * (8.0 + nth as f64)).min(each_max);
                self.under_way.iter_mut().enumerate().for_each(|(nth, (left, _))| *left -= takes(nth));
                let (sent, left) = self.under_way.iter().partition(|(left, _)| *left <= 0.0);
                self.under_way = left;
                let sent: Vec<(f64, Duration)> = sent;
                self.answering.extend(sent.into_iter().map(|(_, began)| (began, self.now + self.latency)));
                let (done, rest) = self.answering.iter().partition(|(_, at)| *at <= self.now);
                self.answering = rest;
                let done: Vec<(Duration, Duration)> = done;
                let under_way = self.under_way.len() + self.answering.len() + done.len();
                for (began, _) in done {
                    arrived += object;
                    window.note(self.now, self.now - began, object, under_way);
                }
            }
            arrived / seconds.max(1)
        }
    }

    /// Drops the uploads that are under way, which are of another size than those of the next run.
    fn drop_uploads(store: &mut Store) {
        (store.under_way, store.answering, store.sizes) = (Vec::new(), Vec::new(), (0, 0));
    }

    /// Returns the size of the window. If a step up is being tried, returns the size before this step.
    fn kept_size(window: &UploadWindow) -> usize {
        window.step.as_ref().filter(|step| step.is_up).map_or(window.size, |step| step.size)
    }

    #[test]
    fn wide_store_gets_all_slots_at_once() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 10_000 * MIB));
        store.run(&mut window, 1, 8 * MIB);
        assert_eq!(window.size(), 8);
        // Each of the 8 slots uploads an object within 180 ms: 150 ms of latency, and the rest for the steps of the
        // simulation.
        assert!(store.run(&mut window, 10, 8 * MIB) > 8 * 8 * MIB * 1000 / 180);
    }

    #[test]
    fn narrow_store_is_filled_by_few_uploads_that_end_soon() {
        for (bytes_per_second, size_max) in
            [(MIB / 2, 1), (2 * MIB, 1), (5 * MIB, 2), (10 * MIB, 3), (30 * MIB, 8), (50 * MIB, 8), (100 * MIB, 8)]
        {
            let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, bytes_per_second));
            store.run(&mut window, 600, 8 * MIB);
            assert!(kept_size(&window) <= size_max, "{bytes_per_second}: {} uploads", kept_size(&window));
            assert!(window.size() <= size_max + 1, "{bytes_per_second}: {} uploads", window.size());
            let rate = store.run(&mut window, 600, 8 * MIB);
            assert!(rate * 10 >= bytes_per_second * 9, "{bytes_per_second}: {rate}");
            // The average shows that the window does not try a larger size most of the time.
            let (sizes, steps) = store.sizes;
            assert!(
                sizes * 10 <= steps * (size_max * 10 + 4),
                "{bytes_per_second}: {} uploads",
                sizes as f64 / steps as f64
            );
        }
    }

    #[test]
    fn slow_wide_store_keeps_its_slots() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(200, 10_000 * MIB));
        store.run(&mut window, 5, 8 * MIB);
        store.latency = Duration::from_secs(5);
        store.run(&mut window, 600, 8 * MIB);
        let rate = store.run(&mut window, 3000, 8 * MIB);
        assert!(rate * 10 >= 8 * 8 * MIB / 5 * 9, "{} MiB/s of {}", rate / MIB, 8 * 8 / 5);
    }

    #[test]
    fn store_limits_each_connection_and_was_slow_for_a_time_slots_come_back() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 1000 * MIB));
        store.bytes_per_second = MIB / 2;
        store.run(&mut window, 300, 4 * MIB);
        assert_eq!(kept_size(&window), 1);
        (store.bytes_per_second, store.each_max) = (1000 * MIB, 3 * MIB);
        store.run(&mut window, 600, 4 * MIB);
        // An object takes 1.34 s and the latency, so the uploads are never quick.
        let rate = store.run(&mut window, 600, 4 * MIB);
        assert!(rate * 10 >= 8 * 4 * MIB * 100 / 149 * 9, "{} KiB/s", rate >> 10);
    }

    #[test]
    fn slow_store_limits_each_connection_slots_are_used_after_minutes() {
        for (each_max, narrow_seconds, seconds) in [
            (300_000, 0, 420),
            (1_000_000, 0, 180),
            (300_000, 3600, 480),
            (1_000_000, 3600, 300),
            (3_000_000, 3600, 240),
        ] {
            let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 300_000));
            store.run(&mut window, narrow_seconds, 8 * MIB);
            (store.bytes_per_second, store.each_max) = (1000 * MIB, each_max);
            store.run(&mut window, seconds, 8 * MIB);
            let rate = store.run(&mut window, 900, 8 * MIB);
            assert!(rate * 10 >= 8 * each_max * 8, "{each_max} after {narrow_seconds} s: {} KB/s", rate / 1000);
        }
    }

    #[test]
    fn slots_come_back_once_the_store_is_wide_again() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 1000 * MIB));
        store.run(&mut window, 5, 8 * MIB);
        store.bytes_per_second = 2 * MIB;
        store.run(&mut window, 300, 8 * MIB);
        assert_eq!(kept_size(&window), 1);
        store.bytes_per_second = 1000 * MIB;
        store.run(&mut window, 20, 8 * MIB);
        assert_eq!(window.size(), 8);
    }

    #[test]
    fn quick_uploads_ran_alone_the_window_does_not_grow() {
        let mut window = UploadWindow::new(8);
        for second in 1..100 {
            window.begins(1000);
            window.note(Duration::from_secs(second), Duration::from_millis(20), 1000, 1);
        }
        assert_eq!(window.size(), OPENS_WITH);
    }

    #[test]
    fn small_objects_opened_the_window_it_opens_anew_for_large_ones() {
        for bytes_per_second in [MIB / 2, MIB, 5 * MIB] {
            let (mut window, mut store) = (UploadWindow::new(8), Store::new(50, bytes_per_second));
            store.run(&mut window, 5, 1000);
            assert_eq!(window.size(), 8, "{bytes_per_second}");
            drop_uploads(&mut store);
            store.run(&mut window, 60, 8 * MIB);
            let (sizes, steps) = store.sizes;
            assert!(sizes <= 3 * steps, "{bytes_per_second}: {} uploads", sizes as f64 / steps as f64);
        }
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 10_000 * MIB));
        store.run(&mut window, 5, 1000);
        drop_uploads(&mut store);
        store.run(&mut window, 2, 8 * MIB);
        assert_eq!(window.size(), 8, "the store is wide");
    }

    #[test]
    fn large_objects_shrank_the_window_it_grows_for_small_ones_that_are_quick() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, MIB));
        store.run(&mut window, 300, 8 * MIB);
        assert_eq!(kept_size(&window), 1);
        drop_uploads(&mut store);
        store.run(&mut window, 60, 1000);
        assert_eq!(window.size(), 8);
        drop_uploads(&mut store);
        store.run(&mut window, 60, 8 * MIB);
        let (sizes, steps) = store.sizes;
        assert!(sizes <= 3 * steps, "{} uploads", sizes as f64 / steps as f64);
    }

    #[test]
    fn link_becomes_narrow_uploads_soon_end_in_time_again() {
        let mut window = UploadWindow::new(8);
        let mut store = Store::new(150, 50_000_000);
        store.run(&mut window, 15, 8 * MIB);
        assert_eq!(window.size(), 8);
        store.bytes_per_second = 1_000_000;
        store.run(&mut window, 120, 8 * MIB);
        assert!(window.size() <= 2, "{}", window.size());
        assert!(store.run(&mut window, 120, 8 * MIB) >= 900_000);
    }

    #[test]
    fn uploads_fail_after_a_long_time_the_window_is_halved_once_for_all_of_them() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 10_000 * MIB));
        store.run(&mut window, 5, 8 * MIB);
        let seconds = Duration::from_secs;
        (0..8).for_each(|nth| window.failed(seconds(50 + nth), seconds(40)));
        assert_eq!(window.size(), 4);
        (0..4).for_each(|nth| window.failed(seconds(100 + nth), seconds(40)));
        assert_eq!(window.size(), 2);
        window.failed(seconds(200), seconds(1));
        assert_eq!(window.size(), 2, "a quick failure is no sign of a narrow link");
        store.now = seconds(200);
        store.run(&mut window, 20, 8 * MIB);
        assert_eq!(window.size(), 8, "the store is wide again");
    }

    #[test]
    fn one_slot_stays_one() {
        let (mut window, mut store) = (UploadWindow::new(1), Store::new(150, MIB));
        store.run(&mut window, 100, MIB);
        assert_eq!(window.size(), 1);
        assert_eq!(UploadWindow::new(0).size(), 1);
    }
}
