//! Puts a relay between the broker and each of its clients to simulate a distance. The broker advertises the relays'
//! addresses as its own.
//!
//! Producer and reader use different relays, so that the reader's bytes do not delay the producer's acknowledgements.
//! Invariant: with a distance, every byte between the broker and a client passes through the client's relay. Without a
//! distance, there are no relays.

use crate::failure::Failure;
use crate::output::words;
use fullbore_bench::link::Shape;
use fullbore_bench::link::relay::{CONNECTIONS_MAX, IN_FLIGHT_BYTES_MAX, Relay, RelaySettings};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The round trip and the bandwidth of the distance.
#[derive(Clone, Debug)]
pub struct DistanceSettings {
    /// How long a round trip takes.
    pub rtt: Duration,
    /// How many bytes per second each direction may carry, or `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Maximum number of bytes in flight in each direction of a connection.
    pub in_flight_max: usize,
}

impl DistanceSettings {
    /// Returns the settings for a round trip, with unlimited bandwidth.
    pub fn new(rtt: Duration) -> Self {
        DistanceSettings { rtt, bandwidth: None, in_flight_max: IN_FLIGHT_BYTES_MAX }
    }
}

/// The addresses through which the two clients reach the broker.
pub struct Addresses {
    pub producer: String,
    pub reader: String,
}

/// The relays of the producer and of the reader, before they are started.
pub struct Distances {
    producer: Distance,
    reader: Distance,
}

/// Both relays after they were started. Dropping this stops them.
pub struct BothRelayed {
    pub addresses: Addresses,
    _relays: [Relayed; 2],
}

/// A relay before it is started. Its listener is bound before the broker starts, because the broker advertises the
/// listener's address.
pub struct Distance {
    listener: TcpListener,
    settings: DistanceSettings,
    address: String,
}

/// A relay after it was started. Dropping this stops it.
pub struct Relayed {
    /// The address for clients.
    pub address: String,
    _stop: watch::Sender<bool>,
}

impl Distances {
    /// Binds the listeners of both relays.
    pub fn new(settings: &DistanceSettings, runtime: &Runtime) -> Result<Self, Failure> {
        Ok(Distances { producer: Distance::new(settings, runtime)?, reader: Distance::new(settings, runtime)? })
    }

    /// Returns the settings of the broker. The broker has a listener for each relay. It advertises the address of the
    /// relay instead of the listener's own address.
    pub fn listeners(&self) -> [(&'static str, String); 3] {
        let [producer, reader] = [&self.producer.address, &self.reader.address];
        [
            ("listeners", "PLAINTEXT://127.0.0.1:0,READER://127.0.0.1:0".to_owned()),
            ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,READER:PLAINTEXT".to_owned()),
            ("advertised.listeners", format!("PLAINTEXT://{producer},READER://{reader}")),
        ]
    }

    /// Starts a relay to each of these listeners of the broker. Prints their addresses and settings.
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
        words(
            "The relays only delay bytes; `fullbore perf link --namespaces` also shows what TCP itself loses over a \
             distance.",
        );
        let [first, second] =
            [listeners.first(), listeners.get(1)].map(|at| at.map(ToString::to_string).unwrap_or_default());
        BothRelayed { addresses, _relays: [producer.relay_to(&first, runtime), reader.relay_to(&second, runtime)] }
    }
}

impl Distance {
    /// Binds the listener of a relay with these settings.
    pub fn new(settings: &DistanceSettings, runtime: &Runtime) -> Result<Self, Failure> {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        Ok(Distance { listener, settings: settings.clone(), address })
    }

    fn shape(&self) -> Shape {
        let DistanceSettings { rtt, bandwidth, .. } = self.settings;
        Shape { rtt, bandwidth, ..Shape::default() }
    }

    /// Starts the relay to the address `broker`.
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
