//! Assignment of followed partitions to replica fetchers, by the changes from each metadata image to the next.

use super::context::Context;
use super::followed::PartitionId;
use super::leader_fetcher::{Assignment, LaneHandle, LaneId, LeaderFetcher};
use fullbore_control::{Image, Topic};
use fullbore_rules::replica::PartitionRegistration;
use std::collections::HashMap;
use std::sync::Arc;

/// Follows the images until the broker stops.
pub(super) async fn run(context: Arc<Context>) {
    let mut images = context.control.watch();
    let mut lanes = Lanes { context: Arc::clone(&context), by_id: HashMap::new() };
    let mut before = Arc::new(Image::default());
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        image.each_change_since(&before, |change| match change {
            (Some(old), Some(new)) if old.id == new.id => lanes.change(Some(old), Some(new)),
            (old, new) => {
                lanes.change(old, None);
                lanes.change(None, new);
            }
        });
        before = image;
        tokio::select! {
            changed = images.changed() => if changed.is_err() {
                return;
            },
            () = context.stopping() => return,
        }
    }
}

struct Lanes {
    context: Arc<Context>,
    by_id: HashMap<LaneId, LaneHandle>,
}

impl Lanes {
    /// Applies the change of a topic from `old` to `new`, which have the same id.
    fn change(&mut self, old: Option<&Arc<Topic>>, new: Option<&Arc<Topic>>) {
        // Diskless topics have no followers.
        let Some(any) = new.or(old).filter(|topic| !topic.config.diskless) else { return };
        let count = [old, new].iter().flatten().map(|topic| topic.partitions.len()).max().unwrap_or(0);
        let registered =
            |topic: Option<&Arc<Topic>>, at: usize| topic.and_then(|topic| topic.partitions.get(at).cloned());
        for (index, at) in (0..).zip(0..count) {
            let (old, new) = (registered(old, at), registered(new, at));
            if let (Some(old), Some(new)) = (&old, &new)
                && Arc::ptr_eq(old, new)
            {
                continue;
            }
            let id = (any.id, index);
            self.assign(id, old.and_then(|old| self.lane_of(id, &old)), new.and_then(|new| self.lane_of(id, &new)));
        }
    }

    /// Returns the fetcher over which this broker follows the partition, and the leader epoch; `None` if this broker
    /// does not follow it.
    fn lane_of(&self, id: PartitionId, registered: &PartitionRegistration) -> Option<(LaneId, i32)> {
        let own = self.context.config.node.id;
        let leader = registered.leader.filter(|leader| *leader != own && registered.replicas.contains(&own))?;
        // Replicas that lag have other fetchers, so that they do not delay acks=all.
        let is_in_sync = registered.isr.contains(&own);
        // The topic's id spreads topics of one partition over the fetchers.
        let [.., a, b, c, d] = id.0.0;
        let spread = u32::from_be_bytes([a, b, c, d]).wrapping_add(id.1.unsigned_abs());
        let number = spread % self.context.config.replication.fetchers;
        Some((LaneId { leader, number, is_in_sync }, registered.leader_epoch))
    }

    fn assign(&mut self, id: PartitionId, before: Option<(LaneId, i32)>, now: Option<(LaneId, i32)>) {
        if before == now {
            return;
        }
        if let Some((lane, _)) = before
            && now.is_none_or(|(next, _)| next != lane)
            && let Some(lane) = self.by_id.get(&lane)
        {
            lane.leave(id);
        }
        // The replica is missing if the topic was deleted after this image.
        if let Some((lane, leader_epoch)) = now
            && let Some(replica) = self.context.partitions.find(&id.0, id.1)
        {
            let context = &self.context;
            let lane = self.by_id.entry(lane).or_insert_with(|| LeaderFetcher::start(Arc::clone(context), lane));
            lane.follow(Assignment { id, replica, leader_epoch });
        }
    }
}
