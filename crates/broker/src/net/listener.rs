//! Where clients arrive: bind, accept within the limits, one task per connection, which begins with the TLS handshake
//! where the listener has one.
//!
//! Invariant: a connection over a limit is closed before anything is read or allocated for it, and a connection counts
//! from accept on, whether its handshake is done or not.

use super::connection;
use super::stream::ClientStream;
use super::tls::Certificates;
use crate::config::{BrokerConfig, Listener};
use crate::node::Node;
use crate::task;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};

/// How long to wait after accept fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener bound to its port, not yet accepting.
pub struct Bound {
    socket: TcpListener,
    /// The address taken.
    pub addr: SocketAddr,
    /// Host and port told to clients.
    pub advertised: (String, u16),
    /// What an SSL listener shows; `None` of any other.
    certificates: Option<Arc<Certificates>>,
}

/// What the connections of a listener have in common.
#[derive(Clone)]
struct Door {
    /// The listener's place in the configuration.
    index: usize,
    /// Whether only brokers come here: to the listener that `inter.broker.listener.name` names, beside others.
    of_brokers: bool,
    certificates: Option<Arc<Certificates>>,
}

/// Binds one listener.
///
/// # Errors
/// The host does not resolve, the port is taken or not allowed.
pub async fn bind(
    listener: &Listener,
    certificates: Option<Arc<Certificates>>,
    config: &BrokerConfig,
) -> io::Result<Bound> {
    let addrs: Vec<_> = tokio::net::lookup_host((listener.host.as_str(), listener.port)).await?.collect();
    let addr = *addrs.first().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // What is set here, connections inherit. No Nagle: an answer leaves at once.
    socket.set_nodelay(true)?;
    // Buffer sizes must be set before listen to count for the window scale; unset, the kernel tunes them.
    if let Some(size) = config.socket_send_buffer_bytes {
        socket.set_send_buffer_size(u32::try_from(size).unwrap_or(u32::MAX))?;
    }
    if let Some(size) = config.socket_receive_buffer_bytes {
        socket.set_recv_buffer_size(u32::try_from(size).unwrap_or(u32::MAX))?;
    }
    socket.bind(addr)?;
    let socket = socket.listen(config.socket_listen_backlog)?;
    let addr = socket.local_addr()?;
    let advertised = match &listener.advertised {
        Some((host, port)) => (host.clone(), if *port == 0 { addr.port() } else { *port }),
        None => (listener.host.clone(), addr.port()),
    };
    Ok(Bound { socket, addr, advertised, certificates })
}

/// The connections that are open. One that is open stays so when a limit is lowered.
#[derive(Default)]
struct ConnectionQuotas {
    admitted: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    total: usize,
    /// By client address; never 0.
    per_ip: HashMap<IpAddr, usize>,
}

/// One admitted connection's place under the limits, given back when dropped.
struct ConnectionPermit {
    broker: Arc<Node>,
    admission: Arc<ConnectionQuotas>,
    ip: IpAddr,
    _open: mpsc::Sender<()>,
}

impl ConnectionQuotas {
    /// A place for a connection from `ip`, to a listener that is only `of_brokers` or not, or the limit it is over.
    fn enter(
        self: &Arc<Self>,
        broker: &Arc<Node>,
        (ip, of_brokers): (IpAddr, bool),
        open: &mpsc::Sender<()>,
    ) -> Result<ConnectionPermit, &'static str> {
        // A client over IPv4 of a listener on [::] is the same one.
        let ip = ip.to_canonical();
        let image = broker.control.image();
        let limits = image.live();
        let max = *limits.max_connections_per_ip_overrides.get(&ip).unwrap_or(&limits.max_connections_per_ip);
        let mut admitted = self.admitted.lock();
        // Clients do not keep brokers from each other, as with Kafka's "protected listener".
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

/// Accepts on every listener until `stop`, then waits until the last connection has answered what it admitted.
pub async fn run(broker: Arc<Node>, listeners: Vec<Bound>, stop: watch::Receiver<bool>) {
    let admission = Arc::new(ConnectionQuotas::default());
    // Closed when the last clone is dropped, that is, when the last connection has ended.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let has_others = listeners.len() > 1;
    let accepting: Vec<_> = listeners
        .into_iter()
        .enumerate()
        .map(|(index, bound)| {
            if let Some(certificates) = &bound.certificates {
                task::spawn(Arc::clone(certificates).watch_expiry(stop.clone()));
            }
            if let (Some(certificates), Some(ms)) = (&bound.certificates, broker.config.ssl_reload_interval_ms) {
                task::spawn(Arc::clone(certificates).watch(Duration::from_millis(ms), stop.clone()));
            }
            task::spawn(accept(
                Arc::clone(&broker),
                bound.socket,
                Door {
                    index,
                    of_brokers: has_others && index == broker.config.replication.listener,
                    certificates: bound.certificates,
                },
                Arc::clone(&admission),
                stop.clone(),
                open.clone(),
            ))
        })
        .collect();
    drop(open);
    for task in accepting {
        if let Err(error) = task.await {
            tracing::error!(%error, "a listener ended");
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
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = stop.wait_for(|stopping| *stopping) => return,
        };
        match accepted {
            Ok((stream, peer)) => match admission.enter(&broker, (peer.ip(), door.of_brokers), &open) {
                Ok(place) => spawn(stream, peer, door.clone(), place, stop.clone()),
                Err(limit) => {
                    broker.metrics.connection_refused();
                    tracing::warn!(%peer, limit, "connection refused");
                }
            },
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn spawn(stream: TcpStream, peer: SocketAddr, door: Door, place: ConnectionPermit, mut stop: watch::Receiver<bool>) {
    task::spawn(async move {
        let stream = match &door.certificates {
            None => ClientStream::Plain(stream),
            Some(certificates) => tokio::select! {
                // Boxed, so that a connection has no room for it for as long as it lives.
                shaken = Box::pin(shake(certificates, stream, peer, &place.broker.config)) => match shaken {
                    Some(stream) => stream,
                    None => return,
                },
                _ = stop.wait_for(|stopping| *stopping) => return,
            },
        };
        connection::serve(&place.broker, stream, peer, door.index, stop).await;
    });
}

/// The handshake of a new connection; `None` when it failed. One that says nothing is idle, too.
async fn shake(
    certificates: &Certificates,
    stream: TcpStream,
    peer: SocketAddr,
    config: &BrokerConfig,
) -> Option<ClientStream> {
    let limit = config.ssl_handshake_timeout_ms.min(config.connections_max_idle_ms.unwrap_or(u64::MAX));
    match certificates.accept(stream, Duration::from_millis(limit)).await {
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
    use crate::config::Properties;
    use rustix::net::sockopt::{socket_recv_buffer_size, socket_send_buffer_size};

    /// Nagle's algorithm off, and the sizes of both buffers, of a connection that a listener with these settings accepts.
    async fn accepted(settings: &[(&str, &str)]) -> (bool, usize, usize) {
        let mut properties = Properties::default();
        properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
        settings.iter().for_each(|&(key, value)| properties.set(key, value));
        let config = BrokerConfig::from_properties(&properties).expect("valid").0;
        let bound = bind(&config.listeners[0], None, &config).await.expect("a free port");
        sockopts(&bound.socket).await
    }

    async fn sockopts(listener: &TcpListener) -> (bool, usize, usize) {
        let _client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (socket, _) = listener.accept().await.expect("accepted");
        let sent = socket_send_buffer_size(&socket).expect("a socket");
        let received = socket_recv_buffer_size(&socket).expect("a socket");
        (socket.nodelay().expect("a socket"), sent, received)
    }

    #[tokio::test]
    async fn nagle_is_off_and_buffers_are_the_systems_unless_configured() {
        let (_, sent, received) = sockopts(&TcpListener::bind("127.0.0.1:0").await.expect("a free port")).await;
        assert_eq!(accepted(&[]).await, (true, sent, received));
        let sizes = [("socket.send.buffer.bytes", "20000"), ("socket.receive.buffer.bytes", "30000")];
        // Linux adds as much again for its own use.
        assert_eq!(accepted(&sizes).await, (true, 40_000, 60_000));
    }
}
