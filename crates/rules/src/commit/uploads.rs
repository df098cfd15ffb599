//! Number of concurrent uploads.
//!
//! A distant store responds late, and takes many uploads side by side. A narrow link carries no more bytes with many
//! uploads than with one, and each upload takes longer. All commits wait for the first object, which then completes
//! about as late as all others. So the window grows while uploads are quick. While they are slow it shrinks step by
//! step; a step after which fewer bytes arrive is undone.
//!
//! Not here: clocks and requests. Invariant: at least one upload, at most as many as there are slots.

use std::time::Duration;

/// Number of concurrent uploads before any has ended.
const OPENS_WITH: usize = 2;
/// Mean duration above which uploads are slow.
const SLOW: Duration = Duration::from_secs(2);
/// Duration below which uploads are quick.
const QUICK: Duration = Duration::from_secs(1);
/// Smallest share of the former rate, in tenths, with which a step down is kept.
const KEPT_TENTHS: u64 = 9;
/// Number of rounds that the window waits after it has undone a step down. The number doubles with each further undone
/// step; a step that is kept resets it.
const HELD_ROUNDS: u32 = 8;
/// Most rounds that the window waits.
const HELD_ROUNDS_MAX: u32 = 256;

/// Window of one broker's uploads.
#[derive(Debug)]
pub struct UploadWindow {
    slots_max: usize,
    size: usize,
    /// True until the first upload that is not quick.
    is_opening: bool,
    round: UploadRound,
    /// The last step down, until it is kept or undone.
    step: Option<StepDown>,
    /// Rounds before the next step down.
    held: u32,
    held_next: u32,
}

/// Uploads that ended since the last adjustment of the window.
#[derive(Debug, Default)]
struct UploadRound {
    began: Duration,
    count: usize,
    bytes: u64,
    took: Duration,
}

/// Step down, with the size and rate before it.
#[derive(Debug)]
struct StepDown {
    size: usize,
    bytes_per_second: u64,
    /// False during the first round after the step, whose rate does not count: uploads that began before the step end
    /// in it.
    is_settled: bool,
}

impl UploadWindow {
    /// Creates a window of at most `slots_max` uploads, at least one.
    pub fn new(slots_max: usize) -> UploadWindow {
        let slots_max = slots_max.max(1);
        UploadWindow {
            slots_max,
            size: OPENS_WITH.min(slots_max),
            is_opening: true,
            round: UploadRound::default(),
            step: None,
            held: 0,
            held_next: HELD_ROUNDS,
        }
    }

    /// Returns the number of uploads that may run at a time.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Records that `bytes` arrived at `now` by an upload of duration `took`. `now` is the time of any monotonic clock.
    pub fn note(&mut self, now: Duration, took: Duration, bytes: u64) {
        if self.is_opening && took < QUICK {
            self.size = (self.size + 1).min(self.slots_max);
        } else {
            self.is_opening = false;
        }
        if self.round.count == 0 {
            // Time before the first upload began does not count: no bytes arrived in it.
            self.round.began = self.round.began.max(now.saturating_sub(took));
        }
        self.round.count += 1;
        self.round.bytes += bytes;
        self.round.took += took;
        if self.round.count >= self.size.max(2) {
            let round = std::mem::replace(&mut self.round, UploadRound { began: now, ..UploadRound::default() });
            self.judge(&round, now);
        }
    }

    fn judge(&mut self, round: &UploadRound, now: Duration) {
        let millis = u64::try_from(now.saturating_sub(round.began).as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = round.bytes.saturating_mul(1000) / millis;
        let mean = round.took / u32::try_from(round.count).unwrap_or(u32::MAX).max(1);
        match self.step.take() {
            Some(step) if !step.is_settled => {
                self.step = Some(StepDown { is_settled: true, ..step });
                return;
            }
            Some(step) if rate < step.bytes_per_second / 10 * KEPT_TENTHS => {
                self.size = step.size;
                self.held = self.held_next;
                self.held_next = (2 * self.held_next).min(HELD_ROUNDS_MAX);
                return;
            }
            Some(_) => self.held_next = HELD_ROUNDS,
            None => {}
        }
        self.held = self.held.saturating_sub(1);
        if mean > SLOW && self.size > 1 && self.held == 0 {
            self.step = Some(StepDown { size: self.size, bytes_per_second: rate, is_settled: false });
            self.size -= (self.size / 4).max(1);
        } else if mean < QUICK {
            self.size = (self.size + 1).min(self.slots_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Store with a latency, and a link that concurrent uploads share.
    struct Store {
        latency: Duration,
        bytes_per_second: u64,
        /// Remaining bytes and start of each upload; the latency follows the last byte.
        under_way: Vec<(f64, Duration)>,
        answering: Vec<(Duration, Duration)>,
        now: Duration,
    }

    impl Store {
        fn new(latency_ms: u64, bytes_per_second: u64) -> Store {
            let (under_way, answering) = (Vec::new(), Vec::new());
            Store {
                latency: Duration::from_millis(latency_ms),
                bytes_per_second,
                under_way,
                answering,
                now: Duration::ZERO,
            }
        }

        /// Keeps the window full for `seconds`. Returns the bytes a second that arrived.
        fn run(&mut self, window: &mut UploadWindow, seconds: u64, object: u64) -> u64 {
            let (step, until) = (Duration::from_millis(10), self.now + Duration::from_secs(seconds));
            let mut arrived = 0;
            while self.now < until {
                while self.under_way.len() + self.answering.len() < window.size() {
                    self.under_way.push((object as f64, self.now));
                }
                self.now += step;
                // Streams share a link unequally, by shares of 8, 9, 10 and so on.
                let parts: f64 = (0..self.under_way.len()).map(|nth| 8.0 + nth as f64).sum();
                let part = self.bytes_per_second as f64 * step.as_secs_f64() / parts;
                self.under_way.iter_mut().enumerate().for_each(|(nth, (left, _))| *left -= part * (8.0 + nth as f64));
                let (sent, left) = self.under_way.iter().partition(|(left, _)| *left <= 0.0);
                self.under_way = left;
                let sent: Vec<(f64, Duration)> = sent;
                self.answering.extend(sent.into_iter().map(|(_, began)| (began, self.now + self.latency)));
                let (done, rest) = self.answering.iter().partition(|(_, at)| *at <= self.now);
                self.answering = rest;
                let done: Vec<(Duration, Duration)> = done;
                for (began, _) in done {
                    arrived += object;
                    window.note(self.now, self.now - began, object);
                }
            }
            arrived / seconds
        }
    }

    #[test]
    fn wide_store_gets_all_slots_at_once() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 10_000 * MIB));
        store.run(&mut window, 1, 8 * MIB);
        assert_eq!(window.size(), 8);
        // Each of the 8 slots uploads an object within 180 ms: 150 ms of latency, the rest for steps of the simulation.
        assert!(store.run(&mut window, 10, 8 * MIB) > 8 * 8 * MIB * 1000 / 180);
    }

    #[test]
    fn narrow_store_is_filled_by_few_uploads_that_end_soon() {
        for (bytes_per_second, size_max) in
            [(MIB / 2, 1), (2 * MIB, 1), (5 * MIB, 2), (10 * MIB, 3), (30 * MIB, 8), (100 * MIB, 8)]
        {
            let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, bytes_per_second));
            store.run(&mut window, 600, 8 * MIB);
            assert!(window.size() <= size_max, "{bytes_per_second}: {} uploads", window.size());
            let rate = store.run(&mut window, 600, 8 * MIB);
            assert!(rate * 10 >= bytes_per_second * 9, "{bytes_per_second}: {rate}");
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
    fn slots_come_back_once_the_store_is_wide_again() {
        let (mut window, mut store) = (UploadWindow::new(8), Store::new(150, 1000 * MIB));
        store.run(&mut window, 5, 8 * MIB);
        store.bytes_per_second = 2 * MIB;
        store.run(&mut window, 300, 8 * MIB);
        assert_eq!(window.size(), 1);
        store.bytes_per_second = 1000 * MIB;
        store.run(&mut window, 20, 8 * MIB);
        assert_eq!(window.size(), 8);
    }

    #[test]
    fn one_slot_stays_one() {
        let (mut window, mut store) = (UploadWindow::new(1), Store::new(150, MIB));
        store.run(&mut window, 100, MIB);
        assert_eq!(window.size(), 1);
        assert_eq!(UploadWindow::new(0).size(), 1);
    }
}
