//! Serves the fetches of followers: other brokers that replicate partitions which this broker leads.
//!
//! These fetches arrive over the listener between brokers. Each contains the id that the follower's process chose at
//! its registration, so that no other client can move a high watermark. A connection has one session ([`session`]).
//! Several fetches of a session may wait here, and they are answered one after another. Urgent entries, such as errors,
//! are sent at once. Records are sent when [`fullbore_rules::replica::spacing`] allows it.
//!
//! A fetch reports the follower's positions. They count as soon as the fetch is admitted, even if earlier fetches are
//! not answered yet.

pub mod session;
mod timer;

use crate::api::call::{Call, Completion, Fault, Reply};
use crate::node::FetchServices;
use fullbore_rules::replica::BrokerState;
use fullbore_wire::apis::fetch::{FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData};
use fullbore_wire::{ErrorCode, Frame, Uuid};
use session::{AnswerDue, AnswerLimits, FollowerSession};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Memory that a pending fetch takes.
const PENDING_BYTES: usize = 1024;
/// Maximum time that a fetch waits, whatever the follower requests.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A request with this session epoch closes the session.
const FINAL_EPOCH: i32 = -1;

/// Admits a fetch that another broker sent.
///
/// # Errors
/// Returns an error if the response cannot be encoded.
pub fn admit(
    call: &mut Call<'_>,
    services: &Arc<FetchServices>,
    request: FetchRequest,
    reply: Reply,
) -> Result<Completion, Fault> {
    let services = Arc::clone(services);
    let session = authorize(&services, &request, reply.listener)
        .and_then(|follower| session_of(&services, &mut call.client.followed_by, follower, &request));
    let session = match session {
        Ok(Some(session)) => session,
        Ok(None) => return respond(FetchResponse::default(), reply).map(Completion::Ready),
        Err(error_code) => {
            services.metrics.fetch_failed(error_code);
            let response = FetchResponse { error_code, ..Default::default() };
            return respond(response, reply).map(Completion::Ready);
        }
    };
    session.note(&services.partitions, &request);
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(WAIT_MAX);
    let limits = AnswerLimits {
        max_bytes: usize::try_from(request.max_bytes).unwrap_or(0).min(services.metadata.config.api.fetch_max_bytes),
        deadline: Instant::now() + wait,
    };
    drop(request);
    let answer = Box::pin(async move {
        let answered = answer(&services, &session, &limits).await;
        services.metrics.replicated_out(answered.iter().map(|(_, data)| bytes_of(data)).sum());
        respond(FetchResponse { session_id: session.id, responses: by_topic(answered), ..Default::default() }, reply)
    });
    Ok(Completion::Holding(answer, PENDING_BYTES))
}

/// Returns the broker that sent the fetch.
///
/// # Errors
/// Fails with BROKER_ID_NOT_REGISTERED if this broker does not know the follower's registration yet. The follower then
/// retries. Fails with another code if the sender is not the registered broker.
fn authorize(services: &FetchServices, request: &FetchRequest, listener: usize) -> Result<BrokerState, ErrorCode> {
    if listener != services.metadata.config.replication.listener {
        return Err(ErrorCode::CLUSTER_AUTHORIZATION_FAILED);
    }
    let image = services.metadata.control.image();
    let id = request.replica_state.replica_id;
    let known = image.node(id);
    let Some(node) = known.filter(|node| !node.process.is_zero() && node.process == request.process) else {
        let is_newer = known.is_none_or(|node| node.registration.epoch < request.replica_state.replica_epoch);
        let is_news = is_newer && !request.process.is_zero();
        let code = if is_news { ErrorCode::BROKER_ID_NOT_REGISTERED } else { ErrorCode::CLUSTER_AUTHORIZATION_FAILED };
        return Err(code);
    };
    if node.registration.epoch != request.replica_state.replica_epoch {
        return Err(ErrorCode::STALE_BROKER_EPOCH);
    }
    Ok(BrokerState { broker_id: id, broker_epoch: node.registration.epoch })
}

/// Returns the session of a request. The first request opens one. Returns `None` if the request closes the session.
fn session_of(
    services: &FetchServices,
    known: &mut Option<Arc<FollowerSession>>,
    follower: BrokerState,
    request: &FetchRequest,
) -> Result<Option<Arc<FollowerSession>>, ErrorCode> {
    match request.session_epoch {
        FINAL_EPOCH => {
            *known = None;
            Ok(None)
        }
        0 => {
            let session = Arc::new({
                let isr = Arc::clone(&services.isr);
                FollowerSession::new(follower, services.metadata.config.replication.fetches_max, isr)
            });
            *known = Some(Arc::clone(&session));
            Ok(Some(session))
        }
        epoch => {
            let session = known.as_ref().filter(|session| session.id == request.session_id);
            let session = session.ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
            session.follows_on(follower, epoch)?;
            Ok(Some(Arc::clone(session)))
        }
    }
}

/// Waits until urgent entries or records may be sent, or until the fetch's deadline. Returns the entries of the
/// response.
async fn answer(
    services: &FetchServices,
    session: &FollowerSession,
    limits: &AnswerLimits,
) -> Vec<(Uuid, PartitionData)> {
    let mut stop = services.stopping.clone();
    let mut timer = session.timer();
    loop {
        let due = match session.next() {
            AnswerDue::Now => break,
            AnswerDue::In(wait) => Some(wait),
            AnswerDue::WhenMarked => None,
        };
        tokio::select! {
            biased;
            () = session.marked() => {}
            () = timer.after(due) => {}
            () = tokio::time::sleep_until(limits.deadline) => break,
            _ = stop.wait_for(|stopping| *stopping) => break,
        }
    }
    session.give_back(timer);
    session.take(limits)
}

fn bytes_of(data: &PartitionData) -> usize {
    data.records.as_ref().map_or(0, |records| records.len())
}

/// Puts neighbouring partitions of the same topic into one entry of the response.
fn by_topic(answered: Vec<(Uuid, PartitionData)>) -> Vec<FetchableTopicResponse> {
    let mut responses: Vec<FetchableTopicResponse> = Vec::new();
    for (topic_id, data) in answered {
        match responses.last_mut() {
            Some(last) if last.topic_id == topic_id => last.partitions.push(data),
            _ => responses.push(FetchableTopicResponse { topic_id, partitions: vec![data], ..Default::default() }),
        }
    }
    responses
}

fn respond(response: FetchResponse, reply: Reply) -> Result<Frame, Fault> {
    reply.frame::<FetchRequest>(&response)
}
