//! The producer's interface for applications: send, flush, close.
//!
//! The shared state and the background tasks are in `core`. Invariant: `send` does not wait if there is memory, and if
//! the topic and the partition are known. It copies the record's bytes into a batch and returns. It allocates memory
//! only for a new batch.

use crate::broker::BrokerStatus;
use crate::config::ProducerConfig;
use crate::coordinator;
use crate::core::{Core, Topic};
use crate::delivery::Delivery;
use crate::error::SendError;
use crate::partition::{AppendRefusal, Partition};
use crate::partitioner::{self, RunLimits};
use crate::pool::Shortage;
use crate::record::ProducerRecord;
use crate::scope::TransactionScope;
use crate::sender;
use fullbore_client::{ConfigError, MetadataError};
use fullbore_wire::batch::{HEADER_LEN, record_size_max};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of partitions to try for a record without a key, if partitions have used up their share of the
/// memory.
const TRIES_MAX: usize = 8;
/// The name of the missing metadata in errors.
const METADATA: &str = "metadata of the topic";

/// An idempotent producer. Its tasks run on a thread of its own, or in a runtime of the caller
/// ([`Producer::in_runtime`]). Its methods may be called from any runtime and any task.
///
/// If it is dropped without [`Producer::close`], records that are not acknowledged yet fail.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use fullbore_producer::{Producer, ProducerConfig, ProducerRecord};
///
/// let producer = Producer::new(ProducerConfig::new("localhost:9092"))?;
/// let delivery = producer.send(ProducerRecord::new("events", b"hello").key(b"k")).await?;
/// let written = delivery.await?;
/// println!("partition {} offset {}", written.partition, written.offset);
/// producer.close(std::time::Duration::from_secs(30)).await;
/// # Ok(()) }
/// ```
pub struct Producer {
    pub(crate) core: Arc<Core>,
    runtime: tokio::runtime::Handle,
    background: Option<Background>,
}

/// A handle with which `close` waits for the end of the producer's tasks.
enum Background {
    /// The producer's own thread.
    Thread(std::thread::JoinHandle<()>),
    /// A task in the caller's runtime.
    Task(tokio::task::JoinHandle<()>),
}

impl Producer {
    /// Starts a producer on a thread of its own. The producer connects when it gets the first record.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if settings contradict each other, or if no thread can be started.
    pub fn new(config: ProducerConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let thread_error = |e: std::io::Error| ConfigError::Thread(e.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(thread_error)?;
        let handle = runtime.handle().clone();
        let core = Core::new(config, handle.clone(), sender::begin);
        let background = core.clone();
        let thread = std::thread::Builder::new()
            .name("fullbore-producer".to_owned())
            .spawn(move || {
                runtime.spawn(coordinator::run(background.clone()));
                runtime.block_on(background.run());
                // The thread must not wait for a name resolution in the runtime, which may take long.
                runtime.shutdown_background();
            })
            .map_err(thread_error)?;
        Ok(Producer { core, runtime: handle, background: Some(Background::Thread(thread)) })
    }

    /// Starts a producer whose tasks run in `runtime`, which must have tokio's timer and I/O driver enabled. All
    /// producers of a runtime share its threads, which saves context switches. Other tasks of the runtime must not
    /// block its threads, because the producer would then exceed its timeouts.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if settings contradict each other.
    pub fn in_runtime(config: ProducerConfig, runtime: tokio::runtime::Handle) -> Result<Self, ConfigError> {
        config.check()?;
        let core = Core::new(config, runtime.clone(), sender::begin);
        runtime.spawn(coordinator::run(core.clone()));
        let task = runtime.spawn(core.clone().run());
        Ok(Producer { core, runtime, background: Some(Background::Task(task)) })
    }

    /// Starts a producer from settings by Kafka's names.
    ///
    /// # Errors
    /// Returns [`ConfigError`] for the first setting that is not allowed, or for the first contradiction.
    pub fn from_properties<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        Self::new(ProducerConfig::from_properties(properties)?)
    }

    /// Queues a record for sending. Waits for up to max.block.ms if there is no memory, because buffer.memory or the
    /// partition's share of it is used up. Also waits for the metadata of an unknown topic, and for newer metadata if
    /// the partition is unknown. The [`Delivery`] resolves when the record is acknowledged or has failed.
    ///
    /// # Errors
    /// Returns [`SendError`] if the record is refused. The record was then certainly not written.
    pub async fn send(&self, record: ProducerRecord<'_>) -> Result<Delivery, SendError> {
        match self.core.ledger {
            Some(_) => Err(SendError::NoTransaction),
            None => self.send_in(record, None).await,
        }
    }

    /// Sends like [`Producer::send`], and within a transaction if `transaction` is given.
    pub(crate) async fn send_in(
        &self,
        record: ProducerRecord<'_>,
        transaction: Option<&Arc<TransactionScope>>,
    ) -> Result<Delivery, SendError> {
        match self.try_send_in(record, transaction) {
            Err(SendError::Full | SendError::NoMetadata | SendError::NoPartition { .. }) => {
                self.send_slowly(record, transaction).await
            }
            done => done,
        }
    }

    /// Sends like [`Producer::send`], but never waits.
    ///
    /// # Errors
    /// Returns [`SendError::Full`], [`SendError::NoMetadata`] or [`SendError::NoPartition`] where `send` would wait.
    pub fn try_send(&self, record: ProducerRecord<'_>) -> Result<Delivery, SendError> {
        match self.core.ledger {
            Some(_) => Err(SendError::NoTransaction),
            None => self.try_send_in(record, None),
        }
    }

    /// Sends like [`Producer::try_send`], and within a transaction if `transaction` is given.
    pub(crate) fn try_send_in(
        &self,
        record: ProducerRecord<'_>,
        transaction: Option<&Arc<TransactionScope>>,
    ) -> Result<Delivery, SendError> {
        let config = &self.core.config;
        let size = record_size_max(record.key, record.value, record.headers);
        if HEADER_LEN + size > config.max_request_size {
            return Err(SendError::RecordTooLarge { size: HEADER_LEN + size, max: config.max_request_size });
        }
        let timestamp = record.timestamp.unwrap_or_else(now_ms);
        self.core.with_topic(record.topic, |topic, state| {
            let partitions = state.partitions();
            let chosen = match (record.partition, record.key) {
                (Some(partition), _) => Some(partition),
                (None, Some(key)) if !config.partitioner_ignore_keys => {
                    Some(partitioner::for_key(key, partitions.len()) as i32)
                }
                _ => None,
            };
            let appended = match chosen {
                Some(chosen) => match usize::try_from(chosen).ok().and_then(|i| partitions.get(i)) {
                    Some(partition) => partition.append(&record, (timestamp, size), 1, transaction),
                    None => return Err(SendError::NoPartition { topic: record.topic.to_owned(), partition: chosen }),
                },
                None => append_anywhere(topic, &state.available, |p| {
                    p.append(&record, (timestamp, size), state.available.len(), transaction)
                }),
            };
            match appended {
                Ok(delivery) => {
                    if chosen.is_none() && state.available.len() > 1 {
                        let limits = RunLimits {
                            batch_size: config.batch_size,
                            batch_bytes_max: config.max_request_size.max(config.batch_size),
                        };
                        topic.sticky.produced(size, &limits, &state.available, |partition| partition.prospect());
                    }
                    Ok(delivery)
                }
                Err(AppendRefusal::Full(_)) => Err(SendError::Full),
                Err(AppendRefusal::Closed) => Err(SendError::Closed),
            }
        })
    }

    async fn send_slowly(
        &self,
        record: ProducerRecord<'_>,
        transaction: Option<&Arc<TransactionScope>>,
    ) -> Result<Delivery, SendError> {
        let started = Instant::now();
        let deadline = started.checked_add(self.core.config.max_block);
        let mut newer = None;
        loop {
            // The futures are created before the attempt, so that an event during the attempt resolves them.
            let (freed, changed) = (self.core.pool.freed(), self.core.topics_changed());
            let answered = self.core.metadata_answered();
            let waiting = self.core.pool.wait();
            let (what, in_time) = match self.try_send_in(record, transaction) {
                Err(SendError::Full) => {
                    self.core.wake_all();
                    ("room in buffer.memory", self.before(deadline, freed).await)
                }
                Err(SendError::NoMetadata) => {
                    drop(waiting);
                    (METADATA, self.before(deadline, changed).await)
                }
                // The topic may have more partitions by now. The record is therefore refused only after newer metadata
                // has arrived.
                Err(missing @ SendError::NoPartition { .. }) => {
                    drop(waiting);
                    let newer = *newer.get_or_insert_with(|| self.core.want_newer_metadata());
                    if answered >= newer || !self.before(deadline, changed).await {
                        return Err(missing);
                    }
                    continue;
                }
                done => return done,
            };
            if !in_time {
                return Err(self.timeout(what, started));
            }
        }
    }

    fn timeout(&self, what: &'static str, started: Instant) -> SendError {
        let why = self.core.trouble(Instant::now(), Duration::ZERO).unwrap_or_default();
        SendError::Timeout { what, waited: started.elapsed(), why }
    }

    /// Calls `report` with the reason once records have been waiting for a second, and again whenever the reason
    /// changes. The call is made in the producer's runtime and must not block.
    pub fn on_trouble(&self, mut report: impl FnMut(&str) + Send + 'static) {
        let mut troubles = self.core.troubles();
        self.runtime.spawn(async move {
            // An error means that the producer was dropped.
            while troubles.changed().await.is_ok() {
                let trouble = troubles.borrow_and_update().clone();
                if let Some(trouble) = trouble {
                    report(&trouble);
                }
            }
        });
    }

    /// Calls `report` once with each notice about settings that do not fit each other. For example, batches may be
    /// larger than a topic accepts, or a window may limit throughput. The call is made in the producer's runtime and
    /// must not block.
    pub fn on_notice(&self, report: impl FnMut(&str) + Send + 'static) {
        self.runtime.spawn(self.core.notices.each(report));
    }

    /// Waits for `event`. Returns false if the deadline passes first.
    pub(crate) async fn before(&self, deadline: Option<Instant>, event: impl Future<Output = ()>) -> bool {
        let Some(deadline) = deadline else {
            event.await;
            return true;
        };
        let sleep = {
            // The timer needs the producer's runtime, because callers may run in any runtime.
            let _runtime = self.runtime.enter();
            tokio::time::sleep_until(deadline.into())
        };
        tokio::select! {
            () = event => true,
            () = sleep => false,
        }
    }

    /// Connects to a bootstrap server, so that a tool can report an error at once if no server responds. The first
    /// records use this connection.
    ///
    /// # Errors
    /// Returns [`MetadataError`] of the last attempt, if no bootstrap server responds.
    pub async fn reach(&self) -> Result<(), MetadataError> {
        let cluster = self.core.cluster.clone();
        // Runs in the producer's own runtime, because the responses are read there.
        let found = self.runtime.spawn(async move { cluster.any().await.map(drop) });
        // The task fails only if the runtime has ended. The producer is then stopped and sends nothing.
        found.await.unwrap_or(Ok(()))
    }

    /// Returns the number of partitions of a topic. Fetches metadata if the topic is not known yet.
    ///
    /// # Errors
    /// Returns [`SendError::Timeout`] if max.block.ms passes before the metadata arrives, or another [`SendError`] if
    /// the topic cannot be used.
    pub async fn partitions(&self, topic: &str) -> Result<usize, SendError> {
        let started = Instant::now();
        loop {
            let changed = self.core.topics_changed();
            match self.core.with_topic(topic, |_, state| Ok(state.partitions().len())) {
                Err(SendError::NoMetadata) => {}
                done => return done,
            }
            if !self.before(started.checked_add(self.core.config.max_block), changed).await {
                return Err(self.timeout(METADATA, started));
            }
        }
    }

    /// Returns the brokers of the topics in use, with their grants and the load of their connections. Meant for tools
    /// that display them.
    pub fn brokers(&self) -> Vec<BrokerStatus> {
        self.core.statuses()
    }

    /// Sends all batches without lingering, and waits until every record from before the call has a result.
    pub async fn flush(&self) {
        let _hurry = self.core.flushing();
        for outcome in self.core.unfinished() {
            outcome.finished().await;
        }
    }

    /// Flushes, waits for transactions to end, and stops the producer. After `timeout` stops it in any case. Records
    /// without a result then fail.
    pub async fn close(mut self, timeout: Duration) {
        self.core.refuse_records();
        let ended = async {
            self.transactions_ended().await;
            self.flush().await;
        };
        self.before(Instant::now().checked_add(timeout), ended).await;
        self.core.stop();
        // The stop ends the thread or task.
        match self.background.take() {
            Some(Background::Thread(thread)) => drop(thread.join()),
            Some(Background::Task(task)) => drop(task.await),
            None => {}
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.core.stop();
    }
}

/// Appends a record that may go to any of these partitions. If the chosen partition has used its share of the memory,
/// tries others, up to [`TRIES_MAX`] in all.
fn append_anywhere(
    topic: &Topic,
    available: &[Arc<Partition>],
    append: impl Fn(&Arc<Partition>) -> Result<Delivery, AppendRefusal>,
) -> Result<Delivery, AppendRefusal> {
    let choose = || topic.sticky.choose(available, |partition| partition.prospect());
    let mut appended = append(choose());
    for _ in 1..available.len().min(TRIES_MAX) {
        if !matches!(appended, Err(AppendRefusal::Full(Shortage::Share))) {
            break;
        }
        topic.sticky.skip();
        appended = append(choose());
    }
    appended
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_does_not_wait_for_a_name_that_is_being_looked_up() {
        let producer = Producer::new(ProducerConfig::new("127.0.0.1:1")).expect("valid");
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        let (begins, begun) = std::sync::mpsc::channel();
        // Blocks a thread of the runtime, as a name resolution does.
        producer.runtime.spawn_blocking(move || {
            begins.send(()).expect("the test waits");
            ended.recv()
        });
        begun.recv().expect("it begins");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (reports, reported) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            runtime.block_on(producer.close(Duration::ZERO));
            reports.send(())
        });
        reported.recv_timeout(Duration::from_secs(30)).expect("closed, while the look-up goes on");
        drop(ends);
    }
}
