//! The way of batches from admission to their answers: the line, and what goes on around it.
//!
//! A batch is admitted by the thread of its connection, under one lock with the whole line. Closed objects are uploaded by a task each, those at
//! the head of the line are committed by a task, one commit at a time, and one task closes what is due.
//!
//! Not here: what a verdict is ([`crate::diskless::index`]), nor how bytes get into the store ([`upload`]). What comes before its turn is in
//! [`out_of_order`], the refresh of stale state in [`refresh`], and the tasks in [`tasks`].
//!
//! Invariant: an answer leaves once its commit is known and its records can be read.

mod gathering;
mod object_ids;
mod out_of_order;
pub mod queue;
mod refresh;
mod tasks;
pub mod upload;

use fullbore_host::task;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::admission::{Admission, Freshness, TicketId};
use fullbore_rules::commit::rotation::{Close, RotationSettings};
use fullbore_rules::commit::{CommitVerdict, DisklessPartitionId, ObjectId, PartitionState, Refusal};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::ErrorCode;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::control::StoreError;
use crate::diskless::index::{CommitAnswer, IndexOwner, PartitionRow, ProducerRow};
use crate::diskless::known::{KnownPartition, Offered};
use crate::diskless::reader::Reader;
use fullbore_host::metrics::Metrics;
use fullbore_host::seldom::Seldom;
use fullbore_log::partition::budget::{Budget, ProducerKey, Room};
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::left_out::LeftOut;
use fullbore_log::partition::outcome::{AppendAnswer, AppendStep, AppendTicket, Appended, AwaitedAnswer, Blocker};
use fullbore_log::partition::reorder::{BATCH_COST, Early, Parked};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::validation::ValidBatch;
use gathering::NewBatch;
use object_ids::ObjectKeys;
use queue::{Line, Outcome};
use upload::Uploader;

use refresh::RefreshLimit;
pub use refresh::Refreshed;

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: what is known of producers is taken for all that there is.
    pub static ASKS_NOBODY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A batch that is out of the reorder buffer in another way than by being put in line.
type Settled = (Early, Result<Appended, AppendError>);

/// Takes batches.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<WriterState>,
    /// Something changed that the driver is to look at.
    changed: Notify,
    budget: Arc<Budget>,
    refreshes: RefreshLimit,
    index: IndexOwner,
    keys: ObjectKeys,
    uploader: Uploader,
    reader: Reader,
    /// Begin of the line's clock.
    started: Instant,
    metrics: Metrics,
    commit_failures: Seldom,
    upload_failures: Seldom,
}

struct WriterState {
    line: Line,
    /// Begin of the line's clock.
    started: Instant,
    /// What is known to be committed, as far as it was asked for or committed here.
    known: HashMap<DisklessPartitionId, PartitionState>,
    pending: HashMap<TicketId, PendingBatch>,
    /// The bytes of objects that are in the store and not committed, in the order of their numbers.
    stored: VecDeque<(u64, ObjectId, Vec<Bytes>)>,
    /// Batches that came before their turn.
    parked: HashMap<DisklessPartitionId, Parked>,
    /// Whether other brokers commit to the index, too.
    others_commit: bool,
    is_closed: bool,
}

/// An admitted batch whose answer is to come.
struct PendingBatch {
    partition: Arc<KnownPartition>,
    number: DisklessPartitionId,
    log_append_time_ms: i64,
    producer_id: i64,
    answer: AppendAnswer,
}

impl Writer {
    /// Starts the task that closes what is due; to be called in a tokio runtime.
    pub fn start(
        settings: RotationSettings,
        (memory_bytes, others_commit): (usize, bool),
        (index, uploader, reader): (IndexOwner, Uploader, Reader),
        metrics: Metrics,
    ) -> Writer {
        let mut line = Line::new(settings);
        line.set_slots(uploader.window());
        let started = Instant::now();
        let state = WriterState {
            line,
            started,
            known: HashMap::new(),
            pending: HashMap::new(),
            stored: VecDeque::new(),
            parked: HashMap::new(),
            others_commit,
            is_closed: false,
        };
        let budget = Budget::new(memory_bytes);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            budget,
            refreshes: RefreshLimit::default(),
            keys: ObjectKeys::new(index.clone()),
            index,
            uploader,
            reader,
            started,
            metrics,
            commit_failures: Seldom::default(),
            upload_failures: Seldom::default(),
        });
        task::spawn(Arc::clone(&shared).drive());
        Writer { shared }
    }

    /// Admits or parks a batch, for whose bytes there is room. Its bytes are copied without the lock, and only where it is to be taken.
    ///
    /// # Errors
    /// [`AppendError`]; nothing of it is or will be in the partition.
    pub fn append(
        &self,
        (partition, number): (&Arc<KnownPartition>, DisklessPartitionId),
        batch: &ValidBatch<'_>,
        (terms, left_out): (AppendTerms<'_>, &LeftOut),
        (producer, freshness, room): (ProducerKey, Freshness, Room),
    ) -> Result<AppendStep, AppendError> {
        let granted = (freshness, room, left_out);
        let room = match self.park((partition, number), batch, terms, granted)? {
            ControlFlow::Break(step) => return Ok(step),
            ControlFlow::Continue(unused) => unused,
        };
        let offered = partition.offer((number, producer), batch, terms.now_ms);
        self.admit(offered, (freshness, room, left_out))
    }

    fn admit(
        &self,
        offered: Offered,
        (freshness, room, left_out): (Freshness, Room, &LeftOut),
    ) -> Result<AppendStep, AppendError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.is_closed || offered.partition.is_gone() {
            return Err(offered.partition.gone());
        }
        let answer = match state.check(offered.number, &offered.stamp, freshness) {
            Admission::Ask => return Ok(AppendStep::Blocked(Blocker::StaleState(offered.stamp.producer_id))),
            Admission::Refuse(why) => {
                // Another batch may be in flight behind it.
                state.line.turned_away(offered.number, &offered.stamp, (why.code(), shared.now()));
                return Err(AppendError::Sequence(why));
            }
            Admission::Duplicate { base_offset, timestamp } => {
                return Ok(AppendStep::Done(offered.partition.appended_before(base_offset, timestamp)));
            }
            Admission::Shares(ticket) => match state.pending.get_mut(&ticket) {
                // Not that it is out of order, for it may be the next one, and that is fatal to some clients.
                Some(pending) => pending.answer.join(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT)),
                None => return Err(AppendError::Sequence(SequenceRefusal::OutOfOrderSequence)),
            },
            Admission::Admit => shared.take(&mut state, offered, room),
        };
        Ok(AppendStep::Pending(AppendTicket::committing(answer, left_out.clone())))
    }

    /// Takes room for a batch of `size` bytes, and what is kept beside them. `None` if there is none for its producer.
    ///
    /// # Errors
    /// [`AppendError::Gone`] while the broker stops.
    pub fn try_room(&self, producer: ProducerKey, size: usize) -> Result<Option<Room>, AppendError> {
        self.shared.budget.try_take(producer, size + BATCH_COST).map_err(|_| AppendError::Gone)
    }

    /// Waits for the same; meanwhile the connection reads nothing. `None` while the broker stops.
    pub async fn room(&self, producer: ProducerKey, size: usize) -> Option<Room> {
        self.shared.budget.take(producer, size + BATCH_COST).await
    }

    /// Notes that a batch is refused with this error before it is looked at: one behind it may be in flight.
    pub fn turned_away(&self, number: DisklessPartitionId, stamp: &Stamp, code: ErrorCode) {
        self.shared.state.lock().line.turned_away(number, stamp, (code, self.shared.now()));
    }

    /// So many batches are retained of each producer of these partitions; never fewer than before.
    pub fn retain_batches(&self, numbers: &[DisklessPartitionId], window: usize) {
        let mut state = self.shared.state.lock();
        for number in numbers {
            if let Some(known) = state.known.get_mut(number) {
                known.window = known.window.max(window);
            }
        }
    }

    /// Forgets producers of which nothing came for so long.
    pub fn expire_producers(&self, now_ms: i64, expiration_ms: i64) {
        self.shared.state.lock().line.forget_old(self.shared.now());
        // One partition at a time, so that no batch waits for all of them.
        let numbers: Vec<_> = self.shared.state.lock().known.keys().copied().collect();
        for number in numbers {
            if let Some(known) = self.shared.state.lock().known.get_mut(&number) {
                known.expire(now_ms, expiration_ms);
            }
        }
    }

    /// What is known of a partition's producers, after [`Writer::refresh`].
    pub fn known<T>(&self, number: DisklessPartitionId, of: impl FnOnce(&PartitionState) -> T) -> Option<T> {
        self.shared.state.lock().known.get(&number).map(of)
    }

    /// Nothing more is to be known of a partition that is deleted.
    pub fn forget(&self, number: DisklessPartitionId) {
        let mut state = self.shared.state.lock();
        state.known.remove(&number);
        state.line.forget(number);
        let parked = state.parked.remove(&number);
        drop(state);
        if let Some(parked) = parked {
            parked.refuse(AppendError::Deleted);
        }
    }

    /// Bytes that are admitted and not answered.
    pub fn bytes(&self) -> usize {
        self.shared.state.lock().line.bytes()
    }

    /// From now on nothing waits for its turn, and what was admitted goes to the store at once, so that it is soon answered.
    pub fn hurry(&self) {
        let mut state = self.shared.state.lock();
        state.line.hurry();
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        self.shared.changed.notify_one();
        parked.into_values().for_each(|parked| parked.refuse(AppendError::Gone));
    }

    /// From now on nothing is admitted, and what waits is answered as refused: it may be committed all the same, and is sent again.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        let pending = std::mem::take(&mut state.pending);
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        self.shared.budget.close();
        self.shared.changed.notify_one();
        parked.into_values().for_each(|parked| parked.refuse(AppendError::Gone));
        pending.into_values().for_each(|pending| pending.answer.failed(AppendError::Gone));
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes a batch whose turn it is, and those parked behind it.
    fn take(self: &Arc<Self>, state: &mut WriterState, offered: Offered, room: Room) -> AwaitedAnswer {
        let was_idle = state.line.is_closed_up();
        let (answer, awaited) = AppendAnswer::new(offered.bytes.len(), offered.stamp.record_count, &self.metrics);
        let (number, stamp) = (offered.number, offered.stamp);
        let partition = Arc::clone(&offered.partition);
        self.put_in_line(state, offered, answer, Some(room));
        self.take_parked(state, (number, &partition), stamp);
        if was_idle {
            self.changed.notify_one();
        }
        awaited
    }

    fn put_in_line(
        self: &Arc<Self>,
        state: &mut WriterState,
        offered: Offered,
        answer: AppendAnswer,
        room: Option<Room>,
    ) {
        let Offered { partition, number, producer, stamp, bytes, max_timestamp, log_append_time_ms } = offered;
        let now = self.now();
        let batch = NewBatch { partition: number, producer, bytes, stamp, max_timestamp, room };
        let ticket = state.line.admit(batch, now);
        let producer_id = stamp.producer_id;
        state.pending.insert(ticket, PendingBatch { partition, number, log_append_time_ms, producer_id, answer });
        self.close_due(state);
    }

    /// Closes and uploads what is due; when the next is.
    fn close_due(self: &Arc<Self>, state: &mut WriterState) -> Option<Duration> {
        loop {
            let now = self.now();
            match state.line.due(now)? {
                Close::At(then) => return Some(then.saturating_sub(now)),
                Close::Now => drop(task::spawn(Arc::clone(self).upload(state.line.close(now)))),
            }
        }
    }

    /// Goes on with what is in the store: the next commit, if none is under way.
    fn go_on(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let (objects, failed) = state.line.next_commit(self.now());
        let answers = state.answers(failed);
        let given_up = state.give_up_parked(&answers);
        state.drop_left_behind();
        if !objects.is_empty() {
            task::spawn(Arc::clone(self).commit(objects));
        }
        drop(state);
        answers.into_iter().for_each(|(pending, answer)| pending.answer(answer));
        given_up.into_iter().for_each(|early| early.refuse(AppendError::Again));
        self.changed.notify_one();
    }

    /// Takes over what was committed, and takes what waits for that in line, or out of it.
    fn take_over(
        self: &Arc<Self>,
        state: &mut WriterState,
        partitions: &[(PartitionRow, i64)],
        producers: &[ProducerRow],
    ) -> Vec<Settled> {
        state.take_over(partitions, producers);
        if !state.others_commit {
            return Vec::new();
        }
        self.release(state, producers.iter().map(|row| (row.batches.partition, row.batches.producer_id)))
    }

    /// Takes over what was committed, has it read, and answers.
    fn committed(self: &Arc<Self>, answer: CommitAnswer) {
        let CommitAnswer { verdicts, partitions, producers, runs } = answer;
        if verdicts.iter().flatten().any(|verdict| *verdict == CommitVerdict::Refused(Refusal::ObjectGone)) {
            self.keys.forget();
        }
        let mut state = self.state.lock();
        let mut released = self.take_over(&mut state, &partitions, &producers);
        let outcomes = state.line.committed(&verdicts, self.now());
        let answers = state.answers(outcomes);
        if state.others_commit {
            // Of what was committed before, over another broker, there is no row: but it is not in line any more.
            let committed = answers.iter().filter(|(_, answer)| answer.is_ok());
            let of = committed.map(|(pending, _)| (pending.number, pending.producer_id));
            released.extend(self.release(&mut state, of));
        }
        let given_up = state.give_up_parked(&answers);
        let objects = state.take_committed();
        drop(state);
        let rows: Vec<_> = partitions.into_iter().map(|(row, _)| row).collect();
        self.reader.committed(objects, &rows, runs);
        self.settle(released);
        answers.into_iter().for_each(|(pending, answer)| pending.answer(answer));
        given_up.into_iter().for_each(|early| early.refuse(AppendError::Again));
    }

    fn tell_commit_failure(&self, error: &StoreError) {
        if let Some(left_out) = self.commit_failures.due() {
            tracing::error!(%error, left_out, "the index of diskless topics cannot be used; it is tried again");
        }
    }
}

impl WriterState {
    /// What to do with a batch. Where nobody else commits, what was read once is known to be all.
    fn check(&self, number: DisklessPartitionId, stamp: &Stamp, freshness: Freshness) -> Admission {
        let nothing = PartitionState::new(0);
        #[cfg(test)]
        let freshness = if ASKS_NOBODY.get() { Freshness::Current } else { freshness };
        let now = self.started.elapsed();
        match self.known.get(&number) {
            Some(committed) if !self.others_commit => {
                self.line.check(number, stamp, committed, (Freshness::Current, now))
            }
            Some(committed) => self.line.check(number, stamp, committed, (freshness, now)),
            None => self.line.check(number, stamp, &nothing, (freshness, now)),
        }
    }

    /// What is committed, of what is known of partitions: each with the offset from which on `producers` has all. Where something before that is
    /// missing, what is known stays as it is until it is looked at; where nobody else commits it is forgotten, or nobody would look.
    fn take_over(&mut self, partitions: &[(PartitionRow, i64)], producers: &[ProducerRow]) {
        let up_to_date = |(row, since): &(PartitionRow, i64)| {
            let known = self.known.get(&row.id).filter(|known| *since <= known.next_offset)?;
            Some((row.id, known.next_offset))
        };
        let from: HashMap<_, _> = partitions.iter().filter_map(up_to_date).collect();
        for ProducerRow { batches: of, written_ms } in producers {
            let Some((from, known)) = from.get(&of.partition).zip(self.known.get_mut(&of.partition)) else { continue };
            for (stamp, base_offset, timestamp) in of.batches.iter().filter(|(_, base_offset, _)| base_offset >= from) {
                known.take_over(stamp, *base_offset, *timestamp, *written_ms);
            }
        }
        for (row, _) in partitions.iter().filter(|(row, _)| from.contains_key(&row.id)) {
            if let Some(known) = self.known.get_mut(&row.id).filter(|known| row.next_offset >= known.next_offset) {
                row.put_into(known);
            }
        }
        if !self.others_commit {
            // An older look was told after newer commits.
            let missed = partitions.iter().filter(|(row, _)| !from.contains_key(&row.id));
            missed.for_each(|(row, _)| drop(self.known.remove(&row.id)));
        }
    }

    /// Takes out the batches that have an outcome, each with its answer.
    fn answers(&mut self, outcomes: Vec<(TicketId, Outcome)>) -> Vec<(PendingBatch, Result<Appended, AppendError>)> {
        let answer = |(ticket, outcome)| {
            let pending = self.pending.remove(&ticket);
            debug_assert!(pending.is_some() || self.is_closed, "a batch in line has an answer");
            let pending = pending?;
            if pending.partition.is_gone() {
                self.line.forget(pending.number);
            }
            let answer = pending.answer_of(outcome);
            Some((pending, answer))
        };
        outcomes.into_iter().filter_map(answer).collect()
    }

    /// The bytes of objects that left the line.
    fn take_committed(&mut self) -> Vec<(ObjectId, Vec<Bytes>)> {
        let first = self.line.first_number();
        let mut left = Vec::new();
        while self.stored.front().is_some_and(|(number, ..)| *number < first) {
            left.extend(self.stored.pop_front().map(|(_, id, parts)| (id, parts)));
        }
        left
    }

    /// The same of objects of which nothing was left to be committed.
    fn drop_left_behind(&mut self) {
        drop(self.take_committed());
    }
}

impl PendingBatch {
    fn answer_of(&self, outcome: Outcome) -> Result<Appended, AppendError> {
        match outcome {
            Outcome::Committed { base_offset, timestamp } => {
                let first_time = timestamp.filter(|_| self.log_append_time_ms != -1);
                Ok(self.partition.appended(base_offset, first_time.unwrap_or(self.log_append_time_ms)))
            }
            Outcome::Refused(Refusal::Sequence(why)) => Err(AppendError::Sequence(why)),
            Outcome::Refused(Refusal::PartitionGone) => Err(AppendError::Deleted),
            // To be sent again, each in its turn.
            Outcome::Refused(Refusal::ObjectGone | Refusal::Behind | Refusal::Earlier) | Outcome::Dead => {
                Err(AppendError::Again)
            }
            // The failed upload is in the log.
            Outcome::NotUploaded => Err(AppendError::Storage),
        }
    }

    fn answer(self, answer: Result<Appended, AppendError>) {
        match answer {
            Ok(appended) => self.answer.written(&appended.into()),
            Err(error) => self.answer.failed(error),
        }
    }
}
