//! Decides when a live broker that was fenced unfences itself. After the first fencing, the broker unfences itself at
//! once. If it is fenced again soon afterwards, it waits, each time longer than before.
//!
//! Suppose that a broker loses only its heartbeats. Without the pauses it would be fenced and unfenced in every
//! session, and its partitions would change their leaders each time. A broker does not wait if a partition needs it: a
//! partition without a leader, or one whose ISR is too small for acks=all.

use std::time::{Duration, Instant};

use fullbore_control::Image;

use super::disk::is_missed;

/// Maximum pause before a fenced broker unfences itself, in session timeouts.
const PAUSE_MAX: u32 = 8;
/// If a broker was unfenced for at least this many session timeouts and is then fenced again, it unfences itself
/// without a pause.
const CALM: u32 = 10;

/// Pauses of a broker before it unfences itself.
#[derive(Debug)]
pub struct Comeback {
    session: Duration,
    /// The length of the last pause.
    pause: Duration,
    /// The time at which the broker last unfenced itself.
    back: Option<Instant>,
    /// The time at which the broker will unfence itself. `None` while it is not fenced.
    due: Option<Instant>,
}

impl Comeback {
    /// Creates the state of a broker that is not fenced. After its first fencing, the broker unfences itself without a
    /// pause. `session` is the session timeout.
    pub fn new(session: Duration) -> Comeback {
        Comeback { session, pause: Duration::ZERO, back: None, due: None }
    }

    /// Returns true from the first call of [`Comeback::due`] until the broker has unfenced itself.
    pub fn is_waiting(&self) -> bool {
        self.due.is_some()
    }

    /// Returns the time at which the fenced broker should unfence itself. Later calls return the same time until the
    /// broker has unfenced itself.
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

    /// Records that the broker has unfenced itself.
    pub fn back(&mut self, now: Instant) {
        self.back = Some(now);
        self.due = None;
    }
}

/// Returns true if a partition has no leader, and this broker may be able to lead it. That is the case if this broker
/// is in the ISR, in the ELR, or in `lost` (replicas whose logs may lack records at the end).
pub fn is_needed(image: &Image, id: i32) -> bool {
    let classic = image.topics().filter(|topic| !topic.config.diskless);
    classic.flat_map(|topic| &topic.partitions).any(|partition| {
        let mut whole_or_lost = partition.isr.iter().chain(&partition.elr).chain(&partition.lost);
        partition.leader.is_none() && whole_or_lost.any(|of| *of == id)
    }) || is_missed(image, id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_config::{BrokerConfig, Properties, TopicConfig};
    use fullbore_control::Topic;
    use fullbore_rules::replica::PartitionRegistration;
    use fullbore_wire::Uuid;
    use std::sync::Arc;

    #[test]
    fn partition_has_no_leader_or_too_small_an_isr_its_replica_is_needed() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = Arc::new(TopicConfig { min_insync_replicas: 2, ..broker.topics.defaults.clone() });
        let needed = |leader, isr: &[i32], id| {
            let (replicas, isr) = (vec![1, 2, 3], isr.to_vec());
            let registered = PartitionRegistration { replicas, isr, leader, ..Default::default() };
            let partitions = [Arc::new(registered)].into_iter().collect();
            let (name, id_of, overrides) = ("topic".into(), Uuid([1; 16]), Default::default());
            let mut image = Image::default();
            image.put(Arc::new(Topic { name, id: id_of, partitions, overrides, config: Arc::clone(&config) }));
            is_needed(&image, id)
        };
        assert!(needed(None, &[1], 1), "it may lead");
        assert!(!needed(None, &[2], 4), "it is no replica");
        assert!(needed(Some(3), &[3], 1), "acks=all fails without it");
        assert!(!needed(Some(3), &[2, 3], 1), "acks=all succeeds without it");
    }

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
