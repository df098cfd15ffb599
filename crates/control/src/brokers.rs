//! Commands on brokers of the cluster.

use fullbore_rules::replica::BrokerState;

use super::Control;
use super::command::{BrokerChange, ChangeBroker, ChangeCommand, Refusal, Urgent};

impl Control {
    /// Changes the state of a broker. The same transaction decides the first piece of the affected partitions,
    /// beginning with `urgent`. [`Control::settle_partitions`] decides the rest.
    ///
    /// # Errors
    /// STALE_BROKER_EPOCH if another process has replaced the broker; BROKER_ID_NOT_REGISTERED if no such broker is
    /// registered; errors of the store.
    pub async fn change_broker(
        &self,
        broker: BrokerState,
        change: BrokerChange,
        urgent: Urgent,
    ) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ChangeBroker(ChangeBroker { broker, change, urgent })).await
    }
}
