//! Commands on topics, and producer ids.

use std::sync::Arc;

use fullbore_wire::Uuid;

use super::command::{
    AlterTopicConfigs, ChangeCommand, CreatePartitions, CreateTopics, InitProducerId, Refusal, TopicRef, TopicsCommand,
};
use super::{Control, Topic};

impl Control {
    /// Returns the created topics, in the order of the request.
    pub async fn create_topics(&self, topics: CreateTopics) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Create(topics)).await
    }

    /// Returns the topics with their new partitions, in the order of the request.
    pub async fn create_partitions(&self, topics: CreatePartitions) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Grow(topics)).await
    }

    /// Returns the deleted topics, as they were, in the order of the request.
    pub async fn delete_topics(&self, topics: Vec<TopicRef>) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Delete(topics)).await
    }

    /// Returns the topics with their new configuration, in the order of the request.
    pub async fn alter_topic_configs(&self, topics: AlterTopicConfigs) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Alter(topics)).await
    }

    /// Forgets these deleted topics, whose files and rows are removed.
    pub async fn forget_deleted(&self, topics: Vec<Uuid>) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ForgetDeleted(topics)).await
    }

    /// Takes an id that no producer ever had.
    pub async fn init_producer_id(&self) -> Result<i64, Refusal> {
        self.submit(InitProducerId).await
    }
}
