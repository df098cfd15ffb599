//! Fences a dead process that is still registered as this broker. The broker can then start with another data
//! directory, or with an older copy of its own.
//!
//! Normally the other brokers detect a failed process (see `membership`). But without another broker, the failure would
//! stay undetected, and a broker on a replaced machine could never start. The starting process therefore watches the
//! old process's heartbeats for a whole `broker.session.timeout.ms`. Invariant: the old process counts as failed only
//! if it was silent for a whole session in which the store responded in time. A store that always responds late can
//! delay the outcome for ever, but a request to stop the start ends the wait.

use std::time::{Duration, Instant};

use fullbore_rules::replica::BrokerState;

use super::command::{BrokerChange, ChangeBroker, ChangeCommand};
use super::image::Image;
use super::store::Store;
use super::writer::{Failure, MetadataWriter};
use fullbore_host::start_retries::StartRetries;

/// Number of times that the heartbeats are polled during one session.
const CHECKS: u32 = 16;

/// The outcome of an attempt to take over a broker's registration.
pub(super) enum Takeover {
    /// The registered process was silent for a session, and is fenced now.
    Fenced,
    /// The registered process is alive, the broker is not registered, or the store has no heartbeats.
    Refused,
    /// The stop of the start was requested before the outcome was known.
    Stopped,
}

/// Checks for the duration `session` whether the process that is registered as this broker sends a heartbeat. If it
/// sends none, fences it.
///
/// # Errors
/// Returns the store's error if it cannot be used.
pub(super) fn fence_if_silent<S: Store>(
    owner: &mut MetadataWriter<S>,
    image: &Image,
    id: i32,
    session: Duration,
    retries: &StartRetries,
) -> Result<Takeover, Failure> {
    let Some(node) = image.node(id) else { return Ok(Takeover::Refused) };
    let (process, broker_epoch) = (node.process, node.registration.epoch);
    let Some(before) = owner.store.heartbeats_of(id, process)? else { return Ok(Takeover::Refused) };
    let between = session / CHECKS;
    tracing::warn!(
        broker_id = id,
        session_timeout_ms = session.as_millis(),
        "node.id is registered with another data directory, or a newer state of this one: waiting for a session \
         timeout to see whether that broker is still running"
    );
    let mut since = Instant::now();
    while since.elapsed() < session {
        if retries.is_stopped_within(between) {
            return Ok(Takeover::Stopped);
        }
        let requested = Instant::now();
        if owner.store.heartbeats_of(id, process)? != Some(before) {
            return Ok(Takeover::Refused);
        }
        // A slow store also delays heartbeats, so wait for a whole session again.
        if requested.elapsed() > between {
            since = Instant::now();
        }
    }
    let broker = BrokerState { broker_id: id, broker_epoch };
    let fence = ChangeBroker { broker, change: BrokerChange::Fence, urgent: [].into() };
    let fence = ChangeCommand::ChangeBroker(fence);
    owner.transact(|draft| draft.change(&fence))?;
    Ok(Takeover::Fenced)
}
