//! Check at the start of a broker that is registered with another data directory: is the registered process alive?
//!
//! Running brokers have a failure detector (`membership`). If no broker runs, nothing would detect the failure, and a
//! replaced machine could never start. The starting process therefore watches the heartbeats for a whole
//! `broker.session.timeout.ms`. Invariant: a process counts as failed only after a silent session in which the store
//! answered in time.

use std::time::{Duration, Instant};

use fullbore_rules::replica::BrokerState;

use super::command::{BrokerChange, ChangeBroker, ChangeCommand};
use super::image::Image;
use super::store::Store;
use super::writer::{Failure, MetadataWriter};

/// Number of polls of the heartbeats in one session.
const CHECKS: u32 = 16;

/// Fences the process that is registered as this broker if it sends no heartbeat for `session`, and returns true.
/// Returns false if the process is alive, or if the store has no heartbeats. Blocks for at least `session` before a
/// fence.
///
/// # Errors
/// The error of the store, if it cannot be read or the fence cannot be written.
pub(super) fn fence_if_silent<S: Store>(
    owner: &mut MetadataWriter<S>,
    image: &Image,
    id: i32,
    session: Duration,
) -> Result<bool, Failure> {
    let Some(node) = image.node(id) else { return Ok(false) };
    let (process, broker_epoch) = (node.process, node.registration.epoch);
    let Some(before) = owner.store.beats_of(id, process)? else { return Ok(false) };
    let between = session / CHECKS;
    tracing::warn!(
        broker_id = id,
        session_timeout_ms = session.as_millis(),
        "node.id is registered with another data directory, or a newer state of this one: waiting for a session timeout to see whether that broker lives"
    );
    let mut since = Instant::now();
    while since.elapsed() < session {
        std::thread::sleep(between);
        let asked = Instant::now();
        if owner.store.beats_of(id, process)? != Some(before) {
            return Ok(false);
        }
        // A slow store also delays heartbeats: restart the session.
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
