//! The time at which a fenced broker that lives unfences itself: at once, but later each time where it is fenced again
//! soon after.
//!
//! A broker whose beats alone are cut off would otherwise be fenced and unfenced in each session, with an election of
//! all that it leads. A broker without which a partition has no leader waits for nothing.

use std::time::{Duration, Instant};

use fullbore_control::Image;

/// The longest pause, and the calm time after which the next pause is none, in sessions.
const PAUSE_MAX: u32 = 8;
const CALM: u32 = 10;

/// Pauses of a broker that comes back.
#[derive(Debug)]
pub struct Comeback {
    session: Duration,
    /// The last pause.
    pause: Duration,
    /// Time at which the broker came back.
    back: Option<Instant>,
    /// Time at which it comes back next. `None` while it is not fenced.
    due: Option<Instant>,
}

impl Comeback {
    /// `session` is how long a broker may be silent before it is fenced.
    pub fn new(session: Duration) -> Comeback {
        Comeback { session, pause: Duration::ZERO, back: None, due: None }
    }

    /// Returns true from the first [`Comeback::due`] on until the broker is back.
    pub fn is_waiting(&self) -> bool {
        self.due.is_some()
    }

    /// Returns when the fenced broker is to unfence itself. Asked again before it did, the time is the same.
    pub fn due(&mut self, now: Instant) -> Instant {
        if let Some(due) = self.due {
            return due;
        }
        let is_soon = self.back.is_some_and(|back| now.saturating_duration_since(back) < self.session * CALM);
        self.pause = match is_soon {
            true => (self.pause * 2).clamp(self.session, self.session * PAUSE_MAX),
            false => Duration::ZERO,
        };
        *self.due.insert(now + self.pause)
    }

    /// Notes that the broker is back.
    pub fn back(&mut self, now: Instant) {
        self.back = Some(now);
        self.due = None;
    }
}

/// Returns true if a partition has no leader, and cannot get one that lost nothing without this broker.
pub fn is_needed(image: &Image, id: i32) -> bool {
    let classic = image.topics().filter(|topic| !topic.config.diskless);
    classic.flat_map(|topic| &topic.partitions).any(|partition| {
        let mut whole_or_lost = partition.isr.iter().chain(&partition.elr).chain(&partition.lost);
        partition.leader.is_none() && whole_or_lost.any(|of| *of == id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_in_each_session_the_pause_doubles_until_a_calm_time() {
        let session = Duration::from_secs(9);
        let mut comeback = Comeback::new(session);
        let mut now = Instant::now();
        let mut paused = |comeback: &mut Comeback, calm: Duration| {
            now += calm;
            let due = comeback.due(now);
            assert_eq!(comeback.due(now + Duration::from_secs(1)), due, "asked again");
            let pause = due - now;
            now = due;
            comeback.back(now);
            pause / 9
        };
        let seconds = [0, 1, 2, 4, 8, 8].map(Duration::from_secs);
        assert_eq!(seconds.map(|_| paused(&mut comeback, session)), seconds);
        assert_eq!(paused(&mut comeback, session * CALM), Duration::ZERO, "it was calm");
        assert_eq!(paused(&mut comeback, session), Duration::from_secs(1));
    }
}
