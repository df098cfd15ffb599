//! A broker that starts where the metadata has another process as that broker, with another data folder: whether that
//! one still lives.
//!
//! Brokers that run hold a silent one for dead (`membership`). Where none runs, nobody does, and a machine that was
//! replaced could never come back; so who starts watches by itself for a whole `broker.session.timeout.ms`. Invariant:
//! nobody is taken for dead in a time in which he could not have been heard of.

use std::time::{Duration, Instant};

use fullbore_rules::replica::BrokerState;

use super::command::{BrokerChange, ChangeBroker, ChangeCommand};
use super::image::Image;
use super::store::Store;
use super::writer::{Failure, MetadataWriter};

/// Looks in one session.
const LOOKS: u32 = 16;

/// Fences the process that is registered as this broker if it sends no heartbeat for that long. Returns true if it did.
/// Blocks meanwhile.
///
/// # Errors
/// The store's.
pub(super) fn fence_if_silent<S: Store>(
    owner: &mut MetadataWriter<S>,
    image: &Image,
    id: i32,
    session: Duration,
) -> Result<bool, Failure> {
    let Some(node) = image.node(id) else { return Ok(false) };
    let (process, broker_epoch) = (node.process, node.registration.epoch);
    let Some(before) = owner.store.beats_of(id, process)? else { return Ok(false) };
    let between = session / LOOKS;
    tracing::warn!(
        broker_id = id,
        session_timeout_ms = session.as_millis(),
        "another data folder, or a newer state of this one, has this node.id; waiting whether its broker lives"
    );
    let mut since = Instant::now();
    while since.elapsed() < session {
        std::thread::sleep(between);
        let asked = Instant::now();
        if owner.store.beats_of(id, process)? != Some(before) {
            return Ok(false);
        }
        // Where the store took its time, beats did, too.
        if asked.elapsed() > between {
            since = Instant::now();
        }
    }
    let broker = BrokerState { broker_id: id, broker_epoch };
    let fence = ChangeBroker { broker, change: BrokerChange::Fence, urgent: [].into() };
    let fence = ChangeCommand::ChangeBroker(fence);
    owner.transact(|draft| draft.change(&fence))?;
    Ok(true)
}
