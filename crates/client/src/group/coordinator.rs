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
use parking_lot::Mutex;
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
    /// The address to which the connection leads, as the look-up returned it.
    at: Option<String>,
    member_at: MemberAt,
    /// True if this connection goes to the coordinator in `member_at`. The member's own connection looks it up.
    follows: bool,
}

/// The address of the coordinator that has accepted the member's last request. Requests for offsets go there. A broker
/// that no longer is the coordinator, but does not know this yet, would return old offsets.
pub(super) type MemberAt = Arc<Mutex<Option<String>>>;

impl Coordinator {
    /// Creates the member's own connection.
    pub(super) fn new(cluster: Cluster, group: Text, times: Arc<RoundTrips>, member_at: MemberAt) -> Self {
        let connection = KeptConnection::default();
        Coordinator {
            cluster,
            group,
            connection,
            trouble: None,
            times,
            waits: false,
            at: None,
            member_at,
            follows: false,
        }
    }

    /// Creates a connection that follows the member's own one. Before the member has joined, this connection looks up
    /// the coordinator as well.
    pub(super) fn following(cluster: Cluster, group: Text, times: Arc<RoundTrips>, member_at: MemberAt) -> Self {
        Coordinator { follows: true, ..Coordinator::new(cluster, group, times, member_at) }
    }

    /// Drops a connection to another coordinator than the member's.
    pub(super) fn follow(&mut self) {
        let of_member = self.of_member();
        if of_member.is_some() && of_member != self.at {
            self.connection = KeptConnection::default();
        }
    }

    /// Returns the address of the member's coordinator, if this connection must go there.
    fn of_member(&self) -> Option<String> {
        self.member_at.lock().clone().filter(|_| self.follows)
    }

    /// Sets whether the coordinator may delay the answers of [`Coordinator::call_both`] until other members have sent
    /// their requests.
    pub(super) fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    pub(super) fn connection(&mut self) -> Result<&mut Connection, ClientError> {
        let of_member = self.of_member();
        self.connection.get(|| found(&mut self.cluster, &self.group, of_member, &mut self.at))
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
        let found = coordinator_in(found, &self.group);
        let found = BrokerAddress::of_coordinator(CoordinatorKind::Group, found);
        self.at = found.as_ref().ok().map(BrokerAddress::address);
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
        self.connection.keep(self.cluster.give(&found?.address())?);
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
        let of_member = self.of_member();
        let connect = || found(&mut self.cluster, &self.group, of_member.clone(), &mut self.at);
        let answer = self.connection.call(request, max, connect);
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
        if step == Next::Go && !self.follows {
            self.member_at.lock().clone_from(&self.at);
        }
        self.trouble = trouble.map(|error| error.to_string());
        if step == Next::Find {
            self.forget();
        }
        Ok(step)
    }
}

/// Connects to the coordinator at `given`, or looks it up if that is `None`. Records its address in `at`.
fn found(
    cluster: &mut Cluster,
    group: &Text,
    given: Option<String>,
    at: &mut Option<String>,
) -> Result<Connection, ClientError> {
    let address = match given {
        Some(address) => address,
        None => cluster.coordinator(CoordinatorKind::Group, group)?.address(),
    };
    let connection = cluster.give(&address)?;
    *at = Some(address);
    Ok(connection)
}
