//! Finds and aborts transactions that are open in a partition although no transactional id of any broker knows of them.
//!
//! The state of a transaction names a partition from before the first record is written there until the marker is
//! written. So the state is lost if no id knows of a transaction that was open both before and after a pass over all
//! ids.
//!
//! In a cluster, a coordinator that was replaced does not know the transactions of its successor. So the coordinator of
//! each partition of `__transaction_state` must have answered, in the leader epoch of the newest metadata or in a later
//! one. Otherwise the pass does not count.

use super::Transactions;
use super::peers::MarkerRoute;
use crate::coordinator::Status;
use fullbore_control::{CreateTopic, CreateTopics, Image, TRANSACTION_STATE};
use fullbore_rules::sequence::{Marker, ProducerState};
use fullbore_rules::transaction::{ProducerIdAndEpoch, TopicPartition, TransactionState};
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest};
use fullbore_wire::apis::describe_transactions::DescribeTransactionsRequest;
use fullbore_wire::apis::list_transactions::ListTransactionsRequest;
use fullbore_wire::{ErrorCode, Text};
use futures_util::future::join_all;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of ids or partitions after which other tasks may run.
pub(super) const TURN: usize = 256;
/// Maximum number of partitions, producers or ids in one request.
const ASKED_MAX: usize = 1_000;
/// Maximum number of transactions that are aborted at the same time. The markers of diskless partitions among them
/// share a PUT.
const ABORTS: usize = 256;

/// A transaction that is open in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OpenTransaction {
    partition: TopicPartition,
    producer: ProducerIdAndEpoch,
    /// The epoch of the coordinator that ended the producer's previous transaction in this partition.
    coordinator_epoch: i32,
    first_offset: i64,
}

impl OpenTransaction {
    /// Returns the open transaction of a producer, or `None` if it has none.
    fn of(partition: &TopicPartition, state: &ProducerState) -> Option<OpenTransaction> {
        Some(OpenTransaction {
            partition: partition.clone(),
            producer: ProducerIdAndEpoch { id: state.producer_id, epoch: state.producer_epoch },
            coordinator_epoch: state.coordinator_epoch,
            first_offset: state.open_from?,
        })
    }
}

/// The partitions that each broker leads.
type LedPartitions = BTreeMap<i32, Vec<TopicPartition>>;

/// The transactions that are not complete, as producer ids and partitions.
type KnownTransactions = HashSet<(i64, TopicPartition)>;

impl Transactions {
    /// Aborts the transactions that no id knows of. Returns true if every partition was searched and no such
    /// transaction is left.
    pub(super) async fn abort_unknown(self: &Arc<Self>) -> bool {
        let (led, is_led) = led_partitions(&self.control.image());
        let (mut open, mut is_whole) = self.open_transactions(&led).await;
        is_whole &= self.open_in_index(&mut open).await;
        if open.is_empty() {
            return is_led && is_whole;
        }
        let producers = open.iter().map(|open| open.producer.id).collect();
        let Some(image) = self.newest_image().await else { return false };
        let Some(known) = self.known_transactions(&image, &producers).await else { return false };
        let is_unknown = |open: &OpenTransaction| !known.contains(&(open.producer.id, open.partition.clone()));
        let unknown: HashSet<OpenTransaction> = open.into_iter().filter(is_unknown).collect();
        let places: HashSet<&TopicPartition> = unknown.iter().map(|open| &open.partition).collect();
        let (mut led, _) = led_partitions(&image);
        led.values_mut().for_each(|partitions| partitions.retain(|partition| places.contains(partition)));
        let (mut open, mut is_whole_still) = self.open_transactions(&led).await;
        is_whole_still &= self.open_in_index(&mut open).await;
        open.retain(|open| unknown.contains(open));
        let mut is_done = is_led && is_whole && is_whole_still;
        for open in open.chunks(ABORTS) {
            let aborted = join_all(open.iter().map(|open| self.abort(&led, open))).await;
            is_done &= aborted.into_iter().all(|is_over| is_over);
        }
        is_done
    }

    /// Adds the open transactions of diskless partitions to `open`. Returns true if the index and the producers of
    /// these partitions could be read.
    async fn open_in_index(&self, open: &mut Vec<OpenTransaction>) -> bool {
        let Some(diskless) = self.logs.diskless() else { return true };
        let Ok(partitions) = diskless.with_open_transactions().await else { return false };
        let mut is_whole = true;
        for of in partitions {
            let partition = TopicPartition { topic: Text::from(of.view.topic()), partition: of.view.index() };
            match of.producers().await {
                Ok(producers) => {
                    open.extend(producers.iter().filter_map(|state| OpenTransaction::of(&partition, state)))
                }
                Err(_) => is_whole &= of.view.is_gone(),
            }
        }
        is_whole
    }

    /// Returns the open transactions of the partitions in `led`, and true if all of these partitions could be read.
    async fn open_transactions(&self, led: &LedPartitions) -> (Vec<OpenTransaction>, bool) {
        let (mut open, mut is_whole) = (Vec::new(), true);
        for (&leader, partitions) in led {
            if leader == self.node_id {
                is_whole &= self.open_here(partitions, &mut open).await;
                continue;
            }
            for partitions in partitions.chunks(ASKED_MAX) {
                is_whole &= self.open_at(leader, partitions, &mut open).await;
            }
        }
        (open, is_whole)
    }

    async fn open_here(&self, partitions: &[TopicPartition], open: &mut Vec<OpenTransaction>) -> bool {
        let mut is_whole = true;
        for (count, partition) in partitions.iter().enumerate() {
            if count % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            let Some(replica) = self.led_here(partition) else {
                is_whole = false;
                continue;
            };
            if replica.opened().await.is_err() {
                is_whole = false;
                continue;
            }
            // A partition that cannot be read serves no client until the broker is restarted, so it counts as searched.
            let producers = replica.producers().unwrap_or_default();
            open.extend(producers.iter().filter_map(|state| OpenTransaction::of(partition, state)));
        }
        is_whole
    }

    async fn open_at(&self, leader: i32, partitions: &[TopicPartition], open: &mut Vec<OpenTransaction>) -> bool {
        let topics = TopicPartition::by_topic(partitions.iter().cloned()).into_iter();
        let topics =
            topics.map(|(name, partition_indexes)| TopicRequest { name, partition_indexes, ..Default::default() });
        let request = DescribeProducersRequest { topics: topics.collect(), ..Default::default() };
        let Ok(response) = self.peers.search(leader, request).await else { return false };
        let (mut is_whole, mut answered) = (true, 0);
        for topic in response.topics {
            for at in topic.partitions {
                answered += 1;
                is_whole &= !at.error_code.is_err();
                let partition = TopicPartition { topic: topic.name.clone(), partition: at.partition_index };
                let is_open = at.active_producers.iter().filter(|producer| producer.current_txn_start_offset >= 0);
                open.extend(is_open.filter_map(|producer| {
                    Some(OpenTransaction {
                        partition: partition.clone(),
                        producer: ProducerIdAndEpoch {
                            id: producer.producer_id,
                            epoch: i16::try_from(producer.producer_epoch).ok()?,
                        },
                        coordinator_epoch: producer.coordinator_epoch,
                        first_offset: producer.current_txn_start_offset,
                    })
                }));
            }
        }
        is_whole && answered == partitions.len()
    }

    /// Returns metadata that is at least as new as this call. `None` while the database cannot be reached.
    async fn newest_image(&self) -> Option<Arc<Image>> {
        if self.control.heartbeats().is_none() {
            return Some(self.control.image());
        }
        // The control plane decides a command with the newest metadata, and publishes these metadata before it answers.
        // So a command that changes nothing is sent.
        let topic = CreateTopic {
            name: TRANSACTION_STATE.to_owned(),
            num_partitions: 1,
            replication_factor: 1,
            ..Default::default()
        };
        let answers = self.control.create_topics(CreateTopics { topics: vec![topic], validate_only: true }).await;
        let is_decided = match answers.into_iter().next()? {
            Ok(_) => true,
            Err(refusal) => refusal.code == ErrorCode::TOPIC_ALREADY_EXISTS,
        };
        is_decided.then(|| self.control.image())
    }

    /// Returns the transactions of these producers that are not complete. `None` if a coordinator has not answered.
    async fn known_transactions(&self, image: &Image, producers: &HashSet<i64>) -> Option<KnownTransactions> {
        let mut known = HashSet::new();
        let Some(topic) = image.topic(TRANSACTION_STATE) else { return Some(known) };
        let mut coordinators: BTreeMap<i32, Vec<(i32, i32)>> = BTreeMap::new();
        for (index, partition) in (0..).zip(&topic.partitions) {
            coordinators.entry(partition.leader?).or_default().push((index, partition.leader_epoch));
        }
        for (broker, shards) in coordinators {
            let served = match broker == self.node_id {
                true => self.known_here(producers, &mut known).await,
                false => self.known_at(broker, producers, &mut known).await?,
            };
            let is_served = |&(index, epoch): &(i32, i32)| served.iter().any(|&(at, now)| at == index && now >= epoch);
            if !shards.iter().all(is_served) {
                return None;
            }
        }
        Some(known)
    }

    /// Adds the transactions of the ids that this broker coordinates to `known`. Returns the shards of which all ids
    /// were read.
    async fn known_here(&self, producers: &HashSet<i64>, known: &mut KnownTransactions) -> Vec<(i32, i32)> {
        let served = self.served();
        let entries: Vec<_> = self.ids.lock().values().cloned().collect();
        for (count, entry) in entries.iter().enumerate() {
            if count % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            let state = entry.lock();
            let Ok(found) = state.transaction.describe() else { continue };
            let is_open = found.state == TransactionState::Ongoing || found.state.is_prepared();
            if is_open && producers.contains(&found.producer_id) {
                known.extend(found.partitions.iter().map(|partition| (found.producer_id, partition.clone())));
            }
        }
        let still = self.served();
        served.into_iter().filter(|shard| still.contains(shard)).collect()
    }

    /// Adds the transactions of the ids that another broker coordinates to `known`. Returns the shards of which all ids
    /// were read. `None` if the broker does not answer or returns an error.
    async fn known_at(
        &self,
        broker: i32,
        producers: &HashSet<i64>,
        known: &mut KnownTransactions,
    ) -> Option<Vec<(i32, i32)>> {
        let producers: Vec<i64> = producers.iter().copied().collect();
        let (mut ids, mut served): (Vec<Text>, Option<Vec<(i32, i32)>>) = (Vec::new(), None);
        for producers in producers.chunks(ASKED_MAX) {
            let request = ListTransactionsRequest {
                producer_id_filters: producers.to_vec(),
                names_served: true,
                ..Default::default()
            };
            let response = self.peers.search(broker, request).await.ok().filter(|found| !found.error_code.is_err())?;
            ids.extend(response.transaction_states.into_iter().map(|found| found.transactional_id));
            let now: Vec<_> = response.served.iter().map(|at| (at.partition_index, at.leader_epoch)).collect();
            served = Some(match served {
                None => now,
                Some(before) => before.into_iter().filter(|shard| now.contains(shard)).collect(),
            });
        }
        for transactional_ids in ids.chunks(ASKED_MAX) {
            let request =
                DescribeTransactionsRequest { transactional_ids: transactional_ids.to_vec(), ..Default::default() };
            for found in self.peers.search(broker, request).await.ok()?.transaction_states {
                match found.error_code {
                    // The id has expired, so it has no open transaction.
                    ErrorCode::TRANSACTIONAL_ID_NOT_FOUND => {}
                    code if code.is_err() => return None,
                    _ => known.extend(found.topics.iter().flat_map(|topic| {
                        let each = TopicPartition::each_of(&topic.topic, &topic.partitions);
                        each.map(|partition| (found.producer_id, partition))
                    })),
                }
            }
        }
        served
    }

    /// Writes the abort marker of a transaction whose state is lost. Returns true if the marker was written or is not
    /// needed.
    async fn abort(self: &Arc<Self>, led: &LedPartitions, open: &OpenTransaction) -> bool {
        let OpenTransaction { partition, producer, coordinator_epoch, first_offset } = open;
        // The producer may still be sending in its epoch, so the marker has the next epoch and thereby fences the
        // producer.
        let (epoch, version) = producer.epoch.checked_add(1).map_or((producer.epoch, 1), |next| (next, 2));
        let marker = Marker {
            producer_id: producer.id,
            producer_epoch: epoch,
            coordinator_epoch: (*coordinator_epoch).max(0),
            is_commit: false,
        };
        let leader = led.iter().find(|(_, partitions)| partitions.contains(partition)).map(|(leader, _)| *leader);
        let written = match leader.filter(|leader| *leader != self.node_id) {
            Some(leader) => self.mark_at(MarkerRoute::classic(leader), partition, &marker, version).await,
            None => match self.write_marker(partition, &marker, version).await {
                ErrorCode::NONE | ErrorCode::INVALID_PRODUCER_EPOCH | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => Ok(()),
                code => Err(code.message().to_owned()),
            },
        };
        self.unsettled.has_found.store(true, Ordering::Relaxed);
        let Some(left_out) = self.unmarked.due() else { return written.is_ok() };
        let (topic, partition, producer_id) = (&*partition.topic, partition.partition, producer.id);
        match &written {
            Ok(()) => tracing::warn!(
                topic,
                partition,
                producer_id,
                first_offset,
                left_out,
                "aborted a transaction whose state is lost"
            ),
            Err(why) => tracing::warn!(
                topic,
                partition,
                producer_id,
                why,
                left_out,
                "cannot abort a transaction whose state is lost: the broker retries"
            ),
        }
        written.is_ok()
    }

    /// Returns true if all shards that this broker leads are loaded. If this broker has the only replica of a shard,
    /// the shard must be loaded even if it has no leader yet.
    pub(super) fn are_own_shards_served(&self) -> bool {
        let topic = self.topic.read();
        let Some(topic) = topic.as_ref() else { return self.control.image().topic(TRANSACTION_STATE).is_none() };
        topic.shards().iter().all(|shard| match shard.status() {
            Status::Serving => true,
            // After a power loss, a shard with a single replica has no leader until this broker has reported the end of
            // its log.
            Status::Elsewhere => shard.partition().registered().replicas != [self.node_id],
            Status::Loading | Status::Failed | Status::Gone => false,
        })
    }
}

/// Groups the classic partitions by their leaders, except those of `__transaction_state`. Also returns false if a
/// partition has no leader.
fn led_partitions(image: &Image) -> (LedPartitions, bool) {
    let (mut led, mut are_led) = (LedPartitions::new(), true);
    for topic in image.topics().filter(|topic| !topic.config.diskless && topic.name != TRANSACTION_STATE) {
        let name = Text::from(topic.name.as_str());
        for (partition, registered) in (0..).zip(&topic.partitions) {
            match registered.leader {
                Some(leader) => {
                    led.entry(leader).or_default().push(TopicPartition { topic: name.clone(), partition });
                }
                None => are_led = false,
            }
        }
    }
    (led, are_led)
}
