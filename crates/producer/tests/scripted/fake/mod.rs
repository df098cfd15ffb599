//! A scripted cluster on loopback with Kafka's protocol. The crate `rules` checks the batches.
//!
//! A test sets the fate of each batch that arrives ([`Fate`]). Apart from that, the cluster behaves like a correct
//! Kafka.

mod apis;
mod transactions;

use apis::Answer;
use bytes::BytesMut;
use fullbore_rules::sequence::{Producers, Stamp, Verdict};
use fullbore_wire::api::ApiKey;
use fullbore_wire::batch::{BatchView, RecordIter, decompress};
use fullbore_wire::{ErrorCode, Frame, Part, Uuid};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
pub use transactions::{TransactionFate, Transactions};

/// The fate of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The broker checks and appends the batch.
    Normal,
    /// The broker refuses the batch with this error and does not append it.
    Refused(ErrorCode),
    /// The broker appends the batch, but answers with this error.
    WrittenBut(ErrorCode),
    /// The connection ends before the batch is read.
    Dropped,
    /// The broker appends the batch, but the connection ends before the response.
    ResponseLost,
}

/// A batch as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub broker: i32,
    pub partition: i32,
    pub stamp: Stamp,
    pub transactional: bool,
    pub bytes: Vec<u8>,
    pub values: Vec<String>,
    /// The number of batches of the same partition that arrived before this one.
    pub nth: usize,
    /// The connection over which the batch arrived, counted per broker, and the `reorder` field of its request.
    pub connection: usize,
    pub reorder: bool,
}

#[derive(Default)]
pub struct Log {
    pub values: Vec<String>,
    producers: Producers,
    /// The newest batch of each producer, and its offset.
    newest: HashMap<i64, (Stamp, i64)>,
}

/// The grants in a broker's responses (Produce 14).
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// How many batches the broker retains per producer and partition. `retain_of_topic` is the value of topic `t`, or
    /// -1 if `retain` applies to it as well.
    pub retain: i32,
    pub retain_of_topic: i32,
    /// Maximum number of out-of-order batches that the broker parks.
    pub reorder: i32,
}

impl Default for Announced {
    fn default() -> Self {
        Announced { retain: 5, retain_of_topic: -1, reorder: 0 }
    }
}

impl Announced {
    fn window(self) -> usize {
        let batches = if self.retain_of_topic == -1 { self.retain } else { self.retain_of_topic };
        usize::try_from(batches).unwrap_or(0).clamp(5, 10_000)
    }
}

/// A fault in the next response to Produce.
#[derive(Clone, Copy, Debug)]
pub enum Garble {
    /// The response has a correlation id that no request had.
    UnknownId,
    /// The response has the correlation id of the next request, as if the broker sent responses out of order.
    NextId,
}

type Script = Box<dyn FnMut(&Seen) -> Fate + Send>;

/// A function that returns true for a broker and an API if the broker must never answer such a request, nor later ones
/// on the connection.
type Silence = Box<dyn Fn(i32, ApiKey) -> bool + Send>;

pub struct State {
    pub topic_id: Uuid,
    /// The leader of each partition.
    pub leaders: Vec<i32>,
    pub leader_epoch: i32,
    /// The leader and leader epoch that Produce returns with NOT_LEADER_OR_FOLLOWER.
    pub names_leader: Option<(i32, i32)>,
    /// A broker with stale metadata, in which it is still the leader of each partition, in epoch 0.
    pub behind: Option<i32>,
    /// The error with which a broker that does not lead the partition refuses a batch.
    pub former_leader_answers: ErrorCode,
    pub logs: HashMap<i32, Log>,
    pub seen: Vec<Seen>,
    pub script: Script,
    pub silence: Silence,
    /// The senders of responses that are never sent, kept so that their connections do not end.
    swallowed: Vec<oneshot::Sender<Frame>>,
    /// The error that Metadata returns for the topic instead of its partitions.
    pub topic_error: Option<ErrorCode>,
    /// True to accept any first sequence of a producer, as Kafka did before 4.5.
    pub lenient: bool,
    /// True to serve only lower versions of Produce and Metadata.
    pub old: bool,
    /// True if topics have ids, but Produce identifies them by name, as in Kafka 2.8 to 4.0.
    pub names_topics: bool,
    pub ports: Vec<u16>,
    pub next_producer_id: i64,
    /// The grants of each broker.
    pub announced: Vec<Announced>,
    /// How many connections each broker has accepted.
    pub connections: Vec<usize>,
    /// How many connections of all brokers have ended.
    pub closed: usize,
    /// The connections from which the brokers do not read Produce requests at present.
    pub stalled: HashSet<usize>,
    /// Maximum number of connections. Further ones are refused.
    pub connections_max: usize,
    /// The number of restarts. Parked batches do not survive a restart.
    pub restarts: usize,
    /// How many Produce requests were read.
    pub requests: usize,
    /// How many Metadata requests came.
    pub metadata_requested: usize,
    pub garble: Option<Garble>,
    /// The topic's max.message.bytes, or the error of DescribeConfigs. `None` if DescribeConfigs is not served.
    pub topic_limit: Option<Result<usize, ErrorCode>>,
    /// How many DescribeConfigs requests came.
    pub configs_requested: usize,
    /// The transaction coordinator, if the fake serves transactions.
    pub transactions: Option<Transactions>,
}

/// A cluster of brokers with one topic, `t`.
#[derive(Clone)]
pub struct Fake {
    pub state: Arc<Mutex<State>>,
    gate: Arc<watch::Sender<bool>>,
    cut: Arc<watch::Sender<u64>>,
    /// The numbers of connections that must end.
    end: Arc<watch::Sender<HashSet<usize>>>,
}

/// A connection to one of the brokers. `number` counts the connections of a broker from 0.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    broker: i32,
    number: usize,
}

impl Fake {
    pub async fn start(brokers: usize, partitions: usize) -> Fake {
        let state = State {
            topic_id: Uuid([7; 16]),
            leaders: vec![0; partitions],
            leader_epoch: 0,
            names_leader: None,
            behind: None,
            former_leader_answers: ErrorCode::NOT_LEADER_OR_FOLLOWER,
            logs: HashMap::new(),
            seen: Vec::new(),
            script: Box::new(|_| Fate::Normal),
            silence: Box::new(|_, _| false),
            swallowed: Vec::new(),
            topic_error: None,
            lenient: false,
            old: false,
            names_topics: false,
            ports: Vec::new(),
            next_producer_id: 1000,
            announced: vec![Announced::default(); brokers],
            connections: vec![0; brokers],
            closed: 0,
            stalled: HashSet::new(),
            connections_max: usize::MAX,
            restarts: 0,
            requests: 0,
            metadata_requested: 0,
            garble: None,
            topic_limit: None,
            configs_requested: 0,
            transactions: None,
        };
        let (gate, cut) = (Arc::new(watch::Sender::new(true)), Arc::new(watch::Sender::new(0)));
        let end = Arc::new(watch::Sender::new(HashSet::new()));
        let fake = Fake { state: Arc::new(Mutex::new(state)), gate, cut, end };
        for broker in 0..brokers as i32 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            fake.lock().ports.push(listener.local_addr().unwrap().port());
            let fake = fake.clone();
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    let connection = {
                        let mut state = fake.lock();
                        let accepted = &mut state.connections[broker as usize];
                        *accepted += 1;
                        Connection { broker, number: *accepted - 1 }
                    };
                    if connection.number < fake.lock().connections_max {
                        let fake = fake.clone();
                        tokio::spawn(async move {
                            fake.clone().serve(connection, socket).await;
                            fake.lock().closed += 1;
                        });
                    }
                }
            });
        }
        fake
    }

    pub fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.lock().ports[0])
    }

    pub fn script(&self, script: impl FnMut(&Seen) -> Fate + Send + 'static) {
        self.lock().script = Box::new(script);
    }

    /// Leaves requests for which `silence` returns true without a response from now on.
    pub fn silence(&self, silence: impl Fn(i32, ApiKey) -> bool + Send + 'static) {
        self.lock().silence = Box::new(silence);
    }

    /// Holds back the responses to Produce, or releases them. Requests are handled in both cases.
    pub fn hold(&self, held: bool) {
        self.gate.send_replace(!held);
    }

    /// Ends every connection.
    pub fn cut(&self) {
        self.cut.send_modify(|n| *n += 1);
    }

    /// Ends one connection of each broker, by its number.
    pub fn end(&self, connection: usize) {
        self.end.send_modify(|ended| {
            ended.insert(connection);
        });
    }

    pub fn values(&self, partition: i32) -> Vec<String> {
        self.lock().logs.get(&partition).map(|log| log.values.clone()).unwrap_or_default()
    }

    pub fn seen(&self, partition: i32) -> Vec<Seen> {
        self.lock().seen.iter().filter(|seen| seen.partition == partition).cloned().collect()
    }

    /// Waits until `condition` returns true. Fails the test after a minute.
    pub async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !condition(&self.lock()) {
            assert!(std::time::Instant::now() < deadline, "never happened: {what}");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Calls `look` with the transaction coordinator.
    pub fn transactions<T>(&self, look: impl FnOnce(&mut Transactions) -> T) -> T {
        look(self.lock().transactions.as_mut().expect("the fake serves transactions"))
    }

    fn is_silent(&self, broker: i32, frame: &[u8]) -> bool {
        let key = ApiKey::from_code(i16::from_be_bytes([frame[0], frame[1]]));
        key.is_some_and(|key| (self.lock().silence)(broker, key))
    }

    async fn serve(self, connection: Connection, socket: TcpStream) {
        socket.set_nodelay(true).unwrap();
        let (mut read, mut write) = socket.into_split();
        let (responses, mut outbox) = mpsc::unbounded_channel::<(oneshot::Receiver<Frame>, bool)>();
        let (mut gate, mut cut) = (self.gate.subscribe(), self.cut.subscribe());
        let mut end = self.end.subscribe();
        let fake = self.clone();
        let writer = tokio::spawn(async move {
            while let Some((response, is_produce)) = outbox.recv().await {
                // The sender of the response was dropped, so the connection must end.
                let Ok(frame) = response.await else { return };
                if is_produce && gate.wait_for(|open| *open).await.is_err() {
                    return;
                }
                let garble = if is_produce { fake.lock().garble.take() } else { None };
                for (i, part) in frame.parts.iter().enumerate() {
                    let Part::Bytes(bytes) = part else { panic!("a fake sends no files") };
                    let mut bytes = bytes.to_vec();
                    // The length comes first, then the correlation id.
                    match garble.filter(|_| i == 0) {
                        Some(Garble::UnknownId) => bytes[4] ^= 0x40,
                        Some(Garble::NextId) => bytes[7] = bytes[7].wrapping_add(1),
                        None => {}
                    }
                    if write.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            }
        });
        let requests = async {
            while let Ok(len) = read.read_u32().await {
                let mut frame = BytesMut::zeroed(len as usize);
                if read.read_exact(&mut frame).await.is_err() {
                    return;
                }
                let is_produce = frame[..2] == [0, 0];
                while is_produce && self.lock().stalled.contains(&connection.number) {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                let (answer, response) = oneshot::channel();
                if self.is_silent(connection.broker, &frame) {
                    self.lock().swallowed.push(answer);
                    drop(responses.send((response, is_produce)));
                    continue;
                }
                match self.answer(connection, frame.freeze()) {
                    Some(Answer::Frame(frame)) if frame.is_empty() => continue,
                    Some(Answer::Frame(frame)) => drop(answer.send(frame)),
                    Some(Answer::Parked(parked)) => drop(tokio::spawn(self.clone().unpark(parked, answer))),
                    None => return,
                }
                drop(responses.send((response, is_produce)));
            }
        };
        tokio::select! {
            () = requests => {}
            _ = cut.changed() => return writer.abort(),
            _ = end.wait_for(|ended| ended.contains(&connection.number)) => return writer.abort(),
        }
        // Requests that were read before the end of the connection still get their responses, unless these are held
        // back.
        drop(responses);
        drop(tokio::time::timeout(std::time::Duration::from_millis(50), writer).await);
    }
}

/// The result of checking a batch.
enum Judged {
    Done(i64, ErrorCode),
    /// The batch waits for earlier batches.
    Early(Seen),
}

impl State {
    /// Returns the number of requests that were read and never get a response.
    pub fn swallowed(&self) -> usize {
        self.swallowed.len()
    }

    /// Checks one batch. Returns its base offset and an error code, or `None` to end the connection.
    fn produce(&mut self, from: Connection, reorder: bool, partition: i32, bytes: &[u8]) -> Option<Judged> {
        let batch = BatchView::first(bytes).unwrap();
        batch.check_crc().unwrap();
        assert_eq!(batch.size(), bytes.len(), "one batch per partition");
        let nth = self.seen.iter().filter(|seen| seen.partition == partition).count();
        let stamp = Stamp {
            producer_id: batch.producer_id(),
            producer_epoch: batch.producer_epoch(),
            base_sequence: batch.base_sequence(),
            record_count: batch.record_count(),
        };
        let values = values_of(&batch);
        let (broker, connection, bytes) = (from.broker, from.number, bytes.to_vec());
        let transactional = batch.is_transactional();
        let seen = Seen { broker, partition, stamp, transactional, bytes, values, nth, connection, reorder };
        self.seen.push(seen.clone());
        if self.leaders[partition as usize] != broker {
            return Some(Judged::Done(-1, self.former_leader_answers));
        }
        match (self.script)(&seen) {
            Fate::Normal => match self.append(&seen) {
                (_, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER) if reorder => Some(Judged::Early(seen)),
                (offset, code) => Some(Judged::Done(offset, code)),
            },
            Fate::Refused(code) => Some(Judged::Done(-1, code)),
            Fate::WrittenBut(code) => match self.append(&seen) {
                (_, ErrorCode::NONE) => Some(Judged::Done(-1, code)),
                (offset, code) => Some(Judged::Done(offset, code)),
            },
            Fate::Dropped => None,
            Fate::ResponseLost => {
                self.append(&seen);
                None
            }
        }
    }

    fn append(&mut self, seen: &Seen) -> (i64, ErrorCode) {
        let window = self.announced[seen.broker as usize].window();
        let is_unknown =
            self.logs.get(&seen.partition).is_none_or(|log| !log.newest.contains_key(&seen.stamp.producer_id));
        if let Some(transactions) = &mut self.transactions {
            if let Err(code) = transactions.admit(seen) {
                return (-1, code);
            }
            if transactions.adds_partitions() && is_unknown && seen.stamp.base_sequence != 0 {
                return (-1, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
            }
        }
        let log = self.logs.entry(seen.partition).or_default();
        let end = log.values.len() as i64;
        // The rules accept any first sequence of an unknown producer if the log end is above 0. A lenient broker must
        // always accept it, so it passes an end of at least 1.
        match log.producers.check(&seen.stamp, if self.lenient { end.max(1) } else { end }) {
            Verdict::Append => {
                if seen.stamp.is_idempotent() {
                    log.producers.append(&seen.stamp, end, 0, 0, window);
                    log.newest.insert(seen.stamp.producer_id, (seen.stamp, end));
                }
                log.values.extend(seen.values.iter().cloned());
                if let Some(transactions) = &mut self.transactions {
                    transactions.appended(seen);
                }
                (end, ErrorCode::NONE)
            }
            Verdict::Duplicate { base_offset, .. } => (base_offset, ErrorCode::NONE),
            Verdict::Refuse(why) => (-1, why.code()),
        }
    }

    /// Restarts the broker. The restarted broker retains only one batch of each producer, as Kafka's snapshots do.
    pub fn forget_all_but_the_newest(&mut self) {
        self.restarts += 1;
        for log in self.logs.values_mut() {
            log.producers = Producers::default();
            for (stamp, offset) in log.newest.values() {
                log.producers.append(stamp, *offset, 0, 0, 5);
            }
        }
    }
}

fn values_of(batch: &BatchView<'_>) -> Vec<String> {
    let payload = decompress(batch.compression().unwrap(), batch.payload(), 64 << 20).unwrap();
    let records = RecordIter::new(&payload, batch.record_count());
    records.map(|record| String::from_utf8(record.unwrap().value.unwrap_or_default().to_vec()).unwrap()).collect()
}
