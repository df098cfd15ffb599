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

/// A listener for the relay, bound before the broker starts, since the broker has to know its address.
pub struct Distance {
    listener: TcpListener,
    rtt: Duration,
    address: String,
}

/// A relay at work; it ends when this is dropped.
pub struct Relayed {
    /// Where clients connect.
    pub address: String,
    _stop: watch::Sender<bool>,
}

impl Distance {
    /// A relay that adds this round trip.
    pub fn new(rtt: Duration, runtime: &Runtime) -> Result<Self, Failure> {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        Ok(Distance { listener, rtt, address })
    }

    /// What the broker tells its clients.
    pub fn advertised(&self) -> String {
        format!("PLAINTEXT://{}", self.address)
    }

    /// Starts to relay to the broker, and says so.
    pub fn relay_to(self, broker: &str, runtime: &Runtime) -> Relayed {
        let shape = Shape { rtt: self.rtt, ..Shape::default() };
        words(&format!("Relay on {}, which clients use: {}.", self.address, shape.described()));
        words("It delays bytes; what TCP itself loses over a distance needs `fullbore perf link --namespaces`.");
        let settings = RelaySettings {
            shape,
            loss_stall: None,
            in_flight_max: IN_FLIGHT_BYTES_MAX,
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
