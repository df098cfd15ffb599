//! Commands on what brokers, groups and clients' metrics set, and on features. Changes are answered in the order of
//! their requests, once the image shows them.

use super::Control;
use super::command::{AlterBrokerConfigs, AlterResourceConfigs, ConfigsCommand, Refusal, UpdateFeatures};

impl Control {
    /// Changes what is set for brokers while they run.
    pub async fn alter_broker_configs(&self, brokers: AlterBrokerConfigs) -> Vec<Result<(), Refusal>> {
        self.submit(ConfigsCommand::Brokers(brokers)).await
    }

    /// Changes what groups and clients' metrics set.
    pub async fn alter_resource_configs(&self, resources: AlterResourceConfigs) -> Vec<Result<(), Refusal>> {
        self.submit(ConfigsCommand::Resources(resources)).await
    }

    /// Changes the levels of features, all or none.
    ///
    /// # Errors
    /// INVALID_UPDATE_VERSION with Kafka's words for the first update that cannot be made.
    pub async fn update_features(&self, features: UpdateFeatures) -> Result<(), Refusal> {
        self.submit(ConfigsCommand::Features(features)).await.into_iter().collect()
    }
}
