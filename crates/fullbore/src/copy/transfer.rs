//! Runs the transactions of a copier on their own thread. Each transaction commits records together with the offsets
//! after them.
//!
//! [`follow`](super::follow) reads the records and is the member of the group. Invariants: the offsets of a transaction
//! are exactly those after its records. After a failure, no record is written until the member has read its positions
//! from the group again.

use super::follow::LAST_PATIENCE;
use super::intake::{Chunk, Intake};
use super::trouble::{CopyError, after_failure};
use crate::output;
use crate::stop::{INTERRUPTED_WITHIN, Stop};
use fullbore_client::group::{CommittedOffset, MembershipView};
use fullbore_producer::{
    Delivery, Ending, GroupMetadata, Producer, ProducerConfig, ProducerRecord, SendError, Transaction,
    TransactionError, TransactionOffset,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc as orders;

/// Maximum number of transactions that are being committed at a time. At this limit, no further transaction begins.
const ENDING_MAX: usize = 2;
/// How long connections may take to close at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often [`Transfer::settle`] checks whether to end its wait.
const TICK: Duration = Duration::from_millis(20);

/// The topics, the group and the limits of a copy.
pub(super) struct TransferPlan {
    pub(super) producer: ProducerConfig,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) group: String,
    pub(super) instance: Option<String>,
    pub(super) view: MembershipView,
    /// True if records keep the number of their partition.
    pub(super) keeps_partition: bool,
    pub(super) records_max: u64,
    pub(super) duration: Duration,
    /// The stop whose time limit is long while a transaction is open.
    pub(super) stop: Stop,
}

/// The counts of a copy.
#[derive(Debug, Default)]
pub(super) struct CopyCounts {
    /// How many records are in committed transactions.
    pub(super) records: AtomicU64,
    /// How many transactions were committed.
    pub(super) transactions: AtomicU64,
    /// How many times the copy went back to the last commit.
    pub(super) rewinds: AtomicU64,
}

/// How the open transactions should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settle {
    /// Write all records in the intake, and then commit.
    Drain,
    /// Commit the open transaction without further records.
    Commit,
    /// Abort the open transaction.
    Abort,
}

/// The outcome of [`Transfer::settle`].
pub(super) struct Settled {
    /// The first failure since the last call.
    pub(super) failure: Option<CopyError>,
    /// The next offset of each partition whose offset was committed since the last call.
    pub(super) committed: HashMap<i32, CommittedOffset>,
}

struct Order {
    how: Settle,
    answer: mpsc::Sender<Settled>,
}

/// The handle of the transfer thread.
pub(super) struct Transfer {
    orders: orders::UnboundedSender<Order>,
    has_failed: Arc<AtomicBool>,
    pub(super) counts: Arc<CopyCounts>,
}

impl Transfer {
    /// Starts the thread with a connected producer. The thread ends when the handle is dropped.
    ///
    /// # Errors
    /// Returns the system's error if it refuses a thread.
    pub(super) fn start(plan: TransferPlan, producer: Producer, intake: Arc<Intake>) -> std::io::Result<Transfer> {
        let (orders, received) = orders::unbounded_channel();
        let (has_failed, counts) = (Arc::<AtomicBool>::default(), Arc::<CopyCounts>::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Shared { plan, intake, has_failed: has_failed.clone(), counts: counts.clone() };
        let body = move || runtime.block_on(run(&shared, producer, received));
        std::thread::Builder::new().name("transfer".to_owned()).spawn(body)?;
        Ok(Transfer { orders, has_failed, counts })
    }

    /// Returns true between a failure and the next call of [`Transfer::settle`]. During this time, no record is
    /// written.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Ends the open transactions as `how` requires, and waits for the outcome. Returns `None` if `ends` returns true
    /// first, or if the thread has ended.
    pub(super) fn settle(&self, how: Settle, mut ends: impl FnMut() -> bool) -> Option<Settled> {
        let (answer, answered) = mpsc::channel();
        self.orders.send(Order { how, answer }).ok()?;
        loop {
            match answered.recv_timeout(TICK) {
                Ok(settled) => return Some(settled),
                Err(mpsc::RecvTimeoutError::Timeout) if !ends() => {}
                Err(_) => return None,
            }
        }
    }
}

/// The state that the thread shares with its handle.
struct Shared {
    plan: TransferPlan,
    intake: Arc<Intake>,
    has_failed: Arc<AtomicBool>,
    counts: Arc<CopyCounts>,
}

/// Writes until the handle is dropped. If the coordinator's timeout has aborted a transaction, the producer is
/// replaced.
async fn run(shared: &Shared, first: Producer, mut received: orders::UnboundedReceiver<Order>) {
    let mut producer = reporting(first);
    loop {
        let mut writer = Writer::new(shared, &producer);
        let is_over = writer.run(&mut received).await;
        drop(writer);
        producer.close(if is_over { CLOSE_TIMEOUT } else { Duration::ZERO }).await;
        if is_over {
            return;
        }
        producer = match Producer::new(shared.plan.producer.clone()) {
            Ok(producer) => reporting(producer),
            // This cannot fail, because the command has already started a producer with the same configuration.
            Err(_) => return,
        };
    }
}

/// An open transaction.
struct Open<'a> {
    transaction: Transaction<'a>,
    /// The next offset of each partition, with the leader epoch of the record before that offset.
    positions: HashMap<i32, (i64, i32)>,
    records: u64,
    begun: Instant,
    due: Instant,
}

/// A transaction that is being committed.
struct Ended<'a> {
    ending: Ending<'a>,
    positions: HashMap<i32, (i64, i32)>,
    records: u64,
    begun: Instant,
}

/// An event for which the transfer thread waits.
enum Event {
    Order(Option<Order>),
    Outcome(Result<(), TransactionError>),
    Initialised(Result<(), TransactionError>),
    Due,
    Chunk(Chunk),
}

/// The state of the transfer thread between two events.
struct Writer<'a> {
    shared: &'a Shared,
    producer: &'a Producer,
    open: Option<Open<'a>>,
    endings: VecDeque<Ended<'a>>,
    committed: HashMap<i32, CommittedOffset>,
    failure: Option<CopyError>,
    is_initialised: bool,
    /// True while the command has time for the last commit after Ctrl-C.
    has_time: bool,
}

impl<'a> Writer<'a> {
    fn new(shared: &'a Shared, producer: &'a Producer) -> Self {
        Writer {
            shared,
            producer,
            open: None,
            endings: VecDeque::new(),
            committed: HashMap::new(),
            failure: None,
            is_initialised: false,
            has_time: false,
        }
    }

    /// Writes until the handle is dropped or the producer must be replaced. Returns true if the handle was dropped.
    async fn run(&mut self, received: &mut orders::UnboundedReceiver<Order>) -> bool {
        loop {
            match self.next(received).await {
                Event::Order(None) => return true,
                Event::Order(Some(order)) => {
                    if self.settle(order).await {
                        return false;
                    }
                }
                Event::Outcome(outcome) => self.note(outcome),
                Event::Initialised(outcome) => self.initialised(outcome),
                Event::Due => self.commit(),
                Event::Chunk(chunk) => self.write(&chunk).await,
            }
            self.set_limit();
        }
    }

    /// Gives the command time for the last commit after Ctrl-C while a transaction is open or is being committed. At
    /// other times nothing would be lost, so the command ends at once.
    fn set_limit(&mut self) {
        let needs_time = self.open.is_some() || !self.endings.is_empty();
        let (has_time, stop) = (std::mem::replace(&mut self.has_time, needs_time), &self.shared.plan.stop);
        match (has_time, needs_time) {
            (false, true) => stop.allow(LAST_PATIENCE),
            (true, false) => stop.limit(INTERRUPTED_WITHIN),
            _ => {}
        }
    }

    /// Waits for the next event. If there are several, returns an order first, and the outcome of a commit before new
    /// records.
    async fn next(&self, received: &mut orders::UnboundedReceiver<Order>) -> Event {
        let due = self.open.as_ref().map_or_else(Instant::now, |open| open.due);
        let goes_on = self.failure.is_none();
        tokio::select! {
            biased;
            order = received.recv() => Event::Order(order),
            outcome = outcome_of(self.endings.front()) => Event::Outcome(outcome),
            // This also ends a transaction that an earlier copier with the same transactional id has left open.
            outcome = self.producer.init_transactions(), if !self.is_initialised && goes_on => Event::Initialised(outcome),
            () = tokio::time::sleep_until(due.into()), if self.open.is_some() => Event::Due,
            chunk = self.shared.intake.take(), if self.is_initialised && goes_on => Event::Chunk(chunk),
        }
    }

    /// Handles the outcome of the initialisation.
    fn initialised(&mut self, outcome: Result<(), TransactionError>) {
        match outcome {
            Ok(()) => self.is_initialised = true,
            Err(error) if error.is_retriable() => {}
            Err(error) => self.fail(CopyError::fatal("get a producer id", &error)),
        }
    }

    /// Writes the records of a chunk. Stops at a failure. The member then reads the remaining records again.
    async fn write(&mut self, chunk: &Chunk) {
        let partition = self.shared.plan.keeps_partition.then_some(chunk.partition);
        for number in 0..chunk.len() {
            if !self.begin().await {
                return;
            }
            let Some(open) = &mut self.open else { return };
            let (headers, topic) = (chunk.headers(number), self.shared.plan.to.as_str());
            let Some((offset, record)) = chunk.record(number, topic, partition, &headers) else { return };
            let sent = match open.transaction.try_send(record) {
                Err(error) if may_wait(&error) => send_patiently(&open.transaction, record).await,
                sent => sent,
            };
            if let Err(error) = sent {
                return self.fail_send(offset, chunk.partition, &error).await;
            }
            open.positions.insert(chunk.partition, (offset + 1, chunk.leader_epoch));
            open.records += 1;
            if open.records >= self.shared.plan.records_max {
                self.commit();
            }
        }
        self.move_on(chunk).await;
    }

    /// Adds the position after the chunk to the transaction. This position may be later than the chunk's last record,
    /// because transaction markers, or records that compaction has removed, may follow it.
    async fn move_on(&mut self, chunk: &Chunk) {
        let reached = [self.open.as_ref().map(|open| &open.positions), self.endings.back().map(|of| &of.positions)];
        let reached = reached.into_iter().flatten().find_map(|positions| positions.get(&chunk.partition));
        let is_reached = !chunk.goes_back && reached.is_some_and(|(next, _)| *next >= chunk.next);
        if is_reached || !self.begin().await {
            return;
        }
        if let Some(open) = &mut self.open {
            open.positions.insert(chunk.partition, (chunk.next, chunk.leader_epoch));
        }
    }

    /// Begins a transaction unless one is open. Returns false after a failure.
    async fn begin(&mut self) -> bool {
        while self.failure.is_none() && self.open.is_none() {
            if self.endings.len() >= ENDING_MAX {
                let outcome = outcome_of(self.endings.front()).await;
                self.note(outcome);
                continue;
            }
            let (producer, duration) = (self.producer, self.shared.plan.duration);
            match producer.begin().await {
                Ok(transaction) => {
                    let begun = Instant::now();
                    let (positions, due) = (HashMap::new(), begun + duration);
                    self.open = Some(Open { transaction, positions, records: 0, begun, due });
                    self.set_limit();
                }
                Err(error) if error.is_retriable() => {}
                Err(error) => self.fail_with(&error, None),
            }
        }
        self.failure.is_none()
    }

    /// Begins to commit the open transaction with its offsets. Does not wait for the outcome.
    fn commit(&mut self) {
        let Some(Open { transaction, positions, records, begun, .. }) = self.open.take() else { return };
        let plan = &self.shared.plan;
        // Without an identity, the member may have lost its partitions. This then drops the transaction, which aborts
        // it.
        let Some((member_id, generation_id)) = plan.view.identity() else {
            return self.fail(CopyError::again("the group has given this member's partitions away"));
        };
        let group = GroupMetadata {
            group_id: plan.group.clone(),
            generation_id,
            member_id: member_id.to_string(),
            group_instance_id: plan.instance.clone(),
            coordinator: plan.view.coordinator(),
        };
        let offset = |(partition, (offset, leader_epoch)): (&i32, &(i64, i32))| TransactionOffset {
            topic: plan.from.clone(),
            partition: *partition,
            offset: *offset,
            leader_epoch: *leader_epoch,
            metadata: None,
        };
        let offsets: Vec<TransactionOffset> = positions.iter().map(offset).collect();
        match transaction.queue_offsets(&offsets, &group) {
            Ok(()) => self.endings.push_back(Ended { ending: transaction.commit(), positions, records, begun }),
            Err(error) => self.fail_with(&error, Some(begun)),
        }
    }

    /// Handles the outcome of the oldest transaction that is being committed.
    fn note(&mut self, outcome: Result<(), TransactionError>) {
        if outcome.as_ref().is_err_and(TransactionError::is_retriable) {
            // The producer itself retries the commit and reports the reason.
            return;
        }
        let Some(ended) = self.endings.pop_front() else { return };
        match outcome {
            Ok(()) => {
                let committed = |(partition, (offset, epoch)): (i32, (i64, i32))| {
                    let leader_epoch = (epoch >= 0).then_some(epoch);
                    (partition, CommittedOffset { offset, leader_epoch })
                };
                self.committed.extend(ended.positions.into_iter().map(committed));
                self.shared.counts.records.fetch_add(ended.records, Ordering::Relaxed);
                self.shared.counts.transactions.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.fail_with(&error, Some(ended.begun)),
        }
    }

    /// Handles a record that the producer refused. If the cause is a failure of the transaction, reports that failure,
    /// because it has more details.
    async fn fail_send(&mut self, offset: i64, partition: i32, error: &SendError) {
        let plan = &self.shared.plan;
        if matches!(error, SendError::TransactionFailed(_)) {
            let Some(open) = self.open.take() else { return };
            let begun = open.begun;
            while !self.endings.is_empty() && self.failure.is_none() {
                let outcome = outcome_of(self.endings.front()).await;
                self.note(outcome);
            }
            // For a failed transaction, `commit` aborts it and returns the reason.
            let ending = open.transaction.commit();
            let outcome = loop {
                match ending.wait().await {
                    Err(error) if error.is_retriable() => {}
                    outcome => break outcome,
                }
            };
            return match outcome {
                Ok(()) => self.fail(CopyError::again("a transaction was aborted")),
                Err(error) => self.fail_with(&error, Some(begun)),
            };
        }
        let of = format!("the record at offset {offset} of partition {partition} of topic '{}'", plan.from);
        self.fail(CopyError::of_record(&of, &plan.to, error));
    }

    fn fail_with(&mut self, error: &TransactionError, begun: Option<Instant>) {
        // An older transaction that is still being committed may have timed out, so the age of the oldest one is used.
        let begun = self.endings.iter().map(|ended| ended.begun).chain(begun).min();
        let timeout = self.shared.plan.producer.transaction_timeout;
        self.fail(after_failure(error, begun.map(|begun| begun.elapsed()), timeout));
    }

    /// Stores the first failure. No record is written until the next [`Transfer::settle`].
    fn fail(&mut self, failure: CopyError) {
        self.open = None;
        self.shared.intake.close();
        if self.failure.is_none() {
            self.shared.counts.rewinds.fetch_add(1, Ordering::Relaxed);
            self.failure = Some(failure);
        }
        self.shared.has_failed.store(true, Ordering::Release);
    }

    /// Carries out an order. Returns true if the producer must be replaced.
    async fn settle(&mut self, Order { how, answer }: Order) -> bool {
        while how == Settle::Drain && self.failure.is_none() {
            if !self.is_initialised {
                let outcome = self.producer.init_transactions().await;
                self.initialised(outcome);
                continue;
            }
            let Some(chunk) = self.shared.intake.try_take() else { break };
            self.write(&chunk).await;
        }
        match how {
            Settle::Abort => self.open = None,
            Settle::Drain | Settle::Commit => self.commit(),
        }
        while !self.endings.is_empty() {
            let outcome = outcome_of(self.endings.front()).await;
            self.note(outcome);
        }
        // The command limits its own end after the answer, so this limit is set before.
        self.set_limit();
        let failure = self.failure.take();
        let is_spent = matches!(failure, Some(CopyError::Renew { .. }));
        self.shared.has_failed.store(false, Ordering::Release);
        // The send fails if the caller of [`Transfer::settle`] no longer waits.
        drop(answer.send(Settled { failure, committed: std::mem::take(&mut self.committed) }));
        is_spent
    }
}

/// Waits for the outcome of a transaction. Waits forever if `ended` is `None`.
async fn outcome_of(ended: Option<&Ended<'_>>) -> Result<(), TransactionError> {
    match ended {
        Some(ended) => ended.ending.wait().await,
        None => std::future::pending().await,
    }
}

/// Returns true if the send may succeed after a wait for memory or metadata.
fn may_wait(error: &SendError) -> bool {
    matches!(error, SendError::Full | SendError::NoMetadata | SendError::NoPartition { .. } | SendError::Timeout { .. })
}

/// Sends a record. Waits for memory and metadata without a limit.
async fn send_patiently(transaction: &Transaction<'_>, record: ProducerRecord<'_>) -> Result<Delivery, SendError> {
    loop {
        match transaction.send(record).await {
            Err(SendError::Timeout { .. }) => {}
            sent => return sent,
        }
    }
}

/// Makes the producer print its notices, and returns it.
fn reporting(producer: Producer) -> Producer {
    producer.on_notice(|notice| output::remark(notice));
    producer.on_trouble(|why| output::remark(format!("nothing gets through: {why}")));
    producer
}
