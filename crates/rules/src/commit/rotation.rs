//! When the object that is being filled is closed and uploaded.
//!
//! No object goes while all upload slots are busy: it would only wait for a slot in front of batches that are still to
//! come. Once a slot is idle, a full object goes at once, and so does one whose first batch has waited for the commit
//! interval. Any other goes early, since waiting would win nothing but cheaper requests; and because requests are
//! money, only under a ceiling of PUTs a second, which counts all of them. It goes early once batches have stopped
//! arriving for a moment: batches of one request, and requests that a producer sends one behind the other, are answered
//! together, so that splitting them only makes the later part wait for another PUT.
//!
//! What it is not: it uploads nothing, and knows no clock. Times are durations since any one moment.

use std::time::Duration;

/// Batches at which an object is full, so that a commit of small ones takes no longer than others.
pub const OBJECT_BATCHES_MAX: usize = 10_000;
/// Pause between two batches that ends a burst: an object goes early no sooner after its last batch.
const BURST_PAUSE: Duration = Duration::from_millis(2);
/// How long a burst holds back an object that may go early, from its first batch on.
const BURST_MAX: Duration = Duration::from_millis(20);

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationSettings {
    /// Bytes at which an object is full (`diskless.produce.buffer.max.bytes`).
    pub bytes_max: usize,
    /// How long its first batch waits at most (`diskless.produce.commit.interval.ms`).
    pub interval: Duration,
    /// Uploads at a time (`diskless.produce.upload.thread.pool.size`), at least one.
    pub slots: usize,
    /// Under how many PUTs a second an object may go early (`diskless.puts.per.second.max`); 0: never.
    pub early_puts_per_second: u32,
}

/// The object that is being filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveObject {
    /// Bytes of its batches.
    pub bytes: usize,
    /// How many there are.
    pub batches: usize,
    /// When the first of them came.
    pub first_at: Duration,
    /// When the last of them came.
    pub last_at: Duration,
    /// True if one ends a transaction, whose producer waits for it: the marker, or the last records.
    pub ends_transaction: bool,
}

impl ActiveObject {
    /// When the burst of batches that it gathers is over, if no further batch comes.
    fn burst_ends_at(&self) -> Duration {
        self.last_at.saturating_add(BURST_PAUSE).min(self.first_at.saturating_add(BURST_MAX))
    }
}

/// When the active object is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Now.
    Now,
    /// Then, if nothing happens before.
    At(Duration),
}

/// Knows how many PUTs have gone.
#[derive(Clone, Debug)]
pub struct Rotation {
    settings: RotationSettings,
    /// From when on another PUT is under the ceiling.
    early_from: Duration,
    /// From when on another object that ends a transaction goes early. Ends have a ceiling of their own, of the same
    /// PUTs a second: a flood of batches, whose objects are full, would hold up the next transaction of every producer
    /// for the interval.
    end_from: Duration,
}

impl Rotation {
    /// Creates a rotation before the first object.
    pub fn new(settings: RotationSettings) -> Rotation {
        Rotation { settings, early_from: Duration::ZERO, end_from: Duration::ZERO }
    }

    /// Bytes at which an object is full.
    pub fn bytes_max(&self) -> usize {
        self.settings.bytes_max
    }

    /// Sets the number of uploads that may be under way from now on.
    pub fn set_slots(&mut self, slots: usize) {
        self.settings.slots = slots;
    }

    /// When the active object is to be closed, with so many uploads under way; `None` while these take all slots. To be
    /// asked again when it grows, and when an upload ends.
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

    /// An object was closed, and goes. Those that have to go do not wait for the ceiling; the next early one waits for
    /// them. One that ends transactions holds up the next such one, too.
    pub fn closed(&mut self, ends_transaction: bool, now: Duration) {
        let Some(between) = Duration::from_secs(1).checked_div(self.settings.early_puts_per_second) else { return };
        if ends_transaction {
            self.end_from = now.saturating_add(between);
        }
        // What went over the ceiling is not owed for longer than an object would have waited anyway.
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

    /// One whose only batch came at `at`.
    fn active(bytes: usize, at: u64) -> ActiveObject {
        ActiveObject { bytes, batches: 1, first_at: MS(at), last_at: MS(at), ends_transaction: false }
    }

    #[test]
    fn a_full_one_goes_at_once_and_one_that_waited_for_the_interval_goes() {
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
    fn none_goes_while_all_slots_are_busy() {
        for uploads in [2, 100] {
            assert_eq!(rotation(10).close(active(1000, 1000), uploads, MS(2000)), None);
        }
    }

    #[test]
    fn one_goes_early_into_an_idle_slot_as_often_as_the_ceiling_lets_it() {
        let mut rotation = rotation(10);
        assert_eq!(rotation.close(active(1, 4998), 1, MS(5000)), Some(Close::Now));
        rotation.closed(false, MS(5000));
        assert_eq!(rotation.close(active(1, 5001), 1, MS(5001)), Some(Close::At(MS(5100))));
        assert_eq!(rotation.close(active(1, 5001), 1, MS(5100)), Some(Close::Now));
        assert_eq!(rotation.close(active(1, 5001), 2, MS(5100)), None, "no slot is idle");
    }

    #[test]
    fn a_burst_goes_in_one_object_and_holds_it_back_for_a_bounded_time() {
        let rotation = rotation(10);
        let of = |last_at| ActiveObject { last_at: MS(last_at), ..active(1, 5000) };
        assert_eq!(rotation.close(of(5000), 0, MS(5000)), Some(Close::At(MS(5002))));
        assert_eq!(rotation.close(of(5001), 0, MS(5002)), Some(Close::At(MS(5003))), "another batch came");
        assert_eq!(rotation.close(of(5001), 0, MS(5003)), Some(Close::Now));
        assert_eq!(rotation.close(of(5019), 0, MS(5019)), Some(Close::At(MS(5020))), "batches still come");
        assert_eq!(rotation.close(of(5020), 0, MS(5020)), Some(Close::Now));
    }

    #[test]
    fn one_of_very_many_batches_is_full() {
        let of = |batches| ActiveObject { batches, ..active(1, 0) };
        assert_eq!(rotation(0).close(of(OBJECT_BATCHES_MAX - 1), 0, MS(1)), Some(Close::At(MS(250))));
        assert_eq!(rotation(0).close(of(OBJECT_BATCHES_MAX), 0, MS(1)), Some(Close::Now));
    }

    #[test]
    fn without_a_ceiling_none_goes_early() {
        assert_eq!(rotation(0).close(active(1, 0), 0, MS(1)), Some(Close::At(MS(250))));
    }

    #[test]
    fn full_ones_count_and_no_more_is_owed_than_an_interval() {
        let mut rotation = rotation(10);
        (0..50).for_each(|n| rotation.closed(false, MS(10 * n)));
        assert_eq!(rotation.close(active(1, 495), 0, MS(495)), Some(Close::At(MS(740))));
        assert_eq!(rotation.close(active(1, 600), 0, MS(740)), Some(Close::Now));
    }

    /// A flood of full objects is over the ceiling of early ones.
    #[test]
    fn objects_are_full_all_the_time_one_that_ends_a_transaction_goes_early() {
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
    fn in_the_long_run_early_ones_stay_under_the_ceiling() {
        let mut rotation = rotation(10);
        let (mut puts, mut first_at) = (0, 0);
        for now in 0..10_000 {
            // A batch comes each millisecond.
            let active = ActiveObject { last_at: MS(now), ..active(1, first_at) };
            if rotation.close(active, 0, MS(now)) == Some(Close::Now) {
                rotation.closed(false, MS(now));
                (puts, first_at) = (puts + 1, now);
            }
        }
        assert_eq!(puts, 100);
    }
}
