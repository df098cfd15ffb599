//! Tests both paces over a modelled link, in virtual time.

use super::*;
use std::collections::VecDeque;

/// How fast a consumer reads records, in bytes per second.
const READING: f64 = 2e9;
const RUN: f64 = 20.0;
const PARTITIONS: [usize; 3] = [1, 6, 100];
const ROUND_TRIPS: [f64; 3] = [0.0001, 0.02, 0.15];
const MEMORY: u64 = 64 << 20;

/// A modelled link. Responses leave the leader one after another, and TCP doubles its window up to the rate of the
/// link.
struct Link {
    round_trip: f64,
    bytes_s: f64,
    /// When the link has sent the last byte of earlier responses.
    free_at: f64,
    /// TCP's congestion window in bytes, and when it last changed.
    window: f64,
    window_since: f64,
}

impl Link {
    fn new(round_trip: f64, bytes_s: f64) -> Link {
        Link { round_trip, bytes_s, free_at: 0.0, window: 14_480.0, window_since: 0.0 }
    }

    /// Sends a fetch at the time `sent`. Returns the times at which the first and the last byte of its response arrive.
    fn answer(&mut self, sent: f64, bytes: u64) -> (f64, f64) {
        let mut at = self.free_at.max(sent + self.round_trip / 2.0);
        let began = at;
        self.window_since = self.window_since.max(at - self.round_trip);
        let mut left = bytes as f64;
        while left > 0.0 {
            let rate = self.bytes_s.min(self.window / self.round_trip);
            let until_doubled = (self.window_since + self.round_trip - at).max(1e-9);
            let sent = left.min(rate * until_doubled);
            at += sent / rate;
            left -= sent;
            if at >= self.window_since + self.round_trip - 1e-9 {
                (self.window, self.window_since) = ((self.window * 2.0).min(1e12), at);
            }
        }
        self.free_at = at;
        (began + self.round_trip / 2.0, at + self.round_trip / 2.0)
    }
}

/// Runs a consumer with a leader that reads ahead. Of its `partitions` partitions, `busy` have records. Returns the
/// bytes per second in the second half of the run.
fn ahead(link: &mut Link, partitions: usize, busy: u64) -> f64 {
    let start = Instant::now();
    let time = |seconds: f64| start + Duration::from_secs_f64(seconds);
    let mut pace = AheadPace::new(1 << 20, 50 << 20);
    let (mut now, mut read_late, mut under_way) = (0.0_f64, 0.0, VecDeque::new());
    under_way.push_back(0.0);
    while now < RUN {
        let sent = under_way.pop_front().expect("one is under way");
        let of_a_partition = u64::from(pace.partition_bytes(partitions));
        let bytes = (of_a_partition * busy).min(u64::from(pace.answer_bytes(MEMORY)));
        let (began, ended) = link.answer(sent, bytes);
        let (awaited, began, ended) = (now, began.max(now), ended.max(now));
        pace.answered(&AnswerTimes {
            sent: time(sent),
            awaited: time(awaited),
            began: time(began),
            ended: time(ended),
            bytes,
        });
        // As in the fetcher, the next fetches leave before the response is read.
        while (under_way.len() as u64) < pace.fetches(MEMORY) {
            under_way.push_back(ended);
        }
        now = ended + bytes as f64 / READING;
        read_late += if now > RUN / 2.0 { bytes as f64 } else { 0.0 };
    }
    read_late / (now - RUN / 2.0)
}

/// Runs a consumer with a leader that does not read ahead. Returns the bytes per second in the second half of the run.
fn by_size(link: &mut Link, partitions: usize) -> f64 {
    let start = Instant::now();
    let time = |seconds: f64| start + Duration::from_secs_f64(seconds);
    let mut pace = SizePace::new(1 << 20, 50 << 20);
    let (mut now, mut sent, mut read_late, mut largest) = (0.0_f64, 0.0, 0.0, 0);
    while now < RUN {
        let of_a_partition = u64::from(pace.partition_bytes(MEMORY));
        let bytes = (of_a_partition * partitions as u64).min(u64::from(pace.answer_bytes(MEMORY)));
        let (began, ended) = link.answer(sent, bytes);
        let (awaited, began, ended) = (now, began.max(now), ended.max(now));
        let answer =
            AnswerTimes { sent: time(sent), awaited: time(awaited), began: time(began), ended: time(ended), bytes };
        pace.answered(&answer, of_a_partition as usize);
        // As in the fetcher, the next fetch leaves before the response is read.
        sent = ended;
        now = ended + bytes as f64 / READING;
        read_late += if now > RUN / 2.0 { bytes as f64 } else { 0.0 };
        largest = largest.max(bytes);
    }
    assert!(largest <= MEMORY / 2);
    read_late / (now - RUN / 2.0)
}

#[test]
fn reading_ahead_fills_the_link_at_every_distance_and_number_of_partitions() {
    for round_trip in ROUND_TRIPS {
        for partitions in PARTITIONS {
            for bytes_s in [1e6, 17e6, 100e6] {
                let carried = ahead(&mut Link::new(round_trip, bytes_s), partitions, partitions as u64);
                assert!(carried >= 0.97 * bytes_s, "{round_trip} s, {partitions} partitions, {bytes_s}: {carried}");
            }
        }
    }
}

#[test]
fn reading_ahead_fills_the_link_with_one_busy_partition_of_many() {
    for (round_trip, bytes_s) in [(0.02, 100e6), (0.15, 17e6), (0.15, 50e6)] {
        for partitions in [12, 100] {
            let carried = ahead(&mut Link::new(round_trip, bytes_s), partitions, 1);
            assert!(carried >= 0.97 * bytes_s, "{round_trip} s, {partitions} partitions, {bytes_s}: {carried}");
        }
    }
}

#[test]
fn larger_responses_nearly_fill_the_link_without_reading_ahead() {
    for round_trip in ROUND_TRIPS {
        for partitions in PARTITIONS {
            for bytes_s in [1e6, 17e6] {
                let carried = by_size(&mut Link::new(round_trip, bytes_s), partitions);
                assert!(carried >= 0.85 * bytes_s, "{round_trip} s, {partitions} partitions, {bytes_s}: {carried}");
            }
        }
    }
}

#[test]
fn a_near_leader_gets_one_fetch_at_a_time_and_no_larger_ones() {
    let start = Instant::now();
    let at = |us: u64| start + Duration::from_micros(us);
    let (mut ahead, mut size) = (AheadPace::new(1 << 20, 50 << 20), SizePace::new(1 << 20, 50 << 20));
    for answer in 0..1000 {
        let began = answer * 500;
        let answer = AnswerTimes {
            sent: at(began - began.min(100)),
            awaited: at(began),
            began: at(began),
            ended: at(began + 400),
            bytes: 1 << 20,
        };
        assert!(!ahead.answered(&answer));
        size.answered(&answer, 1 << 20);
    }
    assert_eq!((ahead.fetches(MEMORY), size.partition_bytes(MEMORY)), (1, 1 << 20));
}

#[test]
fn fetches_stay_within_the_share_of_the_memory_but_for_one() {
    let mut pace = AheadPace::new(1 << 20, 50 << 20);
    let start = Instant::now();
    let answer = AnswerTimes {
        sent: start,
        awaited: start,
        began: start + Duration::from_millis(300),
        ended: start + Duration::from_millis(600),
        bytes: 500 << 20,
    };
    assert!(pace.answered(&answer), "32 fetches are not enough");
    for share in [0, 1, 1 << 10, 1 << 20, 10 << 20, MEMORY, 1 << 40] {
        let (fetches, bytes) = (pace.fetches(share), u64::from(pace.answer_bytes(share)));
        assert!(fetches >= 1 && bytes >= 1 && fetches <= FETCHES_MAX);
        assert!(fetches * bytes <= share.max(1), "{fetches} of {bytes} within {share}");
    }
    let memory = FetchMemory::new(MEMORY);
    let first = memory.share();
    assert_eq!(first.bytes(), MEMORY);
    let second = memory.share();
    assert_eq!((first.bytes(), second.bytes()), (MEMORY / 2, MEMORY / 2));
    drop(first);
    assert_eq!(second.bytes(), MEMORY);
}
