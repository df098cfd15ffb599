//! The two layouts of FindCoordinator: with one key, and from version 4 on with several keys (KIP-699).
//!
//! The look-up itself is in the tokio client and in the blocking client.

use fullbore_wire::Text;
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};

/// The first version of FindCoordinator that supports several keys.
pub(crate) const SEVERAL_KEYS_FROM: i16 = 4;

/// The kind of a key that has a coordinator (Kafka's `FindCoordinatorRequest.CoordinatorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorKind {
    /// A group id.
    Group = 0,
    /// A transactional id.
    Transaction = 1,
}

impl CoordinatorKind {
    /// Returns the kind and the key as text for error messages.
    pub(crate) fn named(self, key: &str) -> String {
        match self {
            CoordinatorKind::Group => format!("group '{key}'"),
            CoordinatorKind::Transaction => format!("the transactional id '{key}'"),
        }
    }
}

/// Builds the request for the coordinator of one key, in the layout of this version.
pub(crate) fn coordinator_request(kind: CoordinatorKind, key: &Text, version: i16) -> FindCoordinatorRequest {
    let (key_type, key) = (kind as i8, key.clone());
    match version >= SEVERAL_KEYS_FROM {
        true => FindCoordinatorRequest { key_type, coordinator_keys: vec![key], ..Default::default() },
        false => FindCoordinatorRequest { key_type, key, ..Default::default() },
    }
}

/// Finds the coordinator of `key` in a response of either layout.
pub(crate) fn coordinator_in(answer: FindCoordinatorResponse, key: &Text) -> Coordinator {
    let FindCoordinatorResponse { node_id, host, port, error_code, error_message, coordinators, .. } = answer;
    let alone =
        || Coordinator { key: key.clone(), node_id, host, port, error_code, error_message, ..Default::default() };
    coordinators.into_iter().find(|found| found.key == *key).unwrap_or_else(alone)
}
