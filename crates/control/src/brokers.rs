//! Commands on brokers of the cluster.

use fullbore_rules::replica::BrokerState;

use super::Control;
use super::command::{BrokerChange, ChangeBroker, ChangeCommand, Refusal, Urgent};

impl Control {
    /// Changes the state of a broker of the cluster. Of what follows for partitions the first piece is done with it,
    /// `urgent` ones first; the rest goes on (see [`Control::settle_partitions`]).
    ///
    /// # Errors
    /// STALE_BROKER_EPOCH where another process has its place; BROKER_ID_NOT_REGISTERED; the store.
    pub async fn change_broker(
        &self,
        broker: BrokerState,
        change: BrokerChange,
        urgent: Urgent,
    ) -> Result<(), Refusal> {
        self.submit(ChangeCommand::ChangeBroker(ChangeBroker { broker, change, urgent })).await
    }
}
