//! One partition of an internal topic, as its coordinator writes it: what waits to be appended, and who is told once it is.
//!
//! Whoever asks appends, together with whatever waits by then, unless somebody does so at that moment, who then appends
//! that, too. So no thread has to be woken, and those who ask at the same time share a batch.
//!
//! Invariants: writes are appended, and told of, in the order in which they were asked for. After each unlock of the writer
//! the queue is looked at again, so that a write whose asker found the lock taken is appended by who had it.

use super::Pending;
use crate::classic::{Acks, AppendError, Partition, Ticket, now_ms};
use bytes::{Bytes, BytesMut};
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, HEADER_LEN, Level, Stamp, record_size_max};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use tokio::sync::{oneshot, watch};

/// Bytes of a batch that several writes share, where the topic allows as much. A larger write has batches of its own.
const BATCH_BYTES: usize = 512 << 10;
/// Writes waiting at which whoever asks appends at once.
const WAITING_MAX: usize = 512;
/// Times that one who asks appends what others have asked for meanwhile; then a thread goes on.
const ROUNDS_MAX: usize = 4;

/// A record: its key, and its value unless it is a tombstone.
pub type KeyValue = (Bytes, Option<Bytes>);

/// The records of a write.
pub enum Records {
    /// They are these.
    Known(Vec<KeyValue>),
    /// See [`Records::late`].
    Late(Late),
}

type Late = Box<dyn FnOnce() -> Box<dyn Iterator<Item = KeyValue>> + Send>;

impl Records {
    /// They follow from what is true once everything asked for before is told, and are made one by one, since they may be many.
    /// The call takes no lock that anybody holds while asking for a write, nor does the iterator.
    pub fn late<I: Iterator<Item = KeyValue> + 'static>(records: impl FnOnce() -> I + Send + 'static) -> Records {
        Records::Late(Box::new(|| Box::new(records())))
    }
}

/// Called when the records of a write are kept, or cannot be.
type Told = Box<dyn FnOnce(Result<Option<Ticket>, AppendError>) + Send>;

struct Write {
    records: Records,
    told: Told,
}

/// Whether a shard's state is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its log is being read.
    Loading,
    /// It is.
    Serving,
    /// Its log could not be read.
    Failed,
    /// The topic is deleted.
    Gone,
}

/// One partition of an internal topic.
pub struct Shard {
    partition: Arc<Partition>,
    compression: Compression,
    status: watch::Sender<Status>,
    waiting: Mutex<Vec<Write>>,
    /// Held while writes are appended and told of: the memory in which batches are built.
    writer: Mutex<BytesMut>,
}

impl Shard {
    /// Nothing of it is read yet, unless it was never written. Its batches will be compressed so.
    pub fn new(partition: Arc<Partition>, compression: Compression) -> Arc<Shard> {
        let is_absent = partition.is_settled() && !partition.is_open();
        let status = watch::Sender::new(if is_absent { Status::Serving } else { Status::Loading });
        Arc::new(Shard { partition, compression, status, waiting: Mutex::default(), writer: Mutex::default() })
    }

    /// Its log.
    pub fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    /// Whether its state is at hand.
    pub fn status(&self) -> Status {
        *self.status.borrow()
    }

    /// Its log was read, or could not be this time.
    pub fn set_loaded(&self, is_loaded: bool) {
        let status = if is_loaded { Status::Serving } else { Status::Failed };
        self.status.send_if_modified(|now| *now != Status::Gone && std::mem::replace(now, status) != status);
    }

    /// The topic is deleted.
    pub fn leave(&self) {
        self.status.send_replace(Status::Gone);
    }

    /// Waits until it is not being loaded.
    pub async fn loaded(&self) {
        // The sender lives as long as the shard.
        let _ = self.status.subscribe().wait_for(|status| *status != Status::Loading).await;
    }

    /// Asks for records to be kept. `told` is called once they are or cannot be, before the next write is told of, and what it
    /// returns goes to who awaits. It takes no lock that anybody holds while asking for a write. Nothing is appended before somebody
    /// awaits, calls [`Shard::flush`], or much waits.
    pub fn write<T: Send + 'static>(
        self: &Arc<Self>,
        records: Records,
        told: impl FnOnce(Result<(), AppendError>) -> T + Send + 'static,
    ) -> Pending<T> {
        let (answer, pending) = oneshot::channel();
        let told: Told = Box::new(move |result| {
            let outcome = match result {
                Ok(durable) => (told(Ok(())), durable),
                Err(error) => (told(Err(error)), None),
            };
            // Who went away does not want to know.
            let _ = answer.send(outcome);
        });
        let waiting = {
            let mut waiting = self.waiting.lock();
            waiting.push(Write { records, told });
            waiting.len()
        };
        if waiting >= WAITING_MAX && self.partition.is_open() {
            self.flush();
        }
        Pending::new(Arc::clone(self), pending)
    }

    /// Appends what waits, or leaves it to who does so at this moment. Blocks on the disk while the partition has no log yet.
    pub fn flush(self: &Arc<Self>) {
        // The write is in the queue before the lock is looked at.
        fence(Ordering::SeqCst);
        for _ in 0..ROUNDS_MAX {
            let Some(mut memory) = self.writer.try_lock() else { return };
            let writes = std::mem::take(&mut *self.waiting.lock());
            Batch::new(self, &mut memory).append(writes);
            drop(memory);
            fence(Ordering::SeqCst);
            if self.waiting.lock().is_empty() {
                return;
            }
        }
        self.flush_elsewhere();
    }

    /// As [`Shard::flush`], for who must not block.
    pub async fn flush_soon(self: &Arc<Self>) {
        if self.partition.is_open() {
            self.flush();
            return;
        }
        let shard = Arc::clone(self);
        if tokio::task::spawn_blocking(move || shard.flush()).await.is_err() {
            tracing::error!(
                topic = self.partition.topic(),
                partition = self.partition.index(),
                "appending has panicked"
            );
        }
    }

    /// As [`Shard::flush`], on another thread, and not waited for.
    pub fn flush_elsewhere(self: &Arc<Self>) {
        let shard = Arc::clone(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || shard.flush());
        } else {
            shard.flush();
        }
    }
}

/// The writes that are about to be appended together.
struct Batch<'a> {
    shard: &'a Shard,
    memory: &'a mut BytesMut,
    /// How large it may become.
    bytes_max: usize,
    records: Vec<KeyValue>,
    bytes: usize,
    told: Vec<Told>,
}

impl<'a> Batch<'a> {
    fn new(shard: &'a Shard, memory: &'a mut BytesMut) -> Self {
        let config = shard.partition.config();
        let allowed = config.max_message_bytes.min(usize::try_from(config.segment_bytes).unwrap_or(usize::MAX));
        let bytes_max = BATCH_BYTES.min(allowed.saturating_sub(HEADER_LEN));
        Batch { shard, memory, bytes_max, records: Vec::new(), bytes: 0, told: Vec::new() }
    }

    fn append(mut self, writes: Vec<Write>) {
        for Write { records, told } in writes {
            let records = match records {
                Records::Known(records) => records,
                Records::Late(records) => {
                    self.finish();
                    told(self.append_all(records()));
                    continue;
                }
            };
            let bytes = records.iter().map(size_of_record).sum::<usize>();
            if self.bytes + bytes > self.bytes_max {
                self.finish();
            }
            if bytes > self.bytes_max {
                told(self.append_all(records.into_iter()));
            } else {
                self.records.extend(records);
                self.bytes += bytes;
                self.told.push(told);
            }
        }
        self.finish();
    }

    /// Appends what was gathered, and tells.
    fn finish(&mut self) {
        let result = self.append_records();
        for told in self.told.drain(..) {
            told(result.clone());
        }
    }

    /// The records of one write, in as many batches as it takes.
    fn append_all(&mut self, records: impl Iterator<Item = KeyValue>) -> Result<Option<Ticket>, AppendError> {
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

    /// Appends the records that are gathered; none is no error.
    fn append_records(&mut self) -> Result<Option<Ticket>, AppendError> {
        if std::mem::take(&mut self.bytes) == 0 {
            return Ok(None);
        }
        let now_ms = now_ms();
        let memory = std::mem::take(self.memory);
        let mut builder = BatchBuilder::new(memory, self.shard.compression, Level::default());
        for (key, value) in self.records.drain(..) {
            builder.append(now_ms, Some(&key), value.as_deref(), &[]);
        }
        let (sealed, spare) = builder.seal(Stamp::NONE).map_err(|_| AppendError::InvalidRecord)?;
        let batch = BatchView::first(&sealed).map_err(|_| AppendError::InvalidRecord)?;
        let appended = self.shard.partition.append(batch, Acks::All, now_ms);
        *self.memory = spare.unwrap_or(sealed);
        if self.memory.capacity() > 2 * BATCH_BYTES {
            *self.memory = BytesMut::new();
        }
        appended.map(|appended| appended.ticket)
    }
}

/// Bytes of a record in a batch, at most.
pub fn size_of_record((key, value): &KeyValue) -> usize {
    record_size_max(Some(key), value.as_deref(), &[])
}
