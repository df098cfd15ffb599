//! Assigns the followed partitions to replica fetchers. Compares each new metadata image with the previous one to find
//! the changes.

use super::context::Context;
use super::followed::PartitionId;
use super::leader_fetcher::{Assignment, FetcherHandle, FetcherId, LeaderFetcher};
use fullbore_control::{Image, Topic};
use fullbore_rules::replica::PartitionRegistration;
use std::collections::HashMap;
use std::sync::Arc;

/// Assigns the partitions of each new image to fetchers, until the broker stops.
pub(super) async fn run(context: Arc<Context>) {
    let mut images = context.control.watch();
    let mut fetchers = LeaderFetchers { context: Arc::clone(&context), by_id: HashMap::new() };
    let mut before = Arc::new(Image::default());
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        image.each_change_since(&before, |change| match change {
            (Some(old), Some(new)) if old.id == new.id => fetchers.change(Some(old), Some(new)),
            (old, new) => {
                fetchers.change(old, None);
                fetchers.change(None, new);
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

struct LeaderFetchers {
    context: Arc<Context>,
    by_id: HashMap<FetcherId, FetcherHandle>,
}

impl LeaderFetchers {
    /// Applies a change of one topic. `old` is `None` if the topic was created, and `new` is `None` if it was deleted.
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

    /// Returns the fetcher for the partition, and the leader epoch. Returns `None` if this broker does not follow the
    /// partition.
    fn lane_of(&self, id: PartitionId, registered: &PartitionRegistration) -> Option<(FetcherId, i32)> {
        let own = self.context.config.node.id;
        let leader = registered.leader.filter(|leader| *leader != own && registered.replicas.contains(&own))?;
        // Replicas in the ISR have their own fetchers, so that replicas outside the ISR cannot delay acks=all.
        let is_in_sync = registered.isr.contains(&own);
        // Use the topic's id too, and not only the partition's index. Otherwise all topics with one partition would
        // have the same fetcher.
        let [.., a, b, c, d] = id.0.0;
        let spread = u32::from_be_bytes([a, b, c, d]).wrapping_add(id.1.unsigned_abs());
        let number = spread % self.context.config.replication.fetchers;
        Some((FetcherId { leader, number, is_in_sync }, registered.leader_epoch))
    }

    fn assign(&mut self, id: PartitionId, before: Option<(FetcherId, i32)>, now: Option<(FetcherId, i32)>) {
        if before == now {
            return;
        }
        if let Some((old, _)) = before
            && now.is_none_or(|(new, _)| new != old)
            && let Some(fetcher) = self.by_id.get(&old)
        {
            fetcher.leave(id);
        }
        // The replica does not exist if the topic was deleted after this image.
        if let Some((fetcher_id, leader_epoch)) = now
            && let Some(replica) = self.context.partitions.find(&id.0, id.1)
        {
            let context = &self.context;
            let fetcher =
                self.by_id.entry(fetcher_id).or_insert_with(|| LeaderFetcher::start(Arc::clone(context), fetcher_id));
            fetcher.follow(Assignment { id, replica, leader_epoch });
        }
    }
}
