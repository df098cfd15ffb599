//! Determines the number of connections to a broker, if it is not configured. The sender begins with one connection and
//! opens more as long as that raises the throughput.
//!
//! More connections help if the limit is in each connection: its congestion window, or the broker's receive buffer.
//! Only a trial can show this. A trial begins when batches have waited for a connection in most checks of an epoch
//! (some round trips) and the rate no longer grows. It doubles the number of connections. If that does not increase the
//! rate by a fifth within a few epochs, the number is halved again. The pause before the next trial doubles with each
//! failure. The number is also halved if no batch has waited for half a minute. Time is an argument. Invariant: no
//! connection is added while the round trip is shorter than [`LEAST`], because more connections only cost time on a
//! short path.

use std::time::{Duration, Instant};

/// Maximum number of connections to a broker.
const LANES_MAX: usize = 8;
/// More connections are not tried if the round trip is shorter than this.
const LEAST: Duration = Duration::from_millis(5);
/// The length of an epoch, as a multiple of the shortest round trip.
const EPOCH_ROUNDS: u32 = 6;
/// The minimum length of an epoch. A shorter one would have too few samples.
const EPOCH_MIN: Duration = Duration::from_millis(100);
/// The number of checks per epoch.
const SAMPLES: u32 = 16;
/// A trial is a success if it increases the rate by this factor.
const GAIN: f64 = 1.2;
/// A rate counts as steady if it grows by less than this factor in an epoch.
const STEADY: f64 = 1.1;
/// The number of epochs of a trial.
const TRIAL_EPOCHS: u32 = 5;
/// The pause after a failed trial. It doubles with each further failure.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum pause after a failed trial.
const PAUSE_MAX: Duration = Duration::from_secs(960);
/// Connections are closed if no batch has waited for this time.
const UNUSED: Duration = Duration::from_secs(30);

/// The observations of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) now: Instant,
    pub(super) lanes: usize,
    /// How many bytes were acknowledged on all connections since the start.
    pub(super) delivered: u64,
    /// The shortest round trip of a request.
    pub(super) least: Duration,
    /// True if every connection is full and batches are waiting that more connections could send.
    pub(super) pressed: bool,
}

/// Estimates how many connections are worthwhile.
#[derive(Debug)]
pub(super) struct Demand {
    wanted: usize,
    epoch: Option<Epoch>,
    /// The rate of the last epoch.
    last_rate: f64,
    trial: Option<Trial>,
    no_trial_before: Option<Instant>,
    pause: Duration,
    pressed_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Instant,
    ends: Instant,
    next_look: Instant,
    delivered: u64,
    looks: u32,
    pressed: u32,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    rate: f64,
    epochs: u32,
}

impl Demand {
    pub(super) fn new() -> Self {
        Demand {
            wanted: 1,
            epoch: None,
            last_rate: 0.0,
            trial: None,
            no_trial_before: None,
            pause: PAUSE,
            pressed_at: None,
        }
    }

    /// Returns how many connections are wanted.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns true if the next check is due. Checks are rare because each one examines all active partitions.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.epoch.is_none_or(|epoch| epoch.next_look <= now)
    }

    /// Notes that the broker accepts no more than `lanes` connections.
    pub(super) fn refused(&mut self, lanes: usize, now: Instant) {
        self.give_up(lanes, now);
    }

    /// Evaluates a check.
    pub(super) fn look(&mut self, look: &Look) {
        let now = look.now;
        if look.pressed {
            self.pressed_at = Some(now);
        }
        let unused = self.pressed_at.is_some_and(|at| now - at >= UNUSED);
        if look.lanes > 1 && unused {
            self.wanted = (look.lanes / 2).max(1);
            (self.trial, self.epoch, self.pressed_at) = (None, None, Some(now));
            return;
        }
        let Some(epoch) = self.epoch.as_mut().filter(|_| look.lanes == self.wanted) else {
            // Samples are useless while a connection is being opened, so a new epoch begins.
            self.epoch = Some(Epoch::new(look));
            return;
        };
        epoch.looks += 1;
        epoch.pressed += u32::from(look.pressed);
        // The first measured round trip is too long, because it includes the slow start of its connection. The end of
        // the epoch is therefore recomputed with the shortest round trip known now.
        epoch.ends = epoch.ends.min(epoch.began + length(look.least));
        epoch.next_look = now + (epoch.ends - epoch.began) / SAMPLES;
        if now >= epoch.ends {
            let ended = *epoch;
            self.epoch = Some(Epoch::new(look));
            self.decide(&ended, look);
        }
    }

    fn decide(&mut self, epoch: &Epoch, look: &Look) {
        let took = (look.now - epoch.began).as_secs_f64();
        let rate = look.delivered.saturating_sub(epoch.delivered) as f64 / took;
        let before = std::mem::replace(&mut self.last_rate, rate);
        if epoch.pressed * 4 < epoch.looks * 3 {
            // Batches waited in fewer than three quarters of the checks, so there are enough connections.
            self.trial = None;
            return;
        }
        match &mut self.trial {
            Some(trial) if rate >= trial.rate * GAIN => (self.trial, self.pause) = (None, PAUSE),
            Some(trial) => {
                trial.epochs += 1;
                if trial.epochs >= TRIAL_EPOCHS {
                    self.give_up(look.lanes / 2, look.now);
                }
                return;
            }
            None if rate > before * STEADY => return,
            None => {}
        }
        let may = self.no_trial_before.is_none_or(|at| at <= look.now);
        if may && look.least >= LEAST && look.lanes * 2 <= LANES_MAX {
            self.wanted = look.lanes * 2;
            self.trial = Some(Trial { rate, epochs: 0 });
        }
    }

    fn give_up(&mut self, lanes: usize, now: Instant) {
        self.wanted = lanes.max(1);
        self.trial = None;
        self.no_trial_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// Returns the length of an epoch if `least` is the shortest round trip.
fn length(least: Duration) -> Duration {
    (least * EPOCH_ROUNDS).max(EPOCH_MIN)
}

impl Epoch {
    fn new(look: &Look) -> Self {
        let length = length(look.least);
        Epoch {
            began: look.now,
            ends: look.now + length,
            next_look: look.now + length / SAMPLES,
            delivered: look.delivered,
            looks: 0,
            pressed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs for a time with a rate that depends on the number of connections, which open and close at once. Returns the
    /// largest number of connections that were open.
    fn run(demand: &mut Demand, at: &mut Look, time: Duration, pressed: bool, rate: impl Fn(usize) -> f64) -> usize {
        let (end, step) = (at.now + time, Duration::from_millis(10));
        let mut most = at.lanes;
        while at.now < end {
            at.now += step;
            at.delivered += (rate(at.lanes) * step.as_secs_f64()) as u64;
            at.pressed = pressed;
            if demand.is_due(at.now) {
                demand.look(at);
            }
            at.lanes = demand.wanted();
            most = most.max(at.lanes);
        }
        most
    }

    fn start(least: u64) -> (Demand, Look) {
        let least = Duration::from_millis(least);
        (Demand::new(), Look { now: Instant::now(), lanes: 1, delivered: 0, least, pressed: false })
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn lanes_are_doubled_while_that_brings_more() {
        let (mut demand, mut at) = start(150);
        run(&mut demand, &mut at, 15 * SECOND, true, |lanes| 20e6 * lanes as f64);
        assert_eq!(at.lanes, 8, "and no more than that");
        let (mut demand, mut at) = start(150);
        let most = run(&mut demand, &mut at, 30 * SECOND, true, |lanes| 20e6 * lanes.min(4) as f64);
        assert_eq!((most, at.lanes), (8, 4));
    }

    #[test]
    fn a_first_request_that_takes_long_does_not_put_the_first_trial_off() {
        let (mut demand, mut at) = start(2_000);
        run(&mut demand, &mut at, SECOND / 2, true, |_| 1e6);
        at.least = Duration::from_millis(150);
        assert!(run(&mut demand, &mut at, 4 * SECOND, true, |lanes| 20e6 * lanes as f64) >= 2);
    }

    #[test]
    fn a_trial_that_brings_nothing_is_not_repeated_soon() {
        let (mut demand, mut at) = start(150);
        assert_eq!(run(&mut demand, &mut at, 10 * SECOND, true, |_| 20e6), 2);
        assert_eq!(at.lanes, 1);
        assert_eq!(run(&mut demand, &mut at, 50 * SECOND, true, |_| 20e6), 1);
        assert_eq!(run(&mut demand, &mut at, 20 * SECOND, true, |_| 20e6), 2, "but once in a while");
        assert_eq!(at.lanes, 1);
        assert_eq!(run(&mut demand, &mut at, 100 * SECOND, true, |_| 20e6), 1, "less and less");
    }

    #[test]
    fn no_batch_waits_or_short_path_or_growing_rate_no_connection_is_opened() {
        let (mut demand, mut at) = start(150);
        assert_eq!(run(&mut demand, &mut at, 60 * SECOND, false, |_| 20e6), 1);
        let (mut demand, mut at) = start(1);
        assert_eq!(run(&mut demand, &mut at, 60 * SECOND, true, |_| 20e6), 1);
        let (mut demand, mut at) = start(150);
        for second in 0..20 {
            assert_eq!(run(&mut demand, &mut at, SECOND, true, |_| 1e6 * 1.3f64.powi(second)), 1);
        }
    }

    #[test]
    fn no_batch_waits_for_half_a_minute_lanes_are_closed() {
        let (mut demand, mut at) = start(150);
        run(&mut demand, &mut at, 15 * SECOND, true, |lanes| 20e6 * lanes as f64);
        run(&mut demand, &mut at, 25 * SECOND, false, |_| 1e6);
        assert_eq!(at.lanes, 8);
        run(&mut demand, &mut at, 100 * SECOND, false, |_| 1e6);
        assert_eq!(at.lanes, 1);
    }

    #[test]
    fn a_broker_that_refuses_connections_is_left_alone_for_a_while() {
        let (mut demand, mut at) = start(150);
        while demand.wanted() == 1 {
            run(&mut demand, &mut at, SECOND / 10, true, |_| 20e6);
        }
        at.lanes = 1;
        demand.refused(1, at.now);
        assert_eq!(run(&mut demand, &mut at, 50 * SECOND, true, |_| 20e6), 1);
    }
}
