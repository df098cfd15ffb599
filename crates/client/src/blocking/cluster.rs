//! A cluster behind a bootstrap list: its brokers, the leaders of its partitions, and connections to its brokers.

use super::awaited::Awaited;
use super::connection::Connection;
use super::doubts::Doubts;
use super::kept::KeptConnection;
use super::socket::READ_TIMEOUT;
use crate::error::ClientError;
use crate::security::Security;
use crate::unanswering::Unanswering;
use fullbore_wire::api::Request;
use fullbore_wire::apis::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
};
use fullbore_wire::{ErrorCode, Text, Uuid, host_port, split_host_port};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A cluster behind a bootstrap list.
pub struct Cluster {
    bootstrap: Bootstrap,
    /// The connection for requests that any broker can answer. The lock is needed because [`Cluster::handed_over`]
    /// removes the connection although it has only `&self`.
    connection: Mutex<KeptConnection>,
    /// Connections to brokers by address, for requests that only these brokers can answer.
    others: HashMap<String, KeptConnection>,
}

/// How long an attempt to connect may take before the next broker is tried as well.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long [`Cluster::partitions_elsewhere`] waits for a connection to another broker.
const ELSEWHERE_PATIENCE: Duration = Duration::from_secs(5);

/// The bootstrap addresses, the learned brokers, and the state of the search for a broker that answers.
struct Bootstrap {
    addresses: Vec<String>,
    /// The addresses of brokers from the newest metadata, tried after `addresses`. Detached clusters share this list.
    learned: Arc<Mutex<Vec<String>>>,
    client_id: String,
    security: Security,
    /// How long a broker may be silent during a request.
    patience: Duration,
    awaited: Awaited,
    /// The number of searches for a broker that answers. It selects the bootstrap address with which the next search
    /// begins.
    turn: AtomicUsize,
    /// The brokers whose metadata was stale. A search tries these after the others.
    doubts: Mutex<Doubts>,
    /// The brokers that did not answer. A search tries these last. Detached clusters share this list.
    unanswering: Arc<Mutex<Unanswering>>,
}

/// A broker, as metadata describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerAddress {
    /// The broker's id.
    pub id: i32,
    /// The broker's host.
    pub host: Text,
    /// The broker's port.
    pub port: i32,
}

impl BrokerAddress {
    /// Returns the address as `host:port`.
    pub fn address(&self) -> String {
        host_port(&self.host, self.port)
    }
}

/// A partition with its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPlace {
    /// The name of the topic.
    pub topic: Text,
    /// The id of the topic. Zero from brokers before Kafka 2.8.
    pub topic_id: Uuid,
    /// The number of the partition.
    pub partition: i32,
    /// The address of the leader as `host:port`, or `None` while the partition has no leader.
    pub leader: Option<String>,
    /// The leader epoch, or -1 if it is unknown.
    pub leader_epoch: i32,
}

/// The partitions of a topic in order, with their leaders, or the topic's error code.
pub type TopicPlaces = Result<Vec<PartitionPlace>, ErrorCode>;

impl Cluster {
    /// Returns the cluster behind `host:port,host:port,...`, without connecting.
    ///
    /// # Errors
    /// Returns [`ClientError::Address`] if an entry is not `host:port`.
    pub fn new(bootstrap_servers: &str, client_id: &str) -> Result<Self, ClientError> {
        let addresses: Vec<String> =
            bootstrap_servers.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
        let is_address = |entry: &String| split_host_port(entry).is_some_and(|(host, _)| !host.is_empty());
        match addresses.iter().find(|entry| !is_address(entry)) {
            Some(wrong) => Err(ClientError::Address(wrong.clone())),
            None if addresses.is_empty() => Err(ClientError::Address(bootstrap_servers.to_owned())),
            None => Ok(Cluster {
                bootstrap: Bootstrap {
                    addresses,
                    learned: Arc::default(),
                    client_id: client_id.to_owned(),
                    security: Security::default(),
                    patience: READ_TIMEOUT,
                    awaited: Awaited::default(),
                    turn: AtomicUsize::new(0),
                    doubts: Mutex::default(),
                    unanswering: Arc::default(),
                },
                connection: Mutex::default(),
                others: HashMap::new(),
            }),
        }
    }

    /// Sets the security of connections. By default they are plain.
    #[must_use]
    pub fn secured(self, security: Security) -> Self {
        Cluster { bootstrap: Bootstrap { security, ..self.bootstrap }, ..self }
    }

    /// Sets how long a broker may be silent during a request.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Cluster { bootstrap: Bootstrap { patience, ..self.bootstrap }, ..self }
    }

    /// Returns this cluster with the learned brokers of `other`. From then on, each cluster uses the brokers that the
    /// other one learns from metadata.
    #[must_use]
    pub(crate) fn learning_with(self, other: &Cluster) -> Self {
        Cluster { bootstrap: Bootstrap { learned: other.bootstrap.learned.clone(), ..self.bootstrap }, ..self }
    }

    /// Remembers the brokers of a metadata response that was received outside of this cluster.
    pub(crate) fn learn(&self, response: &MetadataResponse) {
        self.bootstrap.learn(response);
    }

    /// Drops the connection of [`Cluster::any`], because its broker named a stale leader or coordinator. The next
    /// search tries other brokers first. Has no effect if no other broker is known. Further calls within a short time
    /// have no effect either. This time grows from 1 s to 30 s.
    pub(crate) fn doubt(&mut self) {
        if self.bootstrap.knows_others() && self.bootstrap.doubts.lock().doubt(Instant::now()) {
            drop(self.connection.get_mut().take());
        }
    }

    /// Drops the connection of [`Cluster::any`], so that the next request goes to another broker. Has no effect if no
    /// other broker is known.
    pub(crate) fn rotate(&mut self) {
        if self.knows_others() {
            let before = self.connection.get_mut().take();
            self.bootstrap.doubts.lock().rotate(before.as_ref().map(Connection::address));
        }
    }

    /// Returns true if more than one broker is known. A bootstrap address and a broker of the metadata may be the same
    /// broker under two names.
    pub(crate) fn knows_others(&self) -> bool {
        self.bootstrap.addresses.len() > 1 || self.bootstrap.learned.lock().len() > 1
    }

    /// Returns the address of the connection of [`Cluster::any`], if there is one.
    pub(crate) fn connected_to(&mut self) -> Option<String> {
        self.connection.get_mut().address().map(str::to_owned)
    }

    /// Returns the list of responses that are due. All clusters made from this one share it.
    pub fn awaited(&self) -> Awaited {
        self.bootstrap.awaited.clone()
    }

    /// Returns the timeout in ms to send in requests that change the cluster. This timeout is shorter than the client's
    /// wait for the response, so that the client still gets the broker's answer.
    pub(crate) fn change_timeout_ms(&self) -> i32 {
        i32::try_from((self.bootstrap.patience * 9 / 10).as_millis()).unwrap_or(i32::MAX)
    }

    /// Returns a cluster of the same brokers with its own connections.
    #[must_use]
    pub fn detached(&self) -> Self {
        let Bootstrap { addresses, learned, client_id, security, patience, awaited, turn, doubts, unanswering } =
            &self.bootstrap;
        let bootstrap = Bootstrap {
            addresses: addresses.clone(),
            learned: learned.clone(),
            client_id: client_id.clone(),
            security: security.clone(),
            patience: *patience,
            awaited: awaited.clone(),
            turn: AtomicUsize::new(turn.load(Ordering::Relaxed)),
            doubts: Mutex::new(doubts.lock().clone()),
            unanswering: unanswering.clone(),
        };
        Cluster { bootstrap, connection: Mutex::default(), others: HashMap::new() }
    }

    /// Returns a cluster of the same brokers and moves the connection of [`Cluster::any`] to it. The original cluster
    /// connects again at its next request.
    #[must_use]
    pub fn handed_over(&self) -> Self {
        let connection = Mutex::new(std::mem::take(&mut *self.connection.lock()));
        Cluster { connection, ..self.detached() }
    }

    /// Removes and returns the connection of [`Cluster::any`], if there is one. The caller may use it for a request
    /// that the broker may answer late.
    pub(crate) fn take_connection(&mut self) -> Option<Connection> {
        self.connection.get_mut().take().filter(|connection| connection.set_patience(READ_TIMEOUT).is_ok())
    }

    /// Stores this connection for later requests that any broker can answer.
    pub(crate) fn keep_connection(&mut self, connection: Connection) {
        // If the time limit of the socket cannot be set, the connection is dropped.
        if connection.set_patience(self.bootstrap.patience).is_ok() {
            self.connection.get_mut().keep(connection);
        }
    }

    /// Returns a connection to the broker at `address` for the caller's use alone. This is the connection of
    /// [`Cluster::any`] if it leads to that broker, and otherwise a new connection.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Connection::connect`] returns one.
    pub fn give(&mut self, address: &str) -> Result<Connection, ClientError> {
        match self.take_connection() {
            Some(connection) if connection.leads_to(address) => return Ok(connection),
            Some(connection) => self.keep_connection(connection),
            None => {}
        }
        self.connect(address)
    }

    /// Returns the bootstrap list.
    pub fn servers(&self) -> String {
        self.bootstrap.addresses.join(",")
    }

    /// Returns the connection for requests that any broker can answer. If there is none, connects to the first broker
    /// that answers, among those of the bootstrap list and of the metadata.
    ///
    /// # Errors
    /// Returns [`ClientError`] of the last attempt to connect, if all fail.
    pub fn any(&mut self) -> Result<&mut Connection, ClientError> {
        let _wait = self.awaited().begin(self.servers());
        self.connection.get_mut().get(|| self.bootstrap.first())
    }

    /// Sends a request to any broker and waits for the response.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Cluster::any`] or [`Connection::call`] returns one.
    pub fn call<R: Request>(&mut self, request: &R) -> Result<R::Response, ClientError> {
        let connected = self.connection.get_mut().address().map(str::to_owned);
        let _wait = self.awaited().begin(connected.clone().unwrap_or_else(|| self.servers()));
        let answer = self.connection.get_mut().call(request, i16::MAX, || self.bootstrap.first());
        if let (Err(ClientError::Silent { .. } | ClientError::Io { .. }), Some(address)) = (&answer, connected) {
            self.bootstrap.unanswering.lock().note(&address, Instant::now());
        }
        answer
    }

    /// Returns a new connection to the broker at `address`. Meant for requests that a broker may answer late, such as a
    /// fetch.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Connection::connect`] returns one.
    pub fn connect(&self, address: &str) -> Result<Connection, ClientError> {
        let connection = self.bootstrap.connect(address)?;
        connection.set_patience(READ_TIMEOUT)?;
        Ok(connection)
    }

    /// Sends a request to the broker at `address`, in version `max` or an older one. The connection is kept for later
    /// requests.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Connection::connect`] or [`Connection::call`] returns one.
    pub fn call_at<R: Request>(&mut self, address: &str, request: &R, max: i16) -> Result<R::Response, ClientError> {
        let _wait = self.awaited().begin(address);
        let kept = self.others.entry(address.to_owned()).or_default();
        kept.call(request, max, || self.bootstrap.connect(address))
    }

    /// Sends requests to the broker at `address`, each paired with its weight. The total weight of the requests in
    /// flight is at most `weight_max`. Returns the responses in order. After an error sends no more, and also returns
    /// the error.
    pub(crate) fn call_each_at<R: Request>(
        &mut self,
        address: &str,
        requests: impl IntoIterator<Item = (usize, R)>,
        max: i16,
        weight_max: usize,
    ) -> (Vec<R::Response>, Option<ClientError>) {
        let _wait = self.awaited().begin(address);
        let kept = self.others.entry(address.to_owned()).or_default();
        kept.call_each(requests, max, weight_max, || self.bootstrap.connect(address))
    }

    /// Returns the newest version of an API that the broker at `address` and this program have in common.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Connection::connect`] or [`Connection::version`] returns one.
    pub(crate) fn version_at<R: Request>(&mut self, address: &str) -> Result<i16, ClientError> {
        let _wait = self.awaited().begin(address);
        let kept = self.others.entry(address.to_owned()).or_default();
        kept.get(|| self.bootstrap.connect(address))?.version::<R>()
    }

    /// Returns true if the broker at `address` serves the API in a version that this program knows.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Connection::connect`] returns one.
    pub fn offers<R: Request>(&mut self, address: &str) -> Result<bool, ClientError> {
        match self.version_at::<R>(address) {
            Err(ClientError::Version { .. }) => Ok(false),
            version => version.map(|_| true),
        }
    }

    /// Returns every live broker, sorted by id.
    ///
    /// # Errors
    /// Returns the error of the last attempt to connect, if no broker answers.
    pub fn brokers(&mut self) -> Result<Vec<BrokerAddress>, ClientError> {
        let brokers = self.metadata(Some(&[]))?.brokers.into_iter();
        let mut brokers: Vec<BrokerAddress> =
            brokers.map(|found| BrokerAddress { id: found.node_id, host: found.host, port: found.port }).collect();
        brokers.sort();
        Ok(brokers)
    }

    /// Returns the partitions of the existing topics among `topics`.
    ///
    /// # Errors
    /// Returns the error of the connection if no broker answers, or the error of a topic that this client is not
    /// allowed to read.
    pub fn partitions_of(&mut self, topics: &[Text]) -> Result<BTreeMap<Text, Vec<PartitionPlace>>, ClientError> {
        if topics.is_empty() {
            return Ok(BTreeMap::new());
        }
        places_in(&self.metadata(Some(topics))?)
    }

    /// Returns the partitions, or the error code, of each of these topics.
    ///
    /// # Errors
    /// Returns the error of the last attempt to connect, if no broker answers.
    pub fn topics(&mut self, topics: &[Text]) -> Result<BTreeMap<Text, TopicPlaces>, ClientError> {
        if topics.is_empty() {
            return Ok(BTreeMap::new());
        }
        let response = self.metadata(Some(topics))?;
        let of_topic = |topic: &MetadataResponseTopic| {
            let found = if topic.error_code.is_err() { Err(topic.error_code) } else { Ok(places(&response, topic)) };
            (topic.name.clone().unwrap_or_default(), found)
        };
        Ok(response.topics.iter().map(of_topic).collect())
    }

    /// Returns how long a broker may be silent during a request.
    pub(crate) fn patience(&self) -> Duration {
        self.bootstrap.patience
    }

    /// Returns the metadata of `topics`, or of all topics. Never creates a topic.
    ///
    /// # Errors
    /// Returns the error of the broker, or the error of the connection if no broker answers.
    pub fn metadata(&mut self, topics: Option<&[Text]>) -> Result<MetadataResponse, ClientError> {
        let response = self.call(&metadata_request(topics))?;
        match response.error_code.is_err() {
            true => Err(ClientError::kafka("cannot read the metadata", response.error_code, None)),
            false => {
                self.bootstrap.learn(&response);
                Ok(response)
            }
        }
    }

    /// Returns every partition of a topic with its leader, in order.
    ///
    /// # Errors
    /// Returns [`ClientError::NoTopic`] if the topic does not exist, or another error of the broker or of the
    /// connection.
    pub fn partitions(&mut self, topic: &Text) -> Result<Vec<PartitionPlace>, ClientError> {
        let response = self.metadata(Some(std::slice::from_ref(topic)))?;
        let found = response.topics.first().ok_or_else(|| ClientError::NoTopic(topic.to_string()))?;
        check_topic(found.error_code, topic)?;
        Ok(places(&response, found))
    }

    /// Returns the partitions of a topic as another broker knows them than the one of [`Cluster::any`]. Later requests
    /// go to that other broker. Returns `None` if no other broker is known.
    pub fn partitions_elsewhere(&mut self, topic: &Text) -> Option<Result<Vec<PartitionPlace>, ClientError>> {
        let before = self.connection.get_mut().take()?;
        let mut others = self.bootstrap.candidates();
        others.retain(|address| !before.leads_to(address));
        let is_alone = others.is_empty();
        match self.bootstrap.first_of(others, ELSEWHERE_PATIENCE.min(self.bootstrap.patience)) {
            Ok(other) => {
                self.connection.get_mut().keep(other);
                Some(self.partitions(topic))
            }
            Err(error) => {
                self.connection.get_mut().keep(before);
                (!is_alone).then_some(Err(error))
            }
        }
    }
}

impl Bootstrap {
    fn connect(&self, address: &str) -> Result<Connection, ClientError> {
        Connection::connect_within(address, &self.client_id, &self.security, self.patience)
    }

    /// Remembers the brokers of a response. A response without brokers comes from a broker that is starting, and is
    /// ignored.
    fn learn(&self, response: &MetadataResponse) {
        if !response.brokers.is_empty() {
            *self.learned.lock() = response.brokers.iter().map(|broker| host_port(&broker.host, broker.port)).collect();
        }
    }

    /// Returns true if more than one address is known.
    fn knows_others(&self) -> bool {
        self.addresses.len() > 1 || self.learned.lock().iter().any(|address| !self.addresses.contains(address))
    }

    /// Returns all known addresses without duplicates: the bootstrap list, then the brokers of the metadata, then
    /// addresses in doubt, then those that did not answer. Each call begins with another address of the bootstrap list.
    fn candidates(&self) -> Vec<String> {
        let mut addresses = self.addresses.clone();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
        addresses.rotate_left(turn);
        for address in &*self.learned.lock() {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        self.doubts.lock().sort(&mut addresses);
        self.unanswering.lock().sort(&mut addresses, Instant::now());
        addresses
    }

    /// Connects to the first broker that answers, among all known ones.
    fn first(&self) -> Result<Connection, ClientError> {
        self.first_of(self.candidates(), self.patience)
    }

    /// Connects to the first of these brokers that answers. Tries the next address after [`PATIENCE`], or at once if
    /// the previous attempt has failed. A broker that hangs therefore costs only [`PATIENCE`], and later searches try
    /// it last. All attempts together end after `within`.
    fn first_of(&self, addresses: Vec<String>, within: Duration) -> Result<Connection, ClientError> {
        let until = Instant::now() + within;
        let mut addresses = addresses.into_iter();
        let (sender, receiver) = channel();
        let (mut waiting, mut outcome) = (0, Err(ClientError::Address(String::new())));
        let mut last = String::new();
        loop {
            let next = addresses.next();
            let has_next = next.is_some();
            if let Some(address) = next {
                let (client_id, security, patience) = (self.client_id.clone(), self.security.clone(), self.patience);
                let sender = sender.clone();
                last.clone_from(&address);
                let attempt = move || {
                    // The send fails if another attempt was faster. The connection is then dropped.
                    let _ = sender.send(Connection::connect_within(&address, &client_id, &security, patience));
                };
                let begun = std::thread::Builder::new().name("connect".to_owned()).spawn(attempt);
                begun.map_err(|source| ClientError::Connect { address: self.addresses.join(","), source })?;
                waiting += 1;
            } else if waiting == 0 {
                return outcome;
            }
            let left = until.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(if has_next { PATIENCE.min(left) } else { left + PATIENCE }) {
                Ok(Ok(connection)) => {
                    self.doubts.lock().led_to(connection.address());
                    self.unanswering.lock().answered(connection.address());
                    return Ok(connection);
                }
                Ok(failed) => (waiting, outcome) = (waiting - 1, failed),
                Err(_) if Instant::now() >= until => {
                    return Err(ClientError::Silent { address: self.addresses.join(","), patience: within });
                }
                // No attempt has succeeded yet, so the loop also tries the next address.
                Err(_) => self.unanswering.lock().note(&last, Instant::now()),
            }
        }
    }
}

/// Returns the metadata request for `topics`, or for all topics. It never creates a topic.
pub(crate) fn metadata_request(topics: Option<&[Text]>) -> MetadataRequest {
    let by_name = |name: &Text| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
    MetadataRequest {
        topics: topics.map(|names| names.iter().map(by_name).collect()),
        allow_auto_topic_creation: false,
        ..Default::default()
    }
}

/// Returns the partitions of each topic in a metadata response, without the topics that do not exist.
///
/// # Errors
/// Returns [`ClientError`] if the broker refuses a topic for another reason than that it does not exist.
pub(crate) fn places_in(response: &MetadataResponse) -> Result<BTreeMap<Text, Vec<PartitionPlace>>, ClientError> {
    let mut found = BTreeMap::new();
    for topic in &response.topics {
        let name = topic.name.clone().unwrap_or_default();
        match check_topic(topic.error_code, &name) {
            Ok(()) => found.insert(name, places(response, topic)),
            Err(ClientError::NoTopic(_)) => None,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

/// Returns every partition of a topic with its leader, in order.
fn places(response: &MetadataResponse, topic: &MetadataResponseTopic) -> Vec<PartitionPlace> {
    let address_of = |id: i32| {
        let broker = response.brokers.iter().find(|broker| broker.node_id == id);
        broker.map(|broker| host_port(&broker.host, broker.port))
    };
    let place = |partition: &MetadataResponsePartition| PartitionPlace {
        topic: topic.name.clone().unwrap_or_default(),
        topic_id: topic.topic_id,
        partition: partition.partition_index,
        leader: address_of(partition.leader_id),
        leader_epoch: partition.leader_epoch,
    };
    let mut places: Vec<PartitionPlace> = topic.partitions.iter().map(place).collect();
    places.sort_by_key(|place| place.partition);
    places
}

/// Checks the error code of one topic of a response.
pub(crate) fn check_topic(code: ErrorCode, topic: &str) -> Result<(), ClientError> {
    if code.is_err() { Err(refused_topic(code, topic)) } else { Ok(()) }
}

/// Converts the error code of a topic into the client's error.
pub fn refused_topic(code: ErrorCode, topic: &str) -> ClientError {
    match code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => ClientError::NoTopic(topic.to_owned()),
        code => ClientError::kafka(format!("cannot read topic '{topic}'"), code, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bootstrap_list_is_split_and_each_wrong_entry_is_refused() {
        let addresses = |list| Cluster::new(list, "test").map(|cluster| cluster.bootstrap.addresses);
        assert_eq!(addresses("a:1, b:2,").expect("valid"), ["a:1", "b:2"]);
        for wrong in ["", "a", "a:b", ":1", "a:1,b", "a:70000"] {
            let error = addresses(wrong).expect_err(wrong).to_string();
            assert!(error.contains("--bootstrap-server localhost:9092"), "{error}");
        }
    }

    #[test]
    fn a_refused_connection_is_one_sentence_with_the_next_step() {
        let mut cluster = Cluster::new("127.0.0.1:1", "test").expect("valid");
        let error = cluster.any().err().expect("nobody listens").to_string();
        assert!(error.contains("127.0.0.1:1") && error.contains("fullbore serve"), "{error}");
    }
}
