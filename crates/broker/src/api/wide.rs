//! Wide requests: those of thousands of entries, such as partitions, each of which takes time and memory.
//!
//! A wide request is measured before it is decoded. Decoding, execution and response run apart from the threads that
//! serve connections; each poll has a permit and a share of the memory budget. Fetches of large sessions run the same
//! way, even if short. Not here: long work of requests with few entries, see [`fullbore_host::long_work`].
//!
//! Invariant: memory is reserved before a permit, and nothing is awaited with a permit. Memory retained between polls
//! is charged to the connection, which admits one request at a time. Wide commands retain the most memory, and run one
//! at a time.

use super::call::{Completion, Fault};
use crate::node::Node;
use fullbore_host::wide_work::WideWork;
use fullbore_wire::api::{ApiKey, RequestSize, measure_request};
use fullbore_wire::{DecodeError, Reader, Version};
use std::sync::Arc;
use tokio::sync::SemaphorePermit;

/// Smallest body, in bytes, that is measured. The entries of a smaller one take a few milliseconds at most.
const SHORT_BODY: usize = 16 * 1024;
/// Most entries of a request that is not wide. They take a millisecond or two.
pub const ENTRIES_SHORT_MAX: usize = 2000;
/// Approximate limit of the memory for one entry: its decoded form, its result and the encoded result.
const ENTRY_BYTES: usize = 448;

/// Returns true if the body is long enough for a wide request, and has to be measured.
pub fn is_measured(body: &Reader) -> bool {
    body.remaining() > SHORT_BODY
}

/// Returns the memory that a request takes if it is wide; None if it is not.
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

/// Returns the memory that a request of this size and body takes if it is wide; None if it is not.
pub fn room_of(size: RequestSize, body_len: usize) -> Option<usize> {
    let RequestSize { elements, bytes } = size;
    (elements > ENTRIES_SHORT_MAX).then(|| body_len + bytes + ENTRY_BYTES * elements)
}

/// Waits for the permit of a wide command of the control plane, because such a command holds several times its memory
/// until it is done. Returns `None` for any other request.
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

/// Runs the pending response of a wide request apart from the threads that serve connections.
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
