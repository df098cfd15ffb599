//! The writer of the metadata. For each batch of queued commands, it locks the store, reads other brokers' commits,
//! decides, commits, publishes the new image, and responds to the callers.
//!
//! `decide` contains the rules of the decisions, and `queue` the loop that removes commands from the queue. Invariants:
//! the writer responds to a command only after its version is committed and the new image is published. Every decision
//! is based on the newest image.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_wire::{ErrorCode, Uuid};
use tokio::sync::{oneshot, watch};

use super::change::Version;
use super::command::{ChangeCommand, Refusal, Urgent};
use super::decide::{ChangeBudget, Draft, Drafted, PRODUCER_ID_BLOCK};
use super::image::{Image, Inapplicable, TopicChange};
use super::pending::{CommandKind, PendingCommand};
use super::pieces::Pieces;
use super::reporting;
use super::store::{Progress, Store, Transaction};
use fullbore_config::BrokerConfig;
use fullbore_db::{CommitError, StoreError};
use fullbore_host::log_rate_limit::LogRateLimit;

/// A callback that receives each image together with the next one.
pub type ImageListener = Box<dyn FnMut(&Image, &Image) + Send>;

/// A command in the queue.
pub struct QueuedCommand {
    pub command: PendingCommand,
    /// The client that sent the command, for the log. `None` if this broker itself sent it.
    pub by: Option<Arc<str>>,
    /// The time at which the command arrived.
    pub at: Instant,
}

/// The writer, which owns the store.
pub struct MetadataWriter<S> {
    pub store: S,
    broker: Arc<BrokerConfig>,
    /// Draws topic ids and nonces.
    new_id: Box<dyn FnMut() -> Uuid + Send>,
    /// The unused producer ids of this broker's current block.
    producer_ids: Range<i64>,
    /// The next block of producer ids. The broker reserves it in advance, because the store may be unavailable when the
    /// block is needed.
    next_producer_ids: Range<i64>,
    /// The time at which the last attempt to reserve a block in advance failed; `None` if it succeeded.
    not_stocked: Option<Instant>,
    /// Limits the rate of log lines about an unavailable store.
    away: LogRateLimit,
    /// The size of the next piece, for commands that are split into pieces.
    pieces: Pieces,
    /// Commands that still have pieces left.
    unfinished: Vec<QueuedCommand>,
    publisher: Publisher,
}

/// How long the writer waits after a failed attempt to reserve producer ids in advance.
const STOCK_PAUSE: Duration = Duration::from_secs(10);

/// The published image, and the channel that delivers new images to readers.
pub struct Publisher {
    image: Arc<Image>,
    published: watch::Sender<Arc<Image>>,
    /// Called with each image before it is published.
    listener: Option<ImageListener>,
    /// The first unreserved producer id at the time when this broker last learnt of a new topic. Ids from this one on
    /// are newer than every known topic.
    newest_topic_after: i64,
}

/// The reason why commands could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("cannot apply another broker's change: {0}")]
    Inapplicable(#[from] Inapplicable),
    /// The outcome of a commit is unknown, so the commands may or may not have been carried out.
    #[error("{0}")]
    Unknown(String),
}

impl Failure {
    fn refusal(&self) -> Refusal {
        match self {
            Failure::Store(StoreError::Full) => Refusal::new(ErrorCode::KAFKA_STORAGE_ERROR, "The disk is full."),
            Failure::Store(error) if error.is_outage() => {
                let message = format!(
                    "The metadata cannot be changed now, since the brokers' database cannot be used ({self}); `fullbore admin check` shows why."
                );
                Refusal::new(ErrorCode::REQUEST_TIMED_OUT, message)
            }
            Failure::Store(_) | Failure::Inapplicable(_) => {
                Refusal::new(ErrorCode::KAFKA_STORAGE_ERROR, format!("The metadata cannot be written: {self}"))
            }
            Failure::Unknown(_) => {
                let message = format!("It is not known yet whether the change was made: {self}");
                Refusal::new(ErrorCode::REQUEST_TIMED_OUT, message)
            }
        }
    }

    fn log(&self, commands: usize, away: &LogRateLimit) {
        match self {
            Failure::Store(StoreError::Full) => {}
            Failure::Store(error) if error.is_outage() => {
                if let Some(left_out) = away.due() {
                    tracing::error!(error = %self, commands, left_out, "cannot change the metadata: its database cannot be used; `fullbore admin check` shows why");
                }
            }
            Failure::Unknown(_) => {
                tracing::error!(error = %self, commands, "cannot determine yet whether the database has committed a change of the metadata: the next transaction shows it")
            }
            _ => tracing::error!(error = %self, commands, "cannot write the metadata: nothing was changed"),
        }
    }
}

impl<S: Store> MetadataWriter<S> {
    /// Creates a writer with the empty image, and a receiver of images. `new_id` draws topic ids and nonces.
    pub fn new(
        store: S,
        broker: Arc<BrokerConfig>,
        new_id: Box<dyn FnMut() -> Uuid + Send>,
    ) -> Result<(Self, watch::Receiver<Arc<Image>>), Inapplicable> {
        let image = Arc::new(Image::empty(&broker)?);
        let (published, images) = watch::channel(Arc::clone(&image));
        let publisher = Publisher { image, published, listener: None, newest_topic_after: 0 };
        let owner = Self {
            store,
            broker,
            new_id,
            producer_ids: 0..0,
            next_producer_ids: 0..0,
            not_stocked: None,
            away: LogRateLimit::default(),
            pieces: Pieces::default(),
            unfinished: Vec::new(),
            publisher,
        };
        Ok((owner, images))
    }

    /// Returns true if commands have pieces left. The caller should then call [`MetadataWriter::serve`] again soon.
    pub fn is_unfinished(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// Carries out the commands of `batch`, and the next piece of each unfinished command, in one transaction.
    pub fn serve(&mut self, batch: Vec<QueuedCommand>) {
        let mut waiting = std::mem::take(&mut self.unfinished);
        waiting.extend(batch.into_iter().filter_map(|queued| self.answer_at_once(queued)));
        if !waiting.is_empty() {
            self.carry_out(waiting);
        }
        self.stock_up();
    }

    fn carry_out(&mut self, mut waiting: Vec<QueuedCommand>) {
        let decided = self.transact(|draft| waiting.iter_mut().for_each(|queued| queued.command.decide(draft)));
        if let Err(failure) = decided {
            failure.log(waiting.len(), &self.away);
            let refusal = failure.refusal();
            return waiting.into_iter().for_each(|queued| self.answer_without_store(queued.command, &refusal));
        }
        for QueuedCommand { command, by, at } in waiting {
            reporting::log(&command, by.as_deref().unwrap_or("this broker"));
            if let Some(command) = command.finish() {
                self.unfinished.push(QueuedCommand { command, by, at });
            }
        }
    }

    /// Responds to the command at once if it does not need the store. Refuses it if it has waited too long. Returns
    /// `None` in both cases, and otherwise the command.
    fn answer_at_once(&mut self, queued: QueuedCommand) -> Option<QueuedCommand> {
        if !self.publisher.is_newest(&self.producer_ids) && self.publisher.is_newest(&self.next_producer_ids) {
            self.producer_ids = std::mem::replace(&mut self.next_producer_ids, 0..0);
        }
        match queued.command {
            PendingCommand::ProducerId(pending) if self.publisher.is_newest(&self.producer_ids) => {
                pending.send(Ok(self.producer_ids.next().expect("the block is not empty")));
                None
            }
            command if self.store.wait_max().is_some_and(|max| queued.at.elapsed() > max) => {
                let message = "The metadata cannot be changed now: the command has waited too long for the database.";
                command.refuse(&Refusal::new(ErrorCode::REQUEST_TIMED_OUT, message));
                None
            }
            command => Some(QueuedCommand { command, ..queued }),
        }
    }

    /// Responds to a command while the store cannot be used. A request for a producer id gets one of the reserved ids,
    /// if any remain. All other commands are refused. A reserved id may be older than the newest topics. If such a
    /// topic has replaced a deleted topic of the same name, its partitions accept any first sequence from the producer
    /// with that id.
    fn answer_without_store(&mut self, command: PendingCommand, refusal: &Refusal) {
        match command {
            PendingCommand::ProducerId(pending) => {
                let id = self.producer_ids.next().or_else(|| self.next_producer_ids.next());
                pending.send(id.ok_or_else(|| refusal.clone()));
            }
            command => command.refuse(refusal),
        }
    }

    /// Reserves the next block of producer ids once half of the current block is used. Does nothing for a store on this
    /// machine, which is always available.
    pub fn stock_up(&mut self) {
        let is_needed = !self.publisher.is_newest(&self.next_producer_ids)
            && self.producer_ids.end - self.producer_ids.start <= PRODUCER_ID_BLOCK / 2;
        let is_pause = self.not_stocked.is_some_and(|at| at.elapsed() < STOCK_PAUSE);
        if self.store.wait_max().is_none() || !is_needed || is_pause {
            return;
        }
        let at_hand = std::mem::replace(&mut self.producer_ids, 0..0);
        match self.transact(|draft| draft.producer_id()) {
            Ok(first) => {
                let fetched = std::mem::replace(&mut self.producer_ids, at_hand);
                if let Ok(first) = first {
                    self.next_producer_ids = first..fetched.end;
                }
                self.not_stocked = None;
            }
            Err(failure) => {
                self.producer_ids = at_hand;
                self.not_stocked = Some(Instant::now());
                failure.log(1, &self.away);
            }
        }
    }

    /// Runs `decide` on the newest image, commits and publishes the changes, and returns the result of `decide`.
    pub fn transact<T>(&mut self, decide: impl FnOnce(&mut Draft<'_>) -> T) -> Result<T, Failure> {
        // Only this broker locks a store on this machine, so its commands are not split into pieces.
        let is_apart = self.store.wait_max().is_some();
        let room = if is_apart { self.pieces.room() } else { ChangeBudget::new(usize::MAX) };
        let (transaction, progress) = self.store.begin(self.publisher.image.version())?;
        let locked = Instant::now();
        self.publisher.catch_up(&self.broker, progress)?;
        let is_of_use = self.publisher.is_newest(&self.producer_ids);
        let at_hand = if is_of_use { self.producer_ids.clone() } else { 0..0 };
        let newest = &self.publisher.image;
        let mut draft = Draft::new(&self.broker, newest, at_hand, room, &mut *self.new_id);
        let decided = decide(&mut draft);
        let Drafted { image, changes, producer_ids, unsettled, is_settling, is_full } = draft.finish();
        if changes.is_empty() {
            drop(transaction);
        } else {
            let version = Version { number: newest.epoch() + 1, nonce: nonce((self.new_id)()) };
            match transaction.commit(&changes, version) {
                Ok(()) => self.publisher.publish(image.at(version)),
                Err(CommitError::Refused(error)) => {
                    self.pieces.failed();
                    return Err(error.into());
                }
                Err(CommitError::Unknown(reason)) => {
                    self.pieces.failed();
                    self.confirm(version, &reason)?;
                }
            }
        }
        if is_full {
            self.pieces.took(locked.elapsed());
        }
        if let Some(urgent) = unsettled.filter(|_| !is_settling) {
            self.settle_later(urgent);
        }
        if is_of_use || !producer_ids.is_empty() {
            self.producer_ids = producer_ids;
        }
        Ok(decided)
    }

    /// Decides the remaining partitions in the next transaction, beginning with `urgent`. No caller waits for the
    /// outcome.
    fn settle_later(&mut self, urgent: Urgent) {
        let (reply, _) = oneshot::channel();
        let command = ChangeCommand::Settle(urgent).pending(reply);
        self.unfinished.push(QueuedCommand { command, by: None, at: Instant::now() });
    }

    /// Finds out whether a commit without a response was made. Takes the lock first, so that the commit cannot still be
    /// in progress. If the store is unreachable, the outcome stays unknown until the next transaction reads the
    /// commits.
    fn confirm(&mut self, version: Version, reason: &str) -> Result<(), Failure> {
        tracing::warn!(
            reason,
            version = version.number,
            "a metadata commit got no answer: checking whether it was made"
        );
        let unknown = |error: StoreError| Failure::Unknown(format!("{reason}; {error}"));
        let (mut transaction, progress) = self.store.begin(self.publisher.image.version()).map_err(unknown)?;
        let is_committed = transaction.includes(version).map_err(unknown)?;
        drop(transaction);
        let caught_up = self.publisher.catch_up(&self.broker, progress);
        caught_up.map_err(|error| Failure::Unknown(format!("{reason}; {error}")))?;
        match is_committed {
            true => Ok(()),
            false if self.store.wait_max().is_some() => Err(StoreError::Away(reason.into()).into()),
            false => Err(StoreError::Failed(reason.to_owned()).into()),
        }
    }

    /// Reads and publishes other brokers' commits, unless `version` is published already.
    pub fn catch_up_to(&mut self, version: u64) {
        if self.publisher.image.epoch() < version {
            self.catch_up();
        }
    }

    /// Reads and publishes other brokers' commits, without the lock.
    pub fn read(&mut self) -> Result<(), Failure> {
        let progress = self.store.read_since(self.publisher.image.version())?;
        Ok(self.publisher.catch_up(&self.broker, progress)?)
    }

    /// Reads and publishes other brokers' commits, without the lock. Logs a failure.
    pub fn catch_up(&mut self) {
        match self.read() {
            Ok(()) => {}
            Err(Failure::Store(error)) if error.is_outage() => Failure::from(error).log(0, &self.away),
            Err(error) => {
                tracing::warn!(%error, "cannot read metadata commits of other brokers: this broker serves older metadata; retrying")
            }
        }
    }

    pub fn publisher(&mut self) -> &mut Publisher {
        &mut self.publisher
    }
}

impl Publisher {
    /// Returns the published image.
    #[cfg(any(test, feature = "test-util"))]
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Calls the listener with the empty image and the current one. Later calls it with each image and the next one.
    pub fn follow(&mut self, mut listener: ImageListener) {
        listener(&Image::default(), &self.image);
        self.listener = Some(listener);
    }

    /// Returns true if the block contains unused ids that are newer than every known topic. A producer with such an id
    /// cannot have written to a deleted topic whose name a present topic has.
    fn is_newest(&self, block: &Range<i64>) -> bool {
        !block.is_empty() && block.start >= self.newest_topic_after
    }

    fn catch_up(&mut self, broker: &BrokerConfig, progress: Progress) -> Result<(), Inapplicable> {
        match progress {
            Progress::Since(commits) if commits.is_empty() && self.image.stands_down() => {
                self.publish(self.image.standing_down(false));
            }
            Progress::Since(commits) if commits.is_empty() => {}
            Progress::Since(commits) => {
                let mut image = Image::clone(&self.image);
                for commit in &commits {
                    image = image.after(broker, commit)?;
                }
                self.publish(image);
            }
            Progress::Whole(newest) => self.publish(Image::empty(broker)?.after(broker, &newest)?),
        }
        Ok(())
    }

    /// Publishes that this broker stands down, unless its metadata has reached `version`. The next read of the store
    /// ends that.
    pub fn stand_down(&mut self, version: u64) {
        if self.image.epoch() < version && !self.image.stands_down() {
            self.publish(self.image.standing_down(true));
        }
    }

    /// Calls the listener with an image, and then publishes the image to readers.
    pub fn publish(&mut self, image: Image) {
        let has_new_topic = |(old, new): TopicChange<'_>| new.is_some_and(|new| old.is_none_or(|old| old.id != new.id));
        image.each_change_since(&self.image, |change| {
            if has_new_topic(change) {
                self.newest_topic_after = self.image.next_producer_id();
            }
        });
        let image = Arc::new(image);
        if let Some(listener) = &mut self.listener {
            listener(&self.image, &image);
        }
        self.image = Arc::clone(&image);
        self.published.send_replace(image);
    }
}

/// Computes a nonce from a random id.
fn nonce(id: Uuid) -> u64 {
    let id = u128::from_be_bytes(id.0);
    (id >> 64) as u64 ^ id as u64
}
