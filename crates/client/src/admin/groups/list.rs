//! Lists groups and deletes a group.

use super::coordinator::{GroupAdmin, check, check_group};
use crate::blocking::{BrokerAddress, Cluster, Listed};
use crate::error::ClientError;
use fullbore_wire::Text;
use fullbore_wire::apis::delete_groups::DeleteGroupsRequest;
use fullbore_wire::apis::list_groups::{ListGroupsRequest, ListedGroup};

/// A line of `groups list`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupListing {
    /// The group's id.
    pub id: Text,
    /// The group's type: `classic` or `consumer`. Empty from brokers before 3.7.
    pub kind: Text,
    /// The group's state. Empty from brokers before 2.6.
    pub state: Text,
}

impl GroupAdmin<'_> {
    /// Returns the consumer groups in one of `states` and of one of the types `kinds`, sorted by id. An empty list of
    /// states or types matches every group.
    ///
    /// # Errors
    /// Returns [`ClientError`] of the first broker that refuses or cannot be reached.
    pub fn list(&mut self, states: &[String], kinds: &[String]) -> Result<Vec<GroupListing>, ClientError> {
        self.listed(states, kinds).whole()
    }

    /// Returns the groups like [`GroupAdmin::list`]. If a broker does not answer, returns its error together with the
    /// groups of the other brokers.
    pub fn listed(&mut self, states: &[String], kinds: &[String]) -> Listed<GroupListing> {
        let texts = |words: &[String]| words.iter().map(|word| word.as_str().into()).collect::<Vec<Text>>();
        let request =
            ListGroupsRequest { states_filter: texts(states), types_filter: texts(kinds), ..Default::default() };
        // After a failure all brokers are queried again. The failed broker may be gone, and its groups may have moved
        // to brokers that have answered already.
        let mut listed = Listed::default();
        let outcome = self.patiently(|cluster| {
            let brokers = cluster.brokers()?;
            listed = cluster.at_each(&brokers, |cluster, broker| groups_of(cluster, broker, &request));
            listed.failed.take().map_or(Ok(()), Err)
        });
        let (mut found, failed) = (listed.found, outcome.err());
        // The groups are filtered again, because older brokers ignore the filters of the request.
        let is_requested = |requested: &[String], found: &str| {
            requested.is_empty() || found.is_empty() || requested.iter().any(|word| word.eq_ignore_ascii_case(found))
        };
        found.retain(|group| is_requested(states, &group.state) && is_requested(kinds, &group.kind));
        found.sort();
        found.dedup();
        Listed { found, failed }
    }

    /// Deletes a group with its offsets.
    ///
    /// # Errors
    /// Returns [`ClientError::NoGroup`] if the group does not exist, or else the coordinator's error.
    pub fn delete(&mut self, id: &Text) -> Result<(), ClientError> {
        let request = DeleteGroupsRequest { groups_names: vec![id.clone()], ..Default::default() };
        let mut may_be_done = false;
        self.at_coordinator(id, |cluster, coordinator| {
            let answer = cluster.call_at(&coordinator.address(), &request, i16::MAX);
            // The coordinator may have deleted the group before the connection broke. If a second attempt finds no such
            // group, the first attempt has deleted it.
            may_be_done |= matches!(answer, Err(ClientError::Io { .. } | ClientError::Silent { .. }));
            let result = answer?.results.into_iter().find(|result| result.group_id == *id).unwrap_or_default();
            match check_group(id, "delete", result.error_code, result.error_message.as_deref()) {
                Err(ClientError::NoGroup(_)) if may_be_done => Ok(()),
                outcome => outcome,
            }
        })
    }
}

fn groups_of(
    cluster: &mut Cluster,
    broker: &BrokerAddress,
    request: &ListGroupsRequest,
) -> Result<Vec<GroupListing>, ClientError> {
    let response = cluster.call_at(&broker.address(), request, i16::MAX)?;
    check(format!("cannot list the groups of broker {}", broker.id), response.error_code, None)?;
    let listing =
        |group: ListedGroup| GroupListing { id: group.group_id, kind: group.group_type, state: group.group_state };
    Ok(response.groups.into_iter().filter(is_of_consumers).map(listing).collect())
}

/// Returns true for groups of consumers, and for groups that only have committed offsets. Kafka's tool lists the same
/// groups.
fn is_of_consumers(group: &ListedGroup) -> bool {
    let of_kind = group.group_type.is_empty()
        || ["classic", "consumer"].iter().any(|kind| group.group_type.eq_ignore_ascii_case(kind));
    of_kind && (group.protocol_type.is_empty() || group.protocol_type == *"consumer")
}
