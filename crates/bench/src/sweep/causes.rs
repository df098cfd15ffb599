//! Measures the causes of a measurement's figures: batch size, requests in flight, the window, and processors in use.
//!
//! Invariant: all of them cover the time from [`Watch::begin`] to [`Watch::end`].

use crate::measure::{BrokerPlace, CpuTimes};
use fullbore_producer::{Answered, BrokerStatus, Producer};
use std::time::Instant;

/// The causes of one measurement's figures. A field is `None` if its value is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Causes {
    /// The mean size of a batch on the wire, in bytes.
    pub batch_bytes: Option<f64>,
    /// The mean number of requests without a response, over all brokers.
    pub requests_in_flight: Option<f64>,
    /// How many batches of a partition may be unacknowledged, as the limit was at the end. `None` without idempotence.
    pub window_batches: Option<f64>,
    /// How many processors the client kept busy.
    pub client_cores: Option<f64>,
    /// How many processors the brokers kept busy, if they are on this machine.
    pub broker_cores: Option<f64>,
}

/// The values of the counters at the start of a measurement.
pub struct Watch<'a> {
    producer: &'a Producer,
    is_idempotent: bool,
    brokers: &'a BrokerPlace,
    begun: Instant,
    cpu: CpuTimes,
    answered: Answered,
}

impl<'a> Watch<'a> {
    /// Begins to count.
    pub fn begin(producer: &'a Producer, is_idempotent: bool, brokers: &'a BrokerPlace) -> Self {
        let (cpu, answered) = (CpuTimes::read(brokers), sum(&producer.brokers()));
        Watch { producer, is_idempotent, brokers, begun: Instant::now(), cpu, answered }
    }

    /// Returns the causes in the time since [`Watch::begin`].
    pub fn end(self) -> Causes {
        let (seconds, statuses) = (self.begun.elapsed().as_secs_f64().max(1e-6), self.producer.brokers());
        let cpu = CpuTimes::read(self.brokers).since(self.cpu, seconds);
        let (now, before) = (sum(&statuses), self.answered);
        let batches = (now.batches > before.batches).then(|| (now.batches - before.batches) as f64);
        let windows = statuses.iter().filter(|status| status.answered.batches > 0).map(|status| status.window);
        Causes {
            batch_bytes: batches.map(|batches| (now.bytes - before.bytes) as f64 / batches),
            // By Little's law, the requests in flight are their rate times the time that each took.
            requests_in_flight: batches.map(|_| now.time.saturating_sub(before.time).as_secs_f64() / seconds),
            window_batches: windows.max().filter(|_| self.is_idempotent).map(|window| window as f64),
            client_cores: cpu.client,
            broker_cores: cpu.broker,
        }
    }
}

fn sum(statuses: &[BrokerStatus]) -> Answered {
    statuses.iter().map(|status| status.answered).fold(Answered::default(), |sum, of| Answered {
        requests: sum.requests + of.requests,
        batches: sum.batches + of.batches,
        bytes: sum.bytes + of.bytes,
        time: sum.time + of.time,
    })
}
