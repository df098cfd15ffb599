//! A cluster of broker processes with a common database. Each broker has its own directory, and ports that stay the
//! same. The database is on the PostgreSQL that all tests of a program share. A test that stops or freezes PostgreSQL
//! gets a server of its own.
//!
//! Invariant: no process outlives its `Cluster`.

use crate::postgres::PostgresServer;
use crate::process::Output;
use crate::relay::{Links, Relay};
use crate::requests::LATEST;
use crate::{Broker, Client, binary, stable_ports, wait_until};
use fullbore_wire::apis::metadata::MetadataResponsePartition;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// How long a change may take to reach every broker.
const CHANGE_MAX: Duration = Duration::from_secs(120);
/// The name of a separate listener for requests between brokers, if a test adds one.
const PEERS: &str = "PEERS";

/// A running cluster. The ids of its brokers begin with 1.
pub struct Cluster {
    /// The broker processes. Declared before `plan`, so that they end before their database.
    brokers: Vec<Broker>,
    plan: ClusterPlan,
}

/// A cluster that is not started yet. Its database runs, and the settings of each broker can still change.
pub struct ClusterPlan {
    postgres: DatabaseServer,
    database: String,
    addresses: Vec<SocketAddr>,
    sets: Vec<Vec<String>>,
    directories: Vec<PathBuf>,
    links: Option<Links>,
}

/// The PostgreSQL of a cluster: the one that tests share, or one of its own.
enum DatabaseServer {
    Shared(&'static PostgresServer),
    Own(PostgresServer),
}

impl Deref for DatabaseServer {
    type Target = PostgresServer;

    fn deref(&self) -> &PostgresServer {
        match self {
            DatabaseServer::Shared(server) => server,
            DatabaseServer::Own(server) => server,
        }
    }
}

impl ClusterPlan {
    /// Plans a cluster of `brokers` brokers with the settings `sets`.
    pub fn new(brokers: usize, sets: &[&str]) -> ClusterPlan {
        ClusterPlan::over(DatabaseServer::Shared(PostgresServer::shared()), brokers, sets)
    }

    /// Plans a cluster with its own PostgreSQL, for tests that stop or change it.
    pub fn with_own_postgres(brokers: usize, sets: &[&str]) -> ClusterPlan {
        ClusterPlan::over(DatabaseServer::Own(PostgresServer::start()), brokers, sets)
    }

    fn over(postgres: DatabaseServer, brokers: usize, sets: &[&str]) -> ClusterPlan {
        let database = postgres.database();
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let addresses: Vec<SocketAddr> = stable_ports(brokers).into_iter().map(address).collect();
        let url = postgres.url(&database);
        let own = |(id, address): (usize, &SocketAddr)| {
            let own =
                [format!("node.id={id}"), format!("listeners=PLAINTEXT://{address}"), format!("control.plane={url}")];
            own.into_iter().chain(sets.iter().map(|set| (*set).to_owned())).collect()
        };
        let sets = (1..).zip(&addresses).map(own).collect();
        ClusterPlan { postgres, database, addresses, sets, directories: Vec::new(), links: None }
    }

    /// Returns the PostgreSQL of the plan. Panics if the plan shares a server with other tests.
    pub fn postgres(&self) -> &PostgresServer {
        match &self.postgres {
            DatabaseServer::Own(server) => server,
            DatabaseServer::Shared(_) => panic!("others use it, too: `ClusterPlan::with_own_postgres`"),
        }
    }

    /// Returns the name of the cluster's database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Replaces the setting `key` of the broker at `index`.
    pub fn set(&mut self, index: usize, key: &str, value: &str) {
        let sets = &mut self.sets[index];
        sets.retain(|set| set.split_once('=').is_none_or(|(found, _)| found != key));
        sets.push(format!("{key}={value}"));
    }

    /// Sets the data directory of each broker, in the order of ids.
    pub fn in_directories(mut self, directories: &[PathBuf]) -> ClusterPlan {
        directories.clone_into(&mut self.directories);
        self
    }

    /// Adds a listener with the protocol `protocol` for requests between brokers.
    pub fn with_peers_over(mut self, protocol: &str) -> ClusterPlan {
        let ports = stable_ports(self.addresses.len());
        for (index, port) in ports.into_iter().enumerate() {
            let clients = self.addresses[index];
            self.set(index, "listeners", &format!("PLAINTEXT://{clients},{PEERS}://127.0.0.1:{port}"));
            self.set(index, "listener.security.protocol.map", &format!("PLAINTEXT:PLAINTEXT,{PEERS}:{protocol}"));
            self.set(index, "inter.broker.listener.name", PEERS);
        }
        self
    }

    /// Puts links between the brokers, and between each broker and the database. The test can cut them.
    pub fn linked(self) -> ClusterPlan {
        let mut plan = self.with_peers_over("PLAINTEXT");
        let (mut peers, mut databases) = (Vec::new(), Vec::new());
        for index in 0..plan.addresses.len() {
            let listeners = plan.sets[index].iter().find_map(|set| set.strip_prefix("listeners=")).expect("set");
            let port = listeners.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
            let relay = Relay::to((Ipv4Addr::LOCALHOST, port).into());
            let advertised = format!("PLAINTEXT://{},{PEERS}://{}", plan.addresses[index], relay.address);
            plan.set(index, "advertised.listeners", &advertised);
            peers.push(relay);
            let relay = Relay::to(plan.postgres.address());
            let url = format!("postgres://postgres@{}/{}", relay.address, plan.database);
            plan.set(index, "control.plane", &url);
            databases.push(relay);
        }
        plan.links = Some(Links { peers, databases });
        plan
    }

    /// Starts the brokers. Returns once they all know each other.
    pub fn start(self) -> Cluster {
        let mut cluster = Cluster { brokers: Vec::new(), plan: self };
        let ids: Vec<i32> = (1..).take(cluster.plan.sets.len()).collect();
        for (index, sets) in cluster.plan.sets.iter().enumerate() {
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            let directory = cluster.plan.directories.get(index);
            cluster
                .brokers
                .push(directory.map_or_else(|| Broker::start(&sets), |directory| Broker::start_in(directory, &sets)));
        }
        cluster.wait_for_brokers(&ids);
        cluster
    }
}

impl Cluster {
    /// Starts `brokers` brokers with the settings `sets`. Returns once they all know each other.
    pub fn start(brokers: usize, sets: &[&str]) -> Cluster {
        ClusterPlan::new(brokers, sets).start()
    }

    /// Returns the settings of the broker `id`.
    pub fn sets_of(&self, id: i32) -> &[String] {
        &self.plan.sets[usize::try_from(id - 1).expect("ids begin with 1")]
    }

    /// Returns the links between the processes. Panics if the cluster was planned without links.
    pub fn links(&self) -> &Links {
        self.plan.links.as_ref().expect("a plan with links")
    }

    /// Runs SQL statements on the cluster's database and returns the output.
    pub fn query(&self, statements: &str) -> String {
        self.plan.postgres.run(&self.plan.database, statements)
    }

    /// Returns the broker `id`.
    pub fn broker(&mut self, id: i32) -> &mut Broker {
        &mut self.brokers[usize::try_from(id - 1).expect("ids begin with 1")]
    }

    /// Returns the ids of all brokers, including those that do not run.
    pub fn ids(&self) -> impl Iterator<Item = i32> + use<> {
        (1..).take(self.brokers.len())
    }

    /// Returns the PostgreSQL of the cluster. Panics if it is shared with other tests.
    pub fn postgres(&self) -> &PostgresServer {
        self.plan.postgres()
    }

    /// Returns the address of the clients' listener of the broker `id`.
    pub fn address(&self, id: i32) -> SocketAddr {
        self.plan.addresses[usize::try_from(id - 1).expect("ids begin with 1")]
    }

    /// Returns the addresses of all brokers, separated by commas.
    pub fn bootstrap(&self) -> String {
        self.plan.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }

    /// Waits until the metadata of each of the brokers `ids` lists exactly the brokers `ids`.
    pub fn wait_for_brokers(&self, ids: &[i32]) {
        let wanted: BTreeSet<i32> = ids.iter().copied().collect();
        for id in ids {
            wait_until(&format!("broker {id} tells of {wanted:?}"), CHANGE_MAX, || {
                let reported = Client::connect(self.address(*id)).metadata(&[]);
                reported.brokers.iter().map(|broker| broker.node_id).collect::<BTreeSet<_>>() == wanted
            });
        }
    }

    /// Waits until all brokers return the same id for a topic. If a topic of this name was deleted, each broker then
    /// knows of the deletion.
    pub fn wait_for_same_topic(&self, topic: &str) {
        wait_until(&format!("all brokers tell of the same {topic}"), CHANGE_MAX, || {
            let reported = |id| Client::connect(self.address(id)).metadata(&[topic]).topics.remove(0);
            let ids: BTreeSet<_> = self.ids().map(|id| reported(id).topic_id.0).collect();
            ids.len() == 1 && !ids.contains(&[0; 16])
        });
    }

    /// Returns a topic's partitions according to the broker `id`.
    pub fn partitions(&self, id: i32, topic: &str) -> Vec<MetadataResponsePartition> {
        Client::connect(self.address(id)).metadata(&[topic]).topics.remove(0).partitions
    }

    /// Waits until the broker `id` lists a leader and `members` replicas in sync for every partition of a topic.
    pub fn wait_for_isr(&self, id: i32, topic: &str, members: usize) {
        wait_until(&format!("every partition of {topic} has {members} replicas in sync"), CHANGE_MAX, || {
            let partitions = self.partitions(id, topic);
            let is_whole = |of: &MetadataResponsePartition| of.leader_id >= 0 && of.isr_nodes.len() == members;
            !partitions.is_empty() && partitions.iter().all(is_whole)
        });
    }

    /// Waits until the broker `id` names a leader other than `former`, and this leader knows that it leads. Returns the
    /// leader's id.
    pub fn wait_for_leader(&self, id: i32, topic: &str, partition: i32, former: i32) -> i32 {
        let mut leader = -1;
        wait_until(&format!("{topic}-{partition} is led by another than {former}"), CHANGE_MAX, || {
            let partitions = self.partitions(id, topic);
            let led = partitions.iter().find(|of| of.partition_index == partition);
            leader = led.map_or(-1, |of| of.leader_id);
            let is_refused =
                || Client::connect(self.address(leader)).list_offset(topic, partition, LATEST).error_code.is_err();
            leader >= 0 && leader != former && !is_refused()
        });
        leader
    }

    /// Runs a `fullbore` command against the cluster and returns its output. The command must succeed.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a `fullbore` command against the cluster and returns its output. The command must fail.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the binary starts");
        assert!(!output.status.success(), "{arguments:?} succeeds");
        String::from_utf8(output.stderr).expect("text")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).args(["--bootstrap-server", &self.bootstrap()]);
        command
    }

    /// Creates a topic.
    pub fn create(&self, topic: &str, partitions: i32, factor: i16, configs: &[&str]) {
        let (partitions, factor) = (partitions.to_string(), factor.to_string());
        let mut arguments = vec!["topics", "create", "--topic", topic, "--partitions", &partitions];
        arguments.extend(["--replication-factor", &factor]);
        configs.iter().for_each(|config| arguments.extend(["--config", config]));
        self.run(&arguments);
    }

    /// Starts a producer. Each line that the test writes to it becomes a record, in the form `KEY:VALUE`.
    pub fn producing(&self, topic: &str) -> Producing {
        let arguments = ["produce", "--topic", topic, "--key-separator", ":", "--print-offsets", "-X", "acks=all"];
        let mut child = self
            .command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines = child.stdin.take();
        let acknowledged = Acknowledged(Output::of(child.stdout.take().expect("piped")));
        let stderr = Output::of(child.stderr.take().expect("piped"));
        Producing { child, lines, acknowledged, stderr }
    }

    /// Starts a consumer that reads a topic from its beginning.
    pub fn consuming(&self, topic: &str) -> Consuming {
        self.consuming_at(topic, "read_uncommitted")
    }

    /// Starts a consumer that reads a topic from its beginning at the isolation level `isolation`.
    pub fn consuming_at(&self, topic: &str, isolation: &str) -> Consuming {
        self.consuming_with(topic, &["--isolation-level", isolation])
    }

    /// Starts a consumer with these flags that reads a topic from its beginning.
    pub fn consuming_with(&self, topic: &str, flags: &[&str]) -> Consuming {
        let arguments = ["consume", "--topic", topic, "--from-beginning", "--format", CONSUMED];
        let arguments = [&arguments[..], flags].concat();
        let mut child =
            self.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let records = Output::of(child.stdout.take().expect("piped"));
        let stderr = Output::of(child.stderr.take().expect("piped"));
        Consuming { child, records, stderr }
    }

    /// Returns all records of a topic. The records of each partition are in order.
    pub fn consume(&self, topic: &str) -> Vec<Consumed> {
        let printed = self.run(&["consume", "--topic", topic, "--from-beginning", "--exit", "--format", CONSUMED]);
        consumed(&printed)
    }
}

const CONSUMED: &str = "%p %o %k %s\\n";

/// A record that a consumer has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumed {
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub value: String,
}

fn consumed(printed: &str) -> Vec<Consumed> {
    let parse = |line: &str| {
        let mut fields = line.splitn(4, ' ').map(str::to_owned);
        let mut field = || fields.next().expect("four fields");
        let (partition, offset) = (field(), field());
        let (partition, offset) = (partition.parse().expect("a number"), offset.parse().expect("a number"));
        Consumed { partition, offset, key: field(), value: field() }
    };
    printed.lines().map(parse).collect()
}

/// A running producer process.
pub struct Producing {
    child: Child,
    lines: Option<ChildStdin>,
    acknowledged: Acknowledged,
    stderr: Output,
}

/// A handle that counts the acknowledgements of a producer, even while the test sends more records.
#[derive(Clone)]
pub struct Acknowledged(Output);

impl Acknowledged {
    /// Returns how many records are acknowledged.
    pub fn count(&self) -> usize {
        self.0.lines()
    }

    /// Waits until `records` more records are acknowledged than at the time of the call.
    pub fn goes_on_within(&self, deadline: Duration, records: usize) {
        let before = self.count();
        let what = format!("after {before} records {records} more are acknowledged");
        wait_until(&what, deadline, || self.count() >= before + records);
    }
}

impl Producing {
    /// Sends a record.
    pub fn line(&mut self, key: &str, value: &str) {
        let lines = self.lines.as_mut().expect("it was not finished");
        if let Err(error) = writeln!(lines, "{key}:{value}") {
            panic!("the producer has ended ({error}): {}", self.stderr.text());
        }
    }

    /// Returns a handle that counts the producer's acknowledgements, also those that come after this call.
    pub fn acknowledged(&self) -> Acknowledged {
        self.acknowledged.clone()
    }

    /// Waits until every record is acknowledged. Returns the partition and offset of each, in the order in which they
    /// were sent.
    pub fn finish(mut self) -> Vec<(i32, i64)> {
        drop(self.lines.take());
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "a record failed: {}", self.stderr.all());
        let place = |line: &str| {
            let mut fields = line.split('\t').skip(1);
            let mut field = || fields.next().expect("topic, partition and offset");
            (field().parse().expect("a number"), field().parse().expect("a number"))
        };
        self.acknowledged.0.all().lines().map(place).collect()
    }
}

impl Drop for Producing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running consumer process.
pub struct Consuming {
    child: Child,
    records: Output,
    stderr: Output,
}

impl Consuming {
    /// Waits until the consumer has read `records` records.
    pub fn wait_for(&self, records: usize, deadline: Duration) {
        wait_until(&format!("a reader has read {records} records"), deadline, || self.records.lines() >= records);
    }

    /// Waits until the consumer has printed a line with this text to standard error.
    pub fn wait_for_stderr(&self, text: &str) {
        wait_until(&format!("the reader reports: {text}"), Duration::from_secs(120), || {
            self.stderr.text().contains(text)
        });
    }

    /// Waits until the consumer has read `records` records, and then ends it. Returns the records in the order in which
    /// they were read.
    pub fn finish(mut self, records: usize, deadline: Duration) -> Vec<Consumed> {
        let what = format!("a reader has read {records} records");
        wait_until(&what, deadline, || {
            let ended = self.child.try_wait().expect("our child");
            assert!(ended.is_none(), "the reader has ended: {}", self.stderr.text());
            self.records.lines() >= records
        });
        self.child.kill().expect("our child");
        consumed(&self.records.all())
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
