//! One client's connection: admit in order, complete concurrently, answer in order.
//!
//! The reading half admits each request, which fixes its place in the order, and queues its completion; the writing
//! half awaits the completions in that order. Both run in one task, so that a request answered at once costs no
//! switch. Invariants: responses leave in request order; requests and bytes between the halves are bounded; a fault
//! of this connection is nobody else's.

use super::handover::{Handover, in_turn};
use super::idleness::Idleness;
use super::input::{Input, InputError};
use super::output;
use super::stream::ClientStream;
use crate::api::{self, Call, Client, Completion, Fault};
use crate::coordinator::Unwritten;
use crate::node::Node;
use bytes::Bytes;
use fullbore_wire::Frame;
use fullbore_wire::api::{ApiKey, RequestHeader, request_reader};
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Where the events of the protocol log go: every request and response, at debug. No contents, no secrets.
const PROTOCOL: &str = "fullbore::protocol";

/// Answers that are ready are gathered into one write until they are this long.
const GATHERED_BYTES: usize = 64 * 1024;

/// Time that the answers of a client that sends nothing more may stand still. Most such clients are gone.
const HUNG_UP_MAX: Duration = Duration::from_secs(5);

/// Time for which requests that have come are admitted before other connections have their turn.
const TURN_MAX: Duration = Duration::from_millis(1);
/// Weight in `fullbore.connection.bytes.max` of answers other than records, which clients need not read ahead.
const ANSWER_WEIGHT: usize = 16;

/// A completion on its way from the reading to the writing half.
struct AdmittedRequest {
    completion: Completion,
    owed: Owed,
}

/// What is held and remembered of a request until its answer is out.
struct Owed {
    api: ApiKey,
    received: Instant,
    label: Label,
    _bytes: OwnedSemaphorePermit,
}

/// What the protocol log says of a request and of its response.
#[derive(Clone, Copy)]
struct Label {
    peer: SocketAddr,
    api: i16,
    version: i16,
    correlation_id: i32,
}

impl Label {
    fn name(&self) -> &'static str {
        ApiKey::from_code(self.api).map_or("unknown", ApiKey::name)
    }

    /// `bytes` without the length prefix.
    fn log_request(&self, bytes: usize) {
        if tracing::enabled!(target: PROTOCOL, tracing::Level::DEBUG) {
            let Label { peer, api: key, version, correlation_id } = self;
            let (api, bytes) = (self.name(), bytes + 4);
            tracing::debug!(target: PROTOCOL, %peer, api, key, version, correlation_id, bytes, "request");
        }
    }

    fn log_response(&self, bytes: usize, service: Duration) {
        if tracing::enabled!(target: PROTOCOL, tracing::Level::DEBUG) {
            let Label { peer, version, correlation_id, .. } = self;
            let (api, service_us) = (self.name(), u64::try_from(service.as_micros()).unwrap_or(u64::MAX));
            tracing::debug!(target: PROTOCOL, %peer, api, version, correlation_id, bytes, service_us, "response");
        }
    }
}

/// Why a connection ended, when it was not the client's orderly close.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Input(#[from] InputError),
    #[error("write: {0}")]
    Output(std::io::Error),
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("nothing came or went for {0:?} (connections.max.idle.ms)")]
    Idle(Duration),
    #[error("the client ended its side, and no answer came for {0:?}")]
    HungUp(Duration),
}

/// Serves one client until either side is done.
pub async fn serve(
    broker: &Arc<Node>,
    stream: &ClientStream,
    peer: SocketAddr,
    listener: usize,
    stop: watch::Receiver<bool>,
) {
    let queue = Handover::new(broker.limits.requests_max);
    let idleness = Idleness::default();
    let unwritten = Arc::new(Unwritten::default());
    let client = Client::new(peer, Arc::clone(&unwritten));
    // Pinned where they are made: an argument that is pinned later takes its room twice.
    let reading = pin!(async {
        match read(broker, stream, (client, listener), &queue, &idleness, stop).await {
            // The broker may take its time where it ends the connection itself.
            Ok(ReadEnd::Stopping) => Ok(None),
            Ok(ReadEnd::Client) => {
                idleness.end();
                Ok(None)
            }
            Err(lost @ Ended::Input(InputError::Io(_))) => Err(lost),
            // Requests before the bad one are still answered.
            Err(ended) => {
                idleness.end();
                Ok(Some(ended))
            }
        }
    });
    let writing = pin!(async {
        tokio::select! {
            biased;
            ended = write(broker, stream, &queue, &idleness) => ended,
            never = unwritten.carry_out() => match never {},
            ended = end_idle(&idleness, broker.limits.idle_max) => Err(ended),
        }
    });
    let ended = in_turn(&queue, reading, writing).await;
    match ended {
        Ok((None, ())) => tracing::debug!(%peer, "connection closed"),
        Ok((Some(Ended::Input(InputError::Cut)), ())) => {
            tracing::debug!(%peer, error = %InputError::Cut, "connection lost")
        }
        Ok((Some(bad), ())) => tracing::warn!(%peer, error = %bad, "connection closed on a bad request"),
        Err(Ended::Idle(time)) => tracing::debug!(%peer, ?time, "connection idle"),
        Err(error @ Ended::HungUp(_)) => tracing::debug!(%peer, %error, "connection lost"),
        Err(Ended::Input(InputError::Io(error))) | Err(Ended::Output(error)) => {
            tracing::debug!(%peer, %error, "connection lost");
        }
        Err(error) => tracing::warn!(%peer, %error, "connection closed on a bad request"),
    }
}

/// Which side ended the requests of a connection.
enum ReadEnd {
    /// The client closed its side.
    Client,
    /// The broker stops.
    Stopping,
}

/// The reading half: until the client closes, the broker stops, or a request is beyond answering.
async fn read(
    broker: &Arc<Node>,
    stream: &ClientStream,
    (mut client, listener): (Client, usize),
    queue: &Handover<AdmittedRequest>,
    idleness: &Idleness,
    mut stop: watch::Receiver<bool>,
) -> Result<ReadEnd, Ended> {
    let limits = &broker.limits;
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
                // A group goes on without this answer.
                () = hung_up(stream, limits.idle_max, without_client) => return Ok(ReadEnd::Client),
            }
        };
        let Some((api, completion)) = admitted else {
            broker.metrics.unanswered();
            queue.leave(1);
            continue;
        };
        let weight = if matches!(api, ApiKey::Produce | ApiKey::Fetch) { 1 } else { ANSWER_WEIGHT };
        let held = completion.bytes_held(frame_len).saturating_mul(weight).min(limits.bytes_max);
        let permits = u32::try_from(held).unwrap_or(u32::MAX);
        let bytes = Arc::clone(&bytes).acquire_many_owned(permits).await.expect("the semaphore is never closed");
        let owed = Owed { api, received, label, _bytes: bytes };
        queue.push(AdmittedRequest { completion, owed });
        worked += received.elapsed();
        if worked > TURN_MAX {
            worked = Duration::ZERO;
            tokio::task::yield_now().await;
        }
    }
}

/// Returns once the client has ended its side, `after` this time at the earliest.
async fn hung_up(stream: &ClientStream, idle_max: Option<Duration>, after: Option<Duration>) {
    let Some(after) = after else { return pending().await };
    if !after.is_zero() {
        tokio::time::sleep(idle_max.map_or(after, |max| max.min(after))).await;
    }
    stream.closed().await;
}

/// Returns when the client has done nothing for too long. One that waits for an answer is not idle, however long it waits,
/// unless it has ended its side.
async fn end_idle(idleness: &Idleness, idle_max: Option<Duration>) -> Ended {
    let idle = async {
        let Some(max) = idle_max else { return pending().await };
        idleness.reaches(max).await;
        max
    };
    tokio::select! {
        max = idle => return Ended::Idle(max),
        () = idleness.ended() => {}
    }
    let max = idle_max.map_or(HUNG_UP_MAX, |max| max.min(HUNG_UP_MAX));
    idleness.reaches(max).await;
    Ended::HungUp(max)
}

/// Reads the header and hands the request to its API. `None` when nothing is to be answered.
async fn admit(
    broker: &Arc<Node>,
    client: &mut Client,
    listener: usize,
    frame: Bytes,
) -> Result<(Label, Option<(ApiKey, Completion)>), Fault> {
    let bytes = frame.len();
    let mut reader = request_reader(frame);
    let header = RequestHeader::decode(&mut reader).map_err(Fault::Header)?;
    let (api, version, correlation_id) = (header.api_key, header.api_version, header.correlation_id);
    let label = Label { peer: client.peer, api, version, correlation_id };
    label.log_request(bytes);
    let call = Call { broker, client, listener, header, reader };
    Ok((label, api::admit(call).await?))
}

/// The writing half: until the reading half is done and everything is answered. Answers that are ready when one leaves
/// leave with it.
async fn write(
    broker: &Arc<Node>,
    stream: &ClientStream,
    queue: &Handover<AdmittedRequest>,
    idleness: &Idleness,
) -> Result<(), Ended> {
    let mut leaving = Vec::new();
    let mut next = queue.pop().await;
    while let Some(AdmittedRequest { completion, owed }) = next.take() {
        let mut frames = completed(completion, idleness).await?;
        let mut gathered = frames.len();
        leaving.push((owed, gathered));
        while gathered < GATHERED_BYTES
            && let Some(AdmittedRequest { completion, owed }) = queue.try_pop()
        {
            let mut frame = match ready(completion).await {
                Ok(frame) => frame,
                Err(completion) => {
                    next = Some(AdmittedRequest { completion, owed });
                    break;
                }
            };
            gathered += frame.len();
            leaving.push((owed, frame.len()));
            frames.parts.append(&mut frame.parts);
        }
        let following = next.as_mut().map(|admitted| &mut admitted.completion);
        {
            let leaving = pin!(output::write(stream, &frames, idleness, broker.partitions.cold()));
            beside(leaving, following).await.map_err(Ended::Output)?;
        }
        queue.leave(leaving.len());
        let answered = Instant::now();
        for (Owed { api, received, label, .. }, bytes) in leaving.drain(..) {
            broker.metrics.answered(api, answered.duration_since(received), bytes);
            label.log_response(bytes, answered.duration_since(received));
        }
        if next.is_none() {
            next = queue.pop().await;
        }
    }
    Ok(())
}

/// The answer if there is one already; a fault is told when its turn comes.
async fn ready(mut completion: Completion) -> Result<Frame, Completion> {
    poll_fn(|context| {
        look(&mut completion, context);
        Poll::Ready(())
    })
    .await;
    match completion {
        Completion::Ready(frame) => Ok(frame),
        later => Err(later),
    }
}

/// Writes, and meanwhile goes on with what is looked at already: it may have been given what others wait for, as a place for
/// long work, and the client may not read.
async fn beside<T>(mut writing: Pin<&mut impl Future<Output = T>>, mut following: Option<&mut Completion>) -> T {
    poll_fn(|context| {
        if let Some(completion) = &mut following {
            look(completion, context);
        }
        writing.as_mut().poll(context)
    })
    .await
}

/// Goes on with a completion, as far as it comes.
fn look(completion: &mut Completion, context: &mut Context<'_>) {
    let (Completion::Later(answer) | Completion::Holding(answer, _)) = completion else { return };
    if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
        *completion = match outcome {
            Ok(frame) => Completion::Ready(frame),
            fault => Completion::Later(Box::pin(std::future::ready(fault))),
        };
    }
}

/// The answer, once there is one.
async fn completed(completion: Completion, idleness: &Idleness) -> Result<Frame, Fault> {
    match completion {
        Completion::Ready(frame) => Ok(frame),
        Completion::Later(answer) | Completion::Holding(answer, _) => {
            let _working = idleness.awaiting();
            answer.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the future that a function makes, which is not called.
    fn size_of_future<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// Ten thousand connections that rest hold this, so that no future in it may be there twice, nor a large one that is
    /// seldom awaited: box that one, and pin where it is made what is handed on.
    #[test]
    fn the_task_of_a_connection_is_small() {
        let task = |broker: Arc<Node>, stream: Arc<ClientStream>, peer, stop| async move {
            serve(&broker, &stream, peer, 0, stop).await
        };
        let size = size_of_future(task);
        assert!(size <= 6 * 1024, "{size} bytes");
    }

    #[tokio::test]
    async fn what_was_looked_at_gives_back_what_it_is_given_while_the_answer_before_it_leaves() {
        let places = Arc::new(Semaphore::new(0));
        let wanted = Arc::clone(&places);
        let answer = async move {
            let _place = wanted.acquire().await.expect("never closed");
            Ok(Frame::default())
        };
        let Err(mut queued) = ready(Completion::Later(Box::pin(answer))).await else { panic!("there is no place") };
        places.add_permits(1);
        // As a client that takes its answer only once it has another one over another connection.
        let writing = pin!(async { drop(places.acquire().await) });
        let beside = beside(writing, Some(&mut queued));
        tokio::time::timeout(Duration::from_secs(30), beside).await.expect("it has what the client waits for");
        assert!(matches!(queued, Completion::Ready(_)));
        assert!(ready(queued).await.is_ok());
    }
}
