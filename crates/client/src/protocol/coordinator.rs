//! The two layouts of FindCoordinator: with one key, and from version 4 on with several keys (KIP-699).
//!
//! Not here: the search itself; the tokio client and the blocking client each have one.

use fullbore_wire::Text;
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};

/// First version of FindCoordinator with several keys.
pub(crate) const SEVERAL_KEYS_FROM: i16 = 4;

/// Kind of a key that has a coordinator (Kafka's `FindCoordinatorRequest.CoordinatorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorKind {
    /// Group id.
    Group = 0,
    /// Transactional id.
    Transaction = 1,
}

impl CoordinatorKind {
    /// Returns a key of this kind with its noun, for a message.
    pub(crate) fn named(self, key: &str) -> String {
        match self {
            CoordinatorKind::Group => format!("group '{key}'"),
            CoordinatorKind::Transaction => format!("the transactional id '{key}'"),
        }
    }
}

/// Returns the request for the coordinator of one key, in the layout of this version.
pub(crate) fn coordinator_request(kind: CoordinatorKind, key: &Text, version: i16) -> FindCoordinatorRequest {
    let (key_type, key) = (kind as i8, key.clone());
    match version >= SEVERAL_KEYS_FROM {
        true => FindCoordinatorRequest { key_type, coordinator_keys: vec![key], ..Default::default() },
        false => FindCoordinatorRequest { key_type, key, ..Default::default() },
    }
}

/// Returns the coordinator of `key` from a response in either layout.
pub(crate) fn coordinator_in(answer: FindCoordinatorResponse, key: &Text) -> Coordinator {
    let FindCoordinatorResponse { node_id, host, port, error_code, error_message, coordinators, .. } = answer;
    let alone =
        || Coordinator { key: key.clone(), node_id, host, port, error_code, error_message, ..Default::default() };
    coordinators.into_iter().find(|found| found.key == *key).unwrap_or_else(alone)
}
