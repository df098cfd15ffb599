//! The writing half of a connection. It waits for one response after another and writes them in the order of their
//! requests.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use fullbore_wire::Frame;

use super::admitted::{AdmittedRequest, Ended, Owed};
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
    idleness: &Idleness,
) -> Result<(), Ended> {
    let (mut leaving, mut next) = (Vec::new(), None);
    loop {
        // The client may stay silent for long, so nothing of earlier responses is kept during this wait.
        let first = match next.take() {
            None => queue.pop().await,
            next => next,
        };
        let Some(AdmittedRequest { completion, owed }) = first else { return Ok(()) };
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
    }
}

/// Returns the response if it is ready, and otherwise the completion. A fault counts as not ready, so that it is
/// reported in the order of the responses.
async fn ready(mut completion: Completion) -> Result<Frame, Completion> {
    poll_fn(|context| {
        poll_once(&mut completion, context);
        Poll::Ready(())
    })
    .await;
    match completion {
        Completion::Ready(frame) => Ok(frame),
        later => Err(later),
    }
}

/// Writes, and meanwhile polls the next completion, which has already begun. That completion may hold a permit that
/// other requests wait for. It must not keep the permit just because this client does not read.
async fn beside<T>(mut writing: Pin<&mut impl Future<Output = T>>, mut following: Option<&mut Completion>) -> T {
    poll_fn(|context| {
        if let Some(completion) = &mut following {
            poll_once(completion, context);
        }
        writing.as_mut().poll(context)
    })
    .await
}

/// Polls a completion once.
fn poll_once(completion: &mut Completion, context: &mut Context<'_>) {
    let (Completion::Later(answer) | Completion::Holding(answer, _)) = completion else { return };
    if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
        *completion = match outcome {
            Ok(frame) => Completion::Ready(frame),
            fault => Completion::Later(Box::pin(std::future::ready(fault))),
        };
    }
}

/// Waits for the response.
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
    use std::time::Duration;

    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn polled_completion_releases_its_permit_while_the_response_before_it_is_written() {
        let places = Arc::new(Semaphore::new(0));
        let wanted = Arc::clone(&places);
        let answer = async move {
            let _place = wanted.acquire().await.expect("never closed");
            Ok(Frame::default())
        };
        let Err(mut queued) = ready(Completion::Later(Box::pin(answer))).await else { panic!("there is no place") };
        places.add_permits(1);
        // The write can only end after the completion has released its permit. Such a write stands for a client that
        // first reads a response on another connection.
        let writing = pin!(async { drop(places.acquire().await) });
        let beside = beside(writing, Some(&mut queued));
        tokio::time::timeout(Duration::from_secs(30), beside).await.expect("it has what the client waits for");
        assert!(matches!(queued, Completion::Ready(_)));
        assert!(ready(queued).await.is_ok());
    }
}
