//! Applies each new metadata image to the partitions: creates and deletes them, and changes their settings.
//!
//! Every image is passed to [`follow`] in order before any reader can see it. A request therefore always finds the
//! partitions of the image that it uses. [`follow`] does not block, because other threads do the long work. The
//! partitions match the last image even if the client that requested a change has disconnected.

use crate::partitions::{Origin, Partitions, led_by};
use fullbore_config::BrokerConfig;
use fullbore_control::{DeletedTopic, Image, Topic};
use fullbore_host::files::now_ms;
use std::io;
use std::sync::Arc;

/// Continues deletions of topics that an earlier process has decided on but not finished. Must be called before the
/// first call of [`follow`], since the image may contain a new topic with the name of a deleted one.
pub fn finish_deletions(logs: &Arc<Partitions>, config: &BrokerConfig, deleted: Vec<DeletedTopic>) {
    let settings = Arc::new(config.topics.defaults.clone());
    for topic in deleted {
        let partitions = led_by(config.node.id, topic.partitions);
        logs.put_topic(&topic.name, topic.id, &partitions, &settings, Origin::Kept);
        logs.delete_topic_of_either_kind(topic.id);
    }
}

/// Returns the topics that were deleted while this broker did not run: their directories exist, but the cluster does
/// not know them. Must not be called on a standalone broker. Its metadata may have been lost, so an unknown topic need
/// not be a deleted one.
pub fn deleted_meanwhile(logs: &Partitions, image: &Image) -> Vec<DeletedTopic> {
    let on_disk = logs.topics_on_disk().unwrap_or_else(|error| {
        tracing::error!(%error, "cannot list the partitions in the data directory: files of deleted topics stay");
        Default::default()
    });
    let unknown = on_disk.into_iter().filter(|((_, id), _)| image.topic_by_id(*id).is_none());
    unknown.map(|((name, id), partitions)| DeletedTopic { id, name, partitions }).collect()
}

/// Renames the directories of partitions that the metadata lack, although they have the topic. The cause is that the
/// metadata were restored from a copy in which the topic had fewer partitions. If such a partition is added again, it
/// must not begin with the old records. Must be called before the first call of [`follow`].
///
/// # Errors
/// Fails with an I/O error if a directory cannot be renamed.
pub fn set_unknown_aside(logs: &Partitions, image: &Image) -> io::Result<()> {
    let topic = |name: &str| image.topic(name).map(|topic| (topic.id, topic.partition_count()));
    let renamed = logs.set_unknown_aside(topic)?;
    if let Some(first) = renamed.first() {
        let count = renamed.len();
        tracing::warn!(%first, count, "set aside directories of partitions that the metadata lacks: the metadata was restored from an older copy; remove them if their records are not wanted");
    }
    Ok(())
}

/// After an older copy of the database was accepted, keeps retention and compaction from deleting records for some
/// time. The settings in the copy may be older than the records.
pub fn keep_records(logs: &Partitions, image: &Image) {
    let Some(accepted) = image.accepted_copy() else { return };
    let left_ms = accepted.records_kept_until_ms().saturating_sub(now_ms());
    if left_ms > 0 {
        logs.keep_records_until(accepted.records_kept_until_ms());
        let for_s = left_ms / 1000;
        tracing::warn!(
            for_s,
            "an older copy of the database was accepted: retention and compaction delete nothing for a while; check the settings of topics now"
        );
    }
}

/// Returns true if an older copy of the database may have been accepted since this broker last ran. `seen` is the
/// newest version of the metadata that this broker had seen.
///
/// Also returns true for some time after each acceptance. The broker may have been started since, but that start may
/// have failed.
pub fn is_copy_new(image: &Image, seen: Option<u64>) -> bool {
    image.accepted_copy().is_some_and(|accepted| {
        seen.is_some_and(|seen| seen < accepted.version) || now_ms() < accepted.records_kept_until_ms()
    })
}

/// Applies the changes between two images.
pub fn follow(logs: &Arc<Partitions>, config: &BrokerConfig, before: &Image, after: &Image, origin: Origin) {
    logs.put_brokers(after.registrations());
    let is_gap = origin == Origin::Kept || after.misses_topics_since(before);
    logs.note_image(after.epoch(), after.next_producer_id(), is_gap);
    if let (Some(diskless), Some(own)) = (logs.diskless(), after.node(config.node.id)) {
        diskless.leave_out(!own.serves_diskless || after.stands_down());
    }
    if after.stands_down() {
        logs.stand_down(true);
    }
    after.each_change_since(before, |change| match change {
        (Some(old), Some(new)) if old.id == new.id => put(logs, after, new, origin),
        (old, new) => {
            if let Some(old) = old {
                delete(logs, before, old);
            }
            if let Some(new) = new {
                put(logs, after, new, origin);
            }
        }
    });
    if !after.stands_down() {
        // The partitions have their newest metadata by now, so none of them leads in an old leader epoch again.
        logs.stand_down(false);
    }
    logs.expire_producers_after(after.live().producer_id_expiration_ms);
    if before.dynamic() != after.dynamic() {
        logs.configure_cleaner(config.cleaner_with(after.dynamic()));
    }
}

fn put(logs: &Partitions, image: &Image, topic: &Topic, origin: Origin) {
    let past = image.past_topics(&topic.name);
    logs.put_topic_after(&topic.name, topic.id, &topic.partitions, &topic.config, origin, past);
}

/// Deletes a topic. `image` is the last image that contains it.
fn delete(logs: &Partitions, image: &Image, topic: &Topic) {
    let name = (topic.name.as_str(), topic.id);
    if topic.config.diskless {
        // The deletion stores the producers that this broker knows of the partition. If it might not know all of them,
        // it first stores [`ProducerTails::partial`], which stays only if the partition was never written.
        logs.note_diskless_deletion(name, topic.partition_count(), &image.past_topics(&topic.name));
    }
    logs.delete_topic(topic.id);
    if !topic.config.diskless {
        logs.note_deleted_elsewhere(name, &topic.partitions);
    }
}
