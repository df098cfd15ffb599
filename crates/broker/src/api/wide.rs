//! Wide requests: those of thousands of entries, say partitions, each of which takes time and memory.
//!
//! A wide request is measured before it is decoded, and decoded, carried out and answered apart from the threads that
//! serve connections: each poll of it has a place and room in memory. Fetches of large sessions are driven the same
//! way, however short they are. Not here: long work of requests with few entries, see [`fullbore_host::long_work`].
//!
//! Invariant: room is taken before a place, and nothing is awaited in a place. Memory that a request keeps from one
//! poll to the next is charged to its connection, which admits one request at a time; of wide commands, which keep
//! most, one is carried out at a time.

use super::call::{Completion, Fault};
use crate::node::Node;
use fullbore_host::wide_work::WideWork;
use fullbore_wire::api::{ApiKey, RequestSize, measure_request};
use fullbore_wire::{DecodeError, Reader, Version};
use std::sync::Arc;
use tokio::sync::SemaphorePermit;

/// A body of fewer bytes is not measured: what it may hold takes a few milliseconds at most.
const SHORT_BODY: usize = 16 * 1024;
/// Entries that take a millisecond or two.
pub const ENTRIES_SHORT_MAX: usize = 2000;
/// Bytes of memory that handling and answering an entry takes, at most about: what is made of it, its answer and the
/// bytes of that.
const ENTRY_BYTES: usize = 448;

/// Returns true if a request of this body may be wide.
pub fn is_measured(body: &Reader) -> bool {
    body.remaining() > SHORT_BODY
}

/// Returns the memory that a request takes if it is wide, `None` if it is not.
///
/// # Errors
/// [`Fault::Body`] for a body that cannot be decoded.
pub async fn measure(wide: &WideWork, api: ApiKey, body: &Reader, version: Version) -> Result<Option<usize>, Fault> {
    let measured = match measure_request(api, body, version, Some(ENTRIES_SHORT_MAX)) {
        Err(DecodeError::Count(_)) => wide.run(|| measure_request(api, body, version, None)).await,
        short => short,
    };
    let size = measured.map_err(|error| Fault::Body { api, error })?;
    Ok(room_of(size, body.remaining()))
}

/// Returns the memory that a request of this size and body takes if it is wide, `None` if it is not.
pub fn room_of(size: RequestSize, body_len: usize) -> Option<usize> {
    let RequestSize { elements, bytes } = size;
    (elements > ENTRIES_SHORT_MAX).then(|| body_len + bytes + ENTRY_BYTES * elements)
}

/// Waits for the turn of a wide request that the control plane carries out, which holds several times its memory until
/// it is done. `None` for any other request.
pub async fn command_turn(wide: &WideWork, api: ApiKey) -> Option<SemaphorePermit<'_>> {
    use ApiKey::*;
    let is_command = matches!(
        api,
        CreateTopics
            | DeleteTopics
            | CreatePartitions
            | ElectLeaders
            | AlterConfigs
            | IncrementalAlterConfigs
            | CreateAcls
            | DeleteAcls
            | UpdateFeatures
    );
    match is_command {
        true => Some(wide.command_turn().await),
        false => None,
    }
}

/// Drives the answer of a wide request, too.
pub fn driven(broker: &Arc<Node>, bytes: usize, completion: Completion) -> Completion {
    let drive = |answer| {
        let broker = Arc::clone(broker);
        Box::pin(async move { broker.wide.drive(bytes, answer).await })
    };
    match completion {
        Completion::Ready(frame) => Completion::Ready(frame),
        Completion::Later(answer) => Completion::Later(drive(answer)),
        Completion::Holding(answer, held) => Completion::Holding(drive(answer), held),
    }
}
