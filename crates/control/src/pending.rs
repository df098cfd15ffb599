//! Commands that wait for their responses, each with a channel to its caller.
//!
//! `decide` makes the decisions. Invariant: each kind of command has its own type of response, and the response is sent
//! exactly once.

use std::sync::Arc;

use fullbore_rules::replica::PartitionRegistration;
use tokio::sync::oneshot;

use super::command::{ChangeCommand, ConfigsCommand, InitProducerId, PartitionsCommand, Refusal, TopicsCommand};
use super::decide::Draft;
use super::image::Topic;

/// A kind of command, with the type of its response.
pub trait CommandKind: Sized {
    type Answer;
    /// Returns the response that refuses all entries of the command.
    fn refused(&self, refusal: &Refusal) -> Self::Answer;
    fn pending(self, reply: oneshot::Sender<Self::Answer>) -> PendingCommand;
}

impl CommandKind for TopicsCommand {
    type Answer = Vec<Result<Arc<Topic>, Refusal>>;

    fn refused(&self, refusal: &Refusal) -> Self::Answer {
        let count = match self {
            Self::Create(wanted) => wanted.topics.len(),
            Self::Grow(wanted) => wanted.topics.len(),
            Self::Delete(targets) => targets.len(),
            Self::Alter(wanted) => wanted.topics.len(),
        };
        vec![Err(refusal.clone()); count]
    }

    fn pending(self, reply: oneshot::Sender<Self::Answer>) -> PendingCommand {
        PendingCommand::Topics(Pending::new(self, reply))
    }
}

impl CommandKind for ConfigsCommand {
    type Answer = Vec<Result<(), Refusal>>;

    fn refused(&self, refusal: &Refusal) -> Self::Answer {
        let count = match self {
            Self::Brokers(wanted) => wanted.brokers.len(),
            Self::Resources(wanted) => wanted.resources.len(),
            Self::Features(wanted) => wanted.updates.len(),
        };
        vec![Err(refusal.clone()); count]
    }

    fn pending(self, reply: oneshot::Sender<Self::Answer>) -> PendingCommand {
        PendingCommand::Configs(Pending::new(self, reply))
    }
}

impl CommandKind for PartitionsCommand {
    type Answer = Vec<Result<Arc<PartitionRegistration>, Refusal>>;

    fn refused(&self, refusal: &Refusal) -> Self::Answer {
        let count = match self {
            Self::AlterIsr(requested) => requested.partitions.len(),
            Self::ElectLeaders(requested) => requested.partition_count(),
        };
        vec![Err(refusal.clone()); count]
    }

    fn pending(self, reply: oneshot::Sender<Self::Answer>) -> PendingCommand {
        PendingCommand::Partitions(Pending::new(self, reply))
    }
}

impl CommandKind for ChangeCommand {
    type Answer = Result<(), Refusal>;

    fn refused(&self, refusal: &Refusal) -> Self::Answer {
        Err(refusal.clone())
    }

    fn pending(self, reply: oneshot::Sender<Self::Answer>) -> PendingCommand {
        PendingCommand::Change(Pending::new(self, reply))
    }
}

impl CommandKind for InitProducerId {
    type Answer = Result<i64, Refusal>;

    fn refused(&self, refusal: &Refusal) -> Self::Answer {
        Err(refusal.clone())
    }

    fn pending(self, reply: oneshot::Sender<Self::Answer>) -> PendingCommand {
        PendingCommand::ProducerId(Pending::new(self, reply))
    }
}

/// A command, and the channel for its response.
pub struct Pending<K: CommandKind> {
    pub command: K,
    /// The response (`Answer`), which is sent once the changes are committed. `None` until the command is decided, and
    /// while it has pieces left.
    pub answer: Option<K::Answer>,
    reply: oneshot::Sender<K::Answer>,
}

impl<K: CommandKind> Pending<K> {
    fn new(command: K, reply: oneshot::Sender<K::Answer>) -> Self {
        Self { command, answer: None, reply }
    }

    /// Sends the response and returns `None`. If the command has pieces left, returns the command instead. Ignores that
    /// a caller no longer waits.
    fn finish(self) -> Option<Self> {
        let Some(answer) = self.answer else { return Some(self) };
        let _ = self.reply.send(answer);
        None
    }

    /// Sends the given response.
    pub fn send(self, answer: K::Answer) {
        let _ = self.reply.send(answer);
    }

    fn refuse(self, refusal: &Refusal) {
        let refused = self.command.refused(refusal);
        self.send(refused);
    }
}

/// A command of any kind that waits for its response.
pub enum PendingCommand {
    Topics(Pending<TopicsCommand>),
    Configs(Pending<ConfigsCommand>),
    Partitions(Pending<PartitionsCommand>),
    Change(Pending<ChangeCommand>),
    ProducerId(Pending<InitProducerId>),
}

impl PendingCommand {
    /// Decides the command. `draft` already contains the changes of the commands before it.
    pub fn decide(&mut self, draft: &mut Draft<'_>) {
        match self {
            Self::Topics(pending) => pending.answer = Some(draft.topics(&pending.command)),
            Self::Configs(pending) => pending.answer = Some(draft.configs(&pending.command)),
            Self::Partitions(pending) => pending.answer = Some(draft.partitions(&pending.command)),
            Self::Change(pending) => pending.answer = draft.change(&pending.command),
            Self::ProducerId(pending) => pending.answer = Some(draft.producer_id()),
        }
    }

    /// Sends the response and returns `None`. If the command has pieces left, returns the command instead.
    pub fn finish(self) -> Option<Self> {
        match self {
            Self::Topics(pending) => pending.finish().map(Self::Topics),
            Self::Configs(pending) => pending.finish().map(Self::Configs),
            Self::Partitions(pending) => pending.finish().map(Self::Partitions),
            Self::Change(pending) => pending.finish().map(Self::Change),
            Self::ProducerId(pending) => pending.finish().map(Self::ProducerId),
        }
    }

    /// Refuses all entries of the command.
    pub fn refuse(self, refusal: &Refusal) {
        match self {
            Self::Topics(pending) => pending.refuse(refusal),
            Self::Configs(pending) => pending.refuse(refusal),
            Self::Partitions(pending) => pending.refuse(refusal),
            Self::Change(pending) => pending.refuse(refusal),
            Self::ProducerId(pending) => pending.refuse(refusal),
        }
    }
}
