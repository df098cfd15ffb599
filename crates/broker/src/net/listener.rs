//! Listeners bind their ports, later open them, and accept connections within the limits. Each connection gets a task.
//! On an SSL listener, the task begins with the TLS handshake.
//!
//! A connection counts towards the limits as soon as it is accepted, even during its handshake. If it exceeds a limit,
//! it is closed before anything is read from it or allocated for it.

use super::clients::Clients;
use super::connection;
use super::stream::ClientStream;
use super::tls::Certificates;
use crate::node::Node;
use fullbore_config::{Listener, NetworkConfig};
use fullbore_host::log_rate_limit::CauseRateLimit;
use fullbore_host::task;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};

/// How long the broker pauses after it could not accept a connection, for example because there was no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener that has bound its port. While `S` is `TcpSocket`, the system refuses connections to the port.
pub struct Bound<S = TcpSocket> {
    /// A socket for each address of the listener's host that belongs to this machine, all with the same port.
    sockets: Vec<S>,
    /// The first address that was bound.
    pub addr: SocketAddr,
    /// The host and port that clients get from the broker.
    pub advertised: (String, u16),
    /// The certificates of an SSL listener. `None` for any other listener.
    certificates: Option<Arc<Certificates>>,
}

/// A listener whose port is open. Connections wait in the system's backlog until [`run`] accepts them.
pub type Listening = Bound<TcpListener>;

impl Bound {
    /// Opens the port. Must be called within the runtime that accepts the connections.
    ///
    /// # Errors
    /// Returns the system's error, for example if another program has opened the port in the meantime.
    pub fn listen(self, config: &NetworkConfig) -> io::Result<Listening> {
        let sockets = self.sockets.into_iter().map(|socket| listen(socket, config)).collect::<io::Result<_>>()?;
        let Bound { addr, advertised, certificates, .. } = self;
        Ok(Bound { sockets, addr, advertised, certificates })
    }
}

/// The state that all connections of a listener share.
#[derive(Clone)]
struct Door {
    /// Index of the listener in the configuration.
    index: usize,
    /// True for the listener of `inter.broker.listener.name`, if there are other listeners as well.
    of_brokers: bool,
    certificates: Option<Arc<Certificates>>,
    clients: Arc<Clients>,
}

/// How many times the broker tries to find a port that is free at every address of the listener's host.
const FREE_PORT_TRIES: u32 = 20;

/// Binds one listener at every address of its host, but does not open its port yet.
///
/// # Errors
/// Returns the system's error if the host does not resolve, or if the port is taken or not allowed.
pub async fn bind(
    listener: &Listener,
    certificates: Option<Arc<Certificates>>,
    config: &NetworkConfig,
) -> io::Result<Bound> {
    let found = tokio::net::lookup_host((listener.host.as_str(), listener.port)).await?;
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for addr in found {
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    let mut tries = 1;
    let sockets = loop {
        match bind_each(&addrs, config) {
            // The port was free at the first address but is taken at another one, so another port is tried.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && listener.port == 0 && tries < FREE_PORT_TRIES => {
                tries += 1;
            }
            outcome => break outcome?,
        }
    };
    let first = sockets.first().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
    let addr = first.local_addr()?;
    let advertised = match &listener.advertised {
        Some((host, port)) => (host.clone(), if *port == 0 { addr.port() } else { *port }),
        None => (listener.host.clone(), addr.port()),
    };
    Ok(Bound { sockets, addr, advertised, certificates })
}

/// Binds a socket to each of these addresses, all with the same port. If the port is 0, uses a port that is free at the
/// first address. Skips addresses that do not belong to this machine, such as `::1` without IPv6. Fails if all of them
/// are skipped.
fn bind_each(addrs: &[SocketAddr], config: &NetworkConfig) -> io::Result<Vec<TcpSocket>> {
    let (mut sockets, mut absent): (Vec<TcpSocket>, Vec<(SocketAddr, io::Error)>) = (Vec::new(), Vec::new());
    for &(mut addr) in addrs {
        if let Some(first) = sockets.first() {
            addr.set_port(first.local_addr()?.port());
        }
        match bind_one(addr, config) {
            Ok(socket) => sockets.push(socket),
            Err(error) if is_absent(&error) => absent.push((addr, error)),
            Err(error) => return Err(error),
        }
    }
    if sockets.is_empty() && !absent.is_empty() {
        return Err(absent.remove(0).1);
    }
    for (addr, error) in absent {
        tracing::info!(%addr, %error, "this machine lacks an address of the listener's host name: the broker listens on the other addresses");
    }
    Ok(sockets)
}

/// Returns true if the machine does not have the address or its address family.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

fn bind_one(addr: SocketAddr, config: &NetworkConfig) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections inherit these options. Without Nagle's algorithm, a response is sent at once.
    socket.set_nodelay(true)?;
    // Buffer sizes count for the window scale only if they are set before the socket listens. If they are not set, the
    // kernel tunes the buffers itself.
    if let Some(size) = config.send_buffer_bytes {
        socket.set_send_buffer_size(u32::try_from(size).unwrap_or(u32::MAX))?;
    }
    if let Some(size) = config.receive_buffer_bytes {
        socket.set_recv_buffer_size(u32::try_from(size).unwrap_or(u32::MAX))?;
    }
    // Until the port is open, only a socket without SO_REUSEADDR keeps other programs from binding the address. If
    // connections of a previous process have not ended yet, such a socket cannot be bound.
    if socket.bind(addr).is_err() {
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
    }
    Ok(socket)
}

fn listen(socket: TcpSocket, config: &NetworkConfig) -> io::Result<TcpListener> {
    // Connections inherit this option, so that they do not keep the next process from binding the address.
    socket.set_reuseaddr(true)?;
    socket.listen(config.listen_backlog)
}

/// Counts the open connections. If a limit is lowered below their number, they stay open.
#[derive(Default)]
struct ConnectionQuotas {
    admitted: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    total: usize,
    /// The number of connections from each client address. Entries are removed when they reach 0.
    per_ip: HashMap<IpAddr, usize>,
}

/// The slot of an open connection under the limits. Dropping it frees the slot.
struct ConnectionPermit {
    broker: Arc<Node>,
    admission: Arc<ConnectionQuotas>,
    ip: IpAddr,
    _open: mpsc::Sender<()>,
}

impl ConnectionQuotas {
    /// Admits a connection from `ip` if the limits allow it. Otherwise the error names the limit. `of_brokers` is true
    /// for the listener between brokers.
    fn enter(
        self: &Arc<Self>,
        broker: &Arc<Node>,
        ip: IpAddr,
        of_brokers: bool,
        open: &mpsc::Sender<()>,
    ) -> Result<ConnectionPermit, &'static str> {
        // On a listener at [::], the address of an IPv4 client is mapped to IPv6. It counts as its IPv4 address.
        let ip = ip.to_canonical();
        let image = broker.metadata.control.image();
        let limits = image.live();
        let max = *limits.max_connections_per_ip_overrides.get(&ip).unwrap_or(&limits.max_connections_per_ip);
        let mut admitted = self.admitted.lock();
        // The listener between brokers is exempt, so that clients cannot keep brokers from connecting to each other.
        // Kafka exempts its "protected listener" for the same reason.
        if admitted.total >= limits.max_connections && !of_brokers {
            return Err("max.connections");
        }
        if admitted.per_ip.get(&ip).copied().unwrap_or(0) >= max {
            return Err("max.connections.per.ip");
        }
        *admitted.per_ip.entry(ip).or_insert(0) += 1;
        admitted.total += 1;
        broker.metrics.connection_opened();
        Ok(ConnectionPermit { broker: Arc::clone(broker), admission: Arc::clone(self), ip, _open: open.clone() })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.broker.metrics.connection_closed();
        let mut admitted = self.admission.admitted.lock();
        admitted.total -= 1;
        if let Some(count) = admitted.per_ip.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                admitted.per_ip.remove(&self.ip);
            }
        }
    }
}

/// Accepts connections on every listener until `stop`. Then waits until every connection has answered the requests that
/// it has admitted.
pub async fn run(broker: Arc<Node>, listeners: Vec<Listening>, clients: Arc<Clients>, stop: watch::Receiver<bool>) {
    let admission = Arc::new(ConnectionQuotas::default());
    // Each connection has a clone of `open`. The channel closes when the last clone is dropped.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let has_others = listeners.len() > 1;
    let mut accepting = Vec::new();
    for (index, bound) in listeners.into_iter().enumerate() {
        if let Some(certificates) = &bound.certificates {
            task::spawn(Arc::clone(certificates).watch_expiry(stop.clone()));
        }
        if let (Some(certificates), Some(ms)) =
            (&bound.certificates, broker.metadata.config.network.ssl_reload_interval_ms)
        {
            task::spawn(Arc::clone(certificates).watch(Duration::from_millis(ms), stop.clone()));
        }
        let of_brokers = has_others && index == broker.metadata.config.replication.listener;
        let door = Door { index, of_brokers, certificates: bound.certificates, clients: Arc::clone(&clients) };
        for socket in bound.sockets {
            let (door, admission) = (door.clone(), Arc::clone(&admission));
            accepting.push(task::spawn(accept(
                Arc::clone(&broker),
                socket,
                door,
                admission,
                stop.clone(),
                open.clone(),
            )));
        }
    }
    drop(open);
    for task in accepting {
        if let Err(error) = task.await {
            tracing::error!(%error, "a listener has failed: it accepts no connections until the next start");
        }
    }
    while all_closed.recv().await.is_some() {}
}

async fn accept(
    broker: Arc<Node>,
    socket: TcpListener,
    door: Door,
    admission: Arc<ConnectionQuotas>,
    mut stop: watch::Receiver<bool>,
    open: mpsc::Sender<()>,
) {
    let (refusals, failures) = (CauseRateLimit::default(), CauseRateLimit::default());
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = stop.wait_for(|stopping| *stopping) => return,
        };
        match accepted {
            Ok((stream, peer)) => match admission.enter(&broker, peer.ip(), door.of_brokers, &open) {
                Ok(permit) => spawn(stream, peer, door.clone(), permit, stop.clone()),
                Err(limit) => {
                    broker.metrics.connection_refused();
                    if let Some(left_out) = refusals.due(limit) {
                        tracing::warn!(%peer, limit, left_out, "connection refused");
                    }
                }
            },
            Err(error) => {
                if let Some(left_out) = failures.due(&error.to_string()) {
                    tracing::warn!(%error, left_out, "cannot accept a connection: retrying");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn spawn(stream: TcpStream, peer: SocketAddr, door: Door, permit: ConnectionPermit, mut stop: watch::Receiver<bool>) {
    task::spawn(async move {
        let config = &permit.broker.metadata.config;
        let stream = match &door.certificates {
            None => ClientStream::Plain(stream),
            Some(certificates) => tokio::select! {
                // Boxed, so that the connection's task does not keep the memory of the handshake after its end.
                shaken = Box::pin(shake(certificates, stream, peer, &config.network)) => match shaken {
                    Some(stream) => stream,
                    None => return,
                },
                _ = stop.wait_for(|stopping| *stopping) => return,
            },
        };
        let stream = Arc::new(stream);
        let _connected = door.clients.enter(&stream);
        connection::serve(&permit.broker, &stream, peer, door.index, stop).await;
    });
}

/// Performs the TLS handshake of a new connection. Returns `None` if it fails. A timeout ends the handshake of a silent
/// client.
async fn shake(
    certificates: &Certificates,
    stream: TcpStream,
    peer: SocketAddr,
    config: &NetworkConfig,
) -> Option<ClientStream> {
    let limit =
        Duration::from_millis(config.ssl_handshake_timeout_ms).min(config.connection.idle_max.unwrap_or(Duration::MAX));
    match certificates.accept(stream, limit).await {
        Ok(stream) => Some(ClientStream::Tls(Box::new(stream))),
        Err(error) => {
            certificates.report(peer, &error);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_config::{BrokerConfig, Properties};
    use rustix::net::sockopt::{socket_recv_buffer_size, socket_send_buffer_size};

    /// Accepts a connection on a listener with these settings. Returns true if Nagle's algorithm is off, together with
    /// the sizes of the send buffer and the receive buffer.
    async fn accepted(settings: &[(&str, &str)]) -> (bool, usize, usize) {
        let mut properties = Properties::default();
        properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
        settings.iter().for_each(|&(key, value)| properties.set(key, value));
        let config = BrokerConfig::from_properties(&properties).expect("valid").0;
        let bound = bind(&config.network.listeners[0], None, &config.network).await.expect("a free port");
        sockopts(&bound.listen(&config.network).expect("it is bound").sockets[0]).await
    }

    async fn sockopts(listener: &TcpListener) -> (bool, usize, usize) {
        let _client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (socket, _) = listener.accept().await.expect("accepted");
        let sent = socket_send_buffer_size(&socket).expect("a socket");
        let received = socket_recv_buffer_size(&socket).expect("a socket");
        (socket.nodelay().expect("a socket"), sent, received)
    }

    fn config() -> NetworkConfig {
        BrokerConfig::from_properties(&Properties::default()).expect("valid").0.network
    }

    #[tokio::test]
    async fn listener_binds_every_address_of_its_host_at_one_port() {
        // The address 192.0.2.1 belongs to no machine (RFC 5737). Here it has the role of ::1 on a machine without
        // IPv6.
        let addrs = ["127.0.0.1:0", "192.0.2.1:0", "127.0.0.2:0"].map(|addr| addr.parse().expect("an address"));
        let sockets = bind_each(&addrs, &config()).expect("a free port");
        let bound: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local_addr().expect("bound")).collect();
        let port = bound[0].port();
        assert_eq!(bound, [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 2], port))]);
        let none = bind_each(&addrs[1..2], &config()).map(drop).expect_err("no such address");
        assert_eq!(none.kind(), io::ErrorKind::AddrNotAvailable);
    }

    /// Regression: clients of a broker that could not answer yet waited instead of moving on to another broker.
    #[tokio::test]
    async fn bound_port_is_taken_for_others_and_refuses_connections_until_it_is_open() {
        let sockets = bind_each(&["127.0.0.1:0".parse().expect("an address")], &config()).expect("a free port");
        let addr = sockets[0].local_addr().expect("bound");
        let is_taken = || {
            let own = bind_each(&[addr], &config()).map(drop).map_err(|error| error.kind());
            let of_others = std::net::TcpListener::bind(addr).map(drop).map_err(|error| error.kind());
            assert_eq!((own, of_others), (Err(io::ErrorKind::AddrInUse), Err(io::ErrorKind::AddrInUse)));
        };
        is_taken();
        let refused = TcpStream::connect(addr).await.expect_err("it is not open");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let open: Vec<TcpListener> =
            sockets.into_iter().map(|socket| listen(socket, &config()).expect("it is bound")).collect();
        is_taken();
        TcpStream::connect(open[0].local_addr().expect("bound")).await.expect("it is open");
    }

    /// The connection's end at the server remains in TIME_WAIT after both ends are closed.
    #[tokio::test]
    async fn port_with_connections_of_a_previous_process_is_bound_again() {
        let open = |addr: SocketAddr| {
            let bound = bind_each(&[addr], &config()).expect("no other program has it").remove(0);
            listen(bound, &config()).expect("it is bound")
        };
        let first = open("127.0.0.1:0".parse().expect("an address"));
        let addr = first.local_addr().expect("bound");
        let client = TcpStream::connect(addr).await.expect("it is open");
        drop(first.accept().await.expect("accepted"));
        drop((first, client));
        let again = open(addr);
        TcpStream::connect(again.local_addr().expect("bound")).await.expect("it is open");
    }

    #[tokio::test]
    async fn connection_has_nagle_off_and_the_configured_buffer_sizes() {
        let (_, sent, received) = sockopts(&TcpListener::bind("127.0.0.1:0").await.expect("a free port")).await;
        assert_eq!(accepted(&[]).await, (true, sent, received));
        let sizes = [("socket.send.buffer.bytes", "20000"), ("socket.receive.buffer.bytes", "30000")];
        // Linux doubles the configured size to have space for its own bookkeeping.
        assert_eq!(accepted(&sizes).await, (true, 40_000, 60_000));
    }
}
