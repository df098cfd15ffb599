//! The demo's distance: a relay before its broker, which the broker advertises as its own address.
//!
//! Invariant: where a distance was asked for, every byte between the broker and its clients crosses the relay; elsewhere none does.

use crate::failure::Failure;
use crate::output::words;
use fullbore_bench::link::Shape;
use fullbore_bench::link::relay::{CONNECTIONS_MAX, IN_FLIGHT_BYTES_MAX, Relay, RelaySettings};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How far, and how wide.
#[derive(Clone, Debug)]
pub struct DistanceSettings {
    /// There and back.
    pub rtt: Duration,
    /// Bytes a second of each direction; none is as fast as it goes.
    pub bandwidth: Option<u64>,
    /// Bytes of a connection under way in a direction.
    pub in_flight_max: usize,
}

impl DistanceSettings {
    /// A round trip, and nothing else.
    pub fn new(rtt: Duration) -> Self {
        DistanceSettings { rtt, bandwidth: None, in_flight_max: IN_FLIGHT_BYTES_MAX }
    }
}

/// A listener for the relay, bound before the broker starts, since the broker has to know its address.
pub struct Distance {
    listener: TcpListener,
    settings: DistanceSettings,
    address: String,
}

/// A relay at work; it ends when this is dropped.
pub struct Relayed {
    /// Where clients connect.
    pub address: String,
    _stop: watch::Sender<bool>,
}

impl Distance {
    /// A relay that behaves like this.
    pub fn new(settings: &DistanceSettings, runtime: &Runtime) -> Result<Self, Failure> {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        Ok(Distance { listener, settings: settings.clone(), address })
    }

    /// What the broker tells its clients.
    pub fn advertised(&self) -> String {
        format!("PLAINTEXT://{}", self.address)
    }

    fn shape(&self) -> Shape {
        let DistanceSettings { rtt, bandwidth, .. } = self.settings;
        Shape { rtt, bandwidth, ..Shape::default() }
    }

    /// Says where clients connect, and over what.
    pub fn tell(&self) {
        words(&format!("Relay on {}, which clients use: {}.", self.address, self.shape().described()));
        words("It delays bytes; what TCP itself loses over a distance needs `fullbore perf link --namespaces`.");
    }

    /// Starts to relay to the broker.
    pub fn relay_to(self, broker: &str, runtime: &Runtime) -> Relayed {
        let settings = RelaySettings {
            shape: self.shape(),
            loss_stall: None,
            in_flight_max: self.settings.in_flight_max,
            connections_max: CONNECTIONS_MAX,
        };
        let (stop, stopped) = watch::channel(false);
        let relay = {
            let _runtime = runtime.enter();
            Relay::on(self.listener, broker, &settings)
        };
        runtime.spawn(relay.run(stopped));
        Relayed { address: self.address, _stop: stop }
    }
}
