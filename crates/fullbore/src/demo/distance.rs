//! Distance of the demo: a relay between the broker and each of its clients, which the broker advertises as its own
//! address.
//!
//! Invariant: with a distance, every byte between the broker and a client crosses that client's relay; without one,
//! none does. Producer and reader have a relay each, so that the reader's bytes do not delay the producer's
//! acknowledgements.

use crate::failure::Failure;
use crate::output::words;
use fullbore_bench::link::Shape;
use fullbore_bench::link::relay::{CONNECTIONS_MAX, IN_FLIGHT_BYTES_MAX, Relay, RelaySettings};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Round trip and bandwidth.
#[derive(Clone, Debug)]
pub struct DistanceSettings {
    /// Time of a round trip.
    pub rtt: Duration,
    /// Bytes a second in each direction; None is unlimited.
    pub bandwidth: Option<u64>,
    /// Bytes of a connection under way in a direction.
    pub in_flight_max: usize,
}

impl DistanceSettings {
    /// Makes the settings of a round trip without a limit of bandwidth.
    pub fn new(rtt: Duration) -> Self {
        DistanceSettings { rtt, bandwidth: None, in_flight_max: IN_FLIGHT_BYTES_MAX }
    }
}

/// Addresses at which the two clients reach the broker.
pub struct Addresses {
    pub producer: String,
    pub reader: String,
}

/// Relays of the producer and of the reader, not yet started.
pub struct Distances {
    producer: Distance,
    reader: Distance,
}

/// Both relays at work; they end when this is dropped.
pub struct BothRelayed {
    pub addresses: Addresses,
    _relays: [Relayed; 2],
}

/// Listener of a relay, bound before the broker starts, since the broker must know its address.
pub struct Distance {
    listener: TcpListener,
    settings: DistanceSettings,
    address: String,
}

/// Relay at work; it ends when this is dropped.
pub struct Relayed {
    /// Address for clients.
    pub address: String,
    _stop: watch::Sender<bool>,
}

impl Distances {
    /// Binds both relays.
    pub fn new(settings: &DistanceSettings, runtime: &Runtime) -> Result<Self, Failure> {
        Ok(Distances { producer: Distance::new(settings, runtime)?, reader: Distance::new(settings, runtime)? })
    }

    /// Returns the broker's settings: a listener for each relay, advertised under the relay's address.
    pub fn listeners(&self) -> [(&'static str, String); 3] {
        let [producer, reader] = [&self.producer.address, &self.reader.address];
        [
            ("listeners", "PLAINTEXT://127.0.0.1:0,READER://127.0.0.1:0".to_owned()),
            ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,READER:PLAINTEXT".to_owned()),
            ("advertised.listeners", format!("PLAINTEXT://{producer},READER://{reader}")),
        ]
    }

    /// Starts both relays to these listeners of the broker, and prints their addresses and settings.
    pub fn relay_to(self, listeners: &[SocketAddr], runtime: &Runtime) -> BothRelayed {
        let Distances { producer, reader } = self;
        let (shape, addresses) =
            (producer.shape(), Addresses { producer: producer.address.clone(), reader: reader.address.clone() });
        words(&format!(
            "Relays on {} for the producer and {} for the reader, each: {}.",
            addresses.producer,
            addresses.reader,
            shape.described()
        ));
        words("They delay bytes; what TCP itself loses over a distance needs `fullbore perf link --namespaces`.");
        let [first, second] =
            [listeners.first(), listeners.get(1)].map(|at| at.map(ToString::to_string).unwrap_or_default());
        BothRelayed { addresses, _relays: [producer.relay_to(&first, runtime), reader.relay_to(&second, runtime)] }
    }
}

impl Distance {
    /// Binds a relay with these settings.
    pub fn new(settings: &DistanceSettings, runtime: &Runtime) -> Result<Self, Failure> {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        Ok(Distance { listener, settings: settings.clone(), address })
    }

    fn shape(&self) -> Shape {
        let DistanceSettings { rtt, bandwidth, .. } = self.settings;
        Shape { rtt, bandwidth, ..Shape::default() }
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
