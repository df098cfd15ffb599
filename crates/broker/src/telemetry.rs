//! Metrics that clients push to the broker (KIP-714): which metrics each client should push, and when it may push.
//!
//! Pushes are checked and counted (`fullbore_telemetry_*`). The broker does not read the contents of a push. A client
//! without a subscription pushes nothing. It requests a subscription again from time to time, and so gets one that was
//! created later. The rules are in [`fullbore_rules::telemetry`].

use crc_fast::CrcAlgorithm;
use fullbore_config::{ClientMetricsConfig, ClientTrait};
use fullbore_control::Image;
use fullbore_host::metrics::Metrics;
use fullbore_rules::telemetry::{Clients, Push, Subscription, TelemetryRefusal};
use fullbore_wire::Uuid;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

/// How long a client without a subscription waits before it requests one again. Kafka's default.
const INTERVAL_MS: i32 = 300_000;
/// A metric name in a subscription that stands for all metrics.
const EVERY_METRIC: &str = "*";

/// A client that requests its subscription or pushes metrics.
pub struct Requesting<'a> {
    /// The id that the broker has assigned to this client in its first response.
    pub instance: Uuid,
    pub client_id: &'a str,
    /// The name of the client's software (KIP-511).
    pub software_name: &'a str,
    pub software_version: &'a str,
    pub peer: SocketAddr,
}

/// The subscription of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSubscription {
    /// An id that changes if any of the other fields changes.
    pub subscription_id: i32,
    pub interval_ms: i32,
    /// Prefixes of the metrics' names, in order. A single `*` stands for every metric.
    pub metrics: Vec<String>,
}

/// The clients that have requested a subscription or pushed metrics.
#[derive(Debug)]
pub struct Telemetry {
    clients: Mutex<Clients>,
    started: Instant,
    metrics: Metrics,
}

impl Telemetry {
    pub fn new(metrics: Metrics) -> Self {
        Telemetry { clients: Mutex::default(), started: Instant::now(), metrics }
    }

    /// Returns the subscription of a client.
    ///
    /// # Errors
    /// Fails with [`TelemetryRefusal::TooEarly`] if the client's interval is not over yet.
    pub fn request(&self, image: &Image, requesting: &Requesting<'_>) -> Result<ClientSubscription, TelemetryRefusal> {
        let wanted = wanted(image, requesting);
        self.clients.lock().request(id(requesting.instance), wanted.subscription(), self.now_ms())?;
        Ok(wanted)
    }

    /// Accepts a push of `bytes` bytes and counts it.
    ///
    /// # Errors
    /// Returns a [`TelemetryRefusal`] if the client must not push now, or if this push is not allowed.
    pub fn push(
        &self,
        image: &Image,
        requesting: &Requesting<'_>,
        push: Push,
        bytes: usize,
    ) -> Result<(), TelemetryRefusal> {
        let wanted = wanted(image, requesting).subscription();
        self.clients.lock().push(id(requesting.instance), push, wanted, self.now_ms())?;
        self.metrics.telemetry_pushed(bytes);
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn id(instance: Uuid) -> u128 {
    u128::from_be_bytes(instance.0)
}

impl ClientSubscription {
    fn subscription(&self) -> Subscription {
        Subscription { id: self.subscription_id, interval_ms: u64::try_from(self.interval_ms).unwrap_or(0) }
    }
}

/// Combines the subscriptions that match the client: all of their metrics, at the shortest interval.
fn wanted(image: &Image, requesting: &Requesting<'_>) -> ClientSubscription {
    let mut interval_ms = None;
    let mut metrics = BTreeSet::new();
    for (_, subscription) in image.client_metrics().filter(|(_, subscription)| fits(subscription, requesting)) {
        let shorter = interval_ms.map_or(subscription.interval_ms, |known: i32| known.min(subscription.interval_ms));
        interval_ms = Some(shorter);
        metrics.extend(subscription.metrics.iter().map(String::as_str));
    }
    if metrics.contains(EVERY_METRIC) {
        metrics = BTreeSet::from([EVERY_METRIC]);
    }
    let interval_ms = interval_ms.unwrap_or(INTERVAL_MS);
    let metrics: Vec<String> = metrics.into_iter().map(str::to_owned).collect();
    let subscription_id = subscription_id(requesting.instance, interval_ms, &metrics);
    ClientSubscription { subscription_id, interval_ms, metrics }
}

fn fits(subscription: &ClientMetricsConfig, requesting: &Requesting<'_>) -> bool {
    subscription.patterns.iter().all(|(which, pattern)| match which {
        ClientTrait::InstanceId => pattern.is_match(&requesting.instance.to_string()),
        ClientTrait::Id => pattern.is_match(requesting.client_id),
        ClientTrait::SoftwareName => pattern.is_match(requesting.software_name),
        ClientTrait::SoftwareVersion => pattern.is_match(requesting.software_version),
        ClientTrait::SourceAddress => pattern.is_match(&requesting.peer.ip().to_canonical().to_string()),
        ClientTrait::SourcePort => pattern.is_match(&requesting.peer.port().to_string()),
    })
}

/// Returns a checksum of the subscription. It includes the client's instance id, so each client has a subscription id
/// of its own.
fn subscription_id(instance: Uuid, interval_ms: i32, metrics: &[String]) -> i32 {
    let mut text = format!("{instance} {interval_ms}");
    metrics.iter().for_each(|metric| text.extend([" ", metric]));
    let checksum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, text.as_bytes());
    // The library returns 64 bits, of which the lower half is the CRC-32.
    u32::try_from(checksum).unwrap_or_default().cast_signed()
}
