//! Puts a relay before every broker of a cluster, so that a producer reaches the cluster over a simulated distance.
//!
//! The producer connects to a broker's relay instead of the broker, but still identifies the broker by its advertised
//! address. Brokers therefore need not advertise other addresses. `link::relay` explains how a relay differs from a
//! wide area network. Invariant: with a link, every connection of the producer goes through a relay, since every
//! address of the cluster has a relay.

use super::error::RunError;
use super::point::LinkSpec;
use crate::link::Shape;
use crate::link::relay::{CONNECTIONS_MAX, IN_FLIGHT_BYTES_MAX, Relay, RelaySettings};
use fullbore_client::blocking::Cluster;
use fullbore_wire::host_port;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The relays of a sweep. Dropping the struct stops them.
pub struct Detours {
    /// The addresses of the relays, by broker address and link.
    relays: HashMap<(String, LinkSpec), String>,
    stop: watch::Sender<bool>,
}

impl Default for Detours {
    fn default() -> Self {
        Detours { relays: HashMap::new(), stop: watch::Sender::new(false) }
    }
}

impl Drop for Detours {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl Detours {
    /// Starts a relay for each broker that has none for this link. Returns the
    /// [`fullbore_producer::ClientConfig::detours`] with which a producer uses these relays. If brokers join the
    /// cluster later, the next call includes them.
    ///
    /// # Errors
    /// Returns [`RunError`] if no broker answers, or if there is no port for a relay.
    pub fn to(
        &mut self,
        cluster: &mut Cluster,
        bootstrap_servers: &str,
        link: LinkSpec,
        runtime: &Runtime,
    ) -> Result<Arc<HashMap<String, String>>, RunError> {
        if link.is_direct() {
            return Ok(Arc::default());
        }
        let brokers = cluster.metadata(Some(&[]))?.brokers;
        let advertised = brokers.iter().map(|broker| host_port(&broker.host, broker.port));
        let typed = bootstrap_servers.split(',').map(|address| address.trim().to_owned());
        let mut detours = HashMap::new();
        for address in advertised.chain(typed).filter(|address| !address.is_empty()) {
            let key = (address.clone(), link);
            let through = match self.relays.get(&key) {
                Some(through) => through.clone(),
                None => {
                    let through = runtime.block_on(self.start(&address, link)).map_err(RunError::Link)?;
                    self.relays.entry(key).or_insert(through).clone()
                }
            };
            detours.insert(address, through);
        }
        Ok(Arc::new(detours))
    }

    async fn start(&self, to: &str, link: LinkSpec) -> io::Result<String> {
        let shape = Shape { rtt: link.rtt, bandwidth: link.bytes_per_sec, ..Shape::default() };
        let settings = RelaySettings {
            shape,
            loss_stall: None,
            in_flight_max: IN_FLIGHT_BYTES_MAX,
            connections_max: CONNECTIONS_MAX,
        };
        let relay = Relay::bind("127.0.0.1:0", to, &settings).await?;
        let at = relay.addr()?.to_string();
        tokio::spawn(relay.run(self.stop.subscribe()));
        Ok(at)
    }
}
