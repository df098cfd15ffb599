//! A replica fetcher: one connection to a leader, and the partitions that are fetched over it.
//!
//! The fetcher's task receives the assigned partitions, and handles the responses in order. Each fetch lists only the
//! partitions whose state has changed. While the leader sends records, several fetches are in flight ([`FetchPipe`]). A
//! fetch session (KIP-227) ends with its connection.
//!
//! `followed` handles the response for one partition. The queue of events is bounded by the number of partitions and of
//! fetches in flight. Invariant: after a failure, a partition is fetched again only after a pause.

use super::context::Context;
use super::followed::{FollowedPartition, Naming, PartitionId, ResponseOutcome};
use crate::partitions::{FlushTicket, Replica};
use fullbore_client::error::ConnectionError;
use fullbore_client::tokio::Connection;
use fullbore_host::task;
use fullbore_rules::replica::pipe::FetchPipe;
use fullbore_wire::apis::fetch::{
    FetchRequest, FetchResponse, FetchTopic, ForgottenTopic, PartitionData, ReplicaState,
};
use fullbore_wire::{ErrorCode, Uuid, host_port};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

/// The version of Fetch requests between brokers.
const FETCH: i16 = 18;
/// How long to wait before the first reconnection. The wait doubles with each further failure in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Number of failures in a row after which BROKER_ID_NOT_REGISTERED is logged as a warning. The leader might not know
/// this broker yet for about a second after this broker's start.
const UNHEARD_MAX: u32 = 6;
/// A response with more bytes than this is appended in a slot for long work.
const LONG_BYTES: usize = 256 * 1024;

/// Identifies a fetcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FetcherId {
    pub leader: i32,
    /// A number below `num.replica.fetchers`.
    pub number: u32,
    /// True if this broker is in the ISR of the fetcher's partitions.
    pub is_in_sync: bool,
}

/// A partition that a fetcher must follow, in a leader epoch.
pub struct Assignment {
    pub id: PartitionId,
    pub replica: Arc<Replica>,
    pub leader_epoch: i32,
}

/// An event that a fetcher's task handles.
enum FetcherEvent {
    Follow(Assignment),
    Leave(PartitionId),
    /// The partition must be fetched now. Either the opening of its log has ended (successfully or not), or its log end
    /// is flushed.
    Ready(PartitionId),
    /// The records of a partition before this offset are flushed. They were fetched in the given leader epoch.
    Flushed(PartitionId, i32, i64),
    /// The connection attempt with this number has ended.
    Connected(u64, Result<Connection, String>),
    /// A response has arrived on the connection with this number.
    Answered(u64, Result<FetchResponse, ConnectionError>),
}

/// Controls a running fetcher, which ends when the broker stops.
pub struct FetcherHandle(UnboundedSender<FetcherEvent>);

impl FetcherHandle {
    /// Starts to fetch a partition.
    pub fn follow(&self, assignment: Assignment) {
        // Sending fails only if the broker stops.
        let _ = self.0.send(FetcherEvent::Follow(assignment));
    }

    /// Stops fetching the partition.
    pub fn leave(&self, id: PartitionId) {
        let _ = self.0.send(FetcherEvent::Leave(id));
    }
}

/// The state of a fetcher's task.
pub struct LeaderFetcher {
    context: Arc<Context>,
    id: FetcherId,
    sender: UnboundedSender<FetcherEvent>,
    followed: HashMap<PartitionId, FollowedPartition>,
    /// The partitions that the next fetch must include. The list may contain a partition twice, or one that is no
    /// longer followed; such entries are skipped. The leader first removes `to_be_forgotten` from the session, and then
    /// reads this list.
    to_be_named: Vec<PartitionId>,
    to_be_forgotten: Vec<PartitionId>,
    /// The times at which failed partitions must be fetched again.
    again: BinaryHeap<Reverse<(Instant, PartitionId)>>,
    link: Link,
    /// The number of the current connection or connection attempt. It increases at each attempt, and when a connection
    /// ends.
    number: u64,
    failures: u32,
    /// True if a warning was already logged for the current series of failures.
    has_warned: bool,
}

enum Link {
    /// There is no connection, and the next attempt starts at this time.
    Down(Instant),
    Connecting,
    Up(Box<LeaderSession>),
}

struct LeaderSession {
    connection: Connection,
    pipe: FetchPipe,
    id: i32,
    /// The session epoch of the next request. 0 opens a new session.
    epoch: i32,
    carried_out: i64,
    /// True if the last response contained records.
    do_records_come: bool,
}

impl LeaderFetcher {
    /// Starts a fetcher that has no partitions yet.
    pub fn start(context: Arc<Context>, id: FetcherId) -> FetcherHandle {
        let (sender, events) = unbounded_channel();
        let fetcher = LeaderFetcher {
            context,
            id,
            sender: sender.clone(),
            followed: HashMap::new(),
            to_be_named: Vec::new(),
            to_be_forgotten: Vec::new(),
            again: BinaryHeap::new(),
            link: Link::Down(Instant::now()),
            number: 0,
            failures: 0,
            has_warned: false,
        };
        task::spawn(fetcher.run(events));
        FetcherHandle(sender)
    }

    async fn run(mut self, mut events: UnboundedReceiver<FetcherEvent>) {
        let context = Arc::clone(&self.context);
        let mut stopping = std::pin::pin!(context.stopping());
        loop {
            self.connect_if_due();
            self.send().await;
            let due = self.next_due();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stopping => break,
                event = events.recv() => {
                    let mut next = event;
                    while let Some(event) = next {
                        self.handle(event).await;
                        next = events.try_recv().ok();
                    }
                }
                () = wait => {}
            }
            self.name_those_due();
        }
        if let Link::Up(session) = &self.link {
            session.connection.close();
        }
    }

    async fn handle(&mut self, event: FetcherEvent) {
        match event {
            FetcherEvent::Follow(Assignment { id, replica, leader_epoch }) => {
                let lag = self.context.lags.add(id);
                let followed = FollowedPartition::new(id, replica, leader_epoch, lag);
                let is_listed = self.followed.insert(id, followed).is_some_and(|before| before.is_to_be_named);
                match self.followed.get_mut(&id).filter(|_| is_listed) {
                    Some(followed) => followed.is_to_be_named = true,
                    None => self.name(id),
                }
            }
            FetcherEvent::Leave(id) => self.leave(id),
            FetcherEvent::Ready(id) => self.name(id),
            FetcherEvent::Flushed(id, leader_epoch, upto) => {
                let of_now = self.followed.get_mut(&id).filter(|followed| followed.leader_epoch == leader_epoch);
                if of_now.is_some_and(|followed| followed.flushed(upto)) {
                    self.name(id);
                }
            }
            FetcherEvent::Connected(number, connected) if number == self.number => self.connected(connected),
            FetcherEvent::Answered(number, answered) if number == self.number => match answered {
                Ok(response) => self.answered(response).await,
                Err(error) => self.give_up(&error.to_string()),
            },
            // Ignore these events, because they belong to a connection that this fetcher has closed.
            FetcherEvent::Connected(..) | FetcherEvent::Answered(..) => {}
        }
    }

    fn leave(&mut self, id: PartitionId) {
        let Some(left) = self.followed.remove(&id) else { return };
        self.context.lags.remove(id, &left.lag);
        if let Link::Up(session) = &self.link {
            if self.followed.is_empty() {
                // The leader ends the fetch session with its connection.
                session.connection.close();
                self.number += 1;
                self.to_be_forgotten.clear();
                self.link = Link::Down(Instant::now());
            } else {
                self.to_be_forgotten.push(id);
            }
        }
    }

    /// Adds the partition to the list for the next fetch, unless the list already contains it.
    fn name(&mut self, id: PartitionId) {
        if let Some(followed) = self.followed.get_mut(&id)
            && !std::mem::replace(&mut followed.is_to_be_named, true)
        {
            self.to_be_named.push(id);
        }
    }

    fn name_later(&mut self, id: PartitionId) {
        let most = Duration::from_millis(self.context.config.replication.backoff_max_ms);
        if let Some(followed) = self.followed.get_mut(&id) {
            self.again.push(Reverse((Instant::now() + followed.pause(most), id)));
        }
    }

    fn name_those_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((due, id))) = self.again.peek().copied()
            && due <= now
        {
            self.again.pop();
            self.name(id);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let again = self.again.peek().map(|Reverse((due, _))| *due);
        let connect = match self.link {
            Link::Down(until) if !self.followed.is_empty() => Some(until),
            _ => None,
        };
        [again, connect].into_iter().flatten().min()
    }

    /// Spawns a task that notifies this fetcher when the partition's log is open. If the log cannot be opened, the task
    /// notifies it after a pause.
    fn name_when_open(&self, id: PartitionId) {
        let Some(followed) = self.followed.get(&id) else { return };
        let (replica, sender) = (Arc::clone(&followed.replica), self.sender.clone());
        let context = Arc::clone(&self.context);
        task::spawn(async move {
            let opened = replica.opened().await;
            if opened.is_err() {
                tokio::time::sleep(Duration::from_millis(context.config.replication.backoff_max_ms)).await;
            }
            let _ = sender.send(FetcherEvent::Ready(id));
        });
    }

    /// Spawns a task that sends `event` to this fetcher after a successful flush.
    fn notify_when_flushed(&self, ticket: FlushTicket, event: FetcherEvent) {
        let sender = self.sender.clone();
        task::spawn(async move {
            // After a failed flush, the log accepts no more records, so there is nothing to report.
            if ticket.wait().await.is_ok() {
                let _ = sender.send(event);
            }
        });
    }
}

/// The connection to the leader.
impl LeaderFetcher {
    fn connect_if_due(&mut self) {
        let is_due = matches!(self.link, Link::Down(until) if until <= Instant::now());
        if !is_due || self.followed.is_empty() {
            return;
        }
        self.number += 1;
        self.link = Link::Connecting;
        let (context, number, leader, sender) =
            (Arc::clone(&self.context), self.number, self.id.leader, self.sender.clone());
        task::spawn(async move {
            let connected = connect(&context, leader).await;
            let _ = sender.send(FetcherEvent::Connected(number, connected));
        });
    }

    fn connected(&mut self, connected: Result<Connection, String>) {
        match connected {
            Ok(connection) => {
                let pipe = FetchPipe::new(self.context.config.replication.fetches_max);
                let session =
                    LeaderSession { connection, pipe, id: 0, epoch: 0, carried_out: 0, do_records_come: false };
                self.link = Link::Up(Box::new(session));
            }
            Err(why) => self.give_up(&why),
        }
    }

    /// Closes the connection after a failure. The fetcher reconnects after a pause, and then fetches all partitions
    /// from the ends of their logs.
    fn give_up(&mut self, why: &str) {
        self.end_link(why, true);
    }

    /// Closes the connection and logs the failure. With `is_worth_warning`, logs the first failure in a row as a
    /// warning.
    fn end_link(&mut self, why: &str, is_worth_warning: bool) {
        let replication = &self.context.config.replication;
        let most = Duration::from_millis(replication.backoff_max_ms);
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(most);
        self.failures += 1;
        let leader = self.id.leader;
        if is_worth_warning && !self.has_warned {
            self.has_warned = true;
            tracing::warn!(leader, %why, "cannot fetch from the leader: this broker reconnects after a pause");
        } else {
            tracing::debug!(leader, %why, "cannot fetch from the leader: this broker reconnects after a pause");
        }
        if let Link::Up(session) = &self.link {
            session.connection.close();
        }
        self.number += 1;
        self.link = Link::Down(Instant::now() + pause);
        self.to_be_forgotten.clear();
        self.again.clear();
        let ids: Vec<PartitionId> = self.followed.keys().copied().collect();
        for id in ids {
            if let Some(followed) = self.followed.get_mut(&id) {
                followed.restart_from_log_end();
            }
            self.name(id);
        }
    }

    /// Sends as many fetches as the pipe allows.
    async fn send(&mut self) {
        loop {
            let has_to_say = !self.to_be_named.is_empty() || !self.to_be_forgotten.is_empty();
            let Link::Up(session) = &mut self.link else { return };
            let may_send = match session.epoch {
                // Without a session, only one request may be in flight.
                0 => session.pipe.outstanding() == 0 && has_to_say,
                _ => session.pipe.may_send(session.do_records_come, has_to_say),
            };
            if !may_send {
                return;
            }
            let (connection, request) = (session.connection.clone(), self.next_request());
            let (sender, number) = (self.sender.clone(), self.number);
            let answered = move |outcome| drop(sender.send(FetcherEvent::Answered(number, outcome)));
            connection.send(&request, FETCH, answered).await;
        }
    }

    fn next_request(&mut self) -> FetchRequest {
        let (own, settings) = (self.context.control.broker_state(), self.context.config.replication.clone());
        let Link::Up(session) = &mut self.link else { return FetchRequest::default() };
        let number = session.epoch;
        session.pipe.sent();
        let mut request = FetchRequest {
            replica_state: ReplicaState {
                replica_id: own.broker_id,
                replica_epoch: own.broker_epoch,
                ..Default::default()
            },
            max_wait_ms: settings.wait_max_ms,
            min_bytes: 1,
            max_bytes: settings.response_max_bytes,
            session_id: session.id,
            session_epoch: session.epoch,
            process: self.context.control.process(),
            carried_out: session.carried_out,
            ..Default::default()
        };
        if session.epoch > 0 {
            session.epoch = session.epoch.checked_add(1).unwrap_or(1);
        }
        let mut forgotten: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
        self.to_be_forgotten.drain(..).for_each(|(topic, index)| forgotten.entry(topic).or_default().push(index));
        request.forgotten_topics_data = forgotten
            .into_iter()
            .map(|(topic_id, partitions)| ForgottenTopic { topic_id, partitions, ..Default::default() })
            .collect();
        request.topics = self.named(number, settings.fetch_max_bytes);
        request
    }

    /// Returns the partitions for fetch number `number`.
    fn named(&mut self, number: i32, max_bytes: i32) -> Vec<FetchTopic> {
        let mut topics: BTreeMap<Uuid, FetchTopic> = BTreeMap::new();
        for id in std::mem::take(&mut self.to_be_named) {
            let Some(followed) = self.followed.get_mut(&id) else { continue };
            followed.is_to_be_named = false;
            match followed.name(number, max_bytes) {
                Naming::This(partition) => {
                    let topic = topics.entry(id.0);
                    let topic = topic.or_insert_with(|| FetchTopic { topic_id: id.0, ..Default::default() });
                    topic.partitions.push(*partition);
                }
                Naming::Nothing => {}
                Naming::Opening => self.name_when_open(id),
                Naming::Unflushed(ticket) => self.notify_when_flushed(ticket, FetcherEvent::Ready(id)),
                Naming::Failed => self.name_later(id),
            }
        }
        topics.into_values().collect()
    }
}

/// Connects to the leader's listener for other brokers.
async fn connect(context: &Context, leader: i32) -> Result<Connection, String> {
    let listener = &context.config.network.listeners[context.config.replication.listener].name;
    let image = context.control.image();
    let endpoint = image.node(leader).and_then(|node| node.endpoint(listener));
    let endpoint = endpoint.ok_or_else(|| format!("broker {leader} has no listener {listener}"))?;
    let address = host_port(&endpoint.host, endpoint.port);
    let connection = Connection::connect(&address, &context.client).await.map_err(|error| error.to_string())?;
    match connection.version::<FetchRequest>() {
        Ok(FETCH..) => Ok(connection),
        Ok(older) => Err(format!("broker {leader} serves Fetch only up to version {older}")),
        Err(error) => Err(error.to_string()),
    }
}

/// The leader's responses.
impl LeaderFetcher {
    async fn answered(&mut self, response: FetchResponse) {
        let Link::Up(session) = &mut self.link else { return };
        session.pipe.answered();
        session.carried_out += 1;
        match response.error_code {
            ErrorCode::NONE => {}
            ErrorCode::BROKER_ID_NOT_REGISTERED => {
                let is_worth_warning = self.failures >= UNHEARD_MAX;
                return self.end_link("the leader does not know yet that this broker has started", is_worth_warning);
            }
            error => return self.give_up(error.message()),
        }
        if session.epoch == 0 {
            (session.id, session.epoch) = (response.session_id, 1);
        }
        (self.failures, self.has_warned) = (0, false);
        let answered = response.responses.into_iter().flat_map(|topic| {
            let topic_id = topic.topic_id;
            topic.partitions.into_iter().map(move |data| ((topic_id, data.partition_index), data))
        });
        let answered: Vec<(PartitionId, PartitionData)> = answered.collect();
        let size = |(_, data): &(PartitionId, PartitionData)| data.records.as_ref().map_or(0, |records| records.len());
        let bytes: usize = answered.iter().map(size).sum();
        session.do_records_come = bytes > 0;
        self.context.metrics.replicated_in(bytes);
        let is_long =
            |(id, data): &(PartitionId, PartitionData)| self.followed.get(id).is_some_and(|of| of.is_long(data));
        let is_long = bytes > LONG_BYTES || answered.iter().any(is_long);
        let context = Arc::clone(&self.context);
        if is_long {
            context.long_work.run(|| self.take_all(answered)).await;
        } else {
            self.take_all(answered);
        }
    }

    fn take_all(&mut self, answered: Vec<(PartitionId, PartitionData)>) {
        for (id, data) in answered {
            let Some(followed) = self.followed.get_mut(&id) else { continue };
            let leader_epoch = followed.leader_epoch;
            match followed.take(&data) {
                ResponseOutcome::Nothing => {}
                ResponseOutcome::ToBeNamed => self.name(id),
                ResponseOutcome::Unflushed(ticket, upto) => {
                    self.notify_when_flushed(ticket, FetcherEvent::Flushed(id, leader_epoch, upto));
                }
                ResponseOutcome::Failed => self.name_later(id),
            }
        }
    }
}
