//! Chooses the batches of a Produce request: the next batch of each partition that may send one, until the request is
//! full.
//!
//! Invariant: a request has at most one batch of a partition. If the batch of a partition does not fit, this partition
//! is the first one of the next request. The time is a field of [`Round`].

use crate::partition::{Listing, Outgoing, Partition, Round, Take};
use crate::window::ProducerIdAndEpoch;
use crate::worklist::Worklist;
use std::sync::Arc;
use std::time::Instant;

/// The batches of a request, and the events for which the other partitions wait.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) batches: Vec<Outgoing>,
    /// The time of the next check for batches that are not ready.
    pub(super) next: Option<Instant>,
    /// True if some partition has a full batch that waits only for its window.
    pub(super) window_binds: bool,
}

/// Takes batches from the partitions of `active` for a request of at most `max` bytes. Removes partitions without work
/// from `active`. `identity` returns a producer id that differs from its argument, if there is one. `join` queues a
/// partition that the coordinator must add to the transaction.
pub(super) fn gather(
    active: &mut Vec<Listing>,
    work: &Arc<Worklist<Listing>>,
    mut round: Round<'_>,
    max: usize,
    mut identity: impl FnMut(Option<i64>) -> Option<ProducerIdAndEpoch>,
    mut join: impl FnMut(&Arc<Partition>),
) -> Gathered {
    let mut gathered = Gathered::default();
    let mut at = 0;
    while at < active.len() {
        let take = match active[at].take(work, &round) {
            Take::Identity(spent) => match identity(spent) {
                Some(identity) => {
                    active[at].partition.adopt(identity);
                    active[at].take(work, &round)
                }
                None => Take::NotYet(None),
            },
            take => take,
        };
        match take {
            Take::Batch(outgoing) => {
                round.room = Some(round.room.unwrap_or(max).saturating_sub(outgoing.batch.size()));
                gathered.batches.push(outgoing);
                at += 1;
            }
            Take::NotYet(when) => {
                gathered.next = earlier(gathered.next, when);
                at += 1;
            }
            Take::Window => {
                gathered.window_binds = true;
                at += 1;
            }
            Take::NoRoom => break,
            Take::Join => {
                join(&active[at].partition);
                at += 1;
            }
            Take::Gone => drop(active.swap_remove(at)),
            Take::Identity(_) => at += 1,
        }
    }
    if at < active.len() {
        active.rotate_left(at);
    }
    gathered
}

/// Returns the earlier of two times, where `None` means never.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
