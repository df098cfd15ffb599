//! Several brokers over a PostgreSQL of their own, each a process with a folder of its own, on ports of this machine that stay.
//!
//! Invariant: no process outlives its `Cluster`.

use crate::postgres::PostgresServer;
use crate::{Broker, Client, binary, wait_until};
use fullbore_wire::apis::metadata::MetadataResponsePartition;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A change that takes longer than this never comes.
const CHANGE_MAX: Duration = Duration::from_secs(60);

/// Brokers with ids from 1.
pub struct Cluster {
    /// Dropped first.
    brokers: Vec<Broker>,
    postgres: PostgresServer,
    addresses: Vec<SocketAddr>,
    url: String,
    sets: Vec<String>,
}

impl Cluster {
    /// Starts so many brokers with these settings; all of them know each other when this returns.
    pub fn start(brokers: usize, sets: &[&str]) -> Cluster {
        let postgres = PostgresServer::start();
        let url = postgres.url(&postgres.database());
        // All at once, so that no two are the same.
        let free: Vec<TcpListener> =
            (0..brokers).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")).collect();
        let addresses = free.iter().map(|free| free.local_addr().expect("bound")).collect();
        drop(free);
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let mut cluster = Cluster { brokers: Vec::new(), postgres, addresses, url, sets };
        for index in 0..brokers {
            let sets = cluster.sets_of(index);
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            cluster.brokers.push(Broker::start(&sets));
        }
        cluster.wait_for_brokers(&(1..).take(brokers).collect::<Vec<_>>());
        cluster
    }

    /// What the broker of this place is started with.
    pub fn sets_of(&self, index: usize) -> Vec<String> {
        let id = index + 1;
        let own = [
            format!("node.id={id}"),
            format!("listeners=PLAINTEXT://{}", self.addresses[index]),
            format!("control.plane={}", self.url),
        ];
        own.into_iter().chain(self.sets.iter().cloned()).collect()
    }

    /// The broker of this id.
    pub fn broker(&mut self, id: i32) -> &mut Broker {
        &mut self.brokers[usize::try_from(id - 1).expect("ids begin with 1")]
    }

    /// The database.
    pub fn postgres(&self) -> &PostgresServer {
        &self.postgres
    }

    /// Where the broker of this id listens.
    pub fn address(&self, id: i32) -> SocketAddr {
        self.addresses[usize::try_from(id - 1).expect("ids begin with 1")]
    }

    /// Every broker's address, with commas between them.
    pub fn bootstrap(&self) -> String {
        self.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }

    /// Waits until each of these brokers tells clients of all of them and of no other.
    pub fn wait_for_brokers(&self, ids: &[i32]) {
        let wanted: BTreeSet<i32> = ids.iter().copied().collect();
        for id in ids {
            wait_until(&format!("broker {id} tells of {wanted:?}"), CHANGE_MAX, || {
                let told = Client::connect(self.address(*id)).metadata(&[]);
                told.brokers.iter().map(|broker| broker.node_id).collect::<BTreeSet<_>>() == wanted
            });
        }
    }

    /// A topic's partitions as the broker of this id tells them.
    pub fn partitions(&self, id: i32, topic: &str) -> Vec<MetadataResponsePartition> {
        Client::connect(self.address(id)).metadata(&[topic]).topics.remove(0).partitions
    }

    /// Waits until every partition has a leader and its ISR has this many members, as the broker of this id tells.
    pub fn wait_for_isr(&self, id: i32, topic: &str, members: usize) {
        wait_until(&format!("every partition of {topic} has {members} replicas in sync"), CHANGE_MAX, || {
            let partitions = self.partitions(id, topic);
            let is_whole = |of: &MetadataResponsePartition| of.leader_id >= 0 && of.isr_nodes.len() == members;
            !partitions.is_empty() && partitions.iter().all(is_whole)
        });
    }

    /// Runs a command of ours against the cluster; what it printed.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command of ours that is expected to fail; what it said.
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

    /// Makes a topic.
    pub fn create(&self, topic: &str, partitions: i32, factor: i16, configs: &[&str]) {
        let (partitions, factor) = (partitions.to_string(), factor.to_string());
        let mut arguments = vec!["topics", "create", "--topic", topic, "--partitions", &partitions];
        arguments.extend(["--replication-factor", &factor]);
        configs.iter().for_each(|config| arguments.extend(["--config", config]));
        self.run(&arguments);
    }

    /// Begins to produce what is written to it: a line `KEY:VALUE` each.
    pub fn producing(&self, topic: &str) -> Producing {
        let mut command = self.command(&["produce", "--topic", topic, "--key-separator", ":", "-X", "acks=all"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let lines = child.stdin.take();
        Producing { child, lines }
    }

    /// All records of a topic: partition, key and value of each, those of one partition in order.
    pub fn consume(&self, topic: &str) -> Vec<(i32, String, String)> {
        let printed = self.run(&["consume", "--topic", topic, "--from-beginning", "--exit", "--format", "%p %k %s\\n"]);
        let parse = |line: &str| {
            let mut fields = line.splitn(3, ' ').map(str::to_owned);
            let partition = fields.next().and_then(|number| number.parse().ok()).expect("a partition");
            (partition, fields.next().expect("a key"), fields.next().expect("a value"))
        };
        printed.lines().map(parse).collect()
    }
}

/// A producer that runs.
pub struct Producing {
    child: Child,
    lines: Option<std::process::ChildStdin>,
}

impl Producing {
    /// Has it write a record.
    pub fn line(&mut self, key: &str, value: &str) {
        let lines = self.lines.as_mut().expect("it was not finished");
        writeln!(lines, "{key}:{value}").expect("the producer reads");
    }

    /// Waits until every record was acknowledged.
    pub fn finish(mut self) {
        drop(self.lines.take());
        let child = std::mem::replace(&mut self.child, Command::new("true").spawn().expect("true"));
        let output = child.wait_with_output().expect("our child");
        assert!(output.status.success(), "a record failed: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Producing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
