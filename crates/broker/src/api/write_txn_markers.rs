//! WriteTxnMarkers 1-2: a coordinator ends transactions at the leaders of their partitions. Only the listener between
//! brokers accepts these requests.

use super::call::{Call, Fault, Reply};
use crate::node::CoordinatorServices;
use crate::transactions::MARKERS_A_TURN;
use fullbore_rules::sequence::Marker;
use fullbore_rules::transaction::TopicPartition;
use fullbore_wire::apis::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use fullbore_wire::{ErrorCode, Frame};
use futures_util::stream::{FuturesOrdered, StreamExt};

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: WriteTxnMarkersRequest = call.body(reply.version)?;
    let is_allowed = reply.listener == services.metadata.config.replication.listener;
    // The first poll of a marker's future appends the marker. All futures are polled once in the order of the request,
    // so the markers are appended in this order.
    let mut appended = FuturesOrdered::new();
    for (count, (marker, at)) in
        request.markers.iter().flat_map(|marker| partitions(marker).map(move |at| (marker, at))).enumerate()
    {
        if count % MARKERS_A_TURN == MARKERS_A_TURN - 1 {
            tokio::task::yield_now().await;
        }
        let mut one = Box::pin(write(services, marker, at, is_allowed));
        match futures_util::poll!(&mut one) {
            std::task::Poll::Ready(code) => {
                appended.push_back(futures_util::future::Either::Left(std::future::ready(code)))
            }
            std::task::Poll::Pending => appended.push_back(futures_util::future::Either::Right(one)),
        }
    }
    let codes: Vec<ErrorCode> = appended.collect().await;
    let mut codes = codes.into_iter();
    let markers = request.markers.iter().map(|marker| result(marker, &mut codes)).collect();
    reply.frame::<WriteTxnMarkersRequest>(&WriteTxnMarkersResponse { markers, ..Default::default() })
}

fn partitions(marker: &WritableTxnMarker) -> impl Iterator<Item = TopicPartition> {
    marker.topics.iter().flat_map(|topic| TopicPartition::each_of(&topic.name, &topic.partition_indexes))
}

async fn write(
    services: &CoordinatorServices,
    marker: &WritableTxnMarker,
    at: TopicPartition,
    is_allowed: bool,
) -> ErrorCode {
    if !is_allowed {
        return ErrorCode::CLUSTER_AUTHORIZATION_FAILED;
    }
    let version = marker.transaction_version;
    let marker = Marker {
        producer_id: marker.producer_id,
        producer_epoch: marker.producer_epoch,
        coordinator_epoch: marker.coordinator_epoch,
        is_commit: marker.transaction_result,
    };
    services.transactions.write_marker(&at, &marker, version).await
}

fn result(marker: &WritableTxnMarker, codes: &mut impl Iterator<Item = ErrorCode>) -> WritableTxnMarkerResult {
    let mut partition = |partition_index| WritableTxnMarkerPartitionResult {
        partition_index,
        error_code: codes.next().unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR),
        ..Default::default()
    };
    let topics = marker.topics.iter().map(|topic| WritableTxnMarkerTopicResult {
        name: topic.name.clone(),
        partitions: topic.partition_indexes.iter().map(|&index| partition(index)).collect(),
        ..Default::default()
    });
    WritableTxnMarkerResult { producer_id: marker.producer_id, topics: topics.collect(), ..Default::default() }
}
