//! Answers that come in bursts (ACK aggregation; `extra_acked` of BBR in Linux): a broker that gathers batches into
//! objects answers those of an object at once, and its next object is only closed early if enough is in flight beside
//! those that are being answered.
//!
//! Beyond twice the product of rate and distance, what came at once in the last rounds may be in flight. The least of
//! the rounds counts, so that a stall somewhere, after which all comes at once, changes nothing.

use std::collections::VecDeque;
use std::time::Instant;

/// Rounds of which the least counts.
const ROUNDS: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Bursts {
    /// Since when more was delivered than the rate promises, and how much was then.
    since: (Instant, u64),
    /// The most by which it was more, in this round.
    most: usize,
    rounds: VecDeque<usize>,
}

impl Bursts {
    pub(super) fn new(now: Instant) -> Bursts {
        Bursts { since: (now, 0), most: 0, rounds: VecDeque::with_capacity(ROUNDS) }
    }

    /// A request of so many bytes is answered, with which so many are delivered; `rate` is in bytes a second.
    pub(super) fn answered(&mut self, bytes: usize, delivered: u64, rate: f64, now: Instant) {
        let promised = |since: Instant| ((now - since).as_secs_f64() * rate) as u64;
        let before = delivered - bytes as u64;
        if before - self.since.1 <= promised(self.since.0) {
            self.since = (now, before);
        }
        let more = (delivered - self.since.1).saturating_sub(promised(self.since.0));
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        // One request at a time is no burst. A burst counts whole, so that the next one may be larger.
        if more > bytes {
            self.most = self.most.max(more);
        }
    }

    /// A round ends.
    pub(super) fn end_round(&mut self) {
        if self.rounds.len() == ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back(std::mem::take(&mut self.most));
    }

    /// Bytes that come at once in each of the last rounds.
    pub(super) fn least(&self) -> usize {
        let is_known = self.rounds.len() == ROUNDS;
        self.rounds.iter().min().copied().filter(|_| is_known).unwrap_or(0)
    }
}
