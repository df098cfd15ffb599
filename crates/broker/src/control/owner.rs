//! The owner of the database: takes a batch of commands, decides, writes, publishes, answers.
//!
//! Not where rules live (`decide`), nor SQL (`store`), nor who calls it when (`queue`). The order is fixed: a command is answered only
//! after the transaction with its changes is on disk and the image that shows them is published.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use fullbore_wire::{ErrorCode, Uuid};
use tokio::sync::{oneshot, watch};

use super::Follower;
use super::command::{
    AlterBrokerConfigs, AlterResourceConfigs, AlterTopicConfigs, Command, CreatePartitions, CreateTopics, Outcome,
    Refusal, TopicRef,
};
use super::decide;
use super::image::{Image, Topic};
use super::sqlite::{Change, Store, is_full};
use super::telling;
use crate::config::BrokerConfig;
use crate::space::Space;

/// Producer ids of one block: one write of the disk per this many producers.
pub(super) const PRODUCER_ID_BLOCK: i64 = 1000;

/// A command and who waits for its outcome.
pub(super) struct Asked {
    pub command: Command,
    /// Who asked, as the log tells it; `None` is this broker itself.
    pub by: Option<Arc<str>>,
    pub answer: oneshot::Sender<Outcome>,
}

pub(super) struct Owner {
    pub store: Store,
    pub space: Arc<Space>,
    pub broker: Arc<BrokerConfig>,
    pub published: watch::Sender<Arc<Image>>,
    /// Told of each image before it is published.
    pub follower: Option<Follower>,
    pub producer_ids: ProducerIds,
}

/// Producer ids: a block is used only after the row that takes it away is on disk.
#[derive(Debug, Clone)]
pub(super) struct ProducerIds {
    block: Range<i64>,
    next_block: i64,
}

impl ProducerIds {
    /// Ids from `next_block` on are nobody's yet.
    pub fn starting_at(next_block: i64) -> Self {
        Self { block: next_block..next_block, next_block }
    }
}

/// What a batch of commands would change: nothing of it is true before it is committed.
struct Draft<'a> {
    broker: &'a BrokerConfig,
    image: Arc<Image>,
    image_changed: bool,
    producer_ids: ProducerIds,
    changes: Vec<Change>,
}

impl Owner {
    /// One batch, one transaction.
    pub(super) fn serve(&mut self, batch: Vec<Asked>) {
        let mut draft = Draft {
            broker: &self.broker,
            image: Arc::clone(&self.published.borrow()),
            image_changed: false,
            producer_ids: self.producer_ids.clone(),
            changes: Vec::new(),
        };
        let decided: Vec<(Asked, Outcome)> = batch
            .into_iter()
            .map(|asked| {
                let outcome = draft.decide(&asked.command);
                (asked, outcome)
            })
            .collect();
        let Draft { image, image_changed, producer_ids, changes, .. } = draft;
        let failed = self.commit(image, image_changed, producer_ids, changes).err();
        for (asked, outcome) in decided {
            let outcome = match &failed {
                None => {
                    telling::tell(&asked.command, &outcome, asked.by.as_deref().unwrap_or("this broker"));
                    outcome
                }
                Some(refusal) => refuse_all(&asked.command, refusal),
            };
            // A caller that went away no longer wants to know.
            let _ = asked.answer.send(outcome);
        }
    }

    fn commit(
        &mut self,
        mut image: Arc<Image>,
        image_changed: bool,
        producer_ids: ProducerIds,
        changes: Vec<Change>,
    ) -> Result<(), Refusal> {
        if image_changed {
            let epoch = image.epoch() + 1;
            Arc::make_mut(&mut image).set_epoch(epoch);
        }
        if !changes.is_empty() {
            self.write(&changes, image.epoch())?;
        }
        self.producer_ids = producer_ids;
        if image_changed {
            if let Some(follower) = &mut self.follower {
                let before = Arc::clone(&self.published.borrow());
                follower(&before, &image);
            }
            self.published.send_replace(image);
        }
        Ok(())
    }
}

impl Owner {
    /// On a full disk, first with the room that the write-ahead log has, and what frees space with the reserve.
    fn write(&mut self, changes: &[Change], epoch: u64) -> Result<(), Refusal> {
        let full = || Refusal::new(ErrorCode::KAFKA_STORAGE_ERROR, "The disk is full.");
        let frees_space = changes.iter().any(Change::frees_space);
        let store = &mut self.store;
        let mut written = {
            let admission = self.space.admit();
            if admission.is_none() && !frees_space {
                return Err(full());
            }
            match store.commit(changes, epoch) {
                Err(error) if is_full(&error) => {
                    self.space.note_full();
                    store.begin_log_anew();
                    store.commit(changes, epoch)
                }
                written => written,
            }
        };
        if frees_space && written.as_ref().is_err_and(is_full) {
            written = self.space.freeing(is_full, || store.commit(changes, epoch));
        }
        written.map_err(|error| {
            if is_full(&error) {
                return full();
            }
            tracing::error!(%error, changes = changes.len(), "control.db cannot be written; nothing was changed");
            Refusal::new(ErrorCode::KAFKA_STORAGE_ERROR, format!("The metadata cannot be written: {error}"))
        })
    }
}

impl Draft<'_> {
    fn decide(&mut self, command: &Command) -> Outcome {
        let broker = self.broker;
        match command {
            Command::CreateTopics(wanted) => Outcome::Topics(self.create(broker, wanted)),
            Command::CreatePartitions(wanted) => Outcome::Topics(self.grow(wanted)),
            Command::DeleteTopics(targets) => Outcome::Topics(self.delete(broker, targets)),
            Command::AlterTopicConfigs(wanted) => Outcome::Topics(self.alter(broker, wanted)),
            Command::AlterBrokerConfigs(wanted) => Outcome::Configured(self.alter_brokers(broker, wanted)),
            Command::AlterResourceConfigs(wanted) => Outcome::Configured(self.alter_resources(broker, wanted)),
            Command::ForgetDeleted(topics) => {
                self.changes.extend(topics.iter().map(|id| Change::ForgetDeleted(*id)));
                Outcome::Done(Ok(()))
            }
            Command::InitProducerId => Outcome::ProducerId(self.producer_id()),
            Command::ForgetKept => {
                self.changes.push(Change::ForgetKept);
                Outcome::Done(Ok(()))
            }
        }
    }

    fn create(&mut self, broker: &BrokerConfig, wanted: &CreateTopics) -> Vec<Result<Arc<Topic>, Refusal>> {
        let repeated = decide::repeated(wanted.topics.iter().map(|topic| &topic.name));
        let mut one = |topic: &super::CreateTopic| {
            refuse_repeated(&repeated, &&topic.name)?;
            let id = if wanted.validate_only { Uuid::ZERO } else { random_id() };
            let topic = Arc::new(decide::create(&self.image, broker, topic, id)?);
            if !wanted.validate_only {
                self.put(Change::Create(Arc::clone(&topic)), &topic);
            }
            Ok(topic)
        };
        wanted.topics.iter().map(&mut one).collect()
    }

    fn grow(&mut self, wanted: &CreatePartitions) -> Vec<Result<Arc<Topic>, Refusal>> {
        let repeated = decide::repeated(wanted.topics.iter().map(|topic| &topic.name));
        let mut one = |asked: &super::GrowTopic| {
            refuse_repeated(&repeated, &&asked.name)?;
            let topic = Arc::new(decide::grow(&self.image, asked)?);
            if !wanted.validate_only {
                let first = self.image.topic(&topic.name).map_or(0, |before| before.partitions.len());
                self.put(Change::Grow(Arc::clone(&topic), first), &topic);
            }
            Ok(topic)
        };
        wanted.topics.iter().map(&mut one).collect()
    }

    fn delete(&mut self, broker: &BrokerConfig, targets: &[TopicRef]) -> Vec<Result<Arc<Topic>, Refusal>> {
        let before = Arc::clone(&self.image);
        let found: Vec<_> = targets.iter().map(|target| decide::delete(&before, broker, target)).collect();
        let repeated = decide::repeated(found.iter().flatten().map(|topic| topic.id));
        let mut one = |found: Result<Arc<Topic>, Refusal>| {
            let topic = found?;
            refuse_repeated(&repeated, &topic.id)?;
            self.remove(&topic);
            Ok(topic)
        };
        found.into_iter().map(&mut one).collect()
    }

    fn alter(&mut self, broker: &BrokerConfig, wanted: &AlterTopicConfigs) -> Vec<Result<Arc<Topic>, Refusal>> {
        let repeated = decide::repeated(wanted.topics.iter().map(|topic| &topic.name));
        let mut one = |topic: &super::AlterTopicConfig| {
            refuse_repeated(&repeated, &&topic.name)?;
            let topic = Arc::new(decide::alter(&self.image, broker, topic)?);
            if !wanted.validate_only {
                self.put(Change::Configure(Arc::clone(&topic)), &topic);
            }
            Ok(topic)
        };
        wanted.topics.iter().map(&mut one).collect()
    }

    fn alter_brokers(&mut self, broker: &BrokerConfig, wanted: &AlterBrokerConfigs) -> Vec<Result<(), Refusal>> {
        let repeated = decide::repeated(wanted.brokers.iter().map(|broker| broker.scope));
        let mut one = |changes: &super::AlterBrokerConfig| {
            refuse_repeated(&repeated, &changes.scope)?;
            let (dynamic, topics) = decide::alter_broker(&self.image, broker, changes)?;
            if !wanted.validate_only {
                let dynamic = Arc::new(dynamic);
                let image = Arc::make_mut(&mut self.image);
                image.set_dynamic(broker, Arc::clone(&dynamic)).map_err(decide::invalid_config)?;
                self.image_changed = true;
                self.changes.push(Change::ConfigureBrokers(dynamic));
                topics.into_iter().for_each(|topic| image.put(Arc::new(topic)));
            }
            Ok(())
        };
        wanted.brokers.iter().map(&mut one).collect()
    }

    fn alter_resources(&mut self, broker: &BrokerConfig, wanted: &AlterResourceConfigs) -> Vec<Result<(), Refusal>> {
        let named = |asked: &super::AlterResourceConfig| (asked.resource, asked.name.clone());
        let repeated = decide::repeated(wanted.resources.iter().map(named));
        let mut one = |asked: &super::AlterResourceConfig| {
            refuse_repeated(&repeated, &named(asked))?;
            let set = decide::alter_resource(&self.image, broker, asked)?;
            if !wanted.validate_only {
                let resource = (asked.resource, asked.name.as_str());
                let image = Arc::make_mut(&mut self.image);
                image.set_resource(broker, resource, set.clone()).map_err(decide::invalid_config)?;
                self.image_changed = true;
                self.changes.push(Change::ConfigureResource(asked.resource, asked.name.clone(), set));
            }
            Ok(())
        };
        wanted.resources.iter().map(&mut one).collect()
    }

    fn producer_id(&mut self) -> Result<i64, Refusal> {
        let ids = &mut self.producer_ids;
        if ids.block.is_empty() {
            let used_up = || Refusal::new(ErrorCode::UNKNOWN_SERVER_ERROR, "All producer ids are used up.");
            let end = ids.next_block.checked_add(PRODUCER_ID_BLOCK).ok_or_else(used_up)?;
            ids.block = ids.next_block..end;
            ids.next_block = end;
            self.changes.push(Change::NextProducerId(end));
        }
        let id = ids.block.start;
        ids.block.start += 1;
        Ok(id)
    }

    fn put(&mut self, change: Change, topic: &Arc<Topic>) {
        self.image_changed = true;
        self.changes.push(change);
        Arc::make_mut(&mut self.image).put(Arc::clone(topic));
    }

    fn remove(&mut self, topic: &Topic) {
        self.image_changed = true;
        self.changes.push(Change::Delete(topic.id));
        Arc::make_mut(&mut self.image).remove(&topic.name);
    }
}

/// A resource there twice in one request is refused each time, as Kafka does.
fn refuse_repeated<T: Ord>(repeated: &BTreeSet<T>, resource: &T) -> Result<(), Refusal> {
    match repeated.contains(resource) {
        true => Err(Refusal::new(ErrorCode::INVALID_REQUEST, "The request names this more than once.")),
        false => Ok(()),
    }
}

/// The outcome of a command when the control plane could not do anything.
pub(super) fn refuse_all(command: &Command, refusal: &Refusal) -> Outcome {
    let topics = |count: usize| Outcome::Topics(vec![Err(refusal.clone()); count]);
    match command {
        Command::CreateTopics(wanted) => topics(wanted.topics.len()),
        Command::CreatePartitions(wanted) => topics(wanted.topics.len()),
        Command::DeleteTopics(targets) => topics(targets.len()),
        Command::AlterTopicConfigs(wanted) => topics(wanted.topics.len()),
        Command::AlterBrokerConfigs(wanted) => Outcome::Configured(vec![Err(refusal.clone()); wanted.brokers.len()]),
        Command::AlterResourceConfigs(wanted) => {
            Outcome::Configured(vec![Err(refusal.clone()); wanted.resources.len()])
        }
        Command::InitProducerId => Outcome::ProducerId(Err(refusal.clone())),
        Command::ForgetDeleted(_) | Command::ForgetKept => Outcome::Done(Err(refusal.clone())),
    }
}

/// A version 4 uuid; one whose text starts with a dash would be an option to command line tools.
pub(super) fn random_id() -> Uuid {
    loop {
        let id = Uuid(uuid::Uuid::new_v4().into_bytes());
        if !id.to_string().starts_with('-') {
            return id;
        }
    }
}
