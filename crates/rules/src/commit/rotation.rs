//! Decides when the active object, which collects batches, is closed and uploaded.
//!
//! No object is closed while all upload slots are busy. It would only wait for a slot, while an open object can still
//! get more batches. Once a slot is idle, an object is closed if it is full, or if its first batch has waited for the
//! commit interval. Otherwise it may be closed early, because waiting would only save requests. Requests cost money, so
//! objects are closed early only below a limit of PUTs per second. All uploads count towards this limit.
//!
//! An object is closed early only after a pause in the arrival of batches. The batches of a request, or of consecutive
//! requests of a producer, are acknowledged together. If they were in two objects, the request would wait for two PUTs.
//!
//! There are no uploads and no clocks here. Times are durations since a fixed moment.

use std::time::Duration;

/// Maximum number of batches in an object. It keeps the commit of an object with many small batches short.
pub const OBJECT_BATCHES_MAX: usize = 10_000;
/// A pause of this length in the arrival of batches ends a burst. After a burst, an object may be closed early.
const BURST_PAUSE: Duration = Duration::from_millis(2);
/// How long a burst can delay the early closing of an object, counted from its first batch.
const BURST_MAX: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationSettings {
    /// The size in bytes at which an object is full (`diskless.produce.buffer.max.bytes`).
    pub bytes_max: usize,
    /// How long the object's first batch may wait (`diskless.produce.commit.interval.ms`).
    pub interval: Duration,
    /// Maximum number of concurrent uploads (`diskless.produce.upload.thread.pool.size`), at least one.
    pub slots: usize,
    /// Objects may be closed early while there are fewer PUTs per second than this (`diskless.puts.per.second.max`).
    /// With 0, none is closed early.
    pub early_puts_per_second: u32,
}

/// The object that is being filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveObject {
    /// The size of the object's batches in bytes.
    pub bytes: usize,
    /// How many batches the object has.
    pub batches: usize,
    /// When the first batch arrived.
    pub first_at: Duration,
    /// When the last batch arrived.
    pub last_at: Duration,
    /// True if a batch is a marker or has the last records of a transaction. The producer's next transaction waits for
    /// this batch.
    pub ends_transaction: bool,
}

impl ActiveObject {
    /// Returns when the current burst ends, if no more batches arrive.
    fn burst_ends_at(&self) -> Duration {
        self.last_at.saturating_add(BURST_PAUSE).min(self.first_at.saturating_add(BURST_MAX))
    }
}

/// When the active object is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// At once.
    Now,
    /// At this time. The caller decides again if the object grows or an upload ends before.
    At(Duration),
}

/// Decides when objects are closed, and counts PUTs for the limit.
#[derive(Clone, Debug)]
pub struct Rotation {
    settings: RotationSettings,
    /// The earliest time at which another early PUT is within the limit.
    early_from: Duration,
    /// The earliest time at which another object that ends a transaction may be closed early. Such objects have a limit
    /// of their own, with the same rate. Otherwise a flood of full objects would delay every producer's next
    /// transaction by the interval.
    end_from: Duration,
}

impl Rotation {
    /// Creates a rotation that has not closed any object yet.
    pub fn new(settings: RotationSettings) -> Rotation {
        Rotation { settings, early_from: Duration::ZERO, end_from: Duration::ZERO }
    }

    /// Returns the size in bytes at which an object is full.
    pub fn bytes_max(&self) -> usize {
        self.settings.bytes_max
    }

    /// Sets the maximum number of concurrent uploads.
    pub fn set_slots(&mut self, slots: usize) {
        self.settings.slots = slots;
    }

    /// Returns when to close the active object while `uploads` are running; None while the uploads take all slots. The
    /// caller must call this again when the object grows and when an upload ends.
    pub fn close(&self, active: ActiveObject, uploads: usize, now: Duration) -> Option<Close> {
        if uploads >= self.settings.slots {
            return None;
        }
        let due = active.first_at.saturating_add(self.settings.interval);
        let is_full = active.bytes >= self.settings.bytes_max || active.batches >= OBJECT_BATCHES_MAX;
        if is_full || due <= now {
            return Some(Close::Now);
        }
        let may_go_early = self.settings.early_puts_per_second > 0;
        let from = if active.ends_transaction { self.early_from.min(self.end_from) } else { self.early_from };
        Some(match from.max(active.burst_ends_at()) {
            early if may_go_early && early <= now => Close::Now,
            early if may_go_early => Close::At(early.min(due)),
            _ => Close::At(due),
        })
    }

    /// Notes that an object was closed. Full and due objects are closed whatever the limit, but they count towards it.
    /// An object that ends a transaction also counts towards the limit of such objects.
    pub fn closed(&mut self, ends_transaction: bool, now: Duration) {
        let Some(between) = Duration::from_secs(1).checked_div(self.settings.early_puts_per_second) else { return };
        if ends_transaction {
            self.end_from = now.saturating_add(between);
        }
        // Even if far more PUTs were made than the limit allows, the next early object waits for the commit interval at
        // most.
        let latest = now.saturating_add(self.settings.interval.max(between));
        self.early_from = self.early_from.max(now).saturating_add(between).min(latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn rotation(early_puts_per_second: u32) -> Rotation {
        Rotation::new(RotationSettings { bytes_max: 1000, interval: MS(250), slots: 2, early_puts_per_second })
    }

    /// Returns an object whose only batch arrived at `at`.
    fn active(bytes: usize, at: u64) -> ActiveObject {
        ActiveObject { bytes, batches: 1, first_at: MS(at), last_at: MS(at), ends_transaction: false }
    }

    #[test]
    fn full_or_overdue_object_is_closed_at_once() {
        for ceiling in [0, 10] {
            let mut rotation = rotation(ceiling);
            rotation.closed(false, MS(1000));
            for uploads in [0, 1] {
                assert_eq!(rotation.close(active(1000, 1000), uploads, MS(1000)), Some(Close::Now));
                assert_eq!(rotation.close(active(1, 1000), uploads, MS(1250)), Some(Close::Now));
            }
        }
    }

    #[test]
    fn all_slots_busy_no_object_is_closed() {
        for uploads in [2, 100] {
            assert_eq!(rotation(10).close(active(1000, 1000), uploads, MS(2000)), None);
        }
    }

    #[test]
    fn idle_slot_objects_are_closed_early_up_to_the_limit() {
        let mut rotation = rotation(10);
        assert_eq!(rotation.close(active(1, 4998), 1, MS(5000)), Some(Close::Now));
        rotation.closed(false, MS(5000));
        assert_eq!(rotation.close(active(1, 5001), 1, MS(5001)), Some(Close::At(MS(5100))));
        assert_eq!(rotation.close(active(1, 5001), 1, MS(5100)), Some(Close::Now));
        assert_eq!(rotation.close(active(1, 5001), 2, MS(5100)), None, "no slot is idle");
    }

    #[test]
    fn burst_stays_in_one_object_and_delays_it_for_a_bounded_time() {
        let rotation = rotation(10);
        let of = |last_at| ActiveObject { last_at: MS(last_at), ..active(1, 5000) };
        assert_eq!(rotation.close(of(5000), 0, MS(5000)), Some(Close::At(MS(5002))));
        assert_eq!(rotation.close(of(5001), 0, MS(5002)), Some(Close::At(MS(5003))), "another batch came");
        assert_eq!(rotation.close(of(5001), 0, MS(5003)), Some(Close::Now));
        assert_eq!(rotation.close(of(5019), 0, MS(5019)), Some(Close::At(MS(5020))), "batches still come");
        assert_eq!(rotation.close(of(5020), 0, MS(5020)), Some(Close::Now));
    }

    #[test]
    fn object_of_very_many_batches_is_full() {
        let of = |batches| ActiveObject { batches, ..active(1, 0) };
        assert_eq!(rotation(0).close(of(OBJECT_BATCHES_MAX - 1), 0, MS(1)), Some(Close::At(MS(250))));
        assert_eq!(rotation(0).close(of(OBJECT_BATCHES_MAX), 0, MS(1)), Some(Close::Now));
    }

    #[test]
    fn limit_of_zero_closes_no_object_early() {
        assert_eq!(rotation(0).close(active(1, 0), 0, MS(1)), Some(Close::At(MS(250))));
    }

    #[test]
    fn full_objects_count_and_delay_early_ones_by_an_interval_at_most() {
        let mut rotation = rotation(10);
        (0..50).for_each(|n| rotation.closed(false, MS(10 * n)));
        assert_eq!(rotation.close(active(1, 495), 0, MS(495)), Some(Close::At(MS(740))));
        assert_eq!(rotation.close(active(1, 600), 0, MS(740)), Some(Close::Now));
    }

    /// A flood of full objects uses up the limit of early PUTs. An object that ends a transaction has a limit of its
    /// own.
    #[test]
    fn flood_of_full_objects_one_that_ends_a_transaction_is_closed_early() {
        let mut rotation = rotation(10);
        (0..50).for_each(|n| rotation.closed(false, MS(10 * n)));
        let with_end = |at| ActiveObject { ends_transaction: true, ..active(1, at) };
        assert_eq!(rotation.close(active(1, 495), 0, MS(500)), Some(Close::At(MS(740))));
        assert_eq!(rotation.close(with_end(495), 0, MS(496)), Some(Close::At(MS(497))), "the burst is over then");
        assert_eq!(rotation.close(with_end(495), 0, MS(500)), Some(Close::Now));
        rotation.closed(true, MS(500));
        assert_eq!(rotation.close(with_end(505), 0, MS(510)), Some(Close::At(MS(600))), "ten of them a second");
        assert_eq!(rotation.close(with_end(505), 2, MS(700)), None, "no upload slot is idle");
        let never = Rotation::new(RotationSettings { early_puts_per_second: 0, ..rotation.settings });
        assert_eq!(never.close(with_end(495), 0, MS(500)), Some(Close::At(MS(745))));
    }

    #[test]
    fn steady_batches_early_objects_stay_under_the_limit() {
        let mut rotation = rotation(10);
        let (mut puts, mut first_at) = (0, 0);
        for now in 0..10_000 {
            // A batch arrives each millisecond.
            let active = ActiveObject { last_at: MS(now), ..active(1, first_at) };
            if rotation.close(active, 0, MS(now)) == Some(Close::Now) {
                rotation.closed(false, MS(now));
                (puts, first_at) = (puts + 1, now);
            }
        }
        assert_eq!(puts, 100);
    }
}
