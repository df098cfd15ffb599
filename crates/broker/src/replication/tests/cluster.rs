//! A cluster of brokers for tests, with clients and functions that compare the brokers' logs.

use crate::node::Node;
use crate::partitions::Replica;
use crate::start::Broker;
use bytes::Bytes;
use fullbore_client::config::ClientConfig;
use fullbore_client::tokio::Connection;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_control::test_util::{Fault, Memory};
use fullbore_control::{BrokerChange, Control, CreateTopic, CreateTopics, ElectLeaders, ElectionKind, Topic, TopicRef};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_tests::Batch;
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::{ErrorCode, Records, Text, Uuid, host_port};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// How long a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster of brokers with the ids 1, 2, 3 and so on.
pub struct Cluster {
    memory: Memory,
    settings: String,
    directories: BTreeMap<i32, TempDir>,
    running: BTreeMap<i32, (Broker, Option<JoinHandle<()>>)>,
}

impl Cluster {
    /// Starts `brokers` brokers with `settings`.
    pub async fn start(brokers: i32, settings: &str) -> Cluster {
        let directories = (1..=brokers).map(|id| (id, tempfile::tempdir().expect("temporary directory"))).collect();
        let mut cluster =
            Cluster { memory: Memory::default(), settings: settings.to_owned(), directories, running: BTreeMap::new() };
        for id in 1..=brokers {
            cluster.start_one(id).await;
        }
        cluster
    }

    /// Starts broker `id`, which must not be running.
    pub async fn start_one(&mut self, id: i32) {
        self.start_with(id, "").await;
    }

    /// Starts broker `id` with the settings of all brokers and those of `more`.
    pub async fn start_with(&mut self, id: i32, more: &str) {
        self.directories.entry(id).or_insert_with(|| tempfile::tempdir().expect("temporary directory"));
        let text = format!(
            "node.id={id}\nlog.dirs={}\nlisteners=PLAINTEXT://127.0.0.1:0\nfullbore.admin.listener=\n{}\n{more}\n",
            self.directories[&id].path().display(),
            self.settings
        );
        let (config, _) = BrokerConfig::from_properties(&Properties::parse(&text).expect("valid")).expect("valid");
        let (memory, directory) = (self.memory.clone(), Uuid(u128::from(id.unsigned_abs()).to_be_bytes()));
        let broker = Broker::start_on(config, move |config, arrival| {
            Control::open_in_memory(config, arrival, &memory, directory)
        });
        let broker = broker.await.expect("started");
        self.running.insert(id, (broker, None));
        self.listen(id);
        self.receive().await;
    }

    /// Starts a task that reads the commits of other brokers for broker `id`, as each broker does in a real cluster.
    pub fn listen(&mut self, id: i32) {
        let (broker, receives) = self.running.get_mut(&id).expect("it runs");
        let control = broker.node().metadata.control.clone();
        *receives = Some(tokio::spawn(async move {
            loop {
                control.catch_up();
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }));
    }

    /// Ends the task that reads the commits of other brokers for broker `id`.
    pub async fn deafen(&mut self, id: i32) {
        let (broker, receives) = self.running.get_mut(&id).expect("it runs");
        let receives = receives.take().expect("it has heard");
        receives.abort();
        let _ = receives.await;
        // Wait until a running read of commits has ended, because it could still return later commits.
        broker.node().metadata.control.settle();
    }

    /// Stops a broker without a notice to the others.
    pub async fn stop_one(&mut self, id: i32) {
        self.deafen(id).await;
        let (broker, _) = self.running.remove(&id).expect("it runs");
        broker.shutdown().await;
    }

    /// Stops all brokers.
    pub async fn stop(mut self) {
        for id in self.running.keys().copied().collect::<Vec<_>>() {
            self.stop_one(id).await;
        }
    }

    /// Returns a broker's data directory.
    pub fn directory(&self, id: i32) -> &std::path::Path {
        self.directories[&id].path()
    }

    /// Returns a running broker.
    pub fn node(&self, id: i32) -> &Arc<Node> {
        self.running[&id].0.node()
    }

    /// Returns a broker that reads other brokers' commits.
    pub fn any(&self) -> &Arc<Node> {
        self.running.values().find(|(_, receives)| receives.is_some()).expect("one runs").0.node()
    }

    /// Deletes a topic.
    pub async fn delete(&self, topic: &Topic) {
        self.any().metadata.control.delete_topics(vec![TopicRef::Id(topic.id)]).await.remove(0).expect("deleted");
        self.receive().await;
    }

    /// Creates a topic with a replica on each broker; broker 1 leads the first partition.
    pub async fn topic(&self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Arc<Topic> {
        let brokers = i32::try_from(self.directories.len()).expect("few");
        let replicas = |partition: i32| (0..brokers).map(|at| 1 + (partition + at) % brokers).collect();
        let topic = CreateTopic {
            name: name.to_owned(),
            num_partitions: -1,
            replication_factor: -1,
            assignments: (0..partitions).map(|partition| (partition, replicas(partition))).collect(),
            configs: configs.iter().map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned()))).collect(),
        };
        let requested = CreateTopics { topics: vec![topic], validate_only: false };
        let topic = self.any().metadata.control.create_topics(requested).await.remove(0).expect("created");
        self.receive().await;
        topic
    }

    /// Waits until each broker that reads other brokers' commits has the newest metadata.
    pub async fn receive(&self) {
        let newest = self.memory.commits().len();
        for (broker, _) in self.running.values().filter(|(_, receives)| receives.is_some()) {
            let mut images = broker.node().metadata.control.watch();
            let received = images.wait_for(|image| image.epoch() >= newest as u64);
            tokio::time::timeout(PATIENCE, received).await.expect("in time").expect("it runs");
        }
    }

    /// Returns the partition's registration in the metadata.
    pub fn registered(&self, topic: &str, index: i32) -> Arc<PartitionRegistration> {
        Arc::clone(self.any().metadata.control.image().topic(topic).expect("there").partition(index).expect("there"))
    }

    /// Waits until `isr` are the members of the partition's ISR.
    pub async fn isr_is(&self, topic: &str, index: i32, mut isr: Vec<i32>) {
        isr.sort_unstable();
        let is_so = || {
            let mut now = self.registered(topic, index).isr.clone();
            now.sort_unstable();
            now == isr
        };
        eventually(&format!("the ISR of {topic}-{index} is {isr:?}"), is_so).await;
    }

    /// Fences a broker, as the failure detector does.
    pub async fn fence(&self, id: i32) {
        let any = self.any();
        let (broker_id, registration) = (id, any.metadata.control.image().node(id).expect("known").registration);
        let broker = fullbore_rules::replica::BrokerState { broker_id, broker_epoch: registration.epoch };
        any.metadata.control.change_broker(broker, BrokerChange::Fence, [].into()).await.expect("fenced");
        self.receive().await;
    }

    /// Unfences a broker.
    pub async fn unfence(&self, id: i32) {
        let broker = self.node(id).metadata.control.broker_state();
        self.any().metadata.control.change_broker(broker, BrokerChange::Unfence, [].into()).await.expect("unfenced");
        self.receive().await;
    }

    /// Makes the partition's first replica the leader.
    pub async fn elect_preferred(&self, topic: &str, index: i32) {
        let requested = ElectLeaders::new(ElectionKind::Preferred, [(topic, index)]);
        self.any().metadata.control.elect_leaders(requested).await.remove(0).expect("elected");
        self.receive().await;
    }

    /// Returns a broker's replica.
    pub fn replica(&self, id: i32, topic: &Topic, index: i32) -> Arc<Replica> {
        self.node(id).partitions.find(&topic.id, index).expect("it has it")
    }

    /// Returns the address that a broker's clients use.
    pub fn address(&self, id: i32) -> String {
        self.running[&id].0.addr().to_string()
    }

    /// Returns a client that is connected to the broker's second listener, which is for other brokers.
    pub async fn client_between(&self, id: i32) -> Connection {
        let (_, _, (host, port)) = &self.running[&id].0.listeners()[1];
        Connection::connect(&host_port(host, port), &ClientConfig::default()).await.expect("connected")
    }

    /// Makes the database unreachable for a moment during the next commit, so that the outcome of this commit is
    /// unknown.
    pub fn lose_the_next_commit(&self) {
        let memory = self.memory.clone();
        memory.next_commit(Fault::ForLong);
        tokio::spawn(async move {
            while memory.is_reachable() {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            memory.mend();
        });
    }

    /// Returns a client that is connected to one broker.
    pub async fn client(&self, id: i32) -> Connection {
        Connection::connect(&self.address(id), &ClientConfig::default()).await.expect("connected")
    }

    /// Waits until all running brokers have the same log end and high watermark. Then checks that their logs are
    /// identical.
    pub async fn are_equal(&self, topic: &Topic, index: i32) {
        let ids: Vec<i32> = self.running.keys().copied().collect();
        let is_so = || {
            let offsets: Vec<_> =
                ids.iter().map(|id| self.replica(*id, topic, index).offsets().expect("open")).collect();
            offsets.iter().all(|of| of.log_end == offsets[0].log_end && of.high_watermark == of.log_end)
        };
        eventually("all have everything", is_so).await;
        let first = bytes_of(&self.replica(ids[0], topic, index));
        for id in &ids[1..] {
            assert!(bytes_of(&self.replica(*id, topic, index)) == first, "broker {id} has other bytes");
        }
    }
}

/// Returns the value of a broker's metric.
pub fn metric(node: &Node, name: &str) -> f64 {
    let page = crate::exposition::page(&node.metrics, crate::exposition::Gauges::read(node, Default::default()));
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// Waits until `is_so` returns true.
pub async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(tokio::time::Instant::now() < until, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns all bytes of the log from its start to the high watermark.
pub fn bytes_of(replica: &Replica) -> Vec<u8> {
    let (mut bytes, mut offset) = (Vec::new(), replica.offsets().expect("open").log_start);
    loop {
        let read = replica.read(offset, 1 << 20, true).expect("read");
        let found = match read.records {
            Records::Memory(found) => found,
            Records::Pieces(_) | Records::Ranges(_) => panic!("no log has them"),
            Records::File(slice) => {
                let mut found = vec![0; slice.len as usize];
                slice.file.read_exact_at(&mut found, slice.position).expect("read");
                Bytes::from(found)
            }
        };
        if found.is_empty() {
            return bytes;
        }
        for batch in fullbore_wire::batch::batches(&found) {
            let Ok(batch) = batch else { break };
            offset = batch.last_offset() + 1;
            bytes.extend_from_slice(batch.bytes());
        }
    }
}

/// Returns a batch of one record.
pub fn batch(value: &[u8]) -> Bytes {
    Batch::at(1, &[value]).bytes()
}

/// Produces one batch and returns its offset.
pub async fn produce(client: &Connection, topic: &str, index: i32, acks: i16, batch: Bytes) -> Result<i64, ErrorCode> {
    produce_within(client, topic, index, acks, batch, 10_000).await
}

/// Produces a batch again and again until it is acknowledged. The ISR may be too small at first, because the first
/// fetch of a follower may come later than a short `replica.lag.time.max.ms` allows.
pub async fn acknowledged(client: &Connection, topic: &str, index: i32, batch: &Bytes) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match produce(client, topic, index, -1, batch.clone()).await {
            Err(ErrorCode::NOT_ENOUGH_REPLICAS) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            done => {
                done.expect("acknowledged");
                return;
            }
        }
    }
}

/// Produces one batch with a request timeout of `timeout_ms`.
pub async fn produce_within(
    client: &Connection,
    topic: &str,
    index: i32,
    acks: i16,
    batch: Bytes,
    timeout_ms: i32,
) -> Result<i64, ErrorCode> {
    let records = Some(Records::Memory(batch));
    let partition_data = vec![PartitionProduceData { index, records, ..Default::default() }];
    let topic_data = vec![TopicProduceData { name: Text::from(topic), partition_data, ..Default::default() }];
    let request = ProduceRequest { acks, timeout_ms, topic_data, ..Default::default() };
    let mut response = client.call_version(&request, 12).await.map_err(|_| ErrorCode::NETWORK_EXCEPTION)?;
    let answer = response.responses.remove(0).partition_responses.remove(0);
    if answer.error_code.is_err() { Err(answer.error_code) } else { Ok(answer.base_offset) }
}
