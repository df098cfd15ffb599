//! Limits how much one connection may have in flight: to a configured number of requests, or to an estimate of the
//! bytes that the path holds.
//!
//! Time is an argument here. `window` limits the unacknowledged batches of a partition. The algorithm is BBR (Cardwell
//! et al., 2016), and so are the names, but the unit is a request instead of a packet.
//!
//! The *bandwidth-delay product* (BDP) is the product of min RTT and bottleneck bandwidth. Min RTT is the shortest
//! recent round trip of a request. Bottleneck bandwidth is the largest rate of acknowledged bytes in the last rounds.
//! Twice the BDP may be in flight. The second BDP keeps the broker busy while responses travel. It also reveals when
//! the bandwidth has increased, because the rate of acknowledgements then rises. A round ends with the response to a
//! request that was sent after the round began, so it takes about one round trip.
//!
//! * A sample that was taken while the application had nothing more to send (application-limited) may raise the
//!   estimated rate. It does not lower the rate, and does not let older samples expire.
//! * Min RTT must not include time in a queue that this connection itself has caused. Once in [`MIN_RTT_MAX_AGE`], the
//!   connection therefore limits itself for a round to a little less than one BDP in flight (PROBE_RTT). This BDP is
//!   computed from the rate of the last round alone. The shortest round trip in the probe is the new min RTT, even if
//!   it is longer than the old one. Larger rates of earlier rounds are dropped together with the old min RTT.
//! * At the start, until the rate stops growing (STARTUP), three BDPs may be in flight.
//! * If acknowledgements come in bursts, the bytes of such a burst may be in flight in addition (`bursts`).
//!
//! Invariant: with an estimate, at least five requests (Kafka's default) may be in flight, except during PROBE_RTT.

mod bursts;

use crate::config::InFlight;
use bursts::Bursts;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum number of requests that may be in flight, whatever the estimate is.
const REQUESTS_MIN: usize = 5;
/// Maximum number of requests in flight, whatever the estimate is. This must be less than a Fullbore broker reads ahead
/// (`fullbore.connection.requests.max`, by default 1024). Otherwise the broker might not read the missing batch for
/// which the batches that it has read are waiting.
const REQUESTS_MAX: usize = 900;
/// Maximum number of requests in flight if the next one has a missing batch, for which other batches wait at the
/// broker.
const REQUESTS_MAX_MISSING: usize = 1000;
/// The number of rounds for which a rate is remembered.
const RATE_ROUNDS: u64 = 10;
/// How long a min RTT is valid.
const MIN_RTT_MAX_AGE: Duration = Duration::from_secs(10);
/// How much may be in flight, in BDPs.
const GAIN: f64 = 2.0;
/// How much may be in flight during STARTUP, in BDPs.
const STARTUP_GAIN: f64 = 3.0;
/// How much may be in flight during PROBE_RTT, in BDPs. The value is below 1. With a full BDP of the old min RTT in
/// flight, a path that has become shorter would have a queue, which would hide the change.
const PROBE_RTT_GAIN: f64 = 0.75;
/// The rate counts as growing if it increases by this factor in a round.
const GROWTH: f64 = 1.25;
/// How many rounds without growth end STARTUP.
const FLAT_ROUNDS: u32 = 3;

/// The state of the connection when a request was sent. With its response, this becomes a sample of the rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    bytes: usize,
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
    /// The time at which the newest request was sent, among those that already had a response when this one was sent.
    after: Instant,
    limited: bool,
}

/// The estimate of a connection. The handlers of its responses and the status share it.
pub(crate) type SharedPipe = Arc<Mutex<Pipe>>;

/// Estimates how much a connection may have in flight.
#[derive(Debug)]
pub(crate) struct Pipe {
    limit: InFlight,
    bytes_max: usize,
    requests: usize,
    bytes: usize,
    /// How many bytes were acknowledged since the start, and when the last acknowledgement came.
    delivered: u64,
    delivered_at: Instant,
    newest_sent_at: Instant,
    /// Requests that are sent before `delivered` reaches this value count as application-limited.
    limited_until: u64,
    /// The largest rates in bytes per second, in descending order, each with the number of its round. A rate is dropped
    /// when a larger one follows.
    rates: VecDeque<(u64, f64)>,
    /// The number of rounds with a sample that was not application-limited.
    round: u64,
    round_ends_at: u64,
    /// The start of this round, and the value of `delivered` at that time.
    round_began: (Instant, u64),
    /// Two flags. The first is true if this round has a sample that is not application-limited. The second is true if
    /// it has a sample that is.
    round_had: (bool, bool),
    /// The rate of the last round, if none of its samples was application-limited.
    recent: Option<f64>,
    min_rtt: Option<(Duration, Instant)>,
    startup: Option<Startup>,
    probe: Option<ProbeRtt>,
    bursts: Bursts,
}

/// The state of STARTUP, in which [`STARTUP_GAIN`] applies until the rate stops growing.
#[derive(Debug)]
struct Startup {
    rate: f64,
    flat_rounds: u32,
}

/// The state of PROBE_RTT, while the min RTT is measured again.
#[derive(Debug)]
struct ProbeRtt {
    /// How many bytes may be in flight during the probe.
    window: usize,
    /// The rate of the previous round, if none of its samples was application-limited.
    rate: Option<f64>,
    /// The time since which at most `window` bytes have been in flight.
    drained_at: Option<Instant>,
    min_rtt: Duration,
    /// The value of `delivered` (acknowledged bytes) at the first measured response. The probe ends with the response
    /// to a request that was sent after that first response.
    ends_at: Option<u64>,
}

impl Pipe {
    pub(crate) fn new(limit: InFlight, bytes_max: usize, now: Instant) -> Self {
        Pipe {
            limit,
            bytes_max,
            requests: 0,
            bytes: 0,
            delivered: 0,
            delivered_at: now,
            newest_sent_at: now,
            limited_until: 0,
            rates: VecDeque::new(),
            round: 0,
            round_ends_at: 0,
            round_began: (now, 0),
            round_had: (false, false),
            recent: None,
            min_rtt: None,
            startup: Some(Startup { rate: 0.0, flat_rounds: 0 }),
            probe: None,
            bursts: Bursts::new(now),
        }
    }

    /// Returns the number of requests without a response.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Returns the bytes of the requests without a response.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes acknowledged since the start.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the shortest recent round trip of a request, or `None` before the first response.
    pub(crate) fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt.map(|(min_rtt, _)| min_rtt)
    }

    /// Returns the throughput in bytes per second, as the maximum of the last rounds.
    pub(crate) fn rate(&self) -> f64 {
        self.rates.front().map_or(0.0, |(_, rate)| *rate)
    }

    /// Returns true if the rate is still growing.
    pub(crate) fn is_in_startup(&self) -> bool {
        self.startup.is_some()
    }

    /// Returns the bandwidth-delay product in bytes. 0 before the first samples.
    pub(crate) fn bdp(&self) -> usize {
        self.min_rtt().map_or(0, |min_rtt| (min_rtt.as_secs_f64() * self.rate()) as usize)
    }

    /// Returns how many bytes may be in flight.
    pub(crate) fn window(&self) -> usize {
        let gain = if self.is_in_startup() { STARTUP_GAIN } else { GAIN };
        ((self.bdp() as f64 * gain) as usize).saturating_add(self.bursts.least()).min(self.bytes_max)
    }

    /// Returns true if another request may be sent. The bytes in flight may then exceed the window by this request.
    pub(crate) fn has_room(&self) -> bool {
        match (self.limit, &self.probe) {
            (InFlight::Requests(max), _) => self.requests < max,
            // The probe's window is rounded to the nearest number of whole requests. If it were rounded down, a path
            // that holds few requests would be half empty.
            (InFlight::Auto, Some(probe)) => {
                self.bytes.checked_div(self.requests).is_none_or(|each| self.bytes + each / 2 <= probe.window)
            }
            (InFlight::Auto, None) => {
                let few = self.requests < REQUESTS_MIN;
                few || (self.bytes < self.window() && self.requests < REQUESTS_MAX)
            }
        }
    }

    /// Returns true if a request with a missing batch may be sent, for which batches in flight wait at the broker. A
    /// configured number of requests may be exceeded by one. With an estimate, only [`REQUESTS_MAX_MISSING`] applies
    /// and not the window, because this request replaces one that was lost with another connection.
    pub(crate) fn has_room_for_missing(&self) -> bool {
        match self.limit {
            InFlight::Requests(max) => self.requests <= max,
            InFlight::Auto => self.requests < REQUESTS_MAX_MISSING,
        }
    }

    /// Notes that the application is the limit: there is nothing to send, although more could be in flight.
    pub(crate) fn limited(&mut self) {
        self.limited_until = (self.delivered + self.bytes as u64).max(1);
    }

    /// Counts a request that is being sent.
    pub(crate) fn sent(&mut self, bytes: usize, now: Instant) -> Sent {
        if self.requests == 0 {
            (self.newest_sent_at, self.delivered_at) = (now, now);
        }
        self.requests += 1;
        self.bytes += bytes;
        Sent {
            bytes,
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            after: self.newest_sent_at,
            limited: self.limited_until > self.delivered || self.probe.is_some(),
        }
    }

    /// Stops counting a request that will get no response.
    pub(crate) fn lost(&mut self, sent: &Sent) {
        self.requests -= 1;
        self.bytes -= sent.bytes;
    }

    /// Counts a request that got its response, and takes a sample from it.
    pub(crate) fn answered(&mut self, sent: &Sent, now: Instant) {
        self.requests -= 1;
        self.bytes -= sent.bytes;
        self.delivered += sent.bytes as u64;
        (self.delivered_at, self.newest_sent_at) = (now, sent.at);
        self.sample_rate(sent, now);
        self.bursts.answered(sent.bytes, self.delivered, self.rate(), now);
        if sent.delivered >= self.round_ends_at {
            self.end_round(now);
        }
        self.sample_time(sent, now);
    }

    fn sample_rate(&mut self, sent: &Sent, now: Instant) {
        // The rate is measured over the longer of two intervals: between acknowledgements, and between sends. If
        // responses arrive in a bunch, the interval between acknowledgements alone would give a rate that is too high.
        let elapsed = (now - sent.delivered_at).max(sent.at - sent.after).as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        let rate = (self.delivered - sent.delivered) as f64 / elapsed;
        self.round_had = (self.round_had.0 || !sent.limited, self.round_had.1 || sent.limited);
        if sent.limited && rate <= self.rate() {
            return;
        }
        while self.rates.back().is_some_and(|(_, smaller)| *smaller <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
    }

    fn sample_time(&mut self, sent: &Sent, now: Instant) {
        let took = now - sent.at;
        match self.min_rtt {
            Some((min_rtt, since)) if took > min_rtt => {
                if self.probe.is_none() && now - since > MIN_RTT_MAX_AGE {
                    self.probe_rtt(min_rtt);
                }
            }
            _ => self.min_rtt = Some((took, now)),
        }
        let Some(probe) = &mut self.probe else { return };
        match probe.drained_at {
            None if self.bytes <= probe.window => probe.drained_at = Some(now),
            Some(at) if sent.at >= at => {
                probe.min_rtt = probe.min_rtt.min(took);
                let ends_at = *probe.ends_at.get_or_insert(self.delivered);
                if sent.delivered >= ends_at {
                    self.min_rtt = Some((probe.min_rtt, now));
                    if let Some(rate) = probe.rate {
                        self.rates.clear();
                        self.rates.push_back((self.round, rate));
                    }
                    self.probe = None;
                }
            }
            _ => {}
        }
    }

    /// Begins PROBE_RTT. If the last round was application-limited, there is no queue, so the window is not reduced.
    fn probe_rtt(&mut self, min_rtt: Duration) {
        let rate = self.recent.filter(|rate| *rate < self.rate());
        let window = match self.recent {
            Some(recent) => (min_rtt.as_secs_f64() * recent * PROBE_RTT_GAIN) as usize,
            None => self.window(),
        };
        self.probe = Some(ProbeRtt { window, rate, drained_at: None, min_rtt: Duration::MAX, ends_at: None });
    }

    fn end_round(&mut self, now: Instant) {
        let (began, before) = std::mem::replace(&mut self.round_began, (now, self.delivered));
        self.round_ends_at = self.delivered;
        self.bursts.end_round();
        let (counts, limited) = std::mem::take(&mut self.round_had);
        let took = (now - began).as_secs_f64();
        self.recent = (!limited && took > 0.0).then(|| (self.delivered - before) as f64 / took);
        if !counts {
            return;
        }
        self.round += 1;
        while self.rates.len() > 1 && self.rates.front().is_some_and(|(round, _)| round + RATE_ROUNDS <= self.round) {
            self.rates.pop_front();
        }
        let rate = self.rate();
        let Some(startup) = &mut self.startup else { return };
        if rate >= startup.rate * GROWTH {
            (startup.rate, startup.flat_rounds) = (rate, 0);
        } else {
            startup.flat_rounds += 1;
        }
        if startup.flat_rounds >= FLAT_ROUNDS {
            self.startup = None;
        }
    }
}

#[cfg(test)]
mod tests;
