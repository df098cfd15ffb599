//! A member under the protocol of KIP-848. It sends heartbeats, and the coordinator assigns partitions in its
//! responses.
//!
//! Invariant: a heartbeat omits a partition only after the reader has confirmed that it has given the partition up. The
//! coordinator does not assign the partition to another member before that.

use super::assign::TopicPartition;
use super::config::{GroupConfig, RETRY_BACKOFF};
use super::coordinator::Coordinator;
use super::empty::EmptySince;
use super::shared::SharedMembership;
use super::verdict::Next;
use crate::blocking::{PartitionPlace, metadata_request, places_in};
use crate::error::ClientError;
use fullbore_wire::apis::consumer_group_heartbeat::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The epoch in the heartbeat of a member that joins.
const JOINS: i32 = 0;
/// The epoch in the heartbeat of a member that leaves.
const LEAVES: i32 = -1;
/// The epoch in the heartbeat of a static member that leaves but may return.
const LEAVES_FOR_NOW: i32 = -2;

/// Number of heartbeat intervals after which an empty assignment counts as final. By default the session of a failed
/// member ends after nine, and other members then get its partitions. A coordinator may shorten the interval during a
/// rebalance. The longest interval since the assignment became empty therefore counts.
const SETTLED_INTERVALS: u32 = 11;
/// Minimum time after which an empty assignment counts as final, however short the intervals are. A Fullbore broker
/// uses a short interval for 3 s after a change, and its operator may set this to a few milliseconds.
const SETTLED_AFTER_LEAST: Duration = Duration::from_secs(4);

pub(super) struct Consumer<'a> {
    config: GroupConfig,
    coordinator: Coordinator,
    shared: &'a SharedMembership,
    member_id: Text,
    epoch: i32,
    /// The interval between heartbeats, which the coordinator sets.
    interval: Duration,
    /// The reader's partitions as of the last answered heartbeat. `None` if the next heartbeat must contain all fields.
    reported: Option<Vec<TopicPartition>>,
    /// The last assignment from the coordinator.
    assigned: Option<Vec<TopicPartitions>>,
    empty: EmptySince,
    ids: HashMap<Uuid, Text>,
}

impl<'a> Consumer<'a> {
    pub(super) fn new(config: GroupConfig, coordinator: Coordinator, shared: &'a SharedMembership) -> Self {
        Consumer {
            config,
            coordinator,
            shared,
            member_id: random_id(),
            epoch: JOINS,
            interval: RETRY_BACKOFF,
            reported: None,
            assigned: None,
            empty: EmptySince::default(),
            ids: HashMap::new(),
        }
    }

    /// Takes part in the group until the member is stopped, and then leaves.
    pub(super) fn run(mut self) -> Result<(), ClientError> {
        let outcome = self.take_part();
        let member_epoch = if self.config.instance.is_some() { LEAVES_FOR_NOW } else { LEAVES };
        if self.epoch > JOINS {
            // If this fails, the group removes the member when its session ends.
            let _ = self.coordinator.call(&ConsumerGroupHeartbeatRequest { member_epoch, ..self.identity() }, i16::MAX);
        }
        outcome
    }

    fn identity(&self) -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest {
            group_id: self.config.group.clone(),
            member_id: self.member_id.clone(),
            member_epoch: self.epoch,
            instance_id: self.config.instance.clone(),
            ..Default::default()
        }
    }

    fn take_part(&mut self) -> Result<(), ClientError> {
        while !self.shared.is_stopping() {
            let held = self.shared.held();
            let (step, answer) = self.heartbeat(&held)?;
            match step {
                Next::Go => {
                    self.reported = Some(held.clone());
                    self.take(answer);
                    self.aim()?;
                    self.shared.wait_for_other_than(&held, self.interval);
                }
                Next::Again | Next::Find | Next::Rejoin => {
                    // The coordinator might not have received this heartbeat, so the next one contains all fields.
                    self.reported = None;
                    self.empty.end();
                    self.shared.pause(RETRY_BACKOFF);
                }
                Next::RejoinLost | Next::RejoinNew | Next::Fatal => {
                    (self.epoch, self.reported, self.assigned) = (JOINS, None, None);
                    self.empty.end();
                    self.shared.set_identity(&self.member_id, LEAVES);
                    self.shared.lose();
                    while !self.shared.is_confirmed(self.config.heartbeat_interval) && !self.shared.is_stopping() {}
                }
            }
        }
        Ok(())
    }

    fn heartbeat(&mut self, held: &[TopicPartition]) -> Result<(Next, ConsumerGroupHeartbeatResponse), ClientError> {
        let mut request = self.identity();
        if self.reported.as_deref() != Some(held) {
            request.topic_partitions = Some(self.by_id(held));
        }
        if self.reported.is_none() {
            let timeout_ms = i32::try_from(self.config.rebalance_timeout.as_millis());
            request.rebalance_timeout_ms = timeout_ms.unwrap_or(i32::MAX);
            request.subscribed_topic_names = Some(self.config.topics.clone());
            request.server_assignor = self.config.remote_assignor.clone();
        }
        let answer = match self.ids.is_empty() {
            // Assignments identify topics by id. The metadata with the names is therefore requested in the same round
            // trip as the first assignment.
            true => self.heartbeat_and_describe(&request),
            false => self.coordinator.call(&request, i16::MAX),
        };
        if let Err(ClientError::Version { address, .. }) = &answer {
            let what = format!("cannot join group '{}'", self.config.group);
            let words = format!("{address} does not serve the consumer protocol; use --group-protocol classic");
            return Err(ClientError::kafka(what, ErrorCode::UNSUPPORTED_VERSION, Some(&words)));
        }
        if self.shared.is_stopping() {
            return Ok((Next::Find, ConsumerGroupHeartbeatResponse::default()));
        }
        let (code, answer) = match answer {
            Ok(answer) => (Ok(answer.error_code), answer),
            Err(error) => (Err(error), ConsumerGroupHeartbeatResponse::default()),
        };
        if let (Ok(ErrorCode::UNSUPPORTED_ASSIGNOR | ErrorCode::INVALID_REQUEST), Some(words)) =
            (&code, &answer.error_message)
        {
            let what = format!("cannot join group '{}'", self.config.group);
            return Err(ClientError::kafka(what, answer.error_code, Some(words)));
        }
        let step = self.coordinator.next("cannot stay in", code)?;
        self.shared.set_trouble(self.coordinator.trouble());
        Ok((step, answer))
    }

    fn heartbeat_and_describe(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
    ) -> Result<ConsumerGroupHeartbeatResponse, ClientError> {
        let describe = metadata_request(Some(&self.config.topics));
        let (answer, described) = self.coordinator.call_both(request, Some((&describe, i16::MAX)))?;
        // Topics that are missing from this metadata are requested again when they are assigned. That request reports
        // their errors.
        let described = described.filter(|described| !described.error_code.is_err());
        described.iter().for_each(|described| self.coordinator.learn(described));
        self.name(described.and_then(|described| places_in(&described).ok()).unwrap_or_default());
        Ok(answer)
    }

    fn name(&mut self, found: BTreeMap<Text, Vec<PartitionPlace>>) {
        let first = found.into_values().filter_map(|places| places.into_iter().next());
        self.ids.extend(first.map(|place| (place.topic_id, place.topic)));
    }

    fn take(&mut self, answer: ConsumerGroupHeartbeatResponse) {
        self.epoch = answer.member_epoch;
        self.member_id = answer.member_id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.member_id.clone());
        self.interval = Duration::from_millis(answer.heartbeat_interval_ms.max(1) as u64);
        self.shared.set_identity(&self.member_id, self.epoch);
        if let Some(assignment) = answer.assignment {
            self.assigned = Some(assignment.topic_partitions);
        }
    }

    /// Publishes the assignment to the reader. If the name of a topic is unknown, the topic is left out until the next
    /// heartbeat.
    fn aim(&mut self) -> Result<(), ClientError> {
        let Some(assigned) = self.assigned.clone() else { return Ok(()) };
        if assigned.iter().any(|topic| !self.ids.contains_key(&topic.topic_id)) {
            match self.coordinator.partitions_of(&self.config.topics) {
                Ok(found) => self.name(found),
                Err(error) if error.is_retriable() => {}
                Err(error) => return Err(error),
            }
        }
        let mut partitions: Vec<TopicPartition> = Vec::new();
        for topic in &assigned {
            if let Some(name) = self.ids.get(&topic.topic_id) {
                partitions.extend(topic.partitions.iter().map(|partition| (name.clone(), *partition)));
            }
        }
        partitions.sort();
        let has_some = assigned.iter().any(|topic| !topic.partitions.is_empty());
        // An empty assignment is not final while this member still reports partitions. The coordinator may withhold new
        // partitions until the member has given up the old ones.
        let has_any = has_some || self.reported.as_ref().is_some_and(|reported| !reported.is_empty());
        if has_any {
            self.empty.end();
        }
        let patience = self.interval.saturating_mul(SETTLED_INTERVALS).max(SETTLED_AFTER_LEAST);
        let settled = !has_any && self.empty.lasts(patience);
        self.shared.publish(partitions, settled);
        Ok(())
    }

    fn by_id(&self, held: &[TopicPartition]) -> Vec<TopicPartitions> {
        let mut topics: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
        for (id, name) in &self.ids {
            let of_topic = held.iter().filter(|(topic, _)| topic == name).map(|(_, partition)| *partition);
            let of_topic: Vec<i32> = of_topic.collect();
            if !of_topic.is_empty() {
                topics.insert(*id, of_topic);
            }
        }
        let topic = |(topic_id, partitions)| TopicPartitions { topic_id, partitions, ..Default::default() };
        topics.into_iter().map(topic).collect()
    }
}

/// Returns a new member id of 128 random bits, as KIP-848 demands. The random bits are hash keys of the standard
/// library.
fn random_id() -> Text {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half()).into()
}
