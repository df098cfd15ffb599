//! Commands that change the state of a broker.

use fullbore_rules::replica::BrokerState;

use super::Control;
use super::command::{BrokerChange, ChangeBroker, ChangeCommand, Refusal, Urgent};

impl Control {
    /// Changes the state of a broker, for example fences it. The same transaction elects leaders for as many affected
    /// partitions as fit, beginning with those in `urgent`. [`Control::settle_partitions`] decides about the rest.
    ///
    /// # Errors
    /// Fails with BROKER_ID_NOT_REGISTERED if the broker is unknown, and with STALE_BROKER_EPOCH if another process has
    /// replaced it. Fails with INVALID_REQUEST if the broker reports the loss of the object store, but no other broker
    /// serves diskless partitions. Returns the store's error if the store cannot be used.
    pub async fn change_broker(
        &self,
        broker: BrokerState,
        change: BrokerChange,
        urgent: Urgent,
    ) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ChangeBroker(ChangeBroker { broker, change, urgent })).await
    }
}
