//! The reading half of a connection. It admits one request after another, which fixes their order.
//!
//! The number of requests that wait for their responses is limited, and so is the memory that they hold.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_wire::api::{ApiKey, RequestHeader, request_reader};
use tokio::sync::{Semaphore, watch};

use super::admitted::{AdmittedRequest, Ended, Label, Owed, UnreadCounter};
use super::connection::Handover;
use super::idleness::Idleness;
use super::input::Input;
use super::stream::ClientStream;
use crate::api::{self, Admission, Call, Client, Completion, Fault};
use crate::node::Node;

/// How long a connection may admit received requests before other connections get a turn.
const TURN_MAX: Duration = Duration::from_millis(1);
/// The memory that is held for a request until its response is sent counts this many times in
/// `fullbore.connection.bytes.max`. Produce and Fetch count once. Clients need few other requests in flight.
const ANSWER_WEIGHT: usize = 16;

/// The side that ended the requests of a connection.
pub(super) enum ReadEnd {
    /// The client closed its side.
    Client,
    /// The broker is stopping.
    Stopping,
}

/// Runs the reading half until the client closes its side, the broker stops, or a request cannot be answered.
pub(super) async fn read(
    broker: &Arc<Node>,
    stream: &Arc<ClientStream>,
    mut client: Client,
    listener: usize,
    queue: &Handover<AdmittedRequest>,
    idleness: &Arc<Idleness>,
    mut stop: watch::Receiver<bool>,
) -> Result<ReadEnd, Ended> {
    let limits = &broker.metadata.config.network.connection;
    let bytes = Arc::new(Semaphore::new(limits.bytes_max));
    let mut input = Input::new(stream, limits.request_bytes_max, idleness);
    let mut worked = Duration::ZERO;
    loop {
        tokio::select! {
            biased;
            () = queue.enter() => {}
            _ = stop.wait_for(|stopping| *stopping) => return Ok(ReadEnd::Stopping),
        }
        let frame = tokio::select! {
            biased;
            frame = input.frame() => frame?,
            _ = stop.wait_for(|stopping| *stopping) => return Ok(ReadEnd::Stopping),
        };
        let Some(frame) = frame else { return Ok(ReadEnd::Client) };
        let received = Instant::now();
        let frame_len = frame.len();
        let without_client = api::admitted_without_client(&frame);
        let (label, admitted) = {
            let _working = idleness.admitting();
            let mut admission = pin!(admit(broker, &mut client, listener, frame));
            tokio::select! {
                biased;
                admitted = &mut admission => admitted?,
                // The client is gone, so its request is given up. A group goes on without a response to its member.
                () = hung_up(stream, limits.idle_max, without_client) => return Ok(ReadEnd::Client),
            }
        };
        let Some(Admission { api, completion, room }) = admitted else {
            broker.metrics.unanswered();
            queue.leave(1);
            continue;
        };
        // The connection may have to wait for its earlier responses, but this response takes memory already.
        let room = match &completion {
            Completion::Ready(response) => {
                UnreadCounter { all: &broker.unread, idleness, stream }.count(api, response, room)
            }
            Completion::Later(_) | Completion::Holding(..) => room,
        };
        let weight = if matches!(api, ApiKey::Produce | ApiKey::Fetch) { 1 } else { ANSWER_WEIGHT };
        let held = completion.bytes_held(frame_len).saturating_mul(weight).min(limits.bytes_max);
        let permits = u32::try_from(held).unwrap_or(u32::MAX);
        let bytes = Arc::clone(&bytes).acquire_many_owned(permits).await.expect("the semaphore is never closed");
        let owed = Owed { api, received, label, _bytes: bytes, room };
        queue.push(AdmittedRequest { completion, owed });
        worked += received.elapsed();
        if worked > TURN_MAX {
            worked = Duration::ZERO;
            tokio::task::yield_now().await;
        }
    }
}

/// Returns once the client has ended its side, but not before `after` or `idle_max` has passed, whichever is shorter.
/// Never returns if `after` is `None`.
async fn hung_up(stream: &ClientStream, idle_max: Option<Duration>, after: Option<Duration>) {
    let Some(after) = after else { return pending().await };
    if !after.is_zero() {
        tokio::time::sleep(idle_max.map_or(after, |max| max.min(after))).await;
    }
    stream.closed().await;
}

/// Decodes the header and passes the request to its API. The completion is `None` if the request has no response.
async fn admit(
    broker: &Arc<Node>,
    client: &mut Client,
    listener: usize,
    frame: Bytes,
) -> Result<(Label, Option<Admission>), Fault> {
    let bytes = frame.len();
    let mut reader = request_reader(frame);
    let header = RequestHeader::decode(&mut reader).map_err(Fault::Header)?;
    let (api, version, correlation_id) = (header.api_key, header.api_version, header.correlation_id);
    let label = Label { peer: client.peer, api, version, correlation_id };
    label.log_request(bytes);
    let call = Call { client, listener, header, reader };
    Ok((label, api::admit(broker, call).await?))
}
