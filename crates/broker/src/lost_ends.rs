//! Tells the cluster where logs of this broker end that have lost their ends, for partitions that nobody leads: once all have said so that had
//! every record, the one whose log ends last leads.
//!
//! Not the election, which is the control plane's. Each image is looked at for what changed in it.

use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::replica::epochs::Position;
use fullbore_wire::Uuid;
use tokio::sync::watch;

use crate::control::{Control, Image, Topic};
use crate::partitions::Partitions;
use crate::seldom::Seldom;

/// Partitions of one command.
const TOLD_MAX: usize = 10_000;
/// Before what could not be told is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A partition by topic id and number.
type TopicIdPartition = (Uuid, i32);

/// Until the broker stops.
pub async fn run(control: Control, partitions: Arc<Partitions>, mut stopping: watch::Receiver<bool>) {
    let teller = Teller { control, partitions, refused: Seldom::default() };
    tokio::select! {
        () = teller.run() => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

struct Teller {
    control: Control,
    partitions: Arc<Partitions>,
    refused: Seldom,
}

impl Teller {
    async fn run(&self) {
        let mut images = self.control.watch();
        let mut before = Arc::new(Image::default());
        loop {
            let image = Arc::clone(&images.borrow_and_update());
            let mut wanted = self.wanted(&before, &image);
            while !wanted.is_empty() {
                wanted = self.tell(wanted).await;
                if !wanted.is_empty() {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
            before = image;
            if images.changed().await.is_err() {
                return;
            }
        }
    }

    /// Partitions that wait for this broker's log, of topics that are not the same in the image before.
    fn wanted(&self, before: &Image, image: &Image) -> Vec<TopicIdPartition> {
        let own = self.control.broker_state();
        let waits = |topic: &Topic, index: i32, partition: &PartitionRegistration| {
            let is_lost = partition.leader.is_none() && partition.lost.contains(&own.broker_id);
            let mut told = image.log_ends(topic.id, index).iter();
            is_lost && !told.any(|end| (end.broker_id, end.broker_epoch) == (own.broker_id, own.broker_epoch))
        };
        let mut wanted = Vec::new();
        image.each_change_since(before, |(_, topic)| {
            let Some(topic) = topic.filter(|topic| !topic.config.diskless) else { return };
            for (index, partition) in (0..).zip(&topic.partitions) {
                if waits(topic, index, partition) {
                    wanted.push((topic.id, index));
                }
            }
        });
        wanted
    }

    /// Tells of the first of them; gives back what is left to be told.
    async fn tell(&self, mut wanted: Vec<TopicIdPartition>) -> Vec<TopicIdPartition> {
        let later = wanted.split_off(wanted.len().min(TOLD_MAX));
        let (partitions, asked) = (Arc::clone(&self.partitions), wanted.clone());
        let looked = tokio::task::spawn_blocking(move || positions(&partitions, asked)).await;
        let told = looked.unwrap_or_default();
        if told.is_empty() {
            // Deleted, or their logs cannot be opened: others may lead.
            return later;
        }
        match self.control.tell_log_ends(told).await {
            Ok(()) => later,
            Err(refusal) => {
                if let Some(left_out) = self.refused.due() {
                    tracing::warn!(%refusal, left_out, "it is not told where logs end that nobody leads");
                }
                wanted.extend(later);
                wanted
            }
        }
    }
}

/// Where these logs end, as far as they can be opened.
fn positions(partitions: &Partitions, asked: Vec<TopicIdPartition>) -> Vec<(Uuid, i32, Position)> {
    let position = |(topic, index): TopicIdPartition| {
        let position = partitions.find(&topic, index)?.position();
        let told = position.inspect_err(|error| tracing::error!(%error, "a log that nobody leads cannot be opened"));
        Some((topic, index, told.ok()?))
    };
    asked.into_iter().filter_map(position).collect()
}
