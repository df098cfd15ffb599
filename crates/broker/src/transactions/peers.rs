//! Connects coordinators to other brokers, over the listener between brokers, and sends them the markers for their
//! partitions.
//!
//! Markers for the same broker share requests, even if they belong to different transactions. On each route to a broker
//! ([`MarkerRoute`]), only one WriteTxnMarkers is in flight. The next one contains the markers that were queued
//! meanwhile, up to [`MARKERS_MAX`]. A broker responds only once the markers are replicated, so the connection is used
//! for no other requests.
//!
//! Each queued marker gets an answer: the code in the response, or the reason why the request has failed. A marker that
//! is sent to another broker instead is dropped without an answer.

use super::peer_queue::PeerQueue;
use super::verifications::Verifications;
use crate::replication;
use fullbore_client::config::ClientConfig;
use fullbore_client::tokio::Connection;
use fullbore_config::BrokerConfig;
use fullbore_control::{Control, Image};
use fullbore_host::task;
use fullbore_rules::sequence::Marker;
use fullbore_rules::transaction::TopicPartition;
use fullbore_wire::api::Request;
use fullbore_wire::apis::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use fullbore_wire::{ErrorCode, host_port};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Maximum number of markers in one request.
const MARKERS_MAX: usize = 1_000;
/// Maximum wait for the response to markers. Must be longer than a leader waits for its replicas.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// Maximum wait for the response to a search, for which the other broker may have to open logs.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The other brokers to which this broker sends requests as a coordinator.
pub(super) struct Peers {
    client: ClientConfig,
    /// The name of the listener between brokers.
    listener: String,
    control: Control,
    peers: Mutex<HashMap<MarkerRoute, Arc<Peer>>>,
}

/// The broker that should write a marker, and the queue through which the marker is sent. Markers of diskless
/// partitions have a queue and a connection of their own, because their responses wait for the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MarkerRoute {
    /// The broker's id.
    pub broker: i32,
    /// True for the markers of diskless partitions.
    pub is_diskless: bool,
}

impl MarkerRoute {
    /// Returns the route to the leader of a classic partition.
    pub fn classic(broker: i32) -> MarkerRoute {
        MarkerRoute { broker, is_diskless: false }
    }
}

#[derive(Default)]
pub(super) struct Peer {
    markers: PeerQueue<QueuedMarker>,
    /// The connection for [`Peers::search`].
    searches: PeerQueue<()>,
    pub verifications: Verifications,
}

/// A marker for one partition of another broker.
struct QueuedMarker {
    marker: Marker,
    transaction_version: i8,
    partition: TopicPartition,
    answer: oneshot::Sender<Result<ErrorCode, String>>,
}

impl Peers {
    pub fn new(config: &BrokerConfig, control: Control) -> Peers {
        let client = ClientConfig {
            client_id: format!("broker-{}-txn-marker-sender", config.node.id),
            ..replication::client(config)
        };
        let listener = &config.network.listeners[config.replication.listener];
        Peers { client, listener: listener.name.clone(), control, peers: Mutex::default() }
    }

    /// Sends a marker to a broker and returns the error code for its partition.
    ///
    /// # Errors
    /// Returns the reason why there is no response, as a text for the log. The marker may have been written even so.
    pub async fn mark(
        self: &Arc<Self>,
        route: MarkerRoute,
        marker: Marker,
        transaction_version: i8,
        partition: TopicPartition,
    ) -> Result<ErrorCode, String> {
        let (answer, pending) = oneshot::channel();
        if self.peer(route).markers.put(QueuedMarker { marker, transaction_version, partition, answer }) {
            task::spawn(Arc::clone(self).send_markers(route));
        }
        pending.await.unwrap_or_else(|_| Err("the broker is stopping".to_owned()))
    }

    /// Waits until the metadata show that the broker of `route` must no longer write to the partition. For a classic
    /// partition, it is then no longer the leader. For a diskless partition, it is fenced or no longer registered. A
    /// caller does not wait longer for a broker that hangs and sends no response.
    pub async fn replaced(&self, route: MarkerRoute, topic: &str, partition: i32) {
        let mut images = self.control.watch();
        let leader = |image: &Image| image.topic(topic)?.partition(partition)?.leader;
        let is_replaced = |image: &Image| match route.is_diskless {
            true => image.node(route.broker).is_none_or(|node| node.registration.is_fenced),
            false => leader(image) != Some(route.broker),
        };
        if images.wait_for(|image| is_replaced(image)).await.is_err() {
            // This broker is stopping and gets no more images.
            std::future::pending::<()>().await;
        }
    }

    /// Sends a request that searches for transactions. Such requests have a connection of their own.
    ///
    /// # Errors
    /// Returns the reason why there is no response, as a text for the log.
    pub async fn search<R: Request>(&self, broker: i32, request: R) -> Result<R::Response, String> {
        let peer = self.peer(MarkerRoute::classic(broker));
        self.call(broker, &peer.searches, || Some(request), SEARCH_TIMEOUT).await
    }

    /// Closes the connections of the searches, because the next search may be far away.
    pub async fn end_searches(&self) {
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        for peer in peers {
            *peer.searches.connection.lock().await = None;
        }
    }

    /// Returns the queues of a route.
    pub fn peer(&self, route: MarkerRoute) -> Arc<Peer> {
        Arc::clone(self.peers.lock().entry(route).or_default())
    }

    /// Sends a request over the connection of `queue` and returns the response. `request` is called once the connection
    /// exists, because some items may no longer be wanted by then. If `request` returns `None`, nothing is sent.
    ///
    /// If there is no response after `within`, including the time to connect, the connection is closed. The other
    /// broker hangs, and will soon be replaced as leader.
    ///
    /// # Errors
    /// Returns the reason why there is no response, as a text for the log.
    pub async fn call<T, R: Request>(
        &self,
        broker: i32,
        queue: &PeerQueue<T>,
        request: impl FnOnce() -> Option<R>,
        within: Duration,
    ) -> Result<R::Response, String> {
        let called = async {
            let connection = self.connection(broker, &queue.connection).await?;
            let request = request().ok_or_else(|| "the broker no longer needs the answer".to_owned())?;
            connection.call(&request).await.map_err(|error| error.to_string())
        };
        match timeout(within, called).await {
            Ok(answered) => answered,
            Err(_) => {
                *queue.connection.lock().await = None;
                Err(format!("broker {broker} has not answered within {within:?}"))
            }
        }
    }

    async fn connection(
        &self,
        broker: i32,
        of_peer: &tokio::sync::Mutex<Option<Connection>>,
    ) -> Result<Connection, String> {
        let mut known = of_peer.lock().await;
        if let Some(connection) = known.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let listener = &self.listener;
        let image = self.control.image();
        let endpoint = image.node(broker).and_then(|node| node.endpoint(listener));
        let endpoint = endpoint.ok_or_else(|| format!("broker {broker} has no listener {listener}"))?;
        let address = host_port(&endpoint.host, endpoint.port);
        let connection = Connection::connect(&address, &self.client).await.map_err(|error| error.to_string())?;
        *known = Some(connection.clone());
        Ok(connection)
    }

    /// Sends the queued markers, one request after another, until the queue is empty.
    async fn send_markers(self: Arc<Self>, route: MarkerRoute) {
        let peer = self.peer(route);
        while let Some(mut batch) = peer.markers.take(MARKERS_MAX, MARKERS_MAX, |_| 1, QueuedMarker::is_wanted) {
            let request = || request_of_wanted(&mut batch);
            match self.call(route.broker, &peer.markers, request, ANSWER_WITHIN).await {
                Ok(response) => answer(batch, &response),
                Err(why) => batch.into_iter().for_each(|queued| _ = queued.answer.send(Err(why.clone()))),
            }
        }
    }
}

impl QueuedMarker {
    /// Returns false if another broker has replaced this queue's broker, so that the marker is sent there instead. A
    /// marker that the replaced broker wrote late might end the producer's next transaction, which has the same
    /// producer epoch if the client is an older one.
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }
}

/// Drops markers that are no longer wanted, and returns the request for the others. `None` if there are none.
fn request_of_wanted(batch: &mut Vec<QueuedMarker>) -> Option<WriteTxnMarkersRequest> {
    batch.retain(QueuedMarker::is_wanted);
    (!batch.is_empty()).then(|| request(batch))
}

/// Returns the request for these markers, in their order. Adjacent partitions of the same marker share an entry.
fn request(batch: &[QueuedMarker]) -> WriteTxnMarkersRequest {
    let mut markers: Vec<WritableTxnMarker> = Vec::new();
    let same = |chunk: &QueuedMarker, next: &QueuedMarker| {
        (chunk.marker, chunk.transaction_version) == (next.marker, next.transaction_version)
    };
    for chunk in batch.chunk_by(same) {
        let QueuedMarker { marker, transaction_version, .. } = chunk[0];
        let topics = TopicPartition::by_topic(chunk.iter().map(|queued| queued.partition.clone())).into_iter();
        let topics = topics.map(|(name, partition_indexes)| WritableTxnMarkerTopic {
            name,
            partition_indexes,
            ..Default::default()
        });
        markers.push(WritableTxnMarker {
            producer_id: marker.producer_id,
            producer_epoch: marker.producer_epoch,
            transaction_result: marker.is_commit,
            topics: topics.collect(),
            coordinator_epoch: marker.coordinator_epoch,
            transaction_version,
            ..Default::default()
        });
    }
    WriteTxnMarkersRequest { markers, ..Default::default() }
}

/// Answers each marker with the error code of its partition. A marker that the response lacks gets an error, after
/// which it is written again.
fn answer(batch: Vec<QueuedMarker>, response: &WriteTxnMarkersResponse) {
    let mut codes = HashMap::new();
    for marker in &response.markers {
        for topic in &marker.topics {
            for at in &topic.partitions {
                codes.insert((marker.producer_id, topic.name.as_str(), at.partition_index), at.error_code);
            }
        }
    }
    for QueuedMarker { marker, partition, answer, .. } in batch {
        let code = codes.get(&(marker.producer_id, partition.topic.as_str(), partition.partition));
        let code = code.copied().ok_or_else(|| "the response has no answer for the partition".to_owned());
        let _ = answer.send(code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::apis::write_txn_markers::{
        WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    };

    type Pending = oneshot::Receiver<Result<ErrorCode, String>>;

    fn queued(producer_id: i64, topic: &'static str, partition: i32) -> (QueuedMarker, Pending) {
        let (answer, pending) = oneshot::channel();
        let marker = Marker { producer_id, producer_epoch: 1, coordinator_epoch: 2, is_commit: true };
        let partition = TopicPartition { topic: topic.into(), partition };
        (QueuedMarker { marker, transaction_version: 2, partition, answer }, pending)
    }

    #[test]
    fn markers_of_several_transactions_share_a_request_and_get_their_partitions_answers() {
        let requested = [(7, "a", 0), (7, "a", 1), (7, "b", 0), (8, "a", 0)];
        let (batch, mut pending): (Vec<_>, Vec<_>) =
            requested.into_iter().map(|(id, topic, partition)| queued(id, topic, partition)).unzip();
        let request = request(&batch);
        let shown: Vec<_> = request.markers.iter().map(|marker| (marker.producer_id, marker.topics.len())).collect();
        assert_eq!(shown, [(7, 2), (8, 1)]);
        assert_eq!(request.markers[0].topics[0].partition_indexes, [0, 1]);
        let result = |producer_id, name: &'static str, at: &[(i32, ErrorCode)]| WritableTxnMarkerResult {
            producer_id,
            topics: vec![WritableTxnMarkerTopicResult {
                name: name.into(),
                partitions: at
                    .iter()
                    .map(|&(partition_index, error_code)| WritableTxnMarkerPartitionResult {
                        partition_index,
                        error_code,
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let gone = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        let markers = vec![result(7, "a", &[(1, gone), (0, ErrorCode::NONE)]), result(8, "a", &[(0, ErrorCode::NONE)])];
        answer(batch, &WriteTxnMarkersResponse { markers, ..Default::default() });
        let answers: Vec<_> = pending.iter_mut().map(|pending| pending.try_recv().expect("answered").ok()).collect();
        assert_eq!(answers, [Some(ErrorCode::NONE), Some(gone), None, Some(ErrorCode::NONE)]);
    }

    #[test]
    fn marker_for_a_replaced_broker_is_left_out_of_the_request() {
        let (first, gone) = queued(7, "a", 0);
        let (second, pending) = queued(8, "a", 0);
        let mut batch = vec![first, second];
        drop(gone);
        let request = request_of_wanted(&mut batch).expect("one is left");
        assert_eq!(request.markers.iter().map(|marker| marker.producer_id).collect::<Vec<_>>(), [8]);
        drop(pending);
        assert!(request_of_wanted(&mut batch).is_none());
    }
}
