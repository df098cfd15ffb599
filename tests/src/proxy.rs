//! A proxy in front of a broker. A test can cut and stall its connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::spawn;
use std::time::{Duration, Instant};

/// A proxy that copies bytes in both directions.
pub struct Proxy {
    /// The address to which clients connect.
    pub address: SocketAddr,
    target: Arc<OnceLock<SocketAddr>>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    /// Until this time the proxy holds back all bytes.
    stalled_until: Arc<Mutex<Instant>>,
}

impl Proxy {
    /// Starts the proxy without a target. [`Proxy::lead_to`] sets it.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Proxy {
            address: listener.local_addr().expect("bound"),
            target: Arc::default(),
            sockets: Arc::default(),
            stalled_until: Arc::new(Mutex::new(Instant::now())),
        };
        let (target, sockets, stalled) = (proxy.target.clone(), proxy.sockets.clone(), proxy.stalled_until.clone());
        spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target.get().expect("the broker is started")) else { continue };
                let copy = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
                sockets.lock().expect("not poisoned").extend([copy(&client), copy(&server)]);
                let (client_copy, server_copy) = (copy(&client), copy(&server));
                let (up, down) = (stalled.clone(), stalled.clone());
                spawn(move || pass(client, server, &up));
                spawn(move || pass(server_copy, client_copy, &down));
            }
        });
        proxy
    }

    /// Sets the broker to which the proxy connects.
    pub fn lead_to(&self, broker: SocketAddr) {
        self.target.set(broker).expect("one broker");
    }

    /// Ends every connection.
    pub fn cut(&self) {
        for socket in self.sockets.lock().expect("not poisoned").drain(..) {
            // The socket may already be closed.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Holds back all bytes for the duration `stall`.
    pub fn stall(&self, stall: Duration) {
        *self.stalled_until.lock().expect("not poisoned") = Instant::now() + stall;
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, stalled_until: &Mutex<Instant>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let until = *stalled_until.lock().expect("not poisoned");
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
