//! A broker in a temporary folder, and a proxy before it that can cut and stall.

use fullbore_broker::Broker;
use fullbore_broker::config::{BrokerConfig, Properties};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

/// Clients are told the proxy's address if there is one.
pub struct TestBroker {
    pub address: String,
    broker: Option<Broker>,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl TestBroker {
    pub fn start(proxy: Option<&Proxy>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut properties = Properties::default();
        properties.set("log.dirs", folder.path().join("data").display().to_string());
        properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
        properties.set("fullbore.admin.listener", "");
        properties.set("auto.create.topics.enable", "false");
        if let Some(proxy) = proxy {
            properties.set("advertised.listeners", format!("PLAINTEXT://{}", proxy.address));
        }
        let (config, _) = BrokerConfig::from_properties(&properties).expect("valid");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let broker = runtime.block_on(Broker::start(config)).expect("started");
        let address = match proxy {
            Some(proxy) => {
                proxy.target.set(broker.addr()).expect("one broker");
                proxy.address.to_string()
            }
            None => broker.addr().to_string(),
        };
        TestBroker { address, broker: Some(broker), runtime, _folder: folder }
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            self.runtime.block_on(broker.shutdown());
        }
    }
}

/// Copies bytes both ways until told otherwise.
pub struct Proxy {
    pub address: SocketAddr,
    target: Arc<OnceLock<SocketAddr>>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    /// Nothing is passed on before this.
    stalled_until: Arc<Mutex<Instant>>,
}

impl Proxy {
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

    /// Ends every connection there is.
    pub fn cut(&self) {
        for socket in self.sockets.lock().expect("not poisoned").drain(..) {
            // It may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Holds everything back for a while, after a while.
    pub fn stall_after(&self, delay: Duration, stall: Duration) -> JoinHandle<()> {
        let stalled = self.stalled_until.clone();
        spawn(move || {
            std::thread::sleep(delay);
            *stalled.lock().expect("not poisoned") = Instant::now() + stall;
        })
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
