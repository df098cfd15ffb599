//! Commands on topics, and producer ids.

use std::sync::Arc;

use fullbore_wire::Uuid;

use super::command::{
    AlterTopicConfigs, ChangeCommand, CreatePartitions, CreateTopics, InitProducerId, Refusal, TopicRef, TopicsCommand,
};
use super::{Control, Topic};

impl Control {
    /// Creates topics. Returns each created topic, in the order of the request.
    pub async fn create_topics(&self, topics: CreateTopics) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Create(topics)).await
    }

    /// Adds partitions to topics. Returns each topic with its new partitions, in the order of the request.
    pub async fn create_partitions(&self, topics: CreatePartitions) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Grow(topics)).await
    }

    /// Deletes topics. Returns each topic as it was before, in the order of the request.
    pub async fn delete_topics(&self, topics: Vec<TopicRef>) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Delete(topics)).await
    }

    /// Changes configurations of topics. Returns each topic with its new configuration, in the order of the request.
    pub async fn alter_topic_configs(&self, topics: AlterTopicConfigs) -> Vec<Result<Arc<Topic>, Refusal>> {
        self.submit(TopicsCommand::Alter(topics)).await
    }

    /// Forgets deleted topics. Their files and rows must be removed already.
    pub async fn forget_deleted(&self, topics: Vec<Uuid>) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ForgetDeleted(topics)).await
    }

    /// Returns a producer id that was never assigned before.
    pub async fn init_producer_id(&self) -> Result<i64, Refusal> {
        self.submit(InitProducerId).await
    }
}
