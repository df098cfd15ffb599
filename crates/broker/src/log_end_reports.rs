//! Reports where this broker's logs end, for partitions without a leader. They have none because no replica is certain
//! to have every record. Once all candidates have reported, the broker whose log ends last becomes the leader.
//!
//! The control plane holds the election. In each new image, only the topics that have changed are checked.

use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::cluster::contenders;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::replica::epochs::Position;
use fullbore_wire::Uuid;
use tokio::sync::watch;

use crate::partitions::Partitions;
use fullbore_control::{Control, Image, Topic};
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_log::error::StorageError;

/// Maximum number of partitions in one command to the control plane.
const REPORTED_MAX: usize = 10_000;
/// How long the broker pauses before it repeats a report that failed.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A topic's id and the number of a partition.
type TopicIdPartition = (Uuid, i32);

/// Reports log ends until the broker stops.
pub async fn run(control: Control, partitions: Arc<Partitions>, mut stopping: watch::Receiver<bool>) {
    let reporter =
        LogEndReporter { control, partitions, refused: LogRateLimit::default(), unopened: LogRateLimit::default() };
    tokio::select! {
        () = reporter.run() => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

struct LogEndReporter {
    control: Control,
    partitions: Arc<Partitions>,
    refused: LogRateLimit,
    unopened: LogRateLimit,
}

impl LogEndReporter {
    async fn run(&self) {
        let mut images = self.control.watch();
        let mut before = Arc::new(Image::default());
        let mut wanted = Vec::new();
        loop {
            let image = Arc::clone(&images.borrow_and_update());
            self.update_wanted(&before, &image, &mut wanted);
            before = image;
            if !wanted.is_empty() {
                wanted = self.report(wanted).await;
            }
            if !wanted.is_empty() {
                tokio::time::sleep(AGAIN_AFTER).await;
            } else if images.changed().await.is_err() {
                return;
            }
        }
    }

    /// Updates `wanted`, the partitions for which this broker must report its log end. Partitions of unchanged topics
    /// stay in it. Topics that have changed since the image `before` are checked again.
    fn update_wanted(&self, before: &Image, image: &Image, wanted: &mut Vec<TopicIdPartition>) {
        let own = self.control.broker_state();
        let waits = |topic: &Topic, index: i32, partition: &PartitionRegistration| {
            let is_requested = contenders(partition).contains(&own.broker_id);
            let mut reported = image.log_ends(topic.id, index).iter();
            is_requested && !reported.any(|end| (end.broker_id, end.broker_epoch) == (own.broker_id, own.broker_epoch))
        };
        let is_same = |topic: &Uuid| match (before.topic_by_id(*topic), image.topic_by_id(*topic)) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        wanted.retain(|(topic, _)| is_same(topic));
        image.each_change_since(before, |(_, topic)| {
            let Some(topic) = topic.filter(|topic| !topic.config.diskless) else { return };
            for (index, partition) in (0..).zip(&topic.partitions) {
                if waits(topic, index, partition) {
                    wanted.push((topic.id, index));
                }
            }
        });
    }

    /// Reports the log ends of the first [`REPORTED_MAX`] partitions. Returns the partitions that must still be
    /// reported.
    async fn report(&self, mut wanted: Vec<TopicIdPartition>) -> Vec<TopicIdPartition> {
        let later = wanted.split_off(wanted.len().min(REPORTED_MAX));
        let (partitions, requested) = (Arc::clone(&self.partitions), wanted.clone());
        let looked = tokio::task::spawn_blocking(move || positions(&partitions, requested)).await;
        let (ends, unopened) = looked.unwrap_or_default();
        if let Some((_, error)) = unopened.first()
            && let Some(left_out) = self.unopened.due()
        {
            let logs = unopened.len();
            tracing::error!(logs, %error, left_out, "cannot open the logs of some partitions without a leader: this broker does not report where these logs end; retrying");
        }
        let outcome = if ends.is_empty() { Ok(()) } else { self.control.report_log_ends(ends).await };
        match outcome {
            Ok(()) => wanted = unopened.into_iter().map(|(id, _)| id).collect(),
            Err(refusal) => {
                if let Some(left_out) = self.refused.due() {
                    tracing::warn!(%refusal, left_out, "cannot report where the logs of partitions without a leader end: these partitions stay without a leader; retrying");
                }
            }
        }
        wanted.extend(later);
        wanted
    }
}

/// A partition and the end of its log.
type LogEnd = (Uuid, i32, Position);

/// Returns the ends of these logs, and the partitions whose logs cannot be opened at present. Skips deleted partitions.
/// Also skips damaged logs, so that another replica can lead.
fn positions(
    partitions: &Partitions,
    requested: Vec<TopicIdPartition>,
) -> (Vec<LogEnd>, Vec<(TopicIdPartition, StorageError)>) {
    let (mut ends, mut unopened) = (Vec::new(), Vec::new());
    for (topic, index) in requested {
        match partitions.find(&topic, index).map(|partition| partition.position()) {
            Some(Ok(position)) => ends.push((topic, index, position)),
            Some(Err(error @ StorageError::Io { .. })) => unopened.push(((topic, index), error)),
            Some(Err(error)) => {
                tracing::error!(%error, "cannot open the log of a partition without a leader: only another replica \
                     can lead it")
            }
            None => {}
        }
    }
    (ends, unopened)
}
