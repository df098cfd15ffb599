//! Commands that change the state of a broker.

use fullbore_rules::replica::BrokerState;

use super::Control;
use super::command::{BrokerChange, ChangeBroker, ChangeCommand, Refusal, Urgent};

impl Control {
    /// Changes the state of a broker, for example fences it. The same transaction elects leaders for a first part of
    /// the affected partitions, beginning with those in `urgent`. [`Control::settle_partitions`] handles the rest.
    ///
    /// # Errors
    /// Fails with STALE_BROKER_EPOCH if another process has replaced the broker, and with BROKER_ID_NOT_REGISTERED if
    /// it is unknown. Errors of the store are returned as well.
    pub async fn change_broker(
        &self,
        broker: BrokerState,
        change: BrokerChange,
        urgent: Urgent,
    ) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ChangeBroker(ChangeBroker { broker, change, urgent })).await
    }
}
