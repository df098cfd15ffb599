//! A relay between two sockets that delays every byte by half a round trip, and limits the bandwidth. A relay does not
//! behave like a wide area network: both halves of a connection are local TCP, with local windows, no slow start and no
//! retransmission. [`LossStall`] simulates the cost of a loss. A client's `connect` to the relay returns at once, since
//! the kernel answers it. The far end sees the connection half a round trip later. Invariant: bytes arrive unchanged
//! and in order, or the connection is reset at both ends.

mod alarm;
mod lane;
mod settings;

pub use settings::{LossStall, RelaySettings};

use alarm::{Alarm, RelayClock};
use lane::{Direction, RelayLane};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The default maximum number of connections at a time. Each has four file descriptors, and 1,024 are usually allowed.
pub const CONNECTIONS_MAX: usize = 200;
/// The default maximum number of bytes in transit per connection and direction.
pub const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;
/// How long the far end may take to accept a connection, in addition to the simulated delay.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failed accept. The usual cause is a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The counts of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// How many connections were accepted.
    pub connections: u64,
    /// How many connections were closed because there were too many, or because the far end did not accept them.
    pub refused: u64,
    /// How many bytes went from the side that connects to the side that listens.
    pub bytes_there: u64,
    /// How many bytes went from the side that listens to the side that connects.
    pub bytes_back: u64,
    /// How many losses were simulated.
    pub stalls: u64,
}

/// A relay that listens.
pub struct Relay {
    listener: TcpListener,
    connections_max: usize,
    on_kafka: Option<Box<dyn FnOnce() + Send>>,
    shared: Arc<RelayState>,
}

struct RelayState {
    to: String,
    clock: RelayClock,
    there: Direction,
    back: Direction,
    connections: AtomicU64,
    refused: AtomicU64,
    /// True if the relay's last attempt to connect to the far end failed.
    is_cut_off: AtomicBool,
    on_cut_off: Option<OnCutOff>,
}

/// Called when the far end can no longer be reached.
type OnCutOff = Box<dyn Fn(&io::Error) + Send + Sync>;

impl Relay {
    /// Listens at `listen` for connections to `to`, both `host:port`.
    pub async fn bind(listen: &str, to: &str, settings: &RelaySettings) -> io::Result<Relay> {
        let listener = TcpListener::bind(listen).await?;
        Ok(Relay::on(listener, to, settings))
    }

    /// Creates a relay for the connections to this listener.
    pub fn on(listener: TcpListener, to: &str, settings: &RelaySettings) -> Relay {
        let clock = RelayClock::start();
        let shared = RelayState {
            to: to.to_owned(),
            clock,
            there: Direction::new(settings, clock),
            back: Direction::new(settings, clock),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            is_cut_off: AtomicBool::new(false),
            on_cut_off: None,
        };
        Relay { listener, connections_max: settings.connections_max, on_kafka: None, shared: Arc::new(shared) }
    }

    /// Registers `callback`, which is called with the reason when the far end cannot be reached. It is called once for
    /// each time that the far end becomes unreachable.
    #[must_use]
    pub fn on_cut_off(mut self, callback: impl Fn(&io::Error) + Send + Sync + 'static) -> Relay {
        let shared = Arc::get_mut(&mut self.shared).expect("nothing runs before `run`");
        shared.on_cut_off = Some(Box::new(callback));
        self
    }

    /// Registers `notify`, which is called once, when the first connection has sent a Kafka request. `notify` must not
    /// wait.
    #[must_use]
    pub fn on_kafka(self, notify: impl FnOnce() + Send + 'static) -> Relay {
        Relay { on_kafka: Some(Box::new(notify)), ..self }
    }

    /// Returns the address of the listener.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Relays until `stop` becomes true. Bytes in transit are then dropped.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Totals {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                _ = connections.join_next(), if !connections.is_empty() => continue,
                () = self.shared.there.kafka.notified(), if self.on_kafka.is_some() => {
                    self.on_kafka.take().into_iter().for_each(|notify| notify());
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok(_) if connections.len() >= self.connections_max => {
                    self.shared.refused.fetch_add(1, Ordering::Relaxed);
                }
                Ok((client, _)) => {
                    connections.spawn(connection(client, self.shared.clone()));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        connections.shutdown().await;
        self.shared.totals()
    }
}

impl RelayState {
    fn totals(&self) -> Totals {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Totals {
            connections: of(&self.connections),
            refused: of(&self.refused),
            bytes_there: of(&self.there.bytes),
            bytes_back: of(&self.back.bytes),
            stalls: of(&self.there.stalls) + of(&self.back.stalls),
        }
    }

    /// Waits for half a round trip, as the client's SYN would need over the distance, and then connects to the far end.
    async fn connect(&self) -> io::Result<TcpStream> {
        Alarm::new(self.clock)?.until(self.there.arrival_ns()).await?;
        let server = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.to)).await??;
        server.set_nodelay(true)?;
        Ok(server)
    }

    fn is_cut_off_by(&self, error: &io::Error) {
        if !self.is_cut_off.swap(true, Ordering::Relaxed)
            && let Some(callback) = &self.on_cut_off
        {
            callback(error);
        }
    }

    async fn refuse(&self, client: &TcpStream) -> io::Result<()> {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Alarm::new(self.clock)?.until(self.back.arrival_ns()).await?;
        client.set_zero_linger()
    }
}

async fn connection(client: TcpStream, shared: Arc<RelayState>) {
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    // An error is ignored here, because both ends notice it: their connections are closed or reset.
    let _ = relay(client, &shared, number).await;
}

async fn relay(client: TcpStream, shared: &RelayState, number: u64) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut there = RelayLane::new(&shared.there, number * 2)?;
    let back = RelayLane::new(&shared.back, number * 2 + 1)?;
    let connecting = shared.connect();
    tokio::pin!(connecting);
    // The client may send before the far end has accepted. The relay therefore already takes the client's bytes while
    // it connects.
    let server = loop {
        tokio::select! {
            biased;
            server = &mut connecting => break server,
            turn = there.turn(&client, None) => turn?,
        }
    };
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            shared.is_cut_off_by(&error);
            return shared.refuse(&client).await;
        }
    };
    shared.is_cut_off.store(false, Ordering::Relaxed);
    let carried = tokio::try_join!(there.carry(&client, &server), back.carry(&server, &client));
    if carried.is_err() {
        // With this setting, closing a socket sends a reset.
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    Ok(())
}
