//! Allows for acknowledgements that come in bursts (ACK aggregation; `extra_acked` of BBR in Linux). A broker that
//! stores batches in objects acknowledges all batches of an object together. While it acknowledges them, it can fill
//! the next object only if the producer has further batches in flight.
//!
//! The connection may therefore have the bytes of a burst in flight in addition to the usual multiple of the BDP. The
//! size of a burst is the smallest among the last rounds. A single stall, after which all responses come together, thus
//! changes nothing.

use std::collections::VecDeque;
use std::time::Instant;

/// The number of rounds whose smallest burst is used.
const ROUNDS: usize = 4;

/// The size of the bursts in the last rounds.
#[derive(Debug)]
pub(super) struct Bursts {
    /// The time since which the acknowledged bytes exceed those that the rate predicts, and the value of `delivered` at
    /// that time.
    since: (Instant, u64),
    /// The largest excess over the prediction in this round, in bytes.
    most: usize,
    rounds: VecDeque<usize>,
}

impl Bursts {
    pub(super) fn new(now: Instant) -> Bursts {
        Bursts { since: (now, 0), most: 0, rounds: VecDeque::with_capacity(ROUNDS) }
    }

    /// Counts `bytes` bytes of a request that was acknowledged. `delivered` is the sum of acknowledged bytes, and
    /// `rate` is in bytes per second.
    pub(super) fn answered(&mut self, bytes: usize, delivered: u64, rate: f64, now: Instant) {
        let promised = |since: Instant| ((now - since).as_secs_f64() * rate) as u64;
        let before = delivered - bytes as u64;
        if before - self.since.1 <= promised(self.since.0) {
            self.since = (now, before);
        }
        let more = (delivered - self.since.1).saturating_sub(promised(self.since.0));
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        // A single request is no burst. A burst counts with all of its bytes, without deducting one request, so that
        // the next burst can be larger.
        if more > bytes {
            self.most = self.most.max(more);
        }
    }

    /// Ends a round.
    pub(super) fn end_round(&mut self) {
        if self.rounds.len() == ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back(std::mem::take(&mut self.most));
    }

    /// Returns the smallest burst of the last [`ROUNDS`] rounds in bytes, or 0 if there were fewer rounds.
    pub(super) fn least(&self) -> usize {
        let is_known = self.rounds.len() == ROUNDS;
        self.rounds.iter().min().copied().filter(|_| is_known).unwrap_or(0)
    }
}
