//! Finds the coordinator of a group or of a transactional id. The caller has to retry.

use super::cluster::{BrokerAddress, Cluster};
use crate::error::ClientError;
use crate::protocol::{CoordinatorKind, coordinator_in, coordinator_request};
use fullbore_wire::Text;
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest};

impl Cluster {
    /// Requests the coordinator of `key` from any broker and returns its address.
    ///
    /// # Errors
    /// Returns the error of the connection if no broker answers, or the broker's error if the key has no coordinator at
    /// the moment.
    pub(crate) fn coordinator(&mut self, kind: CoordinatorKind, key: &Text) -> Result<BrokerAddress, ClientError> {
        let version = self.any()?.version::<FindCoordinatorRequest>()?;
        let answer = self.call(&coordinator_request(kind, key, version))?;
        BrokerAddress::of_coordinator(kind, coordinator_in(answer, key))
    }
}

impl BrokerAddress {
    /// Returns the address of a coordinator from a broker's answer.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the answer has an error code for the key.
    pub(crate) fn of_coordinator(kind: CoordinatorKind, found: Coordinator) -> Result<BrokerAddress, ClientError> {
        if found.error_code.is_err() {
            let what = format!("cannot find the coordinator of {}", kind.named(&found.key));
            return Err(ClientError::kafka(what, found.error_code, found.error_message.as_deref()));
        }
        Ok(BrokerAddress { id: found.node_id, host: found.host, port: found.port })
    }
}
