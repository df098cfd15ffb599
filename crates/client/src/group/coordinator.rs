//! The connection to a group's coordinator. A request without a connection first looks up the coordinator and connects.
//! The connection is dropped when the coordinator has moved.

use super::lookout::{Awaited, Lookout};
use super::round_trips::RoundTrips;
use super::verdict::{self, Next};
use crate::blocking::{
    BrokerAddress, Cluster, Connection, KeptConnection, PartitionPlace, Stopper, metadata_request, places_in,
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
use std::time::{Duration, Instant};

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
    /// The address of the coordinator for the next connection, if two brokers have already named it.
    directed: Option<String>,
    member_at: MemberAt,
    /// True if this connection goes to the coordinator in `member_at`. The member's own connection looks it up.
    follows: bool,
}

/// The coordinator of the member. Requests for offsets go there. A broker that no longer is the coordinator, but does
/// not know this yet, would return old offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum MemberCoordinator {
    /// The member has not joined yet.
    #[default]
    Unknown,
    /// The coordinator at this address has accepted the member's last request.
    At(String),
    /// The member is searching for its coordinator, because the last one did not answer or is no longer the
    /// coordinator.
    Sought,
}

/// The coordinator of the member, which its thread updates.
pub(super) type MemberAt = Arc<Mutex<MemberCoordinator>>;

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
            directed: None,
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
        let is_left = match &*self.member_at.lock() {
            MemberCoordinator::Unknown => false,
            MemberCoordinator::At(address) => self.at.as_ref() != Some(address),
            MemberCoordinator::Sought => true,
        };
        if is_left {
            self.connection = KeptConnection::default();
        }
    }

    /// Returns the address of the coordinator if it is known. A connection that follows the member's one must go there.
    ///
    /// # Errors
    /// Returns a retriable error if this connection must follow the member's one, and the member is searching for its
    /// coordinator.
    fn given(&mut self) -> Result<Option<String>, ClientError> {
        if !self.follows {
            return Ok(if self.connection.is_some() { None } else { self.directed.take() });
        }
        match self.member_at.lock().clone() {
            MemberCoordinator::Unknown => Ok(None),
            MemberCoordinator::At(address) => Ok(Some(address)),
            MemberCoordinator::Sought => {
                let what = format!("cannot reach the coordinator of group '{}'", self.group);
                let words = "the member is searching for it";
                Err(ClientError::kafka(what, ErrorCode::COORDINATOR_NOT_AVAILABLE, Some(words)))
            }
        }
    }

    /// Makes the next connection go to the coordinator at `address`, without a look-up.
    pub(super) fn turn_to(&mut self, address: String) {
        self.directed = Some(address);
    }

    /// Starts to look up the coordinator at other brokers until the request on the open connection is answered. Returns
    /// `None` without a connection, or if the system refuses the thread.
    pub(super) fn look_out(&self, stopper: Stopper, every: Duration) -> Option<Lookout> {
        let (group, present) = (self.group.clone(), self.at.clone()?);
        Lookout::begin(self.cluster.detached(), Awaited { group, present, stopper }, every).ok()
    }

    /// Sets whether the coordinator may delay the answers of [`Coordinator::call_both`] until other members have sent
    /// their requests.
    pub(super) fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    pub(super) fn connection(&mut self) -> Result<&mut Connection, ClientError> {
        let given = self.given()?;
        self.connection.get(|| found(&mut self.cluster, &self.group, given, &mut self.at))
    }

    /// Returns true if a connection to the coordinator is open, or if the next one needs no look-up.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some() || self.directed.is_some()
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
        let found = BrokerAddress::of_coordinator(CoordinatorKind::Group, found).map(|found| found.address());
        // A response that refuses the request is ignored, because a broker that is not the coordinator may refuse a
        // request that the coordinator would accept.
        let is_accepted =
            |answer: &R::Response| [ErrorCode::NONE, ErrorCode::MEMBER_ID_REQUIRED].contains(&code(answer));
        let answer = answer.filter(is_accepted);
        if let Some(connection) = connection {
            // The broker may name another one as the coordinator although it has accepted the request. All later
            // requests, also those for offsets, then go to the named one.
            let is_coordinator = found.as_ref().ok().is_none_or(|address| connection.leads_to(address));
            if answer.is_some() && is_coordinator {
                self.at = Some(found.unwrap_or_else(|_| connection.address().to_owned()));
                self.connection.keep(connection);
                return Ok(answer);
            }
            self.cluster.keep_connection(connection);
        }
        let address = found?;
        self.connection.keep(self.cluster.give(&address)?);
        self.at = Some(address);
        Ok(answer)
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
        let (is_connected, begun) = (self.connection.is_some(), Instant::now());
        let given = self.given()?;
        let connect = || found(&mut self.cluster, &self.group, given.clone(), &mut self.at);
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
        if !self.follows {
            self.publish(step);
        }
        self.trouble = trouble.map(|error| error.to_string());
        if step == Next::Find {
            self.forget();
        }
        Ok(step)
    }

    /// Publishes the member's coordinator after an answer with this step.
    fn publish(&self, step: Next) {
        let mut member_at = self.member_at.lock();
        match (step, &self.at) {
            (Next::Find, _) if *member_at != MemberCoordinator::Unknown => *member_at = MemberCoordinator::Sought,
            (Next::Find | Next::Again, _) | (_, None) => {}
            (_, Some(address)) => *member_at = MemberCoordinator::At(address.clone()),
        }
    }
}

/// Connects to the coordinator at `given`, or looks it up if that is `None`. Stores its address in `at`.
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
