//! DeleteRecords 0-2: moves the log starts of partitions forward. When the client gets the response, the new log starts
//! are on disk here and on every in-sync replica. Neither a crash nor a change of leader brings the records back.

use super::call::{Call, Fault, Reply, joined, once};
use super::topics;
use crate::node::MetadataServices;
use crate::partitions::{AnyPartition, Partitions, Replica};
use fullbore_control::{Image, is_internal};
use fullbore_diskless::DisklessPartition;
use fullbore_rules::replica::NO_EPOCH;
use fullbore_wire::apis::delete_records::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse,
    DeleteRecordsTopic, DeleteRecordsTopicResult,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Kafka's `DeleteRecordsResponse.INVALID_LOW_WATERMARK`.
const NO_LOW_WATERMARK: i64 = -1;
/// Maximum time that a request waits for replicas, whatever timeout the client requests.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The partition whose log start moves, or the error if the log start cannot move.
type Moved = Result<Deleting, ErrorCode>;

enum Deleting {
    /// A classic partition and its new log start, which the replicas must also reach.
    Here(Arc<Replica>, i64),
    /// A diskless partition and the new log start, which the index still has to store.
    InIndex(Arc<DisklessPartition>, i64),
}

pub async fn handle(
    call: &mut Call<'_>,
    metadata: &MetadataServices,
    hosted: &Arc<Partitions>,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: DeleteRecordsRequest = call.body(reply.version)?;
    let wait = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).min(WAIT_MAX);
    let deadline = Instant::now() + wait;
    let requested =
        joined(request.topics, |topic| topic.name.clone(), |topic, again| topic.partitions.extend(again.partitions));
    let image = metadata.control.image();
    let named = requested.iter().flat_map(|topic| topic.partitions.iter().map(|p| (&topic.name, p.partition_index)));
    AnyPartition::open_all(topics::named(hosted, &image, named)).await;
    let hosted = Arc::clone(hosted);
    let moving = tokio::task::spawn_blocking(move || delete(&image, &hosted, requested));
    let moved = moving.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    let mut in_index = moved_in_index(&moved, deadline).await.into_iter();
    let mut topics = Vec::with_capacity(moved.len());
    for (name, moved) in moved {
        let mut partitions = Vec::with_capacity(moved.len());
        for (partition_index, moved) in moved {
            partitions.push(answer(partition_index, moved, &mut in_index, deadline).await);
        }
        topics.push(DeleteRecordsTopicResult { name, partitions, ..Default::default() });
    }
    reply.frame::<DeleteRecordsRequest>(&DeleteRecordsResponse { topics, ..Default::default() })
}

/// Moves the log starts of classic partitions and checks the diskless ones. Blocks on the disk.
fn delete(image: &Image, hosted: &Partitions, requested: Vec<DeleteRecordsTopic>) -> Vec<(Text, Vec<(i32, Moved)>)> {
    let moved_of = |mut topic: DeleteRecordsTopic| {
        let partitions = once(std::mem::take(&mut topic.partitions), |partition| partition.partition_index);
        let moved: Vec<(i32, Moved)> = partitions
            .iter()
            .map(|partition| (partition.partition_index, move_log_start(hosted, image, &topic, partition)))
            .collect();
        (topic.name, moved)
    };
    let mut moved: Vec<_> = requested.into_iter().map(moved_of).collect();
    let outcomes = moved.iter().flat_map(|(_, partitions)| partitions);
    let here = |moved: &Moved| match moved {
        Ok(Deleting::Here(replica, _)) => Some(Arc::clone(replica)),
        _ => None,
    };
    let partitions: Vec<_> = outcomes.filter_map(|(_, moved)| here(moved)).collect();
    if let Err(error) = hosted.keep_log_starts(&partitions) {
        tracing::error!(%error, "cannot write new log start offsets: the DeleteRecords request fails");
        let of_all = moved.iter_mut().flat_map(|(_, partitions)| partitions);
        of_all.filter(|(_, moved)| moved.is_ok()).for_each(|(_, moved)| *moved = Err(ErrorCode::KAFKA_STORAGE_ERROR));
    }
    moved
}

/// Moves the log starts of the diskless partitions. Returns the outcomes in the order of the request. A partition
/// without an outcome at `deadline` gets REQUEST_TIMED_OUT.
async fn moved_in_index(moved: &[(Text, Vec<(i32, Moved)>)], deadline: Instant) -> Vec<Result<i64, ErrorCode>> {
    let diskless = moved.iter().flat_map(|(_, partitions)| partitions).filter_map(|(_, moved)| match moved {
        Ok(Deleting::InIndex(partition, offset)) => Some((Arc::clone(partition), *offset)),
        _ => None,
    });
    let diskless: Vec<_> = diskless.collect();
    let mut outcomes = Vec::with_capacity(diskless.len());
    let _ = timeout_at(deadline, Box::pin(DisklessPartition::delete_records(&diskless, &mut outcomes))).await;
    let mut outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.code())).collect();
    outcomes.resize(diskless.len(), Err(ErrorCode::REQUEST_TIMED_OUT));
    outcomes
}

/// Returns the result of a partition. For a classic partition, first waits until the in-sync replicas have also deleted
/// the records. For a diskless partition, the result is the next item of `in_index`.
async fn answer(
    partition_index: i32,
    moved: Moved,
    in_index: &mut impl Iterator<Item = Result<i64, ErrorCode>>,
    deadline: Instant,
) -> DeleteRecordsPartitionResult {
    let deleted = match moved {
        Ok(Deleting::Here(replica, log_start)) => {
            let deleted = timeout_at(deadline, replica.deleted_before(log_start)).await;
            deleted.unwrap_or(Err(ErrorCode::REQUEST_TIMED_OUT)).map(|()| log_start)
        }
        Ok(Deleting::InIndex(..)) => in_index.next().unwrap_or(Err(ErrorCode::REQUEST_TIMED_OUT)),
        Err(code) => Err(code),
    };
    let (low_watermark, error_code) = match deleted {
        Ok(log_start) => (log_start, ErrorCode::NONE),
        Err(code) => (NO_LOW_WATERMARK, code),
    };
    DeleteRecordsPartitionResult { partition_index, low_watermark, error_code, ..Default::default() }
}

fn move_log_start(
    hosted: &Partitions,
    image: &Image,
    topic: &DeleteRecordsTopic,
    requested: &DeleteRecordsPartition,
) -> Moved {
    let topic = topics::find(image, &topic.name, Uuid::ZERO)?;
    if is_internal(&topic.name) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    let partition = topics::existing(hosted, topic, requested.partition_index)?;
    partition.check_writable()?;
    if !topic.config.cleanup.delete {
        return Err(ErrorCode::POLICY_VIOLATION);
    }
    partition.check_leads(NO_EPOCH)?;
    match partition {
        AnyPartition::Classic(replica) => {
            let log_start = replica.delete_records_before(requested.offset).map_err(|error| error.code())?;
            Ok(Deleting::Here(replica, log_start))
        }
        AnyPartition::Diskless(partition) => Ok(Deleting::InIndex(partition, requested.offset)),
    }
}
