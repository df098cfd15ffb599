//! Commands that change the settings of brokers, groups and client metrics, and the levels of features. Each method
//! returns after the image with the changes is published. The results are in the order of the request.

use super::Control;
use super::command::{AlterBrokerConfigs, AlterResourceConfigs, ConfigsCommand, Refusal, UpdateFeatures};

impl Control {
    /// Changes dynamic settings of brokers.
    pub async fn alter_broker_configs(&self, brokers: AlterBrokerConfigs) -> Vec<Result<(), Refusal>> {
        self.submit(ConfigsCommand::Brokers(brokers)).await
    }

    /// Changes settings of groups and client metrics.
    pub async fn alter_resource_configs(&self, resources: AlterResourceConfigs) -> Vec<Result<(), Refusal>> {
        self.submit(ConfigsCommand::Resources(resources)).await
    }

    /// Changes the levels of features. If one update is refused, no level is changed.
    ///
    /// # Errors
    /// Fails with INVALID_UPDATE_VERSION and Kafka's message if an update is invalid. The message names the first
    /// invalid update.
    pub async fn update_features(&self, features: UpdateFeatures) -> Result<(), Refusal> {
        self.submit(ConfigsCommand::Features(features)).await.into_iter().collect()
    }
}
