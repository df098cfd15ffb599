//! The connection of one client. Requests are admitted in order, complete concurrently, and are answered in order.
//!
//! The reading half ([`read`]) admits each request, which fixes its position in the order, and queues its response. The
//! writing half ([`write`]) awaits the responses in that order. Both run in the same task, so a request that can be
//! answered at once costs no task switch. [`super::input`] reads frames and [`super::output`] writes them.
//!
//! A fault of one connection never ends another. Both the number of unanswered requests and their memory are limited.

use super::admitted::{AdmittedRequest, Ended, Label, Owed, UnreadCounter};
use super::idleness::Idleness;
use super::input::{Input, InputError};
use super::output::{self, Progress};
use super::stream::ClientStream;
use crate::api::{self, Admission, Call, Client, Completion, Fault, WithoutClient};
use crate::coordinator::Unwritten;
use crate::node::Node;
use bytes::Bytes;
use fullbore_wire::Frame;
use fullbore_wire::api::{ApiKey, RequestHeader, request_reader};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// Maximum time without activity on a connection whose client has ended its side, even if a response is still in
/// progress. Most such clients are gone.
const HUNG_UP_MAX: Duration = Duration::from_secs(5);
/// Maximum time in which a connection admits received requests before other connections get a turn.
const TURN_MAX: Duration = Duration::from_millis(1);
/// Factor by which the memory of a request counts towards `fullbore.connection.bytes.max` until its response is sent.
/// For Produce and Fetch the factor is 1. A client needs only a few other requests in flight, so the factor limits
/// these.
const ANSWER_WEIGHT: usize = 16;
/// Size of the gathered responses from which on one write takes no further ready response.
const GATHERED_BYTES: usize = 64 * 1024;

/// Serves one client until the client or the broker ends the connection.
pub async fn serve(
    broker: &Arc<Node>,
    stream: &Arc<ClientStream>,
    peer: SocketAddr,
    listener: usize,
    stop: watch::Receiver<bool>,
) {
    let queue = Handover::new(broker.metadata.config.network.connection.requests_max);
    let idleness = Arc::new(Idleness::default());
    let unwritten = Arc::new(Unwritten::default());
    let client = Client::new(peer, Arc::clone(&unwritten));
    // Both halves are pinned here, where they are created. If a future were passed on before it is pinned, the task's
    // memory would contain it twice.
    let reading = pin!(async {
        match read(broker, stream, client, listener, &queue, &idleness, stop).await {
            // The client may still read its responses. While it waits for one, it is not idle.
            Ok(ReadEnd::Stopping) => Ok(None),
            Ok(ReadEnd::Client) => {
                idleness.end();
                Ok(None)
            }
            Err(lost @ Ended::Input(InputError::Io(_))) => Err(lost),
            // Earlier requests than the bad one are still answered.
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
            ended = end_idle(&idleness, broker.metadata.config.network.connection.idle_max) => Err(ended),
        }
    });
    let ended = in_turn(&queue, reading, writing).await;
    match ended {
        Ok((None, ())) => tracing::debug!(%peer, "connection closed"),
        Ok((Some(Ended::Input(InputError::Cut)), ())) => {
            tracing::debug!(%peer, error = %InputError::Cut, "connection lost")
        }
        Ok((Some(Ended::Fault(Fault::NoRoom)), ())) | Err(Ended::Fault(Fault::NoRoom)) => {
            if let Some(left_out) = broker.unread.no_room_line.due() {
                tracing::warn!(%peer, left_out, "cannot make a large response: other clients are still reading theirs, so the connection is closed; request it again")
            }
        }
        Ok((Some(bad), ())) => tracing::warn!(%peer, error = %bad, "connection closed on a bad request"),
        Err(Ended::Idle(time)) => tracing::debug!(%peer, ?time, "connection idle"),
        Err(error @ Ended::HungUp(_)) => tracing::debug!(%peer, %error, "connection lost"),
        Err(Ended::Unread) => {
            if let Some(left_out) = broker.unread.evicted_line.due() {
                tracing::warn!(%peer, left_out, "cannot keep an unread response in memory: the connection of the slowest client is closed; check if it reads")
            }
        }
        Err(Ended::Input(InputError::Io(error))) | Err(Ended::Output(error)) => {
            tracing::debug!(%peer, %error, "connection lost");
        }
        Err(error) => tracing::warn!(%peer, %error, "connection closed on a bad request"),
    }
}

/// Waits until the connection must end, and returns the reason. Either the client was idle for too long, or its unread
/// response takes too much memory. While a response is in progress, the client is not idle unless it has ended its
/// side.
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
    let evicted = async {
        while !idleness.is_evicted() {
            idleness.ended().await;
        }
    };
    let max = idle_max.map_or(HUNG_UP_MAX, |max| max.min(HUNG_UP_MAX));
    tokio::select! {
        biased;
        () = evicted => Ended::Unread,
        () = idleness.reaches(max) => Ended::HungUp(max),
    }
}

/// The side after whose decision a connection reads no more requests.
enum ReadEnd {
    /// The client closed its side.
    Client,
    /// The broker is stopping.
    Stopping,
}

/// Runs the reading half until the client closes its side, the broker stops, or a request cannot be answered. After a
/// request that was given up, later ones get no responses, since the client would take these for the missing one.
async fn read(
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
    let (mut worked, mut is_muted) = (Duration::ZERO, false);
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
        let without_client = WithoutClient::of(&frame);
        let admitted = match is_muted && without_client.is_given_up() {
            true => None,
            false => {
                admit_unless_gone(broker, stream, &mut client, listener, (frame, without_client), idleness).await?
            }
        };
        let is_given_up = admitted.is_none();
        is_muted |= is_given_up;
        let Some((label, Some(Admission { api, completion, room }))) = admitted else {
            if is_given_up && !without_client.is_given_up() {
                return Ok(ReadEnd::Client);
            }
            broker.metrics.unanswered();
            queue.leave(1);
            continue;
        };
        let completion = if is_muted { completion.muted() } else { completion };
        // A response that is ready takes memory, even while it waits behind earlier responses. So it counts as unread
        // from here on.
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

/// Admits a request. Returns `None` if the client is gone and the admission is cancelled.
async fn admit_unless_gone(
    broker: &Arc<Node>,
    stream: &Arc<ClientStream>,
    client: &mut Client,
    listener: usize,
    (frame, without_client): (Bytes, WithoutClient),
    idleness: &Arc<Idleness>,
) -> Result<Option<(Label, Option<Admission>)>, Fault> {
    let _working = idleness.admitting();
    let idle_max = broker.metadata.config.network.connection.idle_max;
    let mut admission = pin!(admit(broker, client, listener, frame));
    tokio::select! {
        biased;
        admitted = &mut admission => admitted.map(Some),
        // If the request was sent to a group, the group drops its answer.
        () = hung_up(stream, idle_max, without_client.time()) => Ok(None),
    }
}

/// Waits for `after`, or for `idle_max` if that is shorter. Then waits until the client has ended its side. Never
/// returns if `after` is `None`.
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

/// Runs the writing half until the reading half is done and every request is answered. Responses that are ready at the
/// same time are written together.
async fn write(
    broker: &Arc<Node>,
    stream: &Arc<ClientStream>,
    queue: &Handover<AdmittedRequest>,
    idleness: &Arc<Idleness>,
) -> Result<(), Ended> {
    let unread = UnreadCounter { all: &broker.unread, idleness, stream };
    let (mut leaving, mut next) = (Vec::new(), None);
    loop {
        // The client may send nothing for long, so no memory of earlier responses is kept during this wait.
        let first = match next.take() {
            None => queue.pop().await,
            next => next,
        };
        let Some(first) = first else { return Ok(()) };
        let (mut frames, owed) = completed(first, &unread).await?;
        let mut gathered = frames.len();
        leaving.push((owed, gathered));
        while gathered < GATHERED_BYTES
            && let Some(admitted) = queue.try_pop()
        {
            let (mut frame, owed) = match ready(admitted, &unread).await {
                Ok(response) => response,
                Err(later) => {
                    next = Some(later);
                    break;
                }
            };
            gathered += frame.len();
            leaving.push((owed, frame.len()));
            frames.parts.append(&mut frame.parts);
        }
        {
            // Gathering stops after a large response, so only the last response here can be large.
            let room = leaving.last().and_then(|(owed, _): &(Owed, usize)| owed.room.as_deref());
            let progress = Progress { idleness, room };
            let writing = pin!(output::write(stream, &mut frames, &progress, broker.partitions.cold()));
            beside(writing, next.as_mut(), &unread).await.map_err(Ended::Output)?;
        }
        queue.leave(leaving.len());
        let answered = Instant::now();
        for (Owed { api, received, label, .. }, bytes) in leaving.drain(..) {
            broker.metrics.answered(api, answered.duration_since(received), bytes);
            label.log_response(bytes, answered.duration_since(received));
        }
    }
}

/// Returns the response if it is ready. Otherwise returns the request. If the request has failed, also returns the
/// request, so that earlier responses are sent before the failure ends the connection.
async fn ready(mut admitted: AdmittedRequest, unread: &UnreadCounter<'_>) -> Result<(Frame, Owed), AdmittedRequest> {
    poll_fn(|context| {
        poll_once(&mut admitted, unread, context);
        Poll::Ready(())
    })
    .await;
    match admitted {
        AdmittedRequest { completion: Completion::Ready(frame), owed } => Ok((frame, owed)),
        later => Err(later),
    }
}

/// Writes frames. Meanwhile polls the completion of the following request, if it was polled before. The completion may
/// hold a permit for which other requests wait. It must be able to release the permit even if this client does not
/// read.
async fn beside<T>(
    mut writing: Pin<&mut impl Future<Output = T>>,
    mut following: Option<&mut AdmittedRequest>,
    unread: &UnreadCounter<'_>,
) -> T {
    poll_fn(|context| {
        if let Some(admitted) = &mut following {
            poll_once(admitted, unread, context);
        }
        writing.as_mut().poll(context)
    })
    .await
}

/// Polls the completion of a request once. If the response is now known, counts it as unread.
fn poll_once(admitted: &mut AdmittedRequest, unread: &UnreadCounter<'_>, context: &mut Context<'_>) {
    let (Completion::Later(answer) | Completion::Holding(answer, _)) = &mut admitted.completion else { return };
    if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
        admitted.completion = match outcome {
            Ok(frame) => {
                let owed = &mut admitted.owed;
                owed.room = unread.count(owed.api, &frame, owed.room.take());
                Completion::Ready(frame)
            }
            fault => Completion::Later(Box::pin(std::future::ready(fault))),
        };
    }
}

/// Waits for the response and then counts it as unread.
async fn completed(admitted: AdmittedRequest, unread: &UnreadCounter<'_>) -> Result<(Frame, Owed), Fault> {
    let AdmittedRequest { completion, mut owed } = admitted;
    match completion {
        Completion::Ready(frame) => Ok((frame, owed)),
        Completion::Later(answer) | Completion::Holding(answer, _) => {
            let _working = unread.idleness.awaiting();
            let frame = answer.await?;
            owed.room = unread.count(owed.api, &frame, owed.room.take());
            Ok((frame, owed))
        }
    }
}

/// The queue between the two halves, first in, first out. At most `max` items are between [`Handover::enter`] and
/// [`Handover::leave`].
///
/// The futures of the queue wake no task. They only work within [`in_turn`], which polls both halves whenever their
/// task is woken. A channel would wake the task while it is running, and the runtime would then wake another thread for
/// it. That costs two system calls and a thread switch for each request.
struct Handover<T> {
    max: usize,
    state: Mutex<HandoverState<T>>,
}

struct HandoverState<T> {
    items: VecDeque<T>,
    /// How many slots are in use. A slot is taken before its item is queued, and freed after the item was removed and
    /// its response was written.
    taken: usize,
    is_closed: bool,
    /// True if the reading half is waiting for a slot.
    wants_room: bool,
}

impl<T> Handover<T> {
    fn new(max: usize) -> Self {
        let state = HandoverState { items: VecDeque::new(), taken: 0, is_closed: false, wants_room: false };
        Handover { max, state: Mutex::new(state) }
    }

    /// Waits until a slot is free and takes it.
    async fn enter(&self) {
        poll_fn(|_| {
            let mut state = self.state.lock();
            state.wants_room = state.taken >= self.max;
            if state.wants_room {
                return Poll::Pending;
            }
            state.taken += 1;
            Poll::Ready(())
        })
        .await;
    }

    /// Adds an item, for which the caller has taken a slot with [`Handover::enter`].
    fn push(&self, item: T) {
        self.state.lock().items.push_back(item);
    }

    /// Frees `count` slots after their responses were written, or because their requests get no response.
    fn leave(&self, count: usize) {
        self.state.lock().taken -= count;
    }

    /// Closes the queue: no more items will be added.
    fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Waits for the oldest item. Returns `None` once the queue is closed and empty.
    async fn pop(&self) -> Option<T> {
        poll_fn(|_| {
            let mut state = self.state.lock();
            match state.items.pop_front() {
                Some(item) => Poll::Ready(Some(item)),
                None if state.is_closed => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Returns the oldest item, or `None` if the queue is empty.
    fn try_pop(&self) -> Option<T> {
        self.state.lock().items.pop_front()
    }

    /// Returns true if the reading half is waiting and a slot has become free.
    fn has_room_wanted(&self) -> bool {
        let state = self.state.lock();
        state.wants_room && state.taken < self.max
    }
}

/// Runs both halves until both are done, and returns their results.
///
/// # Errors
/// Stops at the first error of either half and returns it.
async fn in_turn<T, A, B, E>(
    handover: &Handover<T>,
    mut pushing: Pin<&mut impl Future<Output = Result<A, E>>>,
    popping: Pin<&mut impl Future<Output = Result<B, E>>>,
) -> Result<(A, B), E> {
    // Tokio gives a task a cooperative budget for each poll, which the reading half (`pushing`) may use up. So the
    // writing half (`popping`) runs without a budget. The queued items limit its work.
    let mut popping = pin!(tokio::task::coop::unconstrained(popping));
    let (mut pushed, mut popped) = (None, None);
    poll_fn(|context| {
        loop {
            // If the reading half still waits in `enter`, the poll below sets `wants_room` again.
            handover.state.lock().wants_room = false;
            if pushed.is_none()
                && let Poll::Ready(ended) = pushing.as_mut().poll(context)
            {
                handover.close();
                pushed = Some(ended?);
            }
            if popped.is_none()
                && let Poll::Ready(ended) = popping.as_mut().poll(context)
            {
                popped = Some(ended?);
            }
            match (pushed.take(), popped.take()) {
                (Some(pushed), Some(popped)) => return Poll::Ready(Ok((pushed, popped))),
                (first, second) => (pushed, popped) = (first, second),
            }
            if pushed.is_some() || !handover.has_room_wanted() {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests;
