//! DescribeLogDirs 1-5: describes the data directory, with the sizes of its partitions and the space on its volume. The
//! object store of diskless topics appears as a second directory. Only one broker of the cluster reports the store.

use super::call::{Call, Fault, Reply, joined, once};
use super::nodes;
use super::wide::ENTRIES_SHORT_MAX;
use crate::node::MetadataServices;
use crate::partitions::{AnyPartition, Partitions};
use fullbore_control::{Image, Topic};
use fullbore_host::wide_work::{Listing, WideWork};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::apis::describe_log_dirs::{
    DescribableLogDirTopic, DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse,
    DescribeLogDirsResult, DescribeLogDirsTopic,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::io;
use std::sync::Arc;

/// Kafka's `DescribeLogDirsResponse.UNKNOWN_VOLUME_BYTES`.
const NOT_KNOWN: i64 = -1;

pub async fn handle(
    call: &mut Call<'_>,
    metadata: &Arc<MetadataServices>,
    hosted: &Arc<Partitions>,
    wide: &WideWork,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: DescribeLogDirsRequest = call.body(reply.version)?;
    // Only one large request runs at a time. Disks may hang, and a description of many partitions takes much memory
    // until it is encoded.
    let is_large = request.topics.is_none() && metadata.control.image().partition_count() > ENTRIES_SHORT_MAX;
    let turn = if is_large { Some(wide.listing_turn(Listing::LogDirs).await) } else { None };
    let (metadata, hosted) = (Arc::clone(metadata), Arc::clone(hosted));
    // This runs on a blocking thread, because it reads the directory of each partition whose log is not open.
    let listener = call.listener;
    let describe = move || (describe(&metadata, &hosted, listener, request.topics), turn);
    let describing = tokio::task::spawn_blocking(describe);
    let (results, _turn) = describing.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    reply.frame::<DescribeLogDirsRequest>(&DescribeLogDirsResponse { results, ..Default::default() })
}

/// Describes the data directory, and the object store if there are diskless topics.
fn describe(
    metadata: &MetadataServices,
    hosted: &Partitions,
    listener: usize,
    requested: Option<Vec<DescribableLogDirTopic>>,
) -> Vec<DescribeLogDirsResult> {
    let reports = reports_store(metadata, &metadata.control.image(), listener);
    let store = reports.then(|| describe_store(metadata, hosted, requested.clone())).flatten();
    std::iter::once(describe_directory(metadata, hosted, requested)).chain(store).collect()
}

/// Returns true if this broker reports the object store. Clients query all brokers and add up the responses, so exactly
/// one may report it. This is the broker with the lowest id among those that use the store and that clients of this
/// listener can reach.
fn reports_store(metadata: &MetadataServices, image: &Image, listener: usize) -> bool {
    let have_it = nodes::reached(metadata, image, listener).filter(|(_, node, _)| node.serves_diskless);
    let least = have_it.map(|(id, ..)| id).min();
    metadata.config.diskless.is_served && least.is_none_or(|least| least == metadata.config.node.id)
}

/// Describes the object store, whose total size is unknown. Returns `None` if no requested topic is stored there.
fn describe_store(
    metadata: &MetadataServices,
    hosted: &Partitions,
    requested: Option<Vec<DescribableLogDirTopic>>,
) -> Option<DescribeLogDirsResult> {
    let topics = topics(metadata, hosted, requested, true).ok()?;
    let log_dir = store(metadata);
    (!topics.is_empty()).then(|| DescribeLogDirsResult {
        log_dir,
        topics,
        total_bytes: NOT_KNOWN,
        usable_bytes: NOT_KNOWN,
        ..Default::default()
    })
}

fn describe_directory(
    metadata: &MetadataServices,
    hosted: &Partitions,
    requested: Option<Vec<DescribableLogDirTopic>>,
) -> DescribeLogDirsResult {
    let (log_dir, directory) = (directory(metadata), &metadata.config.node.data_dir);
    let described =
        topics(metadata, hosted, requested, false).and_then(|topics| Ok((topics, rustix::fs::statvfs(directory)?)));
    match described {
        Ok((topics, volume)) => DescribeLogDirsResult {
            log_dir,
            topics,
            total_bytes: bytes(volume.f_blocks, volume.f_frsize),
            usable_bytes: bytes(volume.f_bavail, volume.f_frsize),
            ..Default::default()
        },
        Err(error) => {
            tracing::error!(%error, folder = %directory.display(), "cannot describe the log directory: DescribeLogDirs fails");
            DescribeLogDirsResult { error_code: ErrorCode::KAFKA_STORAGE_ERROR, log_dir, ..Default::default() }
        }
    }
}

/// Returns the path of the data directory. Responses contain it in this form, and requests must repeat it.
pub fn directory(metadata: &MetadataServices) -> Text {
    let directory = &metadata.config.node.data_dir;
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
    Text::from(absolute.to_string_lossy().into_owned())
}

/// Returns the name of the object store. Responses contain it in this form, and requests must repeat it.
pub fn store(metadata: &MetadataServices) -> Text {
    Text::from(metadata.config.diskless.storage.to_string())
}

fn bytes(blocks: u64, block_len: u64) -> i64 {
    i64::try_from(blocks.saturating_mul(block_len)).unwrap_or(i64::MAX)
}

/// Returns the requested topics, or all topics if `requested` is `None`. With `diskless`, only diskless topics are
/// returned, otherwise only classic ones. As in Kafka, classic partitions without a replica on this broker are left
/// out. If all topics are requested, a topic without any such partition is left out as well.
fn topics(
    metadata: &MetadataServices,
    hosted: &Partitions,
    requested: Option<Vec<DescribableLogDirTopic>>,
    diskless: bool,
) -> io::Result<Vec<DescribeLogDirsTopic>> {
    let image = metadata.control.image();
    let is_here = |topic: &Topic, index: i32| {
        let has =
            |partition: &Arc<PartitionRegistration>| diskless || partition.replicas.contains(&metadata.config.node.id);
        topic.config.diskless == diskless && topic.partition(index).is_some_and(has)
    };
    match requested {
        None => {
            let here = |topic: &Topic| (0..topic.partition_count()).filter(|index| is_here(topic, *index)).collect();
            let all = image.topics().map(|topic| (topic, here(topic)));
            all.filter(|(_, partitions): &(_, Vec<i32>)| !partitions.is_empty())
                .map(|(topic, partitions)| of_topic(hosted, topic, partitions))
                .collect()
        }
        Some(requested) => {
            joined(requested, |topic| topic.topic.clone(), |topic, again| topic.partitions.extend(again.partitions))
                .into_iter()
                .filter_map(|requested| {
                    let topic = image.topic(&requested.topic).filter(|topic| topic.config.diskless == diskless)?;
                    let partitions = once(requested.partitions, |index| *index).into_iter();
                    let partitions = partitions.filter(|index| is_here(topic, *index)).collect();
                    Some(of_topic(hosted, topic, partitions))
                })
                .collect()
        }
    }
}

fn of_topic(hosted: &Partitions, topic: &Topic, partitions: Vec<i32>) -> io::Result<DescribeLogDirsTopic> {
    let partition = |partition_index: i32| {
        // Leaves out a partition that was deleted after the image was published.
        Some(of_partition(&hosted.find_any(&topic.id, partition_index)?, partition_index))
    };
    let partitions = partitions.into_iter().filter_map(partition).collect::<io::Result<_>>()?;
    Ok(DescribeLogDirsTopic { name: Text::from(topic.name.as_str()), partitions, ..Default::default() })
}

fn of_partition(partition: &AnyPartition, partition_index: i32) -> io::Result<DescribeLogDirsPartition> {
    let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    match partition {
        AnyPartition::Classic(log) => {
            // `offset_lag` and `is_future_key` keep their defaults. A log is never behind its own high watermark, and
            // no log moves to another directory.
            let aside = log.set_aside();
            Ok(DescribeLogDirsPartition {
                partition_index,
                partition_size: bytes(log.size()?),
                set_aside_files: bytes(aside.files),
                set_aside_bytes: bytes(aside.bytes),
                is_refused: log.is_refused(),
                ..Default::default()
            })
        }
        AnyPartition::Diskless(partition) => Ok(DescribeLogDirsPartition {
            partition_index,
            partition_size: bytes(partition.view.size()),
            ..Default::default()
        }),
    }
}
