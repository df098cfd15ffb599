//! DescribeLogDirs 1-5: describes the data directory, with the sizes of its partitions and the space on its volume. The
//! object store of diskless topics appears as a second directory. Only one broker of the cluster reports it.

use super::call::{Call, Fault, Reply, joined, once};
use super::nodes;
use super::wide::ENTRIES_SHORT_MAX;
use crate::node::Node;
use crate::partitions::AnyPartition;
use fullbore_control::{Image, Topic};
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

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeLogDirsRequest = call.body(reply.version)?;
    let shared = Arc::clone(call.broker);
    // Many partitions take much memory until the response is encoded, and disks may hang, so such requests take turns.
    let is_large = request.topics.is_none() && shared.control.image().partition_count() > ENTRIES_SHORT_MAX;
    let _turn = if is_large { Some(call.broker.wide.listing_turn().await) } else { None };
    // The description reads partitions that are not open from their directories, so it runs on a blocking thread.
    let listener = call.listener;
    let describing = tokio::task::spawn_blocking(move || describe(&shared, listener, request.topics));
    let results = describing.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    reply.frame::<DescribeLogDirsRequest>(&DescribeLogDirsResponse { results, ..Default::default() })
}

/// Describes the data directory, and the object store if there are diskless topics.
fn describe(
    broker: &Node,
    listener: usize,
    requested: Option<Vec<DescribableLogDirTopic>>,
) -> Vec<DescribeLogDirsResult> {
    let reports = reports_store(broker, &broker.control.image(), listener);
    let store = reports.then(|| describe_store(broker, requested.clone())).flatten();
    std::iter::once(describe_directory(broker, requested)).chain(store).collect()
}

/// Returns true if this broker reports the object store. Clients query all brokers and add up the responses, so exactly
/// one may report it. This is the broker with the lowest id among those that use the store and that clients of this
/// listener can reach.
fn reports_store(broker: &Node, image: &Image, listener: usize) -> bool {
    let have_it = nodes::reached(broker, image, listener).filter(|(_, node, _)| node.serves_diskless);
    let least = have_it.map(|(id, ..)| id).min();
    broker.config.diskless.is_served && least.is_none_or(|least| least == broker.config.node.id)
}

/// Describes the object store, whose total size is unknown. Returns `None` if no requested topic is stored there.
fn describe_store(broker: &Node, requested: Option<Vec<DescribableLogDirTopic>>) -> Option<DescribeLogDirsResult> {
    let topics = topics(broker, requested, true).ok()?;
    let log_dir = store(broker);
    (!topics.is_empty()).then(|| DescribeLogDirsResult {
        log_dir,
        topics,
        total_bytes: NOT_KNOWN,
        usable_bytes: NOT_KNOWN,
        ..Default::default()
    })
}

fn describe_directory(broker: &Node, requested: Option<Vec<DescribableLogDirTopic>>) -> DescribeLogDirsResult {
    let (log_dir, directory) = (directory(broker), &broker.config.node.data_dir);
    let described = topics(broker, requested, false).and_then(|topics| Ok((topics, rustix::fs::statvfs(directory)?)));
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
pub fn directory(broker: &Node) -> Text {
    let directory = &broker.config.node.data_dir;
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
    Text::from(absolute.to_string_lossy().into_owned())
}

/// Returns the name of the object store. Responses contain it in this form, and requests must repeat it.
pub fn store(broker: &Node) -> Text {
    Text::from(broker.config.diskless.storage.to_string())
}

fn bytes(blocks: u64, block_len: u64) -> i64 {
    i64::try_from(blocks.saturating_mul(block_len)).unwrap_or(i64::MAX)
}

/// Returns the requested topics, or all if `requested` is `None`. With `diskless` these are the diskless topics,
/// otherwise the classic ones. Topics without a replica on this broker are left out, as in Kafka.
fn topics(
    broker: &Node,
    requested: Option<Vec<DescribableLogDirTopic>>,
    diskless: bool,
) -> io::Result<Vec<DescribeLogDirsTopic>> {
    let image = broker.control.image();
    let is_here = |topic: &Topic, index: i32| {
        let has =
            |partition: &Arc<PartitionRegistration>| diskless || partition.replicas.contains(&broker.config.node.id);
        topic.config.diskless == diskless && topic.partition(index).is_some_and(has)
    };
    match requested {
        None => {
            let here = |topic: &Topic| (0..topic.partition_count()).filter(|index| is_here(topic, *index)).collect();
            let all = image.topics().map(|topic| (topic, here(topic)));
            all.filter(|(_, partitions): &(_, Vec<i32>)| !partitions.is_empty())
                .map(|(topic, partitions)| of_topic(broker, topic, partitions))
                .collect()
        }
        Some(requested) => {
            joined(requested, |topic| topic.topic.clone(), |topic, again| topic.partitions.extend(again.partitions))
                .into_iter()
                .filter_map(|requested| {
                    let topic = image.topic(&requested.topic).filter(|topic| topic.config.diskless == diskless)?;
                    let partitions = once(requested.partitions, |index| *index).into_iter();
                    let partitions = partitions.filter(|index| is_here(topic, *index)).collect();
                    Some(of_topic(broker, topic, partitions))
                })
                .collect()
        }
    }
}

fn of_topic(broker: &Node, topic: &Topic, partitions: Vec<i32>) -> io::Result<DescribeLogDirsTopic> {
    let partition = |partition_index: i32| {
        // A partition that has been deleted since the image was made is left out.
        Some(of_partition(&broker.partitions.find_any(&topic.id, partition_index)?, partition_index))
    };
    let partitions = partitions.into_iter().filter_map(partition).collect::<io::Result<_>>()?;
    Ok(DescribeLogDirsTopic { name: Text::from(topic.name.as_str()), partitions, ..Default::default() })
}

fn of_partition(partition: &AnyPartition, partition_index: i32) -> io::Result<DescribeLogDirsPartition> {
    let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    match partition {
        AnyPartition::Classic(log) => {
            // Lag and future directory keep their defaults. A log is never behind its own high watermark, and no log
            // moves.
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
            partition_size: bytes(partition.known.size()),
            ..Default::default()
        }),
    }
}
