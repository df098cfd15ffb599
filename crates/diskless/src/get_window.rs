//! Adapts the number of concurrent GETs, and the length of their ranges, to the object store.
//!
//! A GET that a reader waits for shares the link to the store with all other GETs. So on a narrow link, few bytes may
//! be under way: the ranges become shorter until the body of a GET takes about [`BODY_TAKES`]. If GETs of one block are
//! still slow, fewer of them run at a time ([`UploadWindow`]). On a wide link, ranges are long and all slots are in
//! use.
//!
//! This module has no clock and does no I/O. Invariants: a range has 1 to [`BLOCKS_MAX`] blocks. At least one GET may
//! run.

use std::time::Duration;

use fullbore_rules::commit::UploadWindow;

use super::cache::BLOCK;

/// Maximum number of blocks that one GET fetches.
pub const BLOCKS_MAX: u32 = 8;
/// How long the body of a GET should take at most, unless its range has a single block.
const BODY_TAKES: Duration = Duration::from_secs(1);
/// Minimum number of bytes of a GET whose body shows the rate. A shorter body may arrive at once, whatever the rate is.
const SHOWS_RATE: u64 = BLOCK as u64 / 2;

/// A GET that has succeeded.
#[derive(Clone, Copy, Debug)]
pub struct EndedGet {
    /// How long the GET took.
    pub took: Duration,
    /// The part of this time after the first bytes arrived.
    pub body_took: Duration,
    /// How many bytes it returned.
    pub bytes: u64,
}

/// Limits how many GETs run at a time, and how many blocks each of them fetches.
#[derive(Debug)]
pub struct GetWindow {
    count: UploadWindow,
    /// The bytes of the last bodies and the time that they took. Each further body halves the weight of the earlier
    /// ones. `None` before the first body.
    bodies: Option<(f64, Duration)>,
}

impl GetWindow {
    /// Creates a window for at most `gets_max` GETs, which is at least one.
    pub fn new(gets_max: usize) -> GetWindow {
        GetWindow { count: UploadWindow::new(gets_max), bodies: None }
    }

    /// Returns how many GETs may run at a time now.
    pub fn gets(&self) -> usize {
        self.count.size()
    }

    /// Returns how many blocks a GET may fetch now. The first GET fetches one block.
    pub fn blocks(&self) -> u32 {
        let Some((bytes, took)) = self.bodies else { return 1 };
        let blocks = bytes * BODY_TAKES.as_secs_f64() / took.as_secs_f64().max(1e-9) / f64::from(BLOCK);
        (blocks as u32).clamp(1, BLOCKS_MAX)
    }

    /// Records a GET that has ended at `now`. `under_way` is the number of GETs that were running, including this one.
    /// The clock may be any monotonic one.
    pub fn note(&mut self, now: Duration, get: EndedGet, under_way: usize) {
        self.count.note(now, get.took, get.bytes, under_way);
        if get.bytes >= SHOWS_RATE {
            let (bytes, took) = self.bodies.unwrap_or_default();
            self.bodies = Some((bytes / 2.0 + get.bytes as f64, took / 2 + get.body_took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: f64 = BLOCK as f64;

    /// A simulated store that answers after a latency, over a link that concurrent GETs share.
    struct Store {
        latency: Duration,
        bytes_per_second: f64,
        /// The maximum rate of each GET, in bytes per second.
        each_max: f64,
        now: Duration,
        gets: Vec<SimulatedGet>,
    }

    struct SimulatedGet {
        began: Duration,
        bytes: f64,
        left: f64,
    }

    impl Store {
        fn new(latency_ms: u64, bytes_per_second: f64) -> Store {
            let (latency, now, gets) = (Duration::from_millis(latency_ms), Duration::ZERO, Vec::new());
            Store { latency, bytes_per_second, each_max: f64::MAX, now, gets }
        }

        /// Keeps the window full for `seconds`. Returns how many bytes arrived per second.
        fn run(&mut self, window: &mut GetWindow, seconds: u64) -> f64 {
            let (step, until) = (Duration::from_millis(10), self.now + Duration::from_secs(seconds));
            let mut arrived = 0.0;
            while self.now < until {
                while self.gets.len() < window.gets() {
                    let bytes = f64::from(window.blocks()) * BLOCK_BYTES;
                    self.gets.push(SimulatedGet { began: self.now, bytes, left: bytes });
                }
                self.now += step;
                let (now, latency) = (self.now, self.latency);
                let flows = |get: &SimulatedGet| now > get.began + latency;
                let count = self.gets.iter().filter(|get| flows(get)).count();
                let part = (self.bytes_per_second / count.max(1) as f64).min(self.each_max) * step.as_secs_f64();
                self.gets.iter_mut().filter(|get| flows(get)).for_each(|get| get.left -= part);
                let under_way = self.gets.len();
                for get in self.gets.extract_if(.., |get| get.left <= 0.0) {
                    arrived += get.bytes;
                    let took = now - get.began;
                    window.note(now, EndedGet { took, body_took: took - latency, bytes: get.bytes as u64 }, under_way);
                }
            }
            arrived / seconds as f64
        }

        /// Returns how many seconds the link needs for the bytes that are under way.
        fn backlog(&self) -> f64 {
            self.gets.iter().map(|get| get.left).sum::<f64>() / self.bytes_per_second
        }
    }

    #[test]
    fn wide_store_gets_all_slots_and_long_ranges_at_once() {
        for latency_ms in [1, 50, 150] {
            let (mut window, mut store) = (GetWindow::new(16), Store::new(latency_ms, 1e9));
            store.run(&mut window, 2);
            assert_eq!((window.gets(), window.blocks()), (16, BLOCKS_MAX), "{latency_ms} ms");
        }
    }

    #[test]
    fn narrow_store_has_few_bytes_under_way_and_its_link_is_full() {
        for bytes_per_second in [0.5e6, 1e6, 2e6, 5e6, 10e6, 50e6, 100e6] {
            let (mut window, mut store) = (GetWindow::new(16), Store::new(50, bytes_per_second));
            let rate = store.run(&mut window, 600);
            assert!(rate >= 0.85 * bytes_per_second, "{bytes_per_second}: {rate}");
            // Two blocks may be under way on the narrowest links.
            let backlog_max = (4.0 * BLOCK_BYTES / bytes_per_second).max(3.0);
            assert!(store.backlog() <= backlog_max, "{bytes_per_second}: {} s", store.backlog());
        }
    }

    #[test]
    fn first_gets_over_a_narrow_link_are_short() {
        let (mut window, mut store) = (GetWindow::new(16), Store::new(50, 1e6));
        for _ in 0..60 {
            store.run(&mut window, 1);
            assert!(store.backlog() <= 5.0, "{} s", store.backlog());
        }
    }

    #[test]
    fn wide_link_becomes_narrow_few_bytes_are_under_way_minutes_later() {
        let (mut window, mut store) = (GetWindow::new(16), Store::new(50, 1e9));
        store.run(&mut window, 5);
        store.bytes_per_second = 1e6;
        store.run(&mut window, 400);
        assert!(store.backlog() <= 5.0, "{} s", store.backlog());
        store.bytes_per_second = 1e9;
        store.run(&mut window, 20);
        assert_eq!((window.gets(), window.blocks()), (16, BLOCKS_MAX));
    }

    #[test]
    fn store_limits_each_get_all_slots_are_used() {
        let (mut window, mut store) = (GetWindow::new(16), Store::new(50, 1e9));
        store.each_max = 3e6;
        store.run(&mut window, 60);
        let rate = store.run(&mut window, 60);
        assert!(rate >= 0.8 * 16.0 * store.each_max, "{rate}");
    }

    #[test]
    fn small_objects_show_no_rate() {
        let mut window = GetWindow::new(16);
        let (took, body_took) = (Duration::from_millis(50), Duration::ZERO);
        (0..100).for_each(|at| window.note(took * at, EndedGet { took, body_took, bytes: 1000 }, 16));
        assert_eq!((window.gets(), window.blocks()), (16, 1));
    }
}
