//! Finds the coordinator of a group or of a transactional id. The caller has to retry.
//!
//! Invariant: the look-up and the caller's requests do not use the shared connections of the cluster. There, a response
//! might have to wait behind an earlier one that the broker delays, such as the response to a Produce.

use super::cluster::Cluster;
use super::connection::Connection;
use crate::error::MetadataError;
use crate::protocol::{CoordinatorKind, coordinator_in, coordinator_request};
use fullbore_wire::Text;
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest};

impl Cluster {
    /// Finds the coordinator of `key` through any broker and connects to it. Queries the broker at `last` only if no
    /// other broker answers.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if no broker answers, if the broker returns an error, or if the coordinator cannot be
    /// reached.
    pub async fn coordinator(
        &self,
        kind: CoordinatorKind,
        key: &Text,
        last: &str,
    ) -> Result<Connection, MetadataError> {
        let connection = self.another_to_any(last).await?;
        let version = connection.version::<FindCoordinatorRequest>()?;
        let answer = connection.call_version(&coordinator_request(kind, key, version), version).await?;
        let id = self.learn_coordinator(coordinator_in(answer, key))?;
        match self.address(id).is_some_and(|address| address == connection.address()) {
            true => Ok(connection),
            false => self.another(id).await,
        }
    }

    /// Adds a coordinator to the known brokers and returns its id.
    fn learn_coordinator(&self, found: Coordinator) -> Result<i32, MetadataError> {
        let code = found.error_code;
        if code.is_err() {
            let words = found.error_message.filter(|words| !words.is_empty());
            let message = words.map_or_else(|| code.message().to_owned(), |words| words.to_string());
            return Err(MetadataError::Coordinator { code, message });
        }
        self.learn_broker(found.node_id, &found.host, found.port);
        Ok(found.node_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientConfig;
    use fullbore_wire::ErrorCode;
    use fullbore_wire::apis::find_coordinator::FindCoordinatorResponse;

    fn learned(answer: FindCoordinatorResponse) -> Result<(i32, Option<String>), MetadataError> {
        let cluster = Cluster::new(Vec::new(), ClientConfig::default());
        let id = cluster.learn_coordinator(coordinator_in(answer, &Text::from_static("t")))?;
        Ok((id, cluster.address(id)))
    }

    #[test]
    fn coordinator_in_either_layout_is_learned() {
        let (node_id, host, port) = (7, Text::from_static("h"), 1);
        let alone = FindCoordinatorResponse { node_id, host: host.clone(), port, ..Default::default() };
        assert_eq!(learned(alone).expect("found"), (7, Some("h:1".to_owned())));
        let key = Text::from_static("t");
        let coordinators = vec![Coordinator { key, node_id, host, port, ..Default::default() }];
        let listed = FindCoordinatorResponse { coordinators, ..Default::default() };
        assert_eq!(learned(listed).expect("found"), (7, Some("h:1".to_owned())));
    }

    #[test]
    fn a_refusal_keeps_the_brokers_message() {
        let error_code = ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
        let error_message = Some(Text::from_static("not you"));
        let refused = FindCoordinatorResponse { error_code, error_message, ..Default::default() };
        let error = learned(refused).expect_err("refused").to_string();
        assert_eq!(error, "the cluster answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED: not you");
    }
}
