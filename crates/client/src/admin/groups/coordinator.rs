//! Looks up the coordinators of groups and sends requests to them. While a coordinator is loading or has moved, the
//! request is retried for up to `patience`.
//!
//! Invariant: a request that changes a group is sent again only if the coordinator refused it, or if the request is
//! idempotent.

use crate::blocking::{BrokerAddress, Cluster};
use crate::error::ClientError;
use crate::protocol::{CoordinatorKind, SEVERAL_KEYS_FROM, coordinator_in, coordinator_request};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The pause between two attempts.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);

/// Administers the groups of a cluster.
pub struct GroupAdmin<'a> {
    cluster: &'a mut Cluster,
    patience: Duration,
}

impl<'a> GroupAdmin<'a> {
    /// Connects to any broker of the cluster. Later requests are retried for up to `patience` while a coordinator loads
    /// or moves.
    ///
    /// # Errors
    /// Returns the error of the last attempt to connect, if no broker of the list answers. Connecting is not retried.
    pub fn of(cluster: &'a mut Cluster, patience: Duration) -> Result<Self, ClientError> {
        cluster.any()?;
        Ok(GroupAdmin { cluster, patience })
    }

    /// Returns the cluster, for requests that do not concern groups.
    pub fn cluster(&mut self) -> &mut Cluster {
        self.cluster
    }

    /// Runs `action` with the coordinator of a group. Repeats `action` for up to `patience` while the coordinator loads
    /// or moves.
    pub(super) fn at_coordinator<T>(
        &mut self,
        id: &Text,
        mut action: impl FnMut(&mut Cluster, &BrokerAddress) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let _wait = self.cluster.awaited().begin(format!("the coordinator of group '{id}'"));
        self.patiently(|cluster| {
            let coordinator = cluster.coordinator(CoordinatorKind::Group, id)?;
            action(cluster, &coordinator)
        })
    }

    /// Calls `call` once for each coordinator, with the groups that it coordinates. For up to `patience`, calls it
    /// again with the groups whose coordinator was loading or had moved.
    pub(super) fn at_coordinators<T>(
        &mut self,
        ids: &[Text],
        mut call: impl FnMut(&mut Cluster, &BrokerAddress, &[Text]) -> CoordinatorAnswer<T>,
    ) -> GroupOutcomes<T> {
        let _wait = self.cluster.awaited().begin(match ids {
            [id] => format!("the coordinator of group '{id}'"),
            _ => format!("the coordinators of {} groups", ids.len()),
        });
        let until = Instant::now() + self.patience;
        let mut outcomes = GroupOutcomes { of_groups: BTreeMap::new(), broken: None };
        let mut left = ids.to_vec();
        while !left.is_empty() {
            outcomes.broken = None;
            let found = coordinators_found(self.cluster, &left).map_err(|error| outcomes.broken = Some(error));
            let (by_coordinator, without) = found.unwrap_or_default();
            let mut answered: Vec<(Text, Result<T, ClientError>)> =
                without.into_iter().map(|(id, error)| (id, Err(error))).collect();
            for (coordinator, ids) in by_coordinator {
                let answer = call(self.cluster, &coordinator, &ids);
                answered.extend(answer.of_groups);
                outcomes.broken = outcomes.broken.take().or(answer.broken);
            }
            let is_last = Instant::now() + RETRY_BACKOFF >= until;
            let settled = |outcome: &Result<T, ClientError>| is_last || !outcome.as_ref().is_err_and(is_passing);
            outcomes.of_groups.extend(answered.into_iter().filter(|(_, outcome)| settled(outcome)));
            left.retain(|id| !outcomes.of_groups.contains_key(id));
            if is_last || outcomes.broken.as_ref().is_some_and(|error| !is_passing(error)) {
                break;
            }
            if !left.is_empty() {
                std::thread::sleep(RETRY_BACKOFF);
            }
        }
        outcomes
    }

    pub(super) fn patiently<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Cluster) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let until = Instant::now() + self.patience;
        loop {
            match attempt(self.cluster) {
                Err(error) if is_passing(&error) && Instant::now() + RETRY_BACKOFF < until => {
                    std::thread::sleep(RETRY_BACKOFF);
                }
                outcome => return outcome,
            }
        }
    }
}

/// The outcomes of a request about several groups, by group id.
#[derive(Debug)]
pub struct GroupOutcomes<T> {
    of_groups: BTreeMap<Text, Result<T, ClientError>>,
    /// The error to return for groups without an outcome. Only the first such group gets it.
    broken: Option<ClientError>,
}

impl<T> GroupOutcomes<T> {
    /// Removes and returns the outcome of a group. If the group has no outcome, returns the error of the coordinator.
    /// Only the first call can return this error, so later calls for groups without an outcome return a general error.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the coordinator refused the request for the group, or was not found or reached.
    pub fn take(&mut self, id: &Text) -> Result<T, ClientError> {
        match self.of_groups.remove(id) {
            Some(outcome) => outcome,
            None => Err(self.broken.take().unwrap_or_else(|| no_coordinator(id))),
        }
    }
}

/// The answer of one coordinator about the groups that it coordinates.
pub(super) struct CoordinatorAnswer<T> {
    pub of_groups: Vec<(Text, Result<T, ClientError>)>,
    /// The error for groups that are missing from the response.
    pub broken: Option<ClientError>,
}

/// The groups of each coordinator, and the error of each group whose coordinator was not found.
type Coordinators = (BTreeMap<BrokerAddress, Vec<Text>>, Vec<(Text, ClientError)>);

/// Finds the coordinators of these groups. Returns the groups of each coordinator.
///
/// # Errors
/// Returns the error of the first group without a coordinator, or the error of the connection if no broker answers.
pub(super) fn coordinators(
    cluster: &mut Cluster,
    ids: &[Text],
) -> Result<BTreeMap<BrokerAddress, Vec<Text>>, ClientError> {
    let (by_coordinator, without) = coordinators_found(cluster, ids)?;
    without.into_iter().next().map_or(Ok(by_coordinator), |(_, error)| Err(error))
}

fn coordinators_found(cluster: &mut Cluster, ids: &[Text]) -> Result<Coordinators, ClientError> {
    let mut found: Vec<Coordinator> = Vec::new();
    if cluster.any()?.version::<FindCoordinatorRequest>()? >= SEVERAL_KEYS_FROM {
        let request = FindCoordinatorRequest { coordinator_keys: ids.to_vec(), ..Default::default() };
        found.extend(cluster.call(&request)?.coordinators);
    } else {
        for key in ids {
            found.push(coordinator_in(cluster.call(&coordinator_request(CoordinatorKind::Group, key, 0))?, key));
        }
    }
    let mut by_coordinator: BTreeMap<BrokerAddress, Vec<Text>> = BTreeMap::new();
    let mut without = Vec::new();
    for found in found {
        let key = found.key.clone();
        match BrokerAddress::of_coordinator(CoordinatorKind::Group, found) {
            Ok(broker) => by_coordinator.entry(broker).or_default().push(key),
            Err(error) => without.push((key, error)),
        }
    }
    Ok((by_coordinator, without))
}

fn no_coordinator(id: &Text) -> ClientError {
    let what = format!("cannot find the coordinator of group '{id}'");
    ClientError::kafka(what, ErrorCode::COORDINATOR_NOT_AVAILABLE, None)
}

/// Returns true if a retry may succeed, because the coordinator is loading, moving or unreachable.
fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Io { .. } | ClientError::Silent { .. } => true,
        ClientError::Kafka { code, .. } => {
            [ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, ErrorCode::COORDINATOR_NOT_AVAILABLE, ErrorCode::NOT_COORDINATOR]
                .contains(code)
        }
        _ => false,
    }
}

pub(super) fn check(what: String, code: ErrorCode, message: Option<&str>) -> Result<(), ClientError> {
    if code.is_err() { Err(ClientError::kafka(what, code, message)) } else { Ok(()) }
}

/// Converts the coordinator's error code for a group into an error. For some codes the error text names the user's next
/// step, such as to stop the group's consumers.
pub(super) fn check_group(id: &Text, action: &str, code: ErrorCode, message: Option<&str>) -> Result<(), ClientError> {
    let what = format!("cannot {action} group '{id}'");
    match code {
        ErrorCode::GROUP_ID_NOT_FOUND => Err(ClientError::NoGroup(id.to_string())),
        ErrorCode::NON_EMPTY_GROUP | ErrorCode::UNKNOWN_MEMBER_ID => {
            let words = format!(
                "The group is not empty; stop its consumers first, and see them with `fullbore groups describe --group {id} \
                 --members`"
            );
            Err(ClientError::kafka(what, code, Some(&words)))
        }
        code => check(what, code, message),
    }
}
