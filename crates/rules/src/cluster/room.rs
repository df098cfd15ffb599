//! Decides when a broker reports that its disk is full or hangs, and when it reports that the disk is usable again.
//!
//! ```text
//! disk      room | full | 4 MiB | full | 4 MiB | full | room ................................
//! reports                |- full: out of ISRs, leads nothing ------------| room: joins again
//!                 '- 1 s -'                             '-- 5 s, or longer -'
//! ```
//!
//! Each report causes elections, so a disk that has room only for a moment still counts as full. A broker reports a
//! full disk after 1 s, and room after 5 s. The 5 s become up to 40 s if the disk fills up again and again. If acks=all
//! fails in a partition without the broker, the wait is always 5 s. A hanging disk is reported at once, since the write
//! has already waited for long. This module frees no space and refuses no writes.

use super::election::min_insync;
use crate::replica::PartitionRegistration;

/// The state of the disk, as its broker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskRoom {
    /// A write does not complete.
    Hung,
    /// No file can be created in the data directory.
    Unwritable,
    /// A write found no room.
    Full,
    /// The last write found room, but there is little left.
    Tight,
    /// The disk reserve has its full size, and there is more free space.
    Ample,
}

/// A report that a broker sends to its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomReport {
    /// The disk is full or hangs, or no file can be created.
    Full,
    /// The disk has room again and responds.
    Room,
}

/// How long a disk must be full before the broker reports it, in ms.
const FULL_MS: i64 = 1_000;
/// How long a disk must have ample room before the broker reports it, in ms. The wait doubles if the disk soon fills up
/// again.
const ROOM_MIN_MS: i64 = 5_000;
/// Maximum time for which a disk must have ample room before the broker reports it, in ms.
const ROOM_MAX_MS: i64 = 40_000;
/// If a disk fills up again within this time after a report of room, in ms, the next report of room waits twice as
/// long.
const SOON_MS: i64 = 60_000;

/// Watches a broker's disk, and decides when to report its state.
#[derive(Clone, Debug)]
pub struct RoomWatch {
    /// When the disk became full or unwritable, or began to hang. `None` once the disk has had ample room for long
    /// enough. If the disk hangs, the time is at least [`FULL_MS`] ago, because a hang is found late.
    full_since_ms: Option<i64>,
    ample_since_ms: Option<i64>,
    /// When the last report of room was made.
    back_ms: Option<i64>,
    room_ms: i64,
}

impl Default for RoomWatch {
    fn default() -> RoomWatch {
        RoomWatch { full_since_ms: None, ample_since_ms: None, back_ms: None, room_ms: ROOM_MIN_MS }
    }
}

impl RoomWatch {
    /// Returns the report that is due at `now_ms` of a monotonic clock, if any. `is_full` is the broker's state in the
    /// metadata, and a report stays due until the metadata shows it. `is_missed` returns true if a partition has too
    /// few replicas in sync without this broker. `is_missed` is called only if its result matters.
    pub fn report(
        &mut self,
        now_ms: i64,
        disk: DiskRoom,
        is_full: bool,
        is_missed: impl FnOnce() -> bool,
    ) -> Option<RoomReport> {
        match disk {
            DiskRoom::Ample => drop(self.ample_since_ms.get_or_insert(now_ms)),
            DiskRoom::Tight => self.ample_since_ms = None,
            DiskRoom::Full | DiskRoom::Unwritable => {
                self.ample_since_ms = None;
                self.full_since_ms.get_or_insert(now_ms);
            }
            DiskRoom::Hung => {
                self.ample_since_ms = None;
                self.full_since_ms = Some(self.full_since_ms.unwrap_or(now_ms).min(now_ms - FULL_MS));
            }
        }
        let lasted_ms = self.ample_since_ms.map_or(0, |since| now_ms - since);
        let is_over = lasted_ms >= self.room_ms || is_full && lasted_ms >= ROOM_MIN_MS && is_missed();
        if is_over {
            self.full_since_ms = None;
        }
        match is_full {
            true if is_over => {
                self.back_ms = Some(now_ms);
                Some(RoomReport::Room)
            }
            false if self.lasts(now_ms) && disk != DiskRoom::Ample => {
                if let Some(back_ms) = self.back_ms.take() {
                    let is_soon = now_ms - back_ms < SOON_MS;
                    self.room_ms = if is_soon { (self.room_ms * 2).min(ROOM_MAX_MS) } else { ROOM_MIN_MS };
                }
                Some(RoomReport::Full)
            }
            _ => None,
        }
    }

    fn lasts(&self, now_ms: i64) -> bool {
        self.full_since_ms.is_some_and(|since| now_ms - since >= FULL_MS)
    }
}

/// Returns true if acks=all fails because this broker's replica of the partition is out of sync.
pub fn is_missed(partition: &PartitionRegistration, broker_id: i32, min_insync_replicas: usize) -> bool {
    let is_out = partition.replicas.contains(&broker_id) && !partition.isr.contains(&broker_id);
    is_out && partition.isr.len() < min_insync(partition, min_insync_replicas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DiskRoom::{Ample, Full, Hung, Tight};

    /// A broker that polls its disk every half second. Its reports take effect at once.
    #[derive(Default)]
    struct Broker {
        watch: RoomWatch,
        now_ms: i64,
        is_full: bool,
        is_missed: bool,
    }

    impl Broker {
        /// Polls a disk in this state for `for_ms`. Returns the reports, each with the time since the start.
        fn reports(&mut self, for_ms: i64, disk: DiskRoom) -> Vec<(i64, RoomReport)> {
            let began_ms = self.now_ms;
            let mut reports = Vec::new();
            while self.now_ms < began_ms + for_ms {
                if let Some(report) = self.watch.report(self.now_ms, disk, self.is_full, || self.is_missed) {
                    self.is_full = report == RoomReport::Full;
                    reports.push((self.now_ms - began_ms, report));
                }
                self.now_ms += 500;
            }
            reports
        }
    }

    #[test]
    fn disk_full_for_a_second_is_reported_once() {
        let mut broker = Broker::default();
        assert_eq!(broker.reports(10_000, Ample), []);
        assert_eq!(broker.reports(500, Full), []);
        assert_eq!(broker.reports(20_000, Ample), [], "a moment");
        assert_eq!(broker.reports(60_000, Full), [(1_000, RoomReport::Full)]);
    }

    #[test]
    fn disk_hangs_is_reported_at_once_and_its_recovery_like_room() {
        let mut broker = Broker::default();
        assert_eq!(broker.reports(10_000, Ample), []);
        assert_eq!(broker.reports(20_000, Hung), [(0, RoomReport::Full)]);
        assert_eq!(broker.reports(10_000, Ample), [(5_000, RoomReport::Room)]);
        assert_eq!(broker.reports(500, Full), []);
        assert_eq!(broker.reports(500, Hung), [(0, RoomReport::Full)], "it was full for less than a second before");
    }

    #[test]
    fn room_is_reported_only_once_it_has_lasted() {
        let mut broker = Broker::default();
        broker.reports(2_000, Full);
        assert_eq!(broker.reports(600_000, Tight), [], "a little room is none");
        assert_eq!(broker.reports(4_500, Ample), []);
        assert_eq!(broker.reports(500, Full), []);
        assert_eq!(broker.reports(6_000, Ample), [(5_000, RoomReport::Room)]);
    }

    #[test]
    fn room_flaps_the_disk_stays_reported_as_full() {
        let mut broker = Broker::default();
        let mut reports = Vec::new();
        for _ in 0..100 {
            reports.extend(broker.reports(500, Full));
            reports.extend(broker.reports(1_500, Tight));
            reports.extend(broker.reports(500, Full));
            reports.extend(broker.reports(3_000, Ample));
        }
        assert_eq!(reports, [(500, RoomReport::Full)], "a second after the first time, though it has a little room");
    }

    #[test]
    fn disk_full_again_soon_must_have_room_for_longer_each_time() {
        let mut broker = Broker::default();
        for room_ms in [5_000, 10_000, 20_000, 40_000, 40_000] {
            assert_eq!(broker.reports(2_000, Full), [(1_000, RoomReport::Full)]);
            assert_eq!(broker.reports(room_ms + 500, Ample), [(room_ms, RoomReport::Room)]);
        }
        broker.reports(SOON_MS, Ample);
        assert_eq!(broker.reports(2_000, Full), [(1_000, RoomReport::Full)]);
        assert_eq!(broker.reports(5_500, Ample), [(5_000, RoomReport::Room)], "it was calm");
    }

    #[test]
    fn disk_full_again_soon_of_a_missed_broker_waits_the_shortest_time() {
        let mut broker = Broker { is_missed: true, ..Broker::default() };
        for _ in 0..5 {
            assert_eq!(broker.reports(2_000, Full), [(1_000, RoomReport::Full)]);
            assert_eq!(broker.reports(5_500, Ample), [(5_000, RoomReport::Room)]);
        }
        broker.is_missed = false;
        assert_eq!(broker.reports(2_000, Full), [(1_000, RoomReport::Full)]);
        assert_eq!(broker.reports(40_500, Ample), [(40_000, RoomReport::Room)], "the wait has grown meanwhile");
    }

    #[test]
    fn report_without_effect_is_due_again_and_waits_no_longer() {
        let mut watch = RoomWatch::default();
        assert_eq!(watch.report(0, Full, false, || false), None);
        for now_ms in (1_000..20_000).step_by(500) {
            assert_eq!(watch.report(now_ms, Full, false, || false), Some(RoomReport::Full));
        }
        assert_eq!(watch.report(20_000, Ample, true, || false), None);
        assert_eq!(watch.report(25_000, Ample, true, || false), Some(RoomReport::Room));
        assert_eq!(watch.report(25_500, Ample, true, || false), Some(RoomReport::Room));
    }

    #[test]
    fn broker_restarted_on_a_full_disk_reports_again() {
        let mut watch = RoomWatch::default();
        assert_eq!(watch.report(0, Full, false, || false), None);
        assert_eq!(watch.report(1_000, Full, false, || false), Some(RoomReport::Full));
    }
}
