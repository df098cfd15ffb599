//! The clients that produce, and their connections. The requests of a connection arrive in order. If a request is lost,
//! all later requests of its connection are lost too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fullbore_tests::Random;
use fullbore_wire::ErrorCode;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};

use super::partition_producer::{PartitionProducer, Response, Sent, Step};
use super::world::{ms, random};
use super::{Brokers, Life};
use crate::{DisklessPartition, Unblocked};
use fullbore_host::metrics::Metrics;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{Acks, AppendStep, AppendTicket, Appended};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::partition::terms::EarlyBatches;
use fullbore_log::validation::ValidBatch;

/// How long a request waits for a partition that is being created.
const OPENED_WITHIN: Duration = Duration::from_secs(5);
/// `request.timeout.ms`
const TIMEOUT: Duration = Duration::from_secs(30);

/// The reply to the client. If it is dropped without an outcome, the client treats the connection as lost.
struct Reply {
    attempt: u64,
    to: UnboundedSender<(u64, Response)>,
    response: Response,
}

impl Drop for Reply {
    fn drop(&mut self) {
        let _ = self.to.send((self.attempt, self.response));
    }
}

struct Request {
    sent: Sent,
    partition: i32,
    at: Duration,
    reply: Reply,
}

/// Runs the producer of a client. Returns when all batches are resolved.
pub async fn produce(brokers: Brokers, producer: Arc<Mutex<PartitionProducer>>) {
    let world = &brokers[0].world;
    let (to, mut from) = unbounded_channel();
    let stripes = producer.lock().stripes();
    // There are `stripes` connections to each broker.
    let mut connections: Vec<Option<UnboundedSender<Request>>> = vec![None; stripes * brokers.len()];
    let mut broker = 0;
    producer.lock().lose_all(world);
    loop {
        let step = producer.lock().step(world);
        let until = match step {
            Step::Done => return,
            Step::Send(sent) => {
                let trouble = world.setup.client_trouble;
                let (is_twice, is_lost, dies) = {
                    let by = &mut producer.lock().by;
                    (world.strikes(by, trouble), world.strikes(by, trouble * 2), world.strikes(by, trouble * 10))
                };
                let copy = if is_twice { producer.lock().copy(&sent) } else { None };
                for sent in [Some(sent), copy].into_iter().flatten() {
                    // The producer may move to another broker here, although the previous broker still has requests
                    // under way.
                    if brokers.len() > 1 && producer.lock().moves(world) {
                        broker = producer.lock().by.below(brokers.len());
                    }
                    let to_broker = &mut connections[broker * stripes..][..stripes];
                    send(&brokers[broker], &producer, to_broker, sent, &to);
                }
                // After a reconnect, a batch could overtake an earlier one. Without sequences, brokers would not notice
                // that, so only idempotent clients lose their connections.
                if (is_lost || dies) && producer.lock().is_idempotent() {
                    // Brokers still carry out the requests that are under way, but their answers are lost.
                    connections.iter_mut().for_each(|connection| *connection = None);
                    if dies { producer.lock().die() } else { producer.lock().lose_all(world) }
                }
                continue;
            }
            Step::Wait(until) => until,
        };
        let wait = until.map_or(Duration::from_secs(3600), |until| until.saturating_sub(world.now()) + ms(1));
        if let Ok(Some((attempt, response))) = timeout(wait, from.recv()).await {
            producer.lock().answered(attempt, response, world);
            // A lost connection drops the replies of all its requests.
            while let Ok((attempt, response)) = from.try_recv() {
                producer.lock().answered(attempt, response, world);
            }
            let is_gone = |of: &Option<UnboundedSender<Request>>| of.as_ref().is_some_and(UnboundedSender::is_closed);
            connections.iter_mut().filter(|of| is_gone(of)).for_each(|of| *of = None);
        }
    }
}

fn send(
    life: &Arc<Life>,
    producer: &Mutex<PartitionProducer>,
    connections: &mut [Option<UnboundedSender<Request>>],
    sent: Sent,
    to: &UnboundedSender<(u64, Response)>,
) {
    let (partition, seed) = {
        let mut producer = producer.lock();
        (producer.partition, producer.by.next())
    };
    let connection = connections[sent.connection].get_or_insert_with(|| {
        let (connection, requests) = unbounded_channel();
        tokio::spawn(serve(Arc::clone(life), requests, format!("producer {}", producer.lock().index), random(seed, 5)));
        connection
    });
    let reply = Reply { attempt: sent.attempt, to: to.clone(), response: Response::Nothing };
    let request = Request { sent, partition, at: life.world.now(), reply };
    // If the connection is closed, this drops the request, and the client treats the connection as lost.
    let _ = connection.send(request);
}

/// The state of a request after its admission.
enum Answer {
    Known(Result<Appended, AppendError>),
    Later(AppendTicket, Instant),
}

/// Serves a connection at a broker. Admits and answers its requests in order.
async fn serve(life: Arc<Life>, mut requests: UnboundedReceiver<Request>, client: String, mut by: Random) {
    let (answers, to_answer) = unbounded_channel();
    let answering = tokio::spawn(answer(Arc::clone(&life), to_answer));
    let distance = by.below(20);
    while let Some(request) = requests.recv().await {
        sleep(ms(by.below(distance + 1))).await;
        if life.world.strikes(&mut by, life.world.setup.client_trouble * 2) {
            answering.abort();
            return;
        }
        let partition = life.diskless.find(&request.sent.topic, request.partition);
        let admitted = match &partition {
            Some(partition) => admit(&life, partition, &request).await,
            None => Answer::Known(Err(AppendError::Deleted)),
        };
        life.world.report(|| match &admitted {
            Answer::Known(answer) => format!("request {} of {client}: {answer:?}", request.sent.attempt),
            Answer::Later(..) => format!("request {} of {client} is taken", request.sent.attempt),
        });
        let _ = answers.send((request, partition, admitted));
    }
    drop(answers);
    let _ = answering.await;
}

async fn admit(life: &Life, partition: &Arc<DisklessPartition>, request: &Request) -> Answer {
    let deadline = Instant::now() + TIMEOUT;
    let _ = timeout(OPENED_WITHIN, partition.view.opened()).await;
    if !partition.view.is_ready() {
        return Answer::Known(Err(AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER)));
    }
    let batch = ValidBatch::unchecked(&request.sent.bytes);
    let early = EarlyBatches { are_sent: request.sent.may_reorder, wait_in: Some(&life.reordering) };
    let port = (8 * batch.stamp().producer_id + request.sent.connection as i64) as u16;
    let (mut waited, peer) = (Unblocked::default(), SocketAddr::from(([127, 0, 0, 1], port)));
    loop {
        let terms = AppendTerms { early, ..AppendTerms::in_turn(Acks::All, life.world.wall_ms()) };
        match waited.append(partition, &batch, terms, peer) {
            Ok(AppendStep::Done(appended)) => return Answer::Known(Ok(appended)),
            Ok(AppendStep::Pending(ticket)) => return Answer::Later(ticket, deadline),
            Ok(AppendStep::Blocked(blocker)) => waited.wait_for(std::slice::from_ref(partition), blocker, None).await,
            Err(error) => return Answer::Known(Err(error)),
        }
    }
}

type Admitted = (Request, Option<Arc<DisklessPartition>>, Answer);

async fn answer(life: Arc<Life>, mut admitted: UnboundedReceiver<Admitted>) {
    while let Some((mut request, partition, answer)) = admitted.recv().await {
        let answer = match answer {
            Answer::Known(answer) => answer,
            Answer::Later(ticket, deadline) => ticket.wait(deadline, std::future::pending(), &Metrics::default()).await,
        };
        if let (Ok(appended), Some(partition)) = (&answer, &partition) {
            life.check_is_there(partition, appended.base_offset, request.sent.topic).await;
        }
        let world = &life.world;
        if world.is_late(request.at) {
            world.wrong(|| format!("a batch of {} ms is answered {answer:?}: late", request.at.as_millis()));
        }
        request.reply.response = match answer {
            Ok(appended) => Response::Appended(appended.base_offset),
            Err(error) => Response::Refused(error),
        };
    }
}
