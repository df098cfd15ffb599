//! A cluster behind a bootstrap list: its brokers, the leaders that Metadata responses name, and connections to the
//! brokers.
//!
//! The caller decides when to refresh metadata. A request that any broker can answer is sent to another broker after
//! [`PATIENCE`], so that a hung broker does not delay it for the whole request timeout. Later requests try the hung
//! broker last for a while. A connection to a bootstrap address also serves the broker behind it, even if that broker
//! is advertised under another name. Invariant: all callers share one connection per broker.

use super::connection::Connection;
use crate::config::ClientConfig;
use crate::error::{ConnectionError, MetadataError};
use crate::unanswering::Unanswering;
use fullbore_wire::api::Request;
use fullbore_wire::apis::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
};
use fullbore_wire::{ErrorCode, Text, Uuid, host_port};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long a broker may take to answer before the request is sent to the next one as well.
const PATIENCE: Duration = Duration::from_secs(1);
/// Among the requests that any broker can answer, one in this many first goes to a broker without a connection.
/// Otherwise a single connected broker would answer all of them, even if it is cut off from the controller and has
/// stale metadata.
const ELSEWHERE: usize = 8;

/// The leader of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The leader's id, or -1 if the partition has none.
    pub id: i32,
    /// The leader's epoch, or -1 if the broker does not report epochs.
    pub epoch: i32,
}

/// A topic of the cluster.
#[derive(Clone, Debug)]
pub struct TopicInfo {
    /// The topic's id. Zero from brokers before Kafka 2.8.
    pub id: Uuid,
    /// The error code of the topic in the metadata, or NONE.
    pub error: ErrorCode,
    /// The leaders of the partitions, sorted by partition number.
    pub leaders: Vec<Leader>,
}

/// The brokers of a cluster, with one connection to each broker that was used. Clones share the brokers and the
/// connections.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<ClusterState>,
}

struct ClusterState {
    bootstrap: Vec<String>,
    /// The number of requests so far that any broker can answer. It rotates the list of brokers, so that each such
    /// request first goes to another broker.
    turn: AtomicUsize,
    config: ClientConfig,
    /// The addresses as host:port, by broker id.
    brokers: Mutex<HashMap<i32, String>>,
    connections: Mutex<HashMap<String, Arc<ConnectionSlot>>>,
    /// The brokers that did not answer. A request that any broker can answer goes to these last.
    unanswering: Mutex<Unanswering>,
    /// The address of a broker that the next request for metadata tries last.
    doubted: Mutex<Option<String>>,
}

/// The connection to a broker. A caller holds the lock while it connects, so that other callers wait for its
/// connection.
type ConnectionSlot = tokio::sync::Mutex<Option<Connection>>;

impl Cluster {
    /// Returns the cluster behind these addresses (host:port), without connecting.
    pub fn new(bootstrap: Vec<String>, config: ClientConfig) -> Self {
        Cluster {
            inner: Arc::new(ClusterState {
                bootstrap,
                turn: AtomicUsize::new(0),
                config,
                brokers: Mutex::default(),
                connections: Mutex::default(),
                unanswering: Mutex::default(),
                doubted: Mutex::default(),
            }),
        }
    }

    /// Returns the ids of the known brokers.
    pub fn brokers(&self) -> Vec<i32> {
        let mut ids: Vec<i32> = self.inner.brokers.lock().keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the address of a broker as host:port, or `None` if the broker is unknown.
    pub fn address(&self, broker: i32) -> Option<String> {
        self.inner.brokers.lock().get(&broker).cloned()
    }

    /// Returns the shared connection to a broker. Connects if there is none.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if the broker is unknown or cannot be reached.
    pub async fn broker(&self, broker: i32) -> Result<Connection, MetadataError> {
        let address = self.address(broker).ok_or(MetadataError::UnknownBroker(broker))?;
        self.open(&address).await
    }

    /// Returns a new connection to a broker, which the cluster does not share with other callers.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if the broker is unknown or cannot be reached.
    pub async fn another(&self, broker: i32) -> Result<Connection, MetadataError> {
        let address = self.address(broker).ok_or(MetadataError::UnknownBroker(broker))?;
        self.another_at(&address).await
    }

    /// Returns a new connection to the broker at `address`, which the cluster does not share with other callers.
    ///
    /// # Errors
    /// Returns [`MetadataError`] if the broker cannot be reached.
    pub async fn another_at(&self, address: &str) -> Result<Connection, MetadataError> {
        Ok(Connection::connect(address, &self.inner.config).await?)
    }

    /// Returns a shared connection to any broker, which may be a known one or one of the bootstrap list.
    ///
    /// # Errors
    /// Returns the error of the last attempt, if no broker can be reached.
    pub async fn any(&self) -> Result<Connection, MetadataError> {
        self.first("", |cluster, address| async move { cluster.open(&address).await }).await
    }

    /// Returns a new connection to any broker, which the cluster does not share with other callers. Tries the broker at
    /// `last` after the others.
    ///
    /// # Errors
    /// Returns the error of the last attempt, if no broker can be reached.
    pub(super) async fn another_to_any(&self, last: &str) -> Result<Connection, MetadataError> {
        let connect = |cluster: Cluster, address: String| async move {
            Ok(Connection::connect(&address, &cluster.inner.config).await?)
        };
        self.first(last, connect).await
    }

    /// Makes the next request for metadata go to another broker than the one with this id, because that broker may lead
    /// partitions only by stale metadata.
    pub fn doubt(&self, broker: i32) {
        *self.inner.doubted.lock() = self.address(broker);
    }

    /// Sends a request to any broker and returns the first response. The request is sent to the next broker after
    /// [`PATIENCE`], or at once if the previous attempt has failed. Several brokers may therefore carry out the
    /// request.
    ///
    /// # Errors
    /// Returns the error of the last attempt, if no broker answers.
    pub async fn call<R>(&self, request: R) -> Result<R::Response, MetadataError>
    where
        R: Request + Send + Sync + 'static,
        R::Response: Send + 'static,
    {
        self.call_elsewhere(request, "").await
    }

    /// Sends a request like [`Cluster::call`], but tries the broker at `last` after the others.
    async fn call_elsewhere<R>(&self, request: R, last: &str) -> Result<R::Response, MetadataError>
    where
        R: Request + Send + Sync + 'static,
        R::Response: Send + 'static,
    {
        let request = Arc::new(request);
        self.first(last, move |cluster, address| {
            let request = request.clone();
            async move {
                let connection = cluster.open(&address).await?;
                // The call runs in its own task, so that it is not cancelled when another broker answers first. A call
                // that is cancelled during its write ends the connection, with all other requests in flight on it.
                let called = tokio::spawn(async move { connection.call(&*request).await }).await;
                Ok(called.unwrap_or(Err(ConnectionError::NotSent(address)))?)
            }
        })
        .await
    }

    /// Tries one address after another, at the pace of [`Cluster::call`], and returns the first success. Tries
    /// `doubted` after the others.
    async fn first<T, F>(&self, doubted: &str, attempt: impl Fn(Cluster, String) -> F) -> Result<T, MetadataError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, MetadataError>> + Send + 'static,
    {
        let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
        let mut requested: HashSet<String> = HashSet::new();
        let (mut attempts, mut last) = (JoinSet::new(), MetadataError::UnknownBroker(-1));
        let mut newest = String::new();
        loop {
            // The addresses are read again each time, because another task may have found a broker that answers.
            let mut left = self.candidates(turn);
            left.retain(|address| !requested.contains(address));
            left.sort_by_key(|address| address == doubted);
            let next = left.into_iter().next();
            let patience = match next {
                Some(address) => {
                    requested.insert(address.clone());
                    newest.clone_from(&address);
                    let attempted = attempt(self.clone(), address.clone());
                    attempts.spawn(async move { (address, attempted.await) });
                    PATIENCE
                }
                None => Duration::MAX,
            };
            match tokio::time::timeout(patience, attempts.join_next()).await {
                Ok(Some(Ok((address, Ok(found))))) => {
                    self.inner.unanswering.lock().answered(&address);
                    return Ok(found);
                }
                Ok(Some(Ok((_, Err(error))))) => last = error,
                Ok(None) => return Err(last),
                Err(_) => self.inner.unanswering.lock().note(&newest, Instant::now()),
                // An attempt that panicked has no result. The loop continues with the next address.
                Ok(Some(Err(_))) => {}
            }
        }
    }

    /// Returns all known addresses without duplicates: first those with a connection, then the other brokers of the
    /// metadata, then the bootstrap list, and last those that did not answer. `turn` rotates the brokers and the
    /// bootstrap list. In each [`ELSEWHERE`]th turn, the addresses with a connection come after the others.
    fn candidates(&self, turn: usize) -> Vec<String> {
        let mut known: Vec<String> = self.inner.brokers.lock().values().cloned().collect();
        known.sort_unstable();
        let mut bootstrap = self.inner.bootstrap.clone();
        bootstrap.retain(|address| !known.contains(address));
        let connected_last = turn % ELSEWHERE == ELSEWHERE - 1;
        // Turns in which the connected addresses come last have their own rotation. With `turn` alone, all of these
        // turns could begin with the same address, because `turn` is the same modulo `ELSEWHERE`.
        let rotation = if connected_last { turn / ELSEWHERE } else { turn };
        for addresses in [&mut known, &mut bootstrap] {
            let by = rotation % addresses.len().max(1);
            addresses.rotate_left(by);
        }
        known.append(&mut bootstrap);
        known.sort_by_cached_key(|address| self.is_connected(address) == connected_last);
        self.inner.unanswering.lock().sort(&mut known, Instant::now());
        known
    }

    /// Requests the metadata of topics, or of all topics, and remembers the brokers of the response.
    ///
    /// # Errors
    /// Returns the error of the last attempt, if no broker answers.
    pub async fn describe(
        &self,
        topics: Option<&[Text]>,
        allow_auto_topic_creation: bool,
    ) -> Result<MetadataResponse, MetadataError> {
        let topic = |name: &Text| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
        let request = MetadataRequest {
            topics: topics.map(|names| names.iter().map(topic).collect()),
            allow_auto_topic_creation,
            ..Default::default()
        };
        let doubted = self.inner.doubted.lock().take().unwrap_or_default();
        let response = self.call_elsewhere(request, &doubted).await?;
        if response.error_code.is_err() {
            return Err(MetadataError::Broker(response.error_code));
        }
        self.learn(&response);
        Ok(response)
    }

    /// Adds a broker that a response of another API than Metadata has named (KIP-951).
    pub fn learn_broker(&self, id: i32, host: &str, port: i32) {
        self.inner.brokers.lock().insert(id, host_port(host, port));
    }

    fn learn(&self, response: &MetadataResponse) {
        // A broker that is starting returns an empty list of brokers. The known brokers are then kept.
        if response.brokers.is_empty() {
            return;
        }
        let brokers: HashMap<i32, String> =
            response.brokers.iter().map(|b| (b.node_id, host_port(&b.host, b.port))).collect();
        let used: Vec<String> = brokers.values().chain(&self.inner.bootstrap).cloned().collect();
        *self.inner.brokers.lock() = brokers;
        self.inner.connections.lock().retain(|address, _| used.contains(address));
    }

    /// Closes all open connections to brokers, even if responses are due on them. Connections from [`Cluster::another`]
    /// belong to their callers and stay open.
    pub fn close(&self) {
        for slot in self.inner.connections.lock().values() {
            // A slot that is locked belongs to a task that is connecting, and has no connection to close. That task
            // ends with its caller.
            if let Some(connection) = slot.try_lock().ok().and_then(|slot| slot.clone()) {
                connection.close();
            }
        }
    }

    fn is_connected(&self, address: &str) -> bool {
        let slot = self.inner.connections.lock().get(address).cloned();
        slot.is_some_and(|slot| slot.try_lock().is_ok_and(|c| c.as_ref().is_some_and(|c| !c.is_closed())))
    }

    async fn open(&self, address: &str) -> Result<Connection, MetadataError> {
        let slot = self.inner.connections.lock().entry(address.to_owned()).or_default().clone();
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|c| !c.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = match self.leading_to(address).await {
            Some(connection) => connection,
            None => Connection::connect(address, &self.inner.config).await?,
        };
        *slot = Some(connection.clone());
        Ok(connection)
    }

    /// Returns an open connection to the peer at `address` that was opened under another name, if there is one. A
    /// broker with two names thus needs only one connection.
    async fn leading_to(&self, address: &str) -> Option<Connection> {
        // A connection that another task is opening is skipped. Waiting for it could deadlock, because that task may be
        // waiting for the connection that this task opens.
        let open = |other: &String| {
            let slot = self.inner.connections.lock().get(other).cloned()?;
            let known = slot.try_lock().ok()?.clone();
            known.filter(|known| !known.is_closed())
        };
        let others = self.inner.bootstrap.iter().filter(|other| *other != address);
        Connection::leading_to(others.filter_map(open).collect(), address, &self.inner.config).await
    }
}

impl TopicInfo {
    /// Reads one topic of a metadata response.
    pub fn from_response(topic: &MetadataResponseTopic) -> Self {
        let mut partitions: Vec<&MetadataResponsePartition> = topic.partitions.iter().collect();
        partitions.sort_unstable_by_key(|p| p.partition_index);
        // Kafka numbers partitions without gaps. Partitions after a gap are left out.
        let dense = partitions.iter().enumerate().take_while(|(i, p)| p.partition_index as usize == *i);
        let leaders = dense.map(|(_, p)| Leader { id: p.leader_id, epoch: p.leader_epoch }).collect();
        TopicInfo { id: topic.topic_id, error: topic.error_code, leaders }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    /// Reads a whole request and answers it.
    async fn answer(socket: &mut TcpStream, response: &[u8]) {
        let len = socket.read_u32().await.expect("a request");
        let mut request = vec![0; len as usize];
        socket.read_exact(&mut request).await.expect("a whole request");
        let frame = [&(response.len() as u32).to_be_bytes(), response].concat();
        socket.write_all(&frame).await.expect("the client reads");
    }

    /// Starts a broker that answers ApiVersions and one Metadata request. It reads the Metadata request once `begin`
    /// has a value, and its task then ends.
    async fn broker(begin: oneshot::Receiver<()>) -> (String, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let serving = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a client");
            // The response to ApiVersions: correlation id, no error, one API (Metadata in version 0), no throttling, no
            // tags.
            answer(&mut socket, &[0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await;
            begin.await.expect("the test begins it");
            // The response to Metadata: correlation id, no brokers, no topics.
            answer(&mut socket, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).await;
        });
        (address, serving)
    }

    #[tokio::test]
    async fn another_broker_answers_first_the_slow_one_still_gets_the_whole_request() {
        let ((slow_begins, slow_begun), (fast_begins, fast_begun)) = (oneshot::channel(), oneshot::channel());
        let ((slow, slow_reads), (fast, _)) = (broker(slow_begun).await, broker(fast_begun).await);
        fast_begins.send(()).expect("it waits");
        let cluster = Cluster::new(vec![slow.clone(), fast], ClientConfig::default());
        // The request does not fit into the socket buffers of the system.
        let name = Some(Text::from("t".repeat(30_000).as_str()));
        let topic = MetadataRequestTopic { name, ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![topic; 1_000]), ..Default::default() };
        cluster.call(request).await.expect("the fast broker answers");
        assert!(cluster.is_connected(&slow), "other requests may be in flight on the connection");
        slow_begins.send(()).expect("it waits");
        tokio::time::timeout(Duration::from_secs(120), slow_reads).await.expect("the rest comes").expect("no panic");
    }

    fn partition(partition_index: i32, leader_id: i32) -> MetadataResponsePartition {
        MetadataResponsePartition { partition_index, leader_id, leader_epoch: 1, ..Default::default() }
    }

    #[test]
    fn partitions_are_sorted_and_dense() {
        let partitions = vec![partition(1, 11), partition(0, 10), partition(3, 13)];
        let info = TopicInfo::from_response(&MetadataResponseTopic { partitions, ..Default::default() });
        let ids: Vec<i32> = info.leaders.iter().map(|l| l.id).collect();
        assert_eq!(ids, [10, 11]);
    }
}
