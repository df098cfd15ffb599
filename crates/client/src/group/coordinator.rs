//! The connection to a group's coordinator. A request without a connection first looks up the coordinator and connects.
//! The connection is dropped when the coordinator has moved.

use super::round_trips::RoundTrips;
use super::verdict::{self, Next};
use crate::blocking::{
    BrokerAddress, Cluster, Connection, KeptConnection, PartitionPlace, metadata_request, places_in,
};
use crate::error::ClientError;
use crate::protocol::{CoordinatorKind, coordinator_in, coordinator_request};
use fullbore_wire::api::Request;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::metadata::MetadataResponse;
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The connection to a group's coordinator.
pub(super) struct Coordinator {
    /// The cluster through which the coordinator is looked up.
    cluster: Cluster,
    group: Text,
    connection: KeptConnection,
    /// The reason why the last request must be retried, or `None` if it succeeded.
    trouble: Option<String>,
    /// The times of answered requests.
    times: Arc<RoundTrips>,
    /// True while the coordinator may delay the answers of [`Coordinator::call_both`] until other members have sent
    /// their requests.
    waits: bool,
}

impl Coordinator {
    pub(super) fn new(cluster: Cluster, group: Text, times: Arc<RoundTrips>) -> Self {
        Coordinator { cluster, group, connection: KeptConnection::default(), trouble: None, times, waits: false }
    }

    /// Sets whether the coordinator may delay the answers of [`Coordinator::call_both`] until other members have sent
    /// their requests.
    pub(super) fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    pub(super) fn connection(&mut self) -> Result<&mut Connection, ClientError> {
        self.connection.get(|| found(&mut self.cluster, &self.group))
    }

    /// Returns true if a connection to the coordinator is open.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Sends the look-up of the coordinator and `request` to any broker, in one round trip. If that broker accepts
    /// `request`, it is the coordinator, and its response is returned. This is likely in a small cluster. Otherwise
    /// connects to the coordinator and returns `None`. `least` is the oldest version in which `request` may be sent. A
    /// broker without this version gets only the look-up.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Coordinator::call`] would return one, or the group has no coordinator at the
    /// moment.
    pub(super) fn call_beside_finding<R: Request>(
        &mut self,
        request: &R,
        least: i16,
        code: impl Fn(&R::Response) -> ErrorCode,
    ) -> Result<Option<R::Response>, ClientError> {
        let connection = self.cluster.any()?;
        let finds =
            coordinator_request(CoordinatorKind::Group, &self.group, connection.version::<FindCoordinatorRequest>()?);
        let requests = connection.version::<R>().is_ok_and(|version| version >= least).then_some((request, i16::MAX));
        let begun = Instant::now();
        let outcome = connection.call_both(&finds, requests);
        if outcome.is_ok() {
            // The request may be a static member's JoinGroup, whose response the coordinator delays until other members
            // have joined.
            self.times.note(begun.elapsed(), true);
        }
        let connection = self.cluster.take_connection();
        // After a failure the connection is dropped. Otherwise a late response would be taken for the response to the
        // next request.
        let (found, answer) = outcome?;
        if let Some(connection) = connection {
            match answer {
                // A response that refuses the request is ignored, because a broker that is not the coordinator may
                // refuse a request that the coordinator would accept.
                Some(answer) if [ErrorCode::NONE, ErrorCode::MEMBER_ID_REQUIRED].contains(&code(&answer)) => {
                    self.connection.keep(connection);
                    return Ok(Some(answer));
                }
                _ => self.cluster.keep_connection(connection),
            }
        }
        let found = coordinator_in(found, &self.group);
        let found = BrokerAddress::of_coordinator(CoordinatorKind::Group, found)?;
        self.connection.keep(self.cluster.give(&found.address())?);
        Ok(None)
    }

    /// Requests the metadata of `topics` from the coordinator. Returns the partitions of each topic that exists.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Coordinator::call`] returns one, or the coordinator refuses a topic.
    pub(super) fn partitions_of(
        &mut self,
        topics: &[Text],
    ) -> Result<BTreeMap<Text, Vec<PartitionPlace>>, ClientError> {
        if topics.is_empty() {
            return Ok(BTreeMap::new());
        }
        let answer = self.call(&metadata_request(Some(topics)), i16::MAX)?;
        self.learn(&answer);
        match answer.error_code.is_err() {
            true => Err(ClientError::kafka("cannot read the metadata", answer.error_code, None)),
            false => places_in(&answer),
        }
    }

    /// Remembers the brokers of a metadata response, so that the cluster can be reached when the brokers of the
    /// bootstrap list are gone.
    pub(super) fn learn(&self, answer: &MetadataResponse) {
        self.cluster.learn(answer);
    }

    /// Drops the connection, so that the next request looks up the coordinator again, at another broker if possible.
    pub(super) fn forget(&mut self) {
        self.connection = KeptConnection::default();
        self.cluster.doubt();
    }

    pub(super) fn call<R: Request>(&mut self, request: &R, max: i16) -> Result<R::Response, ClientError> {
        let (is_connected, begun) = (self.is_connected(), Instant::now());
        let answer = self.connection.call(request, max, || found(&mut self.cluster, &self.group));
        // If the call had to connect, its time includes the search for the coordinator and is not noted.
        if is_connected && answer.is_ok() {
            self.times.note(begun.elapsed(), false);
        }
        answer
    }

    /// Sends two requests to the coordinator in one round trip, like [`Connection::call_both`].
    pub(super) fn call_both<A: Request, B: Request>(
        &mut self,
        first: &A,
        second: Option<(&B, i16)>,
    ) -> Result<(A::Response, Option<B::Response>), ClientError> {
        let connection = self.connection()?;
        let begun = Instant::now();
        let outcome = connection.call_both(first, second);
        match &outcome {
            Ok(_) => self.times.note(begun.elapsed(), self.waits),
            Err(_) => self.forget(),
        }
        outcome
    }

    /// Returns the reason why the last request must be retried, or `None` if it succeeded.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }

    /// Returns the member's next step after a response or an error. Drops the connection if the coordinator must be
    /// looked up again.
    pub(super) fn next(&mut self, what: &str, answer: Result<ErrorCode, ClientError>) -> Result<Next, ClientError> {
        let (step, trouble) = match answer {
            Ok(code) => {
                let of_group = format!("{what} group '{}'", self.group);
                match verdict::next(code) {
                    Next::Fatal => return Err(ClientError::kafka(of_group, code, None)),
                    step @ (Next::Again | Next::Find) => (step, Some(ClientError::refused(of_group, code))),
                    step => (step, None),
                }
            }
            Err(error) if error.is_retriable() => (Next::Find, Some(error)),
            Err(error) => return Err(error),
        };
        self.trouble = trouble.map(|error| error.to_string());
        if step == Next::Find {
            self.forget();
        }
        Ok(step)
    }
}

fn found(cluster: &mut Cluster, group: &Text) -> Result<Connection, ClientError> {
    let coordinator = cluster.coordinator(CoordinatorKind::Group, group)?;
    cluster.give(&coordinator.address())
}
