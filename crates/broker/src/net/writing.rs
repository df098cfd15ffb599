//! The writing half of a connection. It waits for one response after another and writes them in the order of their
//! requests.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use fullbore_wire::Frame;

use super::admitted::{AdmittedRequest, Ended, Owed, UnreadCounter};
use super::connection::Handover;
use super::idleness::Idleness;
use super::output;
use super::stream::ClientStream;
use crate::api::{Completion, Fault};
use crate::node::Node;

/// Responses that are ready are gathered into one write up to this size.
const GATHERED_BYTES: usize = 64 * 1024;

/// Runs the writing half until the reading half is done and every request is answered. Responses that are ready at the
/// same time are written together.
pub(super) async fn write(
    broker: &Arc<Node>,
    stream: &ClientStream,
    queue: &Handover<AdmittedRequest>,
    idleness: &Arc<Idleness>,
) -> Result<(), Ended> {
    let unread = UnreadCounter { all: &broker.unread, connection: idleness };
    let (mut leaving, mut next) = (Vec::new(), None);
    loop {
        // The client may stay silent for long, so nothing of earlier responses is kept during this wait.
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
            let leaving = pin!(output::write(stream, &frames, idleness, broker.partitions.cold()));
            beside(leaving, next.as_mut(), &unread).await.map_err(Ended::Output)?;
        }
        queue.leave(leaving.len());
        let answered = Instant::now();
        for (Owed { api, received, label, .. }, bytes) in leaving.drain(..) {
            broker.metrics.answered(api, answered.duration_since(received), bytes);
            label.log_response(bytes, answered.duration_since(received));
        }
    }
}

/// Returns the response if it is ready, and otherwise the request. A fault counts as not ready, so that it is reported
/// in the order of the responses.
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

/// Writes, and meanwhile polls the completion of the next request, which has already begun. That completion may hold a
/// permit that other requests wait for. It must not keep the permit just because this client does not read.
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

/// Polls the completion of a request once. A response that is known now counts as unread.
fn poll_once(admitted: &mut AdmittedRequest, unread: &UnreadCounter<'_>, context: &mut Context<'_>) {
    let (Completion::Later(answer) | Completion::Holding(answer, _)) = &mut admitted.completion else { return };
    if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
        admitted.completion = match outcome {
            Ok(frame) => {
                admitted.owed.unread = unread.count(admitted.owed.api, &frame);
                Completion::Ready(frame)
            }
            fault => Completion::Later(Box::pin(std::future::ready(fault))),
        };
    }
}

/// Waits for the response. It counts as unread from then on.
async fn completed(admitted: AdmittedRequest, unread: &UnreadCounter<'_>) -> Result<(Frame, Owed), Fault> {
    let AdmittedRequest { completion, mut owed } = admitted;
    match completion {
        Completion::Ready(frame) => Ok((frame, owed)),
        Completion::Later(answer) | Completion::Holding(answer, _) => {
            let _working = unread.connection.awaiting();
            let frame = answer.await?;
            owed.unread = unread.count(owed.api, &frame);
            Ok((frame, owed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::admitted::Label;
    use super::*;
    use fullbore_wire::api::ApiKey;
    use std::time::Duration;

    use tokio::sync::Semaphore;

    fn admitted(completion: Completion) -> AdmittedRequest {
        let bytes = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("free");
        let label = Label { peer: ([127, 0, 0, 1], 1).into(), api: 3, version: 0, correlation_id: 0 };
        let owed = Owed { api: ApiKey::Metadata, received: Instant::now(), label, _bytes: bytes, unread: None };
        AdmittedRequest { completion, owed }
    }

    #[tokio::test]
    async fn polled_completion_releases_its_permit_while_the_response_before_it_is_written() {
        let places = Arc::new(Semaphore::new(0));
        let wanted = Arc::clone(&places);
        let answer = async move {
            let _place = wanted.acquire().await.expect("never closed");
            Ok(Frame::default())
        };
        let unread = UnreadCounter { all: &Arc::default(), connection: &Arc::default() };
        let queued = ready(admitted(Completion::Later(Box::pin(answer))), &unread).await;
        let Err(mut queued) = queued else { panic!("there is no place") };
        places.add_permits(1);
        // The write can only end after the completion has released its permit. Such a write stands for a client that
        // first reads a response on another connection.
        let writing = pin!(async { drop(places.acquire().await) });
        let beside = beside(writing, Some(&mut queued), &unread);
        tokio::time::timeout(Duration::from_secs(30), beside).await.expect("it has what the client waits for");
        assert!(matches!(queued.completion, Completion::Ready(_)));
        assert!(ready(queued, &unread).await.is_ok());
    }
}
