//! Draws the ids of objects. After an older copy of the index is restored, no id is drawn that the newer index had.
//!
//! An id consists of the second in which it was drawn and a 31-bit counter that starts at random. If an older copy of
//! the index is restored, it lacks the ids of some objects. Those ids were drawn before the restore, so ids drawn
//! afterwards are larger. Consecutive ids are close to each other, which is good for rows and their indexes.
//!
//! The caller registers each id in the index, which refuses an id that it already has. Invariant: a process that draws
//! fewer than 2^31 ids a second draws no id twice, unless its clock is set back.

use super::batch::ObjectId;

/// Number of bits of the counter. The second is in the higher bits.
const BITS: u32 = 31;

/// Returns the time in ms since 1970 at which an id was drawn, to the second. The object is uploaded within an hour.
pub fn drawn_ms(object: ObjectId) -> i64 {
    (object >> BITS) * 1000
}

/// Returns the smallest id for which [`drawn_ms`] returns `ms` or later.
pub fn first_drawn_at(ms: i64) -> ObjectId {
    let second = ms.div_euclid(1000) + i64::from(ms.rem_euclid(1000) > 0);
    second.saturating_mul(1 << BITS)
}

/// Draws the ids of the objects that a process makes.
#[derive(Debug)]
pub struct ObjectNumbers {
    next: u32,
}

impl ObjectNumbers {
    /// Creates a source of ids. `start` is the counter of the first id.
    pub fn new(start: u32) -> ObjectNumbers {
        ObjectNumbers { next: start }
    }

    /// Draws `count` ids. `now_ms` is the time in ms since 1970.
    pub fn draw(&mut self, count: usize, now_ms: i64) -> Vec<ObjectId> {
        let second = i64::from(now_ms.div_euclid(1000) as u32) << BITS;
        let below = (1 << BITS) - 1;
        let mut one = |_| {
            let number = second | i64::from(self.next & below);
            self.next = self.next.wrapping_add(1);
            number
        };
        (0..count).map(&mut one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_drawn_later_or_elsewhere_differ() {
        let mut numbers = ObjectNumbers::new(u32::MAX);
        let first = numbers.draw(2, 1_700_000_000_999);
        let later = numbers.draw(1, 1_700_000_001_000);
        assert_eq!(first, [(1_700_000_000 << 31) | 0x7fff_ffff, 1_700_000_000 << 31]);
        assert_eq!(later, [(1_700_000_001 << 31) | 1]);
        assert_eq!(later.into_iter().chain(first).map(drawn_ms).max(), Some(1_700_000_001_000));
        assert_ne!(ObjectNumbers::new(7).draw(1, 0), ObjectNumbers::new(8).draw(1, 0));
    }

    #[test]
    fn first_number_drawn_at_a_time_is_the_smallest() {
        for ms in [0, 1, 999, 1000, 1001, 1_700_000_000_999, -1, -1000] {
            let first = first_drawn_at(ms);
            assert!(drawn_ms(first) >= ms && drawn_ms(first - 1) < ms, "{ms}");
        }
        assert_eq!(first_drawn_at(i64::MAX), i64::MAX);
    }

    #[test]
    fn clock_is_far_off_numbers_are_not_negative() {
        for now_ms in [i64::MIN, -1, 0, i64::MAX] {
            assert!(ObjectNumbers::new(u32::MAX).draw(2, now_ms).iter().all(|number| *number >= 0), "{now_ms}");
        }
    }
}
