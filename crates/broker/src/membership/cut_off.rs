//! Stands down if this broker alone cannot reach the database. Once its heartbeats have failed for a whole session, it
//! polls the metadata of the other brokers. Suppose that one of them has newer metadata in which this broker is fenced.
//! The others have then elected new leaders and coordinators, which this broker cannot learn from the database.
//!
//! ```text
//! poll      ApiVersions and DescribeCluster to one peer after the other, each for at most [`PEER_MAX`]
//! prove     rules/src/cluster/cut_off.rs
//! publish   Control::stand_down: an image of the same version with Image::stands_down
//! follow    follow_image.rs (partitions), coordinator/ (groups, transactions), api/nodes.rs (what clients see)
//! end       the writer reads the database again, and publishes the newest metadata
//! ```
//!
//! Invariant: safety does not depend on this module, because the epochs already prevent commits of this broker. It only
//! sends clients on to the other brokers.

use std::time::{Duration, Instant};

use fullbore_client::config::ClientConfig;
use fullbore_client::tokio::Connection;
use fullbore_config::BrokerConfig;
use fullbore_control::{Control, HeartbeatAnswer, Image, RegisteredBroker};
use fullbore_rules::cluster::cut_off::{CutOffWatch, PeerMetadata, proves_cut_off};
use fullbore_wire::apis::api_versions::ApiVersionsRequest;
use fullbore_wire::apis::describe_cluster::{DescribeClusterRequest, DescribeClusterResponse};
use fullbore_wire::{Text, host_port};
use tokio::sync::watch as channel;
use tokio::time::timeout;

use super::stopped;

/// Maximum time for the poll of one peer.
const PEER_MAX: Duration = Duration::from_secs(2);
/// Maximum size in bytes of a peer's response.
const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// First version of DescribeCluster that lists fenced brokers.
const DESCRIBE_CLUSTER: i16 = 2;
/// The endpoint type of brokers in DescribeCluster.
const BROKERS: i8 = 1;

/// The watch that polls the other brokers while this broker's heartbeats fail.
pub struct CutOff {
    control: Control,
    node_id: i32,
    /// The name of the listener between brokers.
    listener: String,
    client: ClientConfig,
    began: Instant,
    rule: CutOffWatch,
}

impl CutOff {
    /// Creates the watch of a broker whose heartbeats have just begun. `client` has the settings for connections to
    /// other brokers.
    pub fn new(config: &BrokerConfig, control: Control, client: ClientConfig) -> CutOff {
        let client = ClientConfig {
            client_id: format!("broker-{}-cut-off-watch", config.node.id),
            response_bytes_max: RESPONSE_BYTES_MAX,
            ..client
        };
        let listener = config.network.listeners.get(config.replication.listener);
        let session_timeout_ms = i64::try_from(config.membership.session_timeout_ms).unwrap_or(i64::MAX);
        CutOff {
            control,
            node_id: config.node.id,
            listener: listener.map_or_else(String::new, |listener| listener.name.clone()),
            client,
            began: Instant::now(),
            rule: CutOffWatch::new(session_timeout_ms, 0),
        }
    }

    /// Watches the heartbeats until the broker stops.
    pub async fn run(mut self, mut heartbeats: channel::Receiver<HeartbeatAnswer>, mut stop: channel::Receiver<bool>) {
        let mut stood_down = false;
        loop {
            let due_in = u64::try_from(self.rule.poll_due_ms().saturating_sub(self.now_ms())).unwrap_or(0);
            let is_heartbeat = tokio::select! {
                changed = heartbeats.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                () = tokio::time::sleep(Duration::from_millis(due_in)) => false,
                () = stopped(&mut stop) => return,
            };
            let stands_down = self.control.image().stands_down();
            if stood_down && !stands_down {
                tracing::warn!(
                    "the database answers again: this broker has its newest metadata and no longer stands down"
                );
            }
            stood_down = stands_down;
            if is_heartbeat {
                self.rule.heartbeat(self.now_ms());
                if stands_down {
                    self.control.catch_up();
                }
            } else {
                if !stands_down {
                    tokio::select! {
                        () = self.poll() => {}
                        () = stopped(&mut stop) => return,
                    }
                }
                self.rule.polled(self.now_ms());
            }
        }
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Polls the peers, until one of them proves that the others have fenced this broker. Then stands down.
    async fn poll(&self) {
        let image = self.control.image();
        for (id, address) in self.peers(&image) {
            let Ok(Some(peer)) = timeout(PEER_MAX, self.metadata_of(&address)).await else { continue };
            if !proves_cut_off(image.epoch(), &peer) {
                continue;
            }
            tracing::warn!(
                peer = id,
                version = peer.version,
                "cannot reach the database, and the other brokers have fenced this broker: clients use them until its \
                 heartbeats succeed again; check the network path to PostgreSQL"
            );
            let control = self.control.clone();
            // The writer's thread may be waiting for the database.
            let _ = tokio::task::spawn_blocking(move || control.stand_down(peer.version)).await;
            return;
        }
    }

    /// Returns the other registered brokers with their addresses. A fenced one may have come back in newer metadata.
    fn peers(&self, image: &Image) -> Vec<(i32, String)> {
        let others = image.nodes().iter().filter(|(id, _)| **id != self.node_id);
        let address = |(id, node): (&i32, &RegisteredBroker)| {
            node.endpoint(&self.listener).map(|at| (*id, host_port(&at.host, at.port)))
        };
        others.filter_map(address).collect()
    }

    /// Returns the metadata of the broker at `address`. `None` if it cannot be reached, or belongs to another cluster.
    async fn metadata_of(&self, address: &str) -> Option<PeerMetadata> {
        let connection = Connection::connect(address, &self.client).await.ok()?;
        let versions = ApiVersionsRequest {
            client_software_name: Text::from_static("fullbore"),
            client_software_version: Text::from_static(env!("CARGO_PKG_VERSION")),
            ..Default::default()
        };
        // The version comes first. So the description is of this version or a newer one.
        let version = connection.call(&versions).await.ok()?.finalized_features_epoch;
        let request =
            DescribeClusterRequest { endpoint_type: BROKERS, include_fenced_brokers: true, ..Default::default() };
        let described = connection.call_version(&request, DESCRIBE_CLUSTER).await.ok()?;
        let is_ours = described.cluster_id.as_str() == self.control.cluster_id().to_string();
        let metadata = PeerMetadata {
            version: u64::try_from(version).ok()?,
            fences_this_broker: fences(&described, self.node_id),
        };
        is_ours.then_some(metadata)
    }
}

fn fences(described: &DescribeClusterResponse, id: i32) -> bool {
    described.brokers.iter().any(|broker| broker.broker_id == id && broker.is_fenced)
}
