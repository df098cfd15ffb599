//! The fake's transaction coordinator. It has one transactional id and behaves like Kafka 4.3 with
//! `transaction.version` 0 or 2.

use super::{Connection, Seen, State};
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use fullbore_wire::apis::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
};
use fullbore_wire::apis::end_txn::{EndTxnRequest, EndTxnResponse};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::apis::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::{HashMap, HashSet};

/// The outcome of one request to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionFate {
    Normal,
    /// The response has this error, and the request has no effect.
    Refused(ErrorCode),
    /// The connection ends before the request is read.
    Dropped,
    /// The request has its effect, but the connection ends before the response.
    ResponseLost,
}

type TransactionScript = Box<dyn FnMut(ApiKey, usize) -> TransactionFate + Send>;

/// A producer id and epoch.
type Identity = (i64, i16);

/// The transaction coordinator of the fake.
pub struct Transactions {
    /// The level of `transaction.version`.
    pub version: i16,
    /// The broker that is the coordinator.
    pub coordinator: i32,
    /// The error with which the other brokers refuse requests for the coordinator.
    pub former_answers: ErrorCode,
    pub identity: Identity,
    pub is_ongoing: bool,
    partitions: HashSet<i32>,
    groups: HashSet<Text>,
    pending: Vec<(i32, String)>,
    pending_offsets: Vec<(Text, i32, i64)>,
    /// True if the previous transaction was committed, false if it was aborted.
    last: Option<bool>,
    /// The values that readers with read_committed see, by partition.
    pub committed: HashMap<i32, Vec<String>>,
    pub aborted: Vec<String>,
    /// The committed offsets by group and partition.
    pub offsets: HashMap<(Text, i32), i64>,
    /// The requests that had an effect, each as one or two words.
    pub requests: Vec<String>,
    pub script: TransactionScript,
    requested: HashMap<i16, usize>,
}

impl Transactions {
    pub fn new(version: i16) -> Self {
        Transactions {
            version,
            coordinator: 0,
            former_answers: ErrorCode::NOT_COORDINATOR,
            identity: (-1, -1),
            is_ongoing: false,
            partitions: HashSet::new(),
            groups: HashSet::new(),
            pending: Vec::new(),
            pending_offsets: Vec::new(),
            last: None,
            committed: HashMap::new(),
            aborted: Vec::new(),
            offsets: HashMap::new(),
            requests: Vec::new(),
            script: Box::new(|_, _| TransactionFate::Normal),
            requested: HashMap::new(),
        }
    }

    pub fn adds_partitions(&self) -> bool {
        self.version >= 2
    }

    /// Returns the fate of the next request of this API.
    pub fn fate(&mut self, key: ApiKey) -> TransactionFate {
        let requested = self.requested.entry(key.code()).or_default();
        *requested += 1;
        (self.script)(key, *requested)
    }

    /// Fences the present producer, as another producer with the same transactional id would.
    pub fn fence(&mut self) {
        self.end_open(false);
        self.identity.1 += 1;
    }

    fn end_open(&mut self, committed: bool) {
        self.is_ongoing = false;
        self.partitions.clear();
        self.groups.clear();
        for (partition, value) in std::mem::take(&mut self.pending) {
            match committed {
                true => self.committed.entry(partition).or_default().push(value),
                false => self.aborted.push(value),
            }
        }
        for (group, partition, offset) in std::mem::take(&mut self.pending_offsets) {
            if committed {
                self.offsets.insert((group, partition), offset);
            }
        }
    }

    /// Checks a transactional batch against its transaction.
    pub fn admit(&mut self, seen: &Seen) -> Result<(), ErrorCode> {
        assert!(seen.transactional, "a batch outside of a transaction");
        if self.identity != (seen.stamp.producer_id, seen.stamp.producer_epoch) {
            return Err(ErrorCode::INVALID_PRODUCER_EPOCH);
        }
        match (self.adds_partitions(), self.partitions.contains(&seen.partition)) {
            (true, _) => {
                self.is_ongoing = true;
                self.partitions.insert(seen.partition);
                Ok(())
            }
            (false, true) => Ok(()),
            (false, false) => Err(ErrorCode::INVALID_TXN_STATE),
        }
    }

    pub fn appended(&mut self, seen: &Seen) {
        self.pending.extend(seen.values.iter().map(|value| (seen.partition, value.clone())));
    }

    fn check(&self, identity: Identity) -> ErrorCode {
        if identity == self.identity { ErrorCode::NONE } else { ErrorCode::PRODUCER_FENCED }
    }

    pub fn init(&mut self, request: &InitProducerIdRequest, new_id: i64) -> InitProducerIdResponse {
        let present = (request.producer_id, request.producer_epoch);
        let is_repeated = present.0 >= 0 && present == (self.identity.0, self.identity.1 - 1);
        if present.0 >= 0 && present != self.identity && !is_repeated {
            return InitProducerIdResponse { error_code: ErrorCode::PRODUCER_FENCED, ..Default::default() };
        }
        if !is_repeated {
            self.end_open(false);
            self.last = None;
            self.requests.push("init".to_owned());
            self.identity = if self.identity.0 < 0 { (new_id, 0) } else { (self.identity.0, self.identity.1 + 1) };
        }
        let (producer_id, producer_epoch) = self.identity;
        InitProducerIdResponse { producer_id, producer_epoch, ..Default::default() }
    }

    pub fn add_partitions(
        &mut self,
        request: &AddPartitionsToTxnRequest,
        refused: ErrorCode,
    ) -> AddPartitionsToTxnResponse {
        let identity = (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch);
        let error = if refused.is_err() { refused } else { self.check(identity) };
        let mut added = Vec::new();
        let result = |partition: &i32| AddPartitionsToTxnPartitionResult {
            partition_index: *partition,
            partition_error_code: error,
            ..Default::default()
        };
        let mut topics = Vec::new();
        for topic in &request.v3_and_below_topics {
            added.extend(topic.partitions.iter().copied());
            let results_by_partition = topic.partitions.iter().map(result).collect();
            topics.push(AddPartitionsToTxnTopicResult {
                name: topic.name.clone(),
                results_by_partition,
                ..Default::default()
            });
        }
        if !error.is_err() {
            added.sort_unstable();
            self.requests.push(format!("add {added:?}"));
            self.is_ongoing = true;
            self.partitions.extend(added);
        }
        AddPartitionsToTxnResponse { results_by_topic_v3_and_below: topics, ..Default::default() }
    }

    pub fn add_offsets(&mut self, request: &AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse {
        let error_code = self.check((request.producer_id, request.producer_epoch));
        if !error_code.is_err() {
            self.requests.push(format!("add group {}", request.group_id));
            self.is_ongoing = true;
            self.groups.insert(request.group_id.clone());
        }
        AddOffsetsToTxnResponse { error_code, ..Default::default() }
    }

    pub fn commit_offsets(&mut self, request: &TxnOffsetCommitRequest, refused: ErrorCode) -> TxnOffsetCommitResponse {
        let is_known = self.adds_partitions() || self.groups.contains(&request.group_id);
        let error = match self.check((request.producer_id, request.producer_epoch)) {
            _ if refused.is_err() => refused,
            ErrorCode::NONE if !is_known => ErrorCode::INVALID_TXN_STATE,
            code => code,
        };
        let mut topics = Vec::new();
        for topic in &request.topics {
            let mut answer = TxnOffsetCommitResponseTopic { name: topic.name.clone(), ..Default::default() };
            for of in &topic.partitions {
                answer.partitions.push(TxnOffsetCommitResponsePartition {
                    partition_index: of.partition_index,
                    error_code: error,
                    ..Default::default()
                });
                if !error.is_err() {
                    self.pending_offsets.push((request.group_id.clone(), of.partition_index, of.committed_offset));
                }
            }
            topics.push(answer);
        }
        if !error.is_err() {
            self.is_ongoing = true;
            self.requests.push(format!("offsets of {} at {}", request.group_id, request.generation_id));
        }
        TxnOffsetCommitResponse { topics, ..Default::default() }
    }

    pub fn end(&mut self, request: &EndTxnRequest) -> EndTxnResponse {
        let identity = (request.producer_id, request.producer_epoch);
        let raises = self.adds_partitions();
        let is_repeated = raises && identity == (self.identity.0, self.identity.1 - 1);
        let word = if request.committed { "commit" } else { "abort" };
        let error_code = match identity == self.identity {
            true if self.is_ongoing || (raises && !request.committed) => {
                self.end_open(request.committed);
                self.last = Some(request.committed);
                self.identity.1 += i16::from(raises);
                self.requests.push(word.to_owned());
                ErrorCode::NONE
            }
            true if !raises && self.last == Some(request.committed) => ErrorCode::NONE,
            true => ErrorCode::INVALID_TXN_STATE,
            false if is_repeated && self.last == Some(request.committed) => ErrorCode::NONE,
            false => ErrorCode::PRODUCER_FENCED,
        };
        let (producer_id, producer_epoch) = if error_code.is_err() { (-1, -1) } else { self.identity };
        EndTxnResponse { error_code, producer_id, producer_epoch, ..Default::default() }
    }
}

impl State {
    /// Returns the coordinator of every key.
    pub fn find_coordinator(&mut self, request: &FindCoordinatorRequest) -> FindCoordinatorResponse {
        let node_id = self.transactions.as_ref().map_or(0, |transactions| transactions.coordinator);
        let port = i32::from(self.ports[node_id as usize]);
        let coordinator = |key: &Text| Coordinator {
            key: key.clone(),
            node_id,
            host: Text::from("127.0.0.1"),
            port,
            ..Default::default()
        };
        FindCoordinatorResponse {
            coordinators: request.coordinator_keys.iter().map(coordinator).collect(),
            ..Default::default()
        }
    }

    /// Returns the error for a request to a broker that is not the coordinator.
    pub fn misdirected(&self, from: Connection) -> ErrorCode {
        match &self.transactions {
            Some(transactions) if transactions.coordinator == from.broker => ErrorCode::NONE,
            Some(transactions) => transactions.former_answers,
            None => ErrorCode::NOT_COORDINATOR,
        }
    }
}
