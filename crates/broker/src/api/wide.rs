//! Wide requests: requests with thousands of entries, such as partitions. Each entry takes time and memory.
//!
//! Such a request is measured before it is decoded. It is then decoded, executed and answered off the threads that
//! serve connections. A short request with a large response, such as a list of all topics, is executed in the same way.
//! [`super::response_size`] estimates the response first. Each poll of a wide request's future needs a permit and a
//! share of the memory budget. A fetch of a large session also runs in this way, even if the request is short. Work
//! that takes long for other reasons uses [`fullbore_host::long_work`].
//!
//! Memory is reserved before a permit is taken, and nothing is awaited while a permit is held. Memory that is kept
//! between polls is charged to the connection, which admits one request at a time. Commands to the control plane keep
//! the most memory, so only one wide command runs at a time.

use super::call::{Completion, Fault};
use fullbore_host::unread_responses::{NoRoom, ResponseRoom};
use fullbore_host::wide_work::WideWork;
use fullbore_wire::api::{ApiKey, RequestSize, measure_request};
use fullbore_wire::{DecodeError, Reader, Version};
use std::sync::Arc;
use tokio::sync::SemaphorePermit;

/// A body of at most this size is not measured. Its entries take a few milliseconds at most.
const SHORT_BODY: usize = 16 * 1024;
/// A request with at most this many entries is not wide. It takes a millisecond or two.
pub const ENTRIES_SHORT_MAX: usize = 2000;
/// Approximate maximum memory that one entry of a request takes. This is the sum of the decoded entry, its result and
/// the encoded result.
pub(super) const ENTRY_BYTES: usize = 448;
/// A response of at most this size is not wide. Making it takes as long as a request of [`ENTRIES_SHORT_MAX`] entries.
const RESPONSE_SHORT_MAX: usize = ENTRIES_SHORT_MAX * ENTRY_BYTES;

/// Returns true if the body is so large that the request may be wide and has to be measured.
pub fn is_measured(body: &Reader) -> bool {
    body.remaining() > SHORT_BODY
}

/// Measures a request. Returns how much memory it takes if it is wide, and `None` if it is not.
///
/// # Errors
/// Returns [`Fault::Body`] if the body cannot be decoded.
pub async fn measure(wide: &WideWork, api: ApiKey, body: &Reader, version: Version) -> Result<Option<usize>, Fault> {
    let measured = match measure_request(api, body, version, Some(ENTRIES_SHORT_MAX)) {
        Err(DecodeError::Count(_)) => wide.run(|| measure_request(api, body, version, None)).await,
        short => short,
    };
    let size = measured.map_err(|error| Fault::Body { api, error })?;
    Ok(room_of(size, body.remaining()))
}

/// Returns how much memory a request of this size takes if it is wide, and `None` if it is not.
pub fn room_of(size: RequestSize, body_len: usize) -> Option<usize> {
    let RequestSize { elements, bytes } = size;
    (elements > ENTRIES_SHORT_MAX).then(|| body_len + bytes + ENTRY_BYTES * elements)
}

/// Returns true if a response of this size makes its request a wide one.
pub fn is_large(response_bytes: usize) -> bool {
    response_bytes > RESPONSE_SHORT_MAX
}

/// Waits until no other wide command of the control plane runs, because each takes several times the memory of its
/// request. Returns `None` at once if this API is not a command of the control plane.
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

/// Runs a command of the control plane whose short request stands for `entries` entries, such as "all partitions". If
/// these are more than [`ENTRIES_SHORT_MAX`], the command runs like a wide request.
pub async fn drive_command<F: Future>(wide: &WideWork, entries: usize, command: F) -> F::Output {
    if entries <= ENTRIES_SHORT_MAX {
        return command.await;
    }
    let _turn = wide.command_turn().await;
    wide.drive(ENTRY_BYTES * entries, command).await
}

/// Returns a completion whose future runs off the threads that serve connections. With `room`, the future first
/// reserves memory for a response of that many bytes.
pub fn driven(
    wide: &Arc<WideWork>,
    bytes: usize,
    room: Option<(Arc<ResponseRoom>, usize)>,
    completion: Completion,
) -> Completion {
    let drive = |answer| {
        let wide = Arc::clone(wide);
        Box::pin(async move {
            if let Some((room, encoded)) = room {
                room.reserve(encoded).await.map_err(|NoRoom| Fault::NoRoom)?;
            }
            wide.drive(bytes, answer).await
        })
    };
    match completion {
        Completion::Ready(frame) => Completion::Ready(frame),
        Completion::Later(answer) => Completion::Later(drive(answer)),
        Completion::Holding(answer, held) => Completion::Holding(drive(answer), held),
    }
}
