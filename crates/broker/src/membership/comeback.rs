//! Time at which a live broker that was fenced unfences itself: at once the first time. If it is fenced again soon
//! after its return, it waits first, each time longer.
//!
//! Without the pauses, a broker that loses only its heartbeats would be fenced and unfenced in each session. Each time,
//! all partitions that it leads would elect another leader. A broker does not wait if a partition without a leader
//! needs it.

use std::time::{Duration, Instant};

use fullbore_control::Image;

/// Longest pause, in session timeouts.
const PAUSE_MAX: u32 = 8;
/// Shortest time since the last return, in session timeouts, after which a fenced broker returns without a pause.
const CALM: u32 = 10;

/// Pauses of a broker before it unfences itself.
#[derive(Debug)]
pub struct Comeback {
    session: Duration,
    /// Length of the last pause.
    pause: Duration,
    /// Time at which the broker last came back.
    back: Option<Instant>,
    /// Time at which the broker unfences itself. `None` while it is not fenced.
    due: Option<Instant>,
}

impl Comeback {
    /// Creates the pauses. `session` is the time for which a broker may be silent before it is fenced.
    pub fn new(session: Duration) -> Comeback {
        Comeback { session, pause: Duration::ZERO, back: None, due: None }
    }

    /// Returns true from the first call of [`Comeback::due`] until the broker is back.
    pub fn is_waiting(&self) -> bool {
        self.due.is_some()
    }

    /// Returns the time at which the fenced broker unfences itself. Further calls before its return give the same time.
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

/// Returns true if this broker is in the ISR, in the ELR or among the truncated replicas of a partition without a
/// leader.
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
    fn pause_doubles_with_each_fencing_until_a_calm_time() {
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
