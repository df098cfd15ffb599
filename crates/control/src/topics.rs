//! Commands on topics, and the command for a new producer id.

use std::sync::Arc;

use fullbore_wire::Uuid;

use super::command::{
    AlterTopicConfigs, ChangeCommand, CreatePartitions, CreateTopics, InitProducerId, Refusal, TopicRef, TopicsCommand,
};
use super::{Control, Topic};

impl Control {
    /// Creates topics, and returns them in the order of the request.
    pub async fn create_topics(&self, topics: CreateTopics) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Create(topics)).await
    }

    /// Adds partitions to topics, and returns the topics in the order of the request.
    pub async fn create_partitions(&self, topics: CreatePartitions) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Grow(topics)).await
    }

    /// Deletes topics. Returns the state of each topic before the deletion, in the order of the request.
    pub async fn delete_topics(&self, topics: Vec<TopicRef>) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Delete(topics)).await
    }

    /// Changes the settings of topics. Returns the topics with their new settings, in the order of the request.
    pub async fn alter_topic_configs(&self, topics: AlterTopicConfigs) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Alter(topics)).await
    }

    /// Forgets deleted topics after their files and rows have been removed.
    pub async fn forget_deleted(&self, topics: Vec<Uuid>) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ForgetDeleted(topics)).await
    }

    /// Returns a producer id that was never assigned before.
    pub async fn init_producer_id(&self) -> Result<i64, Refusal> {
        self.submit(InitProducerId).await
    }
}
