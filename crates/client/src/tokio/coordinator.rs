//! Finding the coordinator of a group or of a transactional id.
//!
//! Not here: a retry, which is the caller's. Invariant: the connection belongs to the caller alone, as does that of the
//! search, so that no request of another part of the client is ahead of theirs: a batch that waits at its broker would
//! hold their answers.

use super::cluster::Cluster;
use super::connection::Connection;
use crate::error::MetadataError;
use fullbore_wire::Text;
use fullbore_wire::apis::find_coordinator::{FindCoordinatorRequest, FindCoordinatorResponse};

/// FindCoordinator from this version on has several keys (KIP-699).
const FIND_SEVERAL_VERSION: i16 = 4;

/// The kinds of keys that have a coordinator (Kafka's `FindCoordinatorRequest.CoordinatorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorKind {
    /// A group.
    Group = 0,
    /// A transactional id.
    Transaction = 1,
}

impl Cluster {
    /// Asks any broker for the coordinator of `key`, and connects to that coordinator.
    ///
    /// # Errors
    /// No broker answers, the answer is an error, or the coordinator cannot be reached.
    pub async fn coordinator(&self, kind: CoordinatorKind, key: &Text) -> Result<Connection, MetadataError> {
        let connection = self.another_to_any().await?;
        let version = connection.version::<FindCoordinatorRequest>()?;
        let request = match version >= FIND_SEVERAL_VERSION {
            true => FindCoordinatorRequest { coordinator_keys: vec![key.clone()], ..Default::default() },
            false => FindCoordinatorRequest { key: key.clone(), ..Default::default() },
        };
        let request = FindCoordinatorRequest { key_type: kind as i8, ..request };
        let id = self.learn_coordinator(connection.call_version(&request, version).await?, key)?;
        match self.address(id).is_some_and(|address| address == connection.address()) {
            true => Ok(connection),
            false => self.another(id).await,
        }
    }

    /// Adds the broker that an answer names, and returns its id.
    fn learn_coordinator(&self, answer: FindCoordinatorResponse, key: &Text) -> Result<i32, MetadataError> {
        let FindCoordinatorResponse { node_id, host, port, error_code, error_message, coordinators, .. } = answer;
        let of_list = coordinators.into_iter().find(|found| found.key == *key);
        let of_list = of_list.map(|of| (of.node_id, of.host, of.port, of.error_code, of.error_message));
        let (id, host, port, code, words) = of_list.unwrap_or((node_id, host, port, error_code, error_message));
        if code.is_err() {
            let message = words.filter(|words| !words.is_empty());
            let message = message.map_or_else(|| code.message().to_owned(), |words| words.to_string());
            return Err(MetadataError::Coordinator { code, message });
        }
        self.learn_broker(id, &host, port);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientConfig;
    use fullbore_wire::ErrorCode;
    use fullbore_wire::apis::find_coordinator::Coordinator;

    fn learned(answer: FindCoordinatorResponse) -> Result<(i32, Option<String>), MetadataError> {
        let cluster = Cluster::new(Vec::new(), ClientConfig::default());
        let id = cluster.learn_coordinator(answer, &Text::from_static("t"))?;
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
    fn refusal_keeps_the_words_of_the_broker() {
        let error_code = ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
        let error_message = Some(Text::from_static("not you"));
        let refused = FindCoordinatorResponse { error_code, error_message, ..Default::default() };
        let error = learned(refused).expect_err("refused").to_string();
        assert_eq!(error, "the cluster answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED: not you");
    }
}
