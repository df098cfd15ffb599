//! A partition of an internal topic, as its coordinator writes it: a queue of writes with their callbacks.
//!
//! A caller appends all queued writes, also those of other callers, so that concurrent writes share a batch. If another
//! thread is already appending, the caller leaves its write to that thread. That thread unlocks the writer and then
//! checks the queue again. After [`ROUNDS_MAX`] rounds, it leaves further writes to another thread.
//!
//! Writes are appended, and their callbacks called, in the order in which they were queued.

use super::ended::{EndedTransactions, MarkersSeen};
use super::unreplicated::{AppendCallback, AppendResult, Unreplicated};
use crate::partitions::{Acks, AppendError, AppendStep, AppendTerms, Durability, Replica, VerificationTime};
use bytes::{Bytes, BytesMut};
use fullbore_host::files::now_ms;
use fullbore_log::Verification;
use fullbore_log::validation::{InvalidBatch, ValidBatch};
use fullbore_rules::replica::NO_EPOCH;
use fullbore_rules::sequence::Marker;
use fullbore_rules::transaction::ProducerIdAndEpoch;
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, HEADER_LEN, Level, Stamp, record_size_max};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering, fence};
use tokio::sync::watch;

/// Maximum size of a batch that several writes share, unless the topic's limits are lower. A larger write gets batches
/// of its own.
const BATCH_BYTES: usize = 512 << 10;
/// Once this many writes wait, the caller that queues the last one appends them all, if the log is open.
const WAITING_MAX: usize = 512;
/// Maximum number of rounds in which a caller appends the queue, if other callers queue further writes meanwhile. After
/// that, another thread continues.
const ROUNDS_MAX: usize = 4;

/// A record as its key and its value. A tombstone has no value.
pub type KeyValue = (Bytes, Option<Bytes>);

/// The records of one write.
pub enum Records {
    /// Records outside of transactions. If they exceed the size limit of a batch, they are written as several batches.
    Plain(Vec<KeyValue>),
    /// Records outside of transactions that share one batch, however large they are. So a replay finds all or none of
    /// them.
    Together(Vec<KeyValue>),
    /// Records in a producer's transaction. They do not share a batch with other writes.
    Transactional(VerifiedProducer, Vec<KeyValue>),
    /// The end of a producer's transaction in this partition. The number is the transaction version, which decides how
    /// the producer's epoch is checked (KIP-890).
    Marker(Marker, i8),
    /// Records that are computed when they are appended (see [`Records::late`]).
    Late(Late),
}

/// A producer whose transaction includes this partition, as verified with the transaction coordinator.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedProducer {
    /// The producer.
    pub producer: ProducerIdAndEpoch,
    /// How many markers the shard had before the verification. The verification is no longer valid once the
    /// shard gets a later marker of this producer.
    pub seen: MarkersSeen,
    /// The partition's state when the verification began, and the epoch of the transaction coordinator that verified
    /// the transaction.
    pub at: VerificationTime,
}

type Late = Box<dyn FnOnce() -> Box<dyn Iterator<Item = KeyValue>> + Send>;

impl Records {
    /// Creates records that are computed only after the callbacks of all earlier writes. There may be many records, so
    /// the iterator makes them one by one.
    ///
    /// A thread may hold locks while it queues a write. Neither `records` nor the iterator may take any of these locks.
    pub fn late<I: Iterator<Item = KeyValue> + 'static>(records: impl FnOnce() -> I + Send + 'static) -> Records {
        Records::Late(Box::new(|| Box::new(records())))
    }
}

struct Write {
    records: Records,
    callback: AppendCallback,
}

/// The state of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The shard's log is being read, so requests have to wait.
    Loading,
    /// The shard's log has been read, and requests are served.
    Serving,
    /// The shard's log could not be read. The broker will try again to load the shard.
    Failed,
    /// Another broker leads the shard's partition.
    Elsewhere,
    /// The topic was deleted or the partition has a new leader, so this shard was left.
    Gone,
}

/// A partition of an internal topic, for as long as its role does not change ([`Shard::keeps_its_role`]). Its role
/// is either that this broker leads the partition, or that another broker does.
pub struct Shard {
    partition: Arc<Replica>,
    compression: Compression,
    /// True if this shard has replaced an earlier one of the same partition since the process was started.
    is_successor: bool,
    /// The epoch in which this broker leads the partition, or [`NO_EPOCH`] if another broker leads it.
    leader_epoch: AtomicI32,
    status: watch::Sender<Status>,
    waiting: Mutex<Vec<Write>>,
    /// Transactions that have ended recently. Only changed while `waiting` is locked.
    ended: Mutex<EndedTransactions>,
    /// The memory in which batches are built. It is locked while writes are appended and their callbacks called.
    writer: Mutex<BytesMut>,
    unreplicated: Arc<Unreplicated>,
}

impl Shard {
    /// Creates a shard that writes its batches with `compression`. The shard must first load its log, unless nothing
    /// was ever written to the partition.
    pub fn new(partition: Arc<Replica>, compression: Compression) -> Arc<Shard> {
        Shard::following(partition, compression, false)
    }

    /// Creates the shard that replaces `shard` after the partition got another leader, or after the same leader was
    /// elected again.
    pub fn successor_of(shard: &Shard) -> Arc<Shard> {
        Shard::following(Arc::clone(&shard.partition), shard.compression, true)
    }

    fn following(partition: Arc<Replica>, compression: Compression, is_successor: bool) -> Arc<Shard> {
        let leads_in = partition.leads_in();
        let status = match leads_in {
            None => Status::Elsewhere,
            Some(_) if partition.phase().is_absent() && !is_successor => Status::Serving,
            Some(_) => Status::Loading,
        };
        Arc::new(Shard {
            partition,
            compression,
            is_successor,
            leader_epoch: AtomicI32::new(leads_in.unwrap_or(NO_EPOCH)),
            status: watch::Sender::new(status),
            waiting: Mutex::default(),
            ended: Mutex::default(),
            writer: Mutex::default(),
            unreplicated: Arc::default(),
        })
    }

    /// Returns the partition that stores the shard's log.
    pub fn partition(&self) -> &Arc<Replica> {
        &self.partition
    }

    /// Returns true if this shard has replaced an earlier one of the same partition, whose state may still be in
    /// memory.
    pub fn is_successor(&self) -> bool {
        self.is_successor
    }

    /// Returns true if the partition still has the role for which the shard was created: this broker has led it all the
    /// time, or another broker leads it.
    ///
    /// If this broker was elected again and the epoch has only increased by one, no other broker has led in between.
    /// The shard then continues in the new epoch.
    pub fn keeps_its_role(&self) -> bool {
        match (self.leader_epoch.load(Ordering::Acquire), self.partition.leads_in()) {
            (NO_EPOCH, leads_in) => leads_in.is_none(),
            // After a larger step, another broker may have led in between and written records that this shard does not
            // know.
            (known, Some(epoch)) if epoch <= known.saturating_add(1) => {
                self.leader_epoch.store(epoch, Ordering::Release);
                true
            }
            _ => false,
        }
    }

    /// Returns the leader epoch in which the shard writes.
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch.load(Ordering::Acquire)
    }

    /// Returns the state of the shard.
    pub fn status(&self) -> Status {
        *self.status.borrow()
    }

    /// Sets the outcome of loading the shard's log.
    pub fn set_loaded(&self, is_loaded: bool) {
        let status = if is_loaded { Status::Serving } else { Status::Failed };
        self.status.send_if_modified(|now| *now != Status::Gone && std::mem::replace(now, status) != status);
    }

    /// Ends the shard, because the topic was deleted or the partition has a new leader.
    pub fn leave(&self) {
        self.status.send_replace(Status::Gone);
    }

    /// Waits until the shard is no longer loading.
    pub async fn loaded(&self) {
        // The wait can only fail if the sender is dropped, but the shard itself owns the sender.
        let _ = self.status.subscribe().wait_for(|status| *status != Status::Loading).await;
    }

    /// Returns the partition's state, against which a verification of this producer that begins now is checked later.
    pub fn verification_time(&self, producer_id: i64) -> VerificationTime {
        self.partition.verification_time(producer_id)
    }

    /// Returns how many markers have been queued so far.
    pub fn markers_seen(&self) -> MarkersSeen {
        self.ended.lock().seen(self.leader_epoch())
    }

    /// Queues a write. The write is appended by the next [`Shard::flush`], or at once if the queue is long. If the
    /// write's transaction may already have ended, the write is refused with [`AppendError::Unverified`].
    pub(super) fn request(self: &Arc<Self>, records: Records, callback: AppendCallback) {
        let mut queue = self.waiting.lock();
        if self.may_be_past(&records) {
            drop(queue);
            return callback(Err(AppendError::Unverified));
        }
        queue.push(Write { records, callback });
        let waiting = queue.len();
        drop(queue);
        if waiting >= WAITING_MAX && self.partition.phase().is_open() {
            self.flush();
        }
    }

    /// Returns true if all in-sync replicas have every appended write, and all callbacks have been called.
    pub(super) fn is_replicated(&self) -> bool {
        self.unreplicated.is_empty()
    }

    /// Calls the callbacks in the order of the writes. Afterwards, appends the writes that had to wait for these
    /// callbacks.
    fn notify_in_order(self: &Arc<Self>, written: AppendResult, callbacks: Vec<AppendCallback>) {
        let shard = Arc::clone(self);
        self.unreplicated.notify_in_order(written, callbacks, move || shard.flush_elsewhere());
    }

    /// Locks the writer, as another thread that appends would do. No thread can append until the guard is dropped.
    #[cfg(test)]
    pub fn hold(&self) -> parking_lot::MutexGuard<'_, BytesMut> {
        self.writer.lock()
    }

    /// Appends the queued writes. If another thread is already appending, leaves them to that thread. Blocks on the
    /// disk if the partition has no log yet.
    pub fn flush(self: &Arc<Self>) {
        // Orders the write in the queue before `try_lock`. If `try_lock` fails, the thread that holds the lock checks
        // the queue after it has unlocked, and so finds this write.
        fence(Ordering::SeqCst);
        for _ in 0..ROUNDS_MAX {
            let Some(mut memory) = self.writer.try_lock() else { return };
            let writes = std::mem::take(&mut *self.waiting.lock());
            WriteBatch::new(self, &mut memory).append(writes);
            drop(memory);
            fence(Ordering::SeqCst);
            let is_late = self.waiting.lock().first().map(|write| matches!(write.records, Records::Late(_)));
            // Late records are computed only after the callbacks of all earlier writes. If these are pending, the task
            // that calls them will continue here.
            if is_late.is_none_or(|is_late| is_late && !self.unreplicated.is_empty()) {
                return;
            }
        }
        self.flush_elsewhere();
    }

    /// Returns true if the records are part of a transaction that may have ended. If they are a marker, remembers the
    /// transactions that it ends. The caller has locked the queue.
    fn may_be_past(&self, records: &Records) -> bool {
        let mut ended = self.ended.lock();
        match records {
            Records::Marker(marker, version) => ended.note(marker, *version),
            Records::Transactional(of, _) => return ended.may_have_ended(of.producer, of.seen, self.leader_epoch()),
            Records::Plain(_) | Records::Together(_) | Records::Late(_) => {}
        }
        false
    }

    fn append_marker(&self, marker: &Marker, transaction_version: i8) -> AppendResult {
        let leader_epoch = Some(self.leader_epoch());
        Ok(self.partition.append_marker(marker, transaction_version, leader_epoch, now_ms())?.durability)
    }

    /// Puts these writes back to the front of the queue.
    fn put_back(&self, first: Write, rest: impl Iterator<Item = Write>) {
        let mut waiting = self.waiting.lock();
        let later = std::mem::take(&mut *waiting);
        waiting.extend([first].into_iter().chain(rest).chain(later));
    }

    /// Appends like [`Shard::flush`], without blocking the caller's thread.
    pub async fn flush_soon(self: &Arc<Self>) {
        if self.partition.phase().is_open() {
            self.flush();
            return;
        }
        let shard = Arc::clone(self);
        if tokio::task::spawn_blocking(move || shard.flush()).await.is_err() {
            tracing::error!(
                topic = self.partition.topic(),
                partition = self.partition.index(),
                "cannot append a coordinator's records: the append has panicked"
            );
        }
    }

    /// Appends like [`Shard::flush`] on another thread. The caller does not wait.
    pub fn flush_elsewhere(self: &Arc<Self>) {
        let shard = Arc::clone(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || shard.flush());
        } else {
            shard.flush();
        }
    }
}

/// Writes that will be appended together.
struct WriteBatch<'a> {
    shard: &'a Arc<Shard>,
    memory: &'a mut BytesMut,
    /// Maximum size of a batch.
    bytes_max: usize,
    /// The producer in whose transaction the records are. `None` for records outside of transactions.
    producer: Option<VerifiedProducer>,
    records: Vec<KeyValue>,
    bytes: usize,
    callbacks: Vec<AppendCallback>,
}

impl<'a> WriteBatch<'a> {
    fn new(shard: &'a Arc<Shard>, memory: &'a mut BytesMut) -> Self {
        let config = shard.partition.config();
        let allowed = config.max_message_bytes.min(usize::try_from(config.segment_bytes).unwrap_or(usize::MAX));
        let bytes_max = BATCH_BYTES.min(allowed.saturating_sub(HEADER_LEN));
        WriteBatch { shard, memory, bytes_max, producer: None, records: Vec::new(), bytes: 0, callbacks: Vec::new() }
    }

    fn append(mut self, writes: Vec<Write>) {
        let mut writes = writes.into_iter();
        while let Some(Write { records, callback }) = writes.next() {
            let (records, may_split) = match records {
                Records::Plain(records) => (records, true),
                Records::Together(records) => (records, false),
                Records::Transactional(of, records) => {
                    self.finish();
                    self.producer = Some(of);
                    let appended = self.append_all(records.into_iter());
                    self.producer = None;
                    self.shard.notify_in_order(appended, vec![callback]);
                    continue;
                }
                Records::Marker(marker, transaction_version) => {
                    self.finish();
                    let appended = self.shard.append_marker(&marker, transaction_version);
                    self.shard.notify_in_order(appended, vec![callback]);
                    continue;
                }
                Records::Late(records) => {
                    self.finish();
                    if !self.shard.unreplicated.is_empty() {
                        // Late records depend on the callbacks of earlier writes, which have not been called yet.
                        self.shard.put_back(Write { records: Records::Late(records), callback }, writes);
                        return;
                    }
                    let appended = self.append_all(records());
                    self.shard.notify_in_order(appended, vec![callback]);
                    continue;
                }
            };
            let bytes = records.iter().map(size_of_record).sum::<usize>();
            if self.bytes + bytes > self.bytes_max {
                self.finish();
            }
            if bytes > self.bytes_max && may_split {
                let appended = self.append_all(records.into_iter());
                self.shard.notify_in_order(appended, vec![callback]);
                continue;
            }
            self.records.extend(records);
            self.bytes += bytes;
            self.callbacks.push(callback);
            if self.bytes > self.bytes_max {
                self.finish();
            }
        }
        self.finish();
    }

    /// Appends the collected records and calls the callbacks of their writes.
    fn finish(&mut self) {
        let appended = self.append_records();
        let callbacks = std::mem::take(&mut self.callbacks);
        if !callbacks.is_empty() {
            self.shard.notify_in_order(appended, callbacks);
        }
    }

    /// Appends the records of one write, in as many batches as they need.
    fn append_all(&mut self, records: impl Iterator<Item = KeyValue>) -> AppendResult {
        for record in records {
            let bytes = size_of_record(&record);
            if self.bytes + bytes > self.bytes_max {
                self.append_records()?;
            }
            self.bytes += bytes;
            self.records.push(record);
        }
        self.append_records()
    }

    /// Appends the collected records, if there are any.
    fn append_records(&mut self) -> AppendResult {
        if std::mem::take(&mut self.bytes) == 0 {
            return Ok(Durability::default());
        }
        let now_ms = now_ms();
        let memory = std::mem::take(self.memory);
        let builder = BatchBuilder::new(memory, self.shard.compression, Level::default());
        let mut builder = if self.producer.is_some() { builder.transactional() } else { builder };
        for (key, value) in self.records.drain(..) {
            builder.append(now_ms, Some(&key), value.as_deref(), &[]);
        }
        let stamp = self.producer.map_or(Stamp::NONE, |VerifiedProducer { producer, .. }| Stamp {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            ..Stamp::NONE
        });
        let (sealed, spare) = builder.seal(stamp).map_err(|_| InvalidBatch::Header)?;
        let batch = BatchView::first(&sealed).map_err(|_| InvalidBatch::Header)?;
        let (config, in_turn) = (self.shard.partition.config(), AppendTerms::in_turn(Acks::All, now_ms));
        let (batch, verification) = match self.producer {
            None => (ValidBatch::of(batch, &config, now_ms)?, in_turn.verification),
            Some(_) => (ValidBatch::of_offsets(batch, &config, now_ms)?, Verification::Verified),
        };
        let leader_epoch = Some(self.shard.leader_epoch());
        let verified_at = self.verified_at(stamp.producer_id)?;
        let terms = AppendTerms { leader_epoch, verification, verified_at, ..in_turn };
        let appended = self.shard.partition.append(&batch, terms);
        *self.memory = spare.unwrap_or(sealed);
        if self.memory.capacity() > 2 * BATCH_BYTES {
            *self.memory = BytesMut::new();
        }
        let written = match appended? {
            AppendStep::Blocked(_) => return Err(AppendError::Unverified),
            // A batch without sequence numbers is never parked, so it is either written or refused.
            step => step.into_written().ok_or(AppendError::Gone)?,
        };
        Ok(written.durability)
    }
}

impl WriteBatch<'_> {
    /// Returns the partition's present state, with the epoch of the coordinator that verified the transaction. The
    /// state at the time of the verification is not needed, since [`EndedTransactions`] has checked the markers since
    /// then.
    ///
    /// # Errors
    /// Returns [`AppendError::Unverified`] if the log has forgotten the producer since the verification, and with it
    /// the epoch of the producer's coordinator.
    fn verified_at(&self, producer_id: i64) -> Result<VerificationTime, AppendError> {
        let partition = &self.shard.partition;
        let Some(VerifiedProducer { at, .. }) = self.producer else { return Ok(VerificationTime::default()) };
        if at.coordinator_epoch.is_some() && partition.has_forgotten_since(producer_id, at) {
            return Err(AppendError::Unverified);
        }
        Ok(VerificationTime { coordinator_epoch: at.coordinator_epoch, ..partition.verification_time(producer_id) })
    }
}

/// Returns the maximum number of bytes that a record takes in a batch.
pub fn size_of_record((key, value): &KeyValue) -> usize {
    record_size_max(Some(key), value.as_deref(), &[])
}
