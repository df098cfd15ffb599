//! Other brokers of the cluster, as coordinators reach them over the listener between brokers, and the markers for their partitions.
//!
//! Markers for one broker are gathered: one WriteTxnMarkers is under way at a time, and takes along what has come meanwhile, of any transaction.
//! A leader answers it once its markers are replicated, so that nothing else goes over that connection.
//!
//! Invariant: each marker that is queued is answered, if by the failure of its request.

use super::lane::Lane;
use super::verifications::Verifications;
use crate::replication;
use fullbore_client::config::ClientConfig;
use fullbore_client::tokio::Connection;
use fullbore_config::BrokerConfig;
use fullbore_control::Control;
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

/// Markers of one request.
const MARKERS_MAX: usize = 1_000;
/// The longest wait for the answer to markers: longer than a leader waits for its replicas.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// Brokers that this one writes to as a coordinator.
pub(super) struct Peers {
    client: ClientConfig,
    /// Name of the listener between brokers.
    listener: String,
    control: Control,
    peers: Mutex<HashMap<i32, Arc<Peer>>>,
}

#[derive(Default)]
pub(super) struct Peer {
    markers: Lane<QueuedMarker>,
    pub verifications: Verifications,
}

/// Marker for one partition of another broker.
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

    /// Has the broker append a marker, and returns its answer for the partition.
    ///
    /// # Errors
    /// Words on a request that had no answer: the marker may be written.
    pub async fn mark(
        self: &Arc<Self>,
        broker: i32,
        marker: Marker,
        transaction_version: i8,
        partition: TopicPartition,
    ) -> Result<ErrorCode, String> {
        let (answer, pending) = oneshot::channel();
        if self.peer(broker).markers.put(QueuedMarker { marker, transaction_version, partition, answer }) {
            task::spawn(Arc::clone(self).send_markers(broker));
        }
        pending.await.unwrap_or_else(|_| Err("the broker is stopping".to_owned()))
    }

    /// Returns what waits for a broker.
    pub fn peer(&self, broker: i32) -> Arc<Peer> {
        Arc::clone(self.peers.lock().entry(broker).or_default())
    }

    /// Sends a request by a lane, and returns the response. A connection that brings none within this time is given up: its broker hangs, and
    /// another one leads soon.
    ///
    /// # Errors
    /// Words on a request that has no answer.
    pub async fn call<T, R: Request>(
        &self,
        broker: i32,
        lane: &Lane<T>,
        request: &R,
        within: Duration,
    ) -> Result<R::Response, String> {
        let called = async {
            let connection = self.connection(broker, &lane.connection).await?;
            connection.call(request).await.map_err(|error| error.to_string())
        };
        match timeout(within, called).await {
            Ok(answered) => answered,
            Err(_) => {
                *lane.connection.lock().await = None;
                Err(format!("broker {broker} has not answered within {within:?}"))
            }
        }
    }

    async fn connection(
        &self,
        broker: i32,
        of_lane: &tokio::sync::Mutex<Option<Connection>>,
    ) -> Result<Connection, String> {
        let mut known = of_lane.lock().await;
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

    /// Sends what waits, one request after the other, until nothing does.
    async fn send_markers(self: Arc<Self>, broker: i32) {
        let peer = self.peer(broker);
        while let Some(batch) = peer.markers.take(MARKERS_MAX, MARKERS_MAX, |_| 1) {
            match self.call(broker, &peer.markers, &request(&batch), ANSWER_WITHIN).await {
                Ok(response) => answer(batch, &response),
                Err(why) => batch.into_iter().for_each(|queued| _ = queued.answer.send(Err(why.clone()))),
            }
        }
    }
}

/// Returns the request for these markers, in their order: partitions of one marker that follow each other are one entry.
fn request(batch: &[QueuedMarker]) -> WriteTxnMarkersRequest {
    let mut markers: Vec<WritableTxnMarker> = Vec::new();
    let same = |chunk: &QueuedMarker, next: &QueuedMarker| chunk.marker == next.marker;
    for chunk in batch.chunk_by(same) {
        let QueuedMarker { marker, transaction_version, .. } = chunk[0];
        let mut topics: Vec<WritableTxnMarkerTopic> = Vec::new();
        for TopicPartition { topic, partition } in chunk.iter().map(|queued| &queued.partition) {
            match topics.last_mut().filter(|last| last.name == *topic) {
                Some(last) => last.partition_indexes.push(*partition),
                None => topics.push(WritableTxnMarkerTopic {
                    name: topic.clone(),
                    partition_indexes: vec![*partition],
                    ..Default::default()
                }),
            }
        }
        markers.push(WritableTxnMarker {
            producer_id: marker.producer_id,
            producer_epoch: marker.producer_epoch,
            transaction_result: marker.is_commit,
            topics,
            coordinator_epoch: marker.coordinator_epoch,
            transaction_version,
            ..Default::default()
        });
    }
    WriteTxnMarkersRequest { markers, ..Default::default() }
}

/// Gives each marker the error of its partition. One that the response leaves out is to be written again.
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
    fn markers_of_several_transactions_are_one_request_each_gets_the_answer_of_its_partition() {
        let asked = [(7, "a", 0), (7, "a", 1), (7, "b", 0), (8, "a", 0)];
        let (batch, mut pending): (Vec<_>, Vec<_>) =
            asked.into_iter().map(|(id, topic, partition)| queued(id, topic, partition)).unzip();
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
}
