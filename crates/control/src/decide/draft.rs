//! Decides the commands of one transaction, one after another.
//!
//! Invariant: a response is sent only after all changes of the draft are committed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::sequence::{PastTopic, PastTopics};
use fullbore_wire::{ErrorCode, Uuid};

use super::super::change::{Change, DeletedTopic};
use super::super::command::{
    AlterBrokerConfig, AlterBrokerConfigs, AlterResourceConfig, AlterResourceConfigs, AlterTopicConfig,
    AlterTopicConfigs, ChangeBroker, ChangeCommand, ConfigsCommand, CreatePartitions, CreateTopic, CreateTopics,
    GrowTopic, PartitionsCommand, Refusal, RegisterBroker, TopicRef, TopicsCommand, UpdateFeatures, Urgent,
};
use super::super::image::{Image, Topic};
use super::super::internal::is_internal;
use super::features::update_features;
use super::{
    ChangeBudget, Registering, alter, alter_broker, alter_isrs, alter_resource, change_broker, check_requested, create,
    delete, elect, grow, inapplicable, known, register, relaxed, repeated, report_log_ends, requested_partitions,
    resign, settle_all, settle_these,
};
use fullbore_config::BrokerConfig;

/// Number of producer ids in the block that a broker reserves with one commit.
pub const PRODUCER_ID_BLOCK: i64 = 1000;

/// The decisions of one transaction. Each command sees the changes of the commands before it.
pub struct Draft<'a> {
    broker: &'a BrokerConfig,
    new_id: &'a mut dyn FnMut() -> Uuid,
    /// How many more partitions this transaction may change through commands that are split into pieces.
    room: ChangeBudget,
    /// The published image, without the changes of this draft.
    published: &'a Image,
    drafted: Drafted,
}

/// The result of a draft, which is valid only once its changes are committed.
pub struct Drafted {
    /// The image with all changes of the draft.
    pub image: Image,
    pub changes: Vec<Change>,
    /// Producer ids that this broker has reserved but has not yet assigned to producers.
    pub producer_ids: Range<i64>,
    /// The partitions whose leaders and ISRs the next transaction decides first. `None` if all partitions are decided.
    pub unsettled: Option<Urgent>,
    /// True if a `Settle` command has pieces left. A caller of that command waits for the last piece.
    pub is_settling: bool,
    /// True if the budget was too small for all changes of a piece.
    pub is_full: bool,
}

impl<'a> Draft<'a> {
    /// Creates an empty draft. `room` limits how many partitions a piece may change. `new_id` draws the ids of new
    /// topics.
    pub fn new(
        broker: &'a BrokerConfig,
        published: &'a Image,
        producer_ids: Range<i64>,
        room: ChangeBudget,
        new_id: &'a mut dyn FnMut() -> Uuid,
    ) -> Self {
        let drafted = Drafted {
            image: published.clone(),
            changes: Vec::new(),
            producer_ids,
            unsettled: None,
            is_settling: false,
            is_full: false,
        };
        Self { broker, new_id, room, published, drafted }
    }

    /// Returns the changed image and the list of changes.
    pub fn finish(self) -> Drafted {
        Drafted { is_full: self.room.is_short(), ..self.drafted }
    }

    /// Decides a command on topics.
    pub fn topics(&mut self, command: &TopicsCommand) -> Vec<Result<Arc<Topic>, Refusal>> {
        match command {
            TopicsCommand::Create(wanted) => self.create(wanted),
            TopicsCommand::Grow(wanted) => self.grow(wanted),
            TopicsCommand::Delete(targets) => self.delete(targets),
            TopicsCommand::Alter(wanted) => self.alter(wanted),
        }
    }

    /// Decides a command on settings or features.
    pub fn configs(&mut self, command: &ConfigsCommand) -> Vec<Result<(), Refusal>> {
        match command {
            ConfigsCommand::Brokers(wanted) => self.alter_brokers(wanted),
            ConfigsCommand::Resources(wanted) => self.alter_resources(wanted),
            ConfigsCommand::Features(wanted) => {
                let updated = self.update_features(wanted);
                vec![updated; wanted.updates.len()]
            }
        }
    }

    fn update_features(&mut self, wanted: &UpdateFeatures) -> Result<(), Refusal> {
        let changes = update_features(&self.drafted.image, self.broker.node.id, &wanted.updates)?;
        if wanted.validate_only { Ok(()) } else { self.make_all(changes) }
    }

    /// Decides a command on partitions.
    pub fn partitions(&mut self, command: &PartitionsCommand) -> Vec<Result<Arc<PartitionRegistration>, Refusal>> {
        let (changes, outcomes) = match command {
            PartitionsCommand::AlterIsr(requested) => alter_isrs(&self.drafted.image, requested),
            PartitionsCommand::ElectLeaders(requested) => elect(&self.drafted.image, requested),
        };
        match self.make_all(changes) {
            Ok(()) => outcomes,
            Err(refusal) => vec![Err(refusal); outcomes.len()],
        }
    }

    /// Decides the command, or its next piece if it is split into pieces. Returns `None` if the command has pieces
    /// left.
    pub fn change(&mut self, command: &ChangeCommand) -> Option<Result<(), Refusal>> {
        match command {
            ChangeCommand::ForgetDeleted(topics) => Some(self.forget(topics)),
            ChangeCommand::RegisterBroker(wanted) => self.register(wanted),
            ChangeCommand::ChangeBroker(requested) => Some(self.change_broker(requested)),
            ChangeCommand::Settle(urgent) => {
                let settled = self.settle(urgent);
                if settled.is_ok() && self.drafted.unsettled.is_some() {
                    self.drafted.is_settling = true;
                    return None;
                }
                Some(settled)
            }
            ChangeCommand::ReportLogEnds(broker, ends) => {
                let changes = report_log_ends(&self.drafted.image, broker, ends);
                Some(changes.and_then(|changes| self.make_all(changes)))
            }
            ChangeCommand::Resign(broker, partitions) => {
                let changes = resign(&self.drafted.image, broker, partitions);
                Some(changes.and_then(|changes| self.make_all(changes)))
            }
        }
    }

    fn register(&mut self, wanted: &RegisterBroker) -> Option<Result<(), Refusal>> {
        match register(&self.drafted.image, wanted, &mut self.room) {
            Ok(Registering::HandedOver(changes)) => self.make_all(changes).err().map(Err),
            Ok(Registering::Registered(changes)) => {
                let nobody: Urgent = Arc::new([]);
                Some(self.make_all(changes).and_then(|()| self.settle(&nobody)))
            }
            Err(refusal) => Some(Err(refusal)),
        }
    }

    fn change_broker(&mut self, requested: &ChangeBroker) -> Result<(), Refusal> {
        match change_broker(&self.drafted.image, &requested.broker, requested.change)? {
            Some(change) => {
                self.make(change)?;
                self.settle(&requested.urgent)
            }
            None => Ok(()),
        }
    }

    /// Decides leaders and ISRs, beginning with the `urgent` partitions, until the budget is used up.
    fn settle(&mut self, urgent: &Urgent) -> Result<(), Refusal> {
        let changes = settle_these(&self.drafted.image, urgent, &mut self.room);
        self.make_all(changes)?;
        if !self.room.is_short() {
            let changes = settle_all(&self.drafted.image, &mut self.room);
            self.make_all(changes)?;
        }
        if self.room.is_short() {
            self.drafted.unsettled = Some(Arc::clone(urgent));
        }
        Ok(())
    }

    fn create(&mut self, wanted: &CreateTopics) -> Vec<Result<Arc<Topic>, Refusal>> {
        let requested = wanted.topics.iter().map(|topic| requested_partitions(self.broker, topic));
        if let Err(refusal) = check_requested(requested) {
            return vec![Err(refusal); wanted.topics.len()];
        }
        let repeated = repeated(wanted.topics.iter().map(|topic| &topic.name));
        let mut one = |topic: &CreateTopic| {
            refuse_repeated(&repeated, &&topic.name)?;
            let id = if wanted.validate_only { Uuid::ZERO } else { (self.new_id)() };
            let change = create(&self.drafted.image, self.broker, topic, id)?;
            self.topic_after(&topic.name, change, wanted.validate_only)
        };
        wanted.topics.iter().map(&mut one).collect()
    }

    fn grow(&mut self, wanted: &CreatePartitions) -> Vec<Result<Arc<Topic>, Refusal>> {
        let has = |name: &str| self.drafted.image.topic(name).map_or(0, |topic| topic.partition_count());
        let requested = wanted.topics.iter().map(|topic| topic.count.saturating_sub(has(&topic.name)));
        if let Err(refusal) = check_requested(requested) {
            return vec![Err(refusal); wanted.topics.len()];
        }
        let repeated = repeated(wanted.topics.iter().map(|topic| &topic.name));
        let mut one = |topic: &GrowTopic| {
            refuse_repeated(&repeated, &&topic.name)?;
            let change = grow(&self.drafted.image, topic)?;
            self.topic_after(&topic.name, change, wanted.validate_only)
        };
        wanted.topics.iter().map(&mut one).collect()
    }

    fn delete(&mut self, targets: &[TopicRef]) -> Vec<Result<Arc<Topic>, Refusal>> {
        let find = |target| delete(&self.drafted.image, self.broker, target);
        let found: Vec<_> = targets.iter().map(find).collect();
        let repeated = repeated(found.iter().flatten().map(|topic| topic.id));
        let mut one = |found: Result<Arc<Topic>, Refusal>| {
            let topic = found?;
            refuse_repeated(&repeated, &topic.id)?;
            let partitions = topic.partition_count();
            self.make(Change::TopicDeleted(DeletedTopic { id: topic.id, name: topic.name.clone(), partitions }))?;
            if self.published.topic_by_id(topic.id).is_none() {
                // The topic was created in this transaction, so it has no files or rows to remove.
                self.make(Change::DeletionFinished { topic: topic.id })?;
            } else if !is_internal(&topic.name) {
                self.remember(&topic)?;
            }
            Ok(topic)
        };
        found.into_iter().map(&mut one).collect()
    }

    /// Remembers a deleted topic, for the next topic with the same name. If too many names without a topic are
    /// remembered then, forgets those whose topics were deleted longest ago.
    fn remember(&mut self, topic: &Topic) -> Result<(), Refusal> {
        let image = &self.drafted.image;
        let past = image.past_topics(&topic.name).followed_by(PastTopic {
            id: topic.id,
            partitions: topic.partition_count(),
            is_diskless: topic.config.diskless,
            deleted_at: image.epoch() + 1,
            producer_ids_below: image.next_producer_id(),
        });
        self.make(Change::NameRemembered { name: topic.name.clone(), past })?;
        while let Some(name) = self.drafted.image.forgettable_name().map(str::to_owned) {
            self.make(Change::NameRemembered { name, past: PastTopics::default() })?;
        }
        Ok(())
    }

    fn alter(&mut self, wanted: &AlterTopicConfigs) -> Vec<Result<Arc<Topic>, Refusal>> {
        let repeated = repeated(wanted.topics.iter().map(|topic| &topic.name));
        let mut one = |topic: &AlterTopicConfig| {
            refuse_repeated(&repeated, &&topic.name)?;
            let change = alter(&self.drafted.image, self.broker, topic)?;
            let before = self.drafted.image.clone();
            let altered = self.topic_after(&topic.name, change, wanted.validate_only)?;
            match self.relax(&before)? {
                true => known(&self.drafted.image, &topic.name).cloned(),
                false => Ok(altered),
            }
        };
        wanted.topics.iter().map(&mut one).collect()
    }

    fn alter_brokers(&mut self, wanted: &AlterBrokerConfigs) -> Vec<Result<(), Refusal>> {
        let repeated = repeated(wanted.brokers.iter().map(|broker| broker.scope));
        let mut one = |requested: &AlterBrokerConfig| {
            refuse_repeated(&repeated, &requested.scope)?;
            let change = alter_broker(&self.drafted.image, self.broker, requested)?;
            let before = self.drafted.image.clone();
            self.after(change, wanted.validate_only, |_| ())?;
            self.relax(&before).map(drop)
        };
        wanted.brokers.iter().map(&mut one).collect()
    }

    fn alter_resources(&mut self, wanted: &AlterResourceConfigs) -> Vec<Result<(), Refusal>> {
        let named = |requested: &AlterResourceConfig| (requested.resource, requested.name.clone());
        let repeated = repeated(wanted.resources.iter().map(named));
        let mut one = |requested: &AlterResourceConfig| {
            refuse_repeated(&repeated, &named(requested))?;
            let change = alter_resource(&self.drafted.image, self.broker, requested)?;
            self.after(change, wanted.validate_only, |_| ())
        };
        wanted.resources.iter().map(&mut one).collect()
    }

    fn forget(&mut self, topics: &[Uuid]) -> Result<(), Refusal> {
        for topic in topics {
            if self.drafted.image.deleted().contains_key(topic) {
                self.make(Change::DeletionFinished { topic: *topic })?;
            }
        }
        Ok(())
    }

    /// Returns a producer id that was never assigned before. Reserves another block if this broker's block is empty.
    pub fn producer_id(&mut self) -> Result<i64, Refusal> {
        if let Some(id) = self.drafted.producer_ids.next() {
            return Ok(id);
        }
        let used_up = || Refusal::new(ErrorCode::UNKNOWN_SERVER_ERROR, "All producer ids are used up.");
        let first = self.drafted.image.next_producer_id();
        let next = first.checked_add(PRODUCER_ID_BLOCK).ok_or_else(used_up)?;
        self.make(Change::ProducerIdsTaken { next })?;
        self.drafted.producer_ids = first + 1..next;
        Ok(first)
    }

    /// Clears the ELR and `lost` (replicas whose logs may lack records) of partitions whose ISR is now large enough.
    /// The reason is that `min.insync.replicas` of their topic is smaller than in the image `before`. Returns true if a
    /// partition has changed.
    fn relax(&mut self, before: &Image) -> Result<bool, Refusal> {
        let changes = relaxed(before, &self.drafted.image);
        let has_any = !changes.is_empty();
        self.make_all(changes).map(|()| has_any)
    }

    fn make_all(&mut self, changes: Vec<Change>) -> Result<(), Refusal> {
        for change in &changes {
            self.drafted.image.check(self.broker, change).map_err(inapplicable)?;
        }
        self.drafted.image.apply_all(self.broker, &changes).map_err(inapplicable)?;
        self.drafted.changes.extend(changes);
        Ok(())
    }

    fn make(&mut self, change: Change) -> Result<(), Refusal> {
        self.after(change, false, |_| ())
    }

    fn topic_after(&mut self, name: &str, change: Change, validate_only: bool) -> Result<Arc<Topic>, Refusal> {
        self.after(change, validate_only, |image| known(image, name).cloned())?
    }

    /// Applies the change to the draft, or only to a copy if `validate_only` is true. Calls `read` with the changed
    /// image, and returns its result.
    fn after<T>(&mut self, change: Change, validate_only: bool, read: impl FnOnce(&Image) -> T) -> Result<T, Refusal> {
        self.drafted.image.check(self.broker, &change).map_err(inapplicable)?;
        if validate_only {
            let mut tried = self.drafted.image.clone();
            tried.apply(self.broker, &change).map_err(inapplicable)?;
            return Ok(read(&tried));
        }
        self.drafted.image.apply(self.broker, &change).map_err(inapplicable)?;
        self.drafted.changes.push(change);
        Ok(read(&self.drafted.image))
    }
}

/// Refuses a resource that a request contains more than once. As in Kafka, all entries of such a resource are refused.
fn refuse_repeated<T: Ord>(repeated: &BTreeSet<T>, resource: &T) -> Result<(), Refusal> {
    match repeated.contains(resource) {
        true => Err(Refusal::new(ErrorCode::INVALID_REQUEST, "The request names this more than once.")),
        false => Ok(()),
    }
}
