//! A member under the classic protocol. It joins, synchronises, sends heartbeats, and rejoins when the group
//! rebalances.
//!
//! With an eager assignor the member gives up all partitions before it rejoins. If cooperative-sticky is its only
//! assignor, the member keeps its partitions while it rejoins. It then gives up only those that are missing from the
//! new assignment (KIP-429). Invariant: while the reader has partitions, the member sends heartbeats.

use super::assign::{Assignor, Subscriber, TopicPartition};
use super::config::{GroupConfig, REQUEST_TIMEOUT, RETRY_BACKOFF};
use super::coordinator::Coordinator;
use super::empty::EmptySince;
use super::lookout::Lookout;
use super::offsets::OffsetsQuestion;
use super::shared::SharedMembership;
use super::verdict::Next;
use crate::blocking::{PartitionPlace, metadata_request, places_in};
use crate::error::ClientError;
use bytes::Bytes;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, MemberIdentity};
use fullbore_wire::apis::offset_fetch::OffsetFetchRequest;
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use fullbore_wire::consumer_protocol::{self, ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// The protocol type of consumers.
const CONSUMER: Text = Text::from_static("consumer");
/// Time after the rebalance timeout that the member still waits for the answer to JoinGroup or SyncGroup.
const REBALANCE_GRACE: Duration = Duration::from_secs(10);
/// How long the member waits for these answers until it looks up the coordinator at other brokers.
const LOOK_OUT_EVERY: Duration = Duration::from_secs(10);
/// The version of subscriptions. From this version on, a subscription contains the rack and the generation of the owned
/// partitions (KIP-792).
const SUBSCRIPTION_VERSION: i16 = 3;
/// The version of assignments. Every client can decode the oldest version, and newer ones add no fields.
const ASSIGNMENT_VERSION: i16 = 0;
/// How long an assignment must stay empty to count as final. Other members may still have to give up partitions for
/// this member. They do this within a minute, even if their reader's output is blocked. The session of a failed member
/// ends sooner.
const SETTLED_AFTER: Duration = Duration::from_secs(65);
/// The first version of JoinGroup in which a new member must request an id before it joins (KIP-394).
const MEMBER_ID_VERSION: i16 = 4;
/// Maximum number of partitions whose offsets are requested together with the assignment. A longer request could cause
/// a deadlock. The broker would not read it while it writes an earlier response, and the member reads that response
/// only after the request.
const OFFSETS_MAX: usize = 1000;
/// The last version of LeaveGroup that names one member instead of a list.
const LEAVE_ONE_VERSION: i16 = 2;

pub(super) struct Classic<'a> {
    config: GroupConfig,
    coordinator: Coordinator,
    shared: &'a SharedMembership,
    member_id: Text,
    generation: i32,
    protocol: Text,
    leads: bool,
    /// The number of partitions of each topic of the group, when this member last counted them as the leader.
    counts: BTreeMap<Text, i32>,
    counted: Instant,
    /// The partitions of the member's topics, from metadata that was requested together with the join.
    described: BTreeMap<Text, Vec<PartitionPlace>>,
    /// The partitions that this member has assigned to itself as the leader, without those that its reader already has.
    own: Vec<(TopicPartition, Uuid)>,
}

impl<'a> Classic<'a> {
    pub(super) fn new(config: GroupConfig, coordinator: Coordinator, shared: &'a SharedMembership) -> Self {
        Classic {
            config,
            coordinator,
            shared,
            member_id: Text::default(),
            generation: -1,
            protocol: Text::default(),
            leads: false,
            counts: BTreeMap::new(),
            counted: Instant::now(),
            described: BTreeMap::new(),
            own: Vec::new(),
        }
    }

    /// Takes part in the group until the member is stopped, and then leaves.
    pub(super) fn run(mut self) -> Result<(), ClientError> {
        let outcome = self.take_part();
        if self.config.instance.is_none() && !self.member_id.is_empty() {
            self.leave();
        }
        outcome
    }

    fn is_cooperative(&self) -> bool {
        self.config.assignors == [Assignor::CooperativeSticky]
    }

    fn take_part(&mut self) -> Result<(), ClientError> {
        while !self.shared.is_stopping() {
            let mut step = match self.is_cooperative() {
                true => Next::Go,
                false => self.let_go(Vec::new(), false)?,
            };
            if step == Next::Go {
                step = self.join_and_sync()?;
            }
            if step == Next::Go {
                step = self.heartbeat_until_it_moves()?;
            }
            match step {
                Next::Go | Next::Rejoin | Next::Fatal => {}
                Next::Again | Next::Find => self.shared.pause(RETRY_BACKOFF),
                Next::RejoinLost | Next::RejoinNew => {
                    self.generation = -1;
                    if step == Next::RejoinNew {
                        self.member_id = Text::default();
                    }
                    self.shared.set_identity(&self.member_id, -1);
                    self.shared.lose();
                    while !self.shared.is_confirmed(self.config.heartbeat_interval) && !self.shared.is_stopping() {}
                }
            }
        }
        Ok(())
    }

    /// Publishes these partitions as the target and sends heartbeats until the reader has confirmed the target.
    fn let_go(&mut self, partitions: Vec<TopicPartition>, settled: bool) -> Result<Next, ClientError> {
        self.shared.publish(partitions, settled);
        while !self.shared.is_confirmed(self.config.heartbeat_interval) && !self.shared.is_stopping() {
            // REBALANCE_IN_PROGRESS does not end the wait. It is the reason why the reader has to give up partitions.
            if let step @ (Next::RejoinLost | Next::RejoinNew) = self.heartbeat()? {
                return Ok(step);
            }
        }
        Ok(Next::Go)
    }

    fn join_and_sync(&mut self) -> Result<Next, ClientError> {
        let joined = self.join();
        let code = joined.as_ref().map(|joined| joined.error_code).map_err(|_| ());
        if code == Ok(ErrorCode::MEMBER_ID_REQUIRED) {
            self.member_id = joined?.member_id;
            return Ok(Next::Rejoin);
        }
        let (answer, joined) = split(joined, |joined| joined.error_code);
        let step = self.settled("cannot join", answer)?;
        let Some(joined) = joined.filter(|_| step == Next::Go) else { return Ok(step) };
        self.member_id = joined.member_id.clone();
        self.generation = joined.generation_id;
        self.protocol = joined.protocol_name.clone().unwrap_or_default();
        self.leads = joined.leader == joined.member_id;
        // An empty assignment by an eager leader is final. A cooperative leader, or an assignor of the coordinator,
        // assigns only free partitions at first and may assign more later.
        let assigns_all = !joined.leader.is_empty() && self.protocol != Assignor::CooperativeSticky.name();
        self.shared.set_identity(&self.member_id, self.generation);
        self.own.clear();
        let assignments = match self.leads && !joined.skip_assignment {
            true => self.assign(joined),
            false => Ok(Vec::new()),
        };
        let (answer, assignment) = match assignments.and_then(|assignments| self.sync(assignments)) {
            Ok((code, assignment)) => (Ok(code), assignment),
            Err(error) => (Err(error), Bytes::new()),
        };
        let step = self.settled("cannot get an assignment (SyncGroup) from", answer)?;
        if step != Next::Go {
            return Ok(step);
        }
        let assigned = partitions_of(assignment)?;
        let has_lost = self.shared.held().iter().any(|held| !assigned.contains(held));
        let step = self.let_go(assigned, assigns_all)?;
        // The member rejoins to start another rebalance. Only that one assigns the partitions that it gave up to other
        // members.
        Ok(if step == Next::Go && has_lost && self.is_cooperative() { Next::Rejoin } else { step })
    }

    fn settled(&mut self, what: &str, answer: Result<ErrorCode, ClientError>) -> Result<Next, ClientError> {
        if self.shared.is_stopping() {
            return Ok(Next::Find);
        }
        let step = self.coordinator.next(what, answer)?;
        self.shared.set_trouble(self.coordinator.trouble());
        Ok(step)
    }

    /// Sends a request that the coordinator answers only when other members have sent theirs. Stopping the member ends
    /// the wait. The wait also ends if other brokers name another coordinator.
    fn patiently<T>(
        &mut self,
        call: impl FnOnce(&mut Coordinator) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let connection = self.coordinator.connection()?;
        connection.set_patience(self.config.rebalance_timeout + REBALANCE_GRACE)?;
        let stopper = connection.stopper()?;
        self.shared.set_waits(Some(connection.stopper()?));
        self.coordinator.set_waits(true);
        let lookout = self.coordinator.look_out(stopper, LOOK_OUT_EVERY.min(self.config.metadata_max_age));
        let answer = call(&mut self.coordinator);
        let other = lookout.and_then(Lookout::end);
        self.coordinator.set_waits(false);
        self.shared.set_waits(None);
        match answer.is_ok() {
            true => self.coordinator.connection()?.set_patience(REQUEST_TIMEOUT)?,
            false => other.into_iter().for_each(|address| self.coordinator.turn_to(address)),
        }
        answer
    }

    fn join(&mut self) -> Result<JoinGroupResponse, ClientError> {
        let owned = if self.is_cooperative() { self.shared.held() } else { Vec::new() };
        let subscription = ConsumerProtocolSubscription {
            topics: self.config.topics.clone(),
            owned_partitions: by_topic(&owned),
            generation_id: self.generation,
            ..Default::default()
        };
        let metadata = encoded(&subscription, SUBSCRIPTION_VERSION)?;
        let protocol = |assignor: &Assignor| JoinGroupRequestProtocol {
            name: assignor.name().into(),
            metadata: metadata.clone(),
            ..Default::default()
        };
        let request = JoinGroupRequest {
            group_id: self.config.group.clone(),
            session_timeout_ms: ms(self.config.session_timeout),
            rebalance_timeout_ms: ms(self.config.rebalance_timeout),
            member_id: self.member_id.clone(),
            group_instance_id: self.config.instance.clone(),
            protocol_type: CONSUMER,
            protocols: self.config.assignors.iter().map(protocol).collect(),
            ..Default::default()
        };
        if self.member_id.is_empty() && self.config.instance.is_none() && !self.coordinator.is_connected() {
            // A new member first gets an id from the coordinator and then joins with that id (KIP-394).
            let code = |answer: &JoinGroupResponse| answer.error_code;
            if let Some(answer) = self.coordinator.call_beside_finding(&request, MEMBER_ID_VERSION, code)? {
                return Ok(answer);
            }
        }
        // A member that may become the leader requests the metadata together with the join. The coordinator answers the
        // two requests in order, so the metadata is from the time at which all members had joined.
        let may_lead = self.leads || self.generation < 0;
        let describe = may_lead.then(|| metadata_request(Some(&self.config.topics)));
        let describe = describe.as_ref().map(|describe| (describe, i16::MAX));
        let (joined, described) = self.patiently(|coordinator| coordinator.call_both(&request, describe))?;
        let described = described.filter(|described| !described.error_code.is_err());
        described.iter().for_each(|described| self.coordinator.learn(described));
        // Topics that are missing from this response are requested again later, and that request reports their errors.
        self.described = described.and_then(|described| places_in(&described).ok()).unwrap_or_default();
        Ok(joined)
    }

    /// Assigns partitions to each member. Only the leader calls this.
    fn assign(&mut self, joined: JoinGroupResponse) -> Result<Vec<SyncGroupRequestAssignment>, ClientError> {
        let chosen = Assignor::named(&self.protocol).filter(|assignor| self.config.assignors.contains(assignor));
        let chosen = chosen.ok_or_else(|| {
            let what = format!("the group chose the assignor '{}', which was not offered", self.protocol);
            ClientError::kafka(what, ErrorCode::INCONSISTENT_GROUP_PROTOCOL, None)
        })?;
        let mut members = Vec::new();
        for member in joined.members {
            let subscription = consumer_protocol::decode::<ConsumerProtocolSubscription>(member.metadata);
            // A member with an unreadable subscription does not get any partitions.
            let (_, subscription) = subscription.unwrap_or_default();
            let owned = subscription.owned_partitions.iter();
            members.push(Subscriber {
                id: member.member_id,
                instance: member.group_instance_id,
                topics: subscription.topics,
                owned: owned.flat_map(|of| of.partitions.iter().map(|p| (of.topic.clone(), *p))).collect(),
                generation: subscription.generation_id,
            });
        }
        let mut topics: Vec<Text> = members.iter().flat_map(|member| member.topics.iter().cloned()).collect();
        topics.sort();
        topics.dedup();
        let missing: Vec<Text> = topics.iter().filter(|topic| !self.described.contains_key(*topic)).cloned().collect();
        let mut places = std::mem::take(&mut self.described);
        places.append(&mut self.coordinator.partitions_of(&missing)?);
        places.retain(|topic, _| topics.contains(topic));
        (self.counts, self.counted) = (counts(&places), Instant::now());
        let assigned = chosen.assign(&members, &self.counts);
        let own = assigned.iter().filter(|(id, _)| **id == self.member_id).flat_map(|(_, partitions)| partitions);
        let id_of = |topic: &Text| places.get(topic).and_then(|places| Some(places.first()?.topic_id));
        // Partitions that the reader already has need no offset, since the reader knows its position in them.
        let held: HashSet<TopicPartition> = self.shared.held().into_iter().collect();
        let new = own.filter(|of| !held.contains(of));
        self.own = new.map(|of| (of.clone(), id_of(&of.0).unwrap_or_default())).collect();
        let assignment = |(member_id, partitions): (Text, Vec<TopicPartition>)| {
            let assigned_partitions = by_topic(&partitions);
            let message = ConsumerProtocolAssignment { assigned_partitions, ..Default::default() };
            let assignment = encoded(&message, ASSIGNMENT_VERSION)?;
            Ok(SyncGroupRequestAssignment { member_id, assignment, ..Default::default() })
        };
        assigned.into_iter().map(assignment).collect()
    }

    /// Returns how many partitions each existing topic has.
    fn count(&mut self, topics: &[Text]) -> Result<BTreeMap<Text, i32>, ClientError> {
        Ok(counts(&self.coordinator.partitions_of(topics)?))
    }

    fn sync(&mut self, assignments: Vec<SyncGroupRequestAssignment>) -> Result<(ErrorCode, Bytes), ClientError> {
        let request = SyncGroupRequest {
            group_id: self.config.group.clone(),
            generation_id: self.generation,
            member_id: self.member_id.clone(),
            group_instance_id: self.config.instance.clone(),
            protocol_type: Some(CONSUMER),
            protocol_name: Some(self.protocol.clone()),
            assignments,
            ..Default::default()
        };
        let version = self.coordinator.connection()?.version::<OffsetFetchRequest>();
        // A leader that assigns partitions to itself requests their offsets in the same round trip. The offsets are
        // final, because every other member has given up these partitions by then.
        let is_short = (1..=OFFSETS_MAX).contains(&self.own.len());
        let version = version.ok().filter(|_| is_short);
        let question = version.map(|version| OffsetsQuestion::new(&self.config, None, &self.own, version));
        let fetch = question.as_ref().map(|question| (&question.request, question.version_max));
        let (answer, offsets) = self.patiently(|coordinator| coordinator.call_both(&request, fetch))?;
        if let (Some(question), Some(offsets)) = (question, offsets)
            && let (ErrorCode::NONE, found) = question.answered(&offsets)
        {
            let committed = |of: &(TopicPartition, Uuid)| (of.clone(), found.get(&of.0).copied());
            self.shared.set_committed(self.generation, self.own.iter().map(committed).collect());
        }
        Ok((answer.error_code, answer.assignment))
    }

    fn heartbeat_until_it_moves(&mut self) -> Result<Next, ClientError> {
        let (mut empty, settled_after) = (EmptySince::default(), SETTLED_AFTER.min(self.config.rebalance_timeout));
        let mut pause = self.config.heartbeat_interval;
        loop {
            // While the member searches for its coordinator, the reader cannot commit.
            self.shared.pause(std::mem::replace(&mut pause, self.config.heartbeat_interval));
            if self.shared.is_stopping() {
                return Ok(Next::Go);
            }
            match self.heartbeat()? {
                Next::Go if self.shared.held().is_empty() && empty.lasts(settled_after) => {
                    self.shared.publish(Vec::new(), true);
                }
                Next::Go => {}
                Next::Again | Next::Find => {
                    empty.end();
                    pause = RETRY_BACKOFF;
                }
                step => return Ok(step),
            }
            if self.leads && self.counted.elapsed() >= self.config.metadata_max_age {
                self.counted = Instant::now();
                let topics: Vec<Text> = self.counts.keys().chain(&self.config.topics).cloned().collect();
                // An error of the metadata request is ignored. If it persists, the next heartbeat fails as well and
                // reports it.
                if self.count(&topics).is_ok_and(|counts| counts != self.counts) {
                    return Ok(Next::Rejoin);
                }
            }
        }
    }

    fn heartbeat(&mut self) -> Result<Next, ClientError> {
        if self.generation < 0 {
            return Ok(Next::Go);
        }
        let request = HeartbeatRequest {
            group_id: self.config.group.clone(),
            generation_id: self.generation,
            member_id: self.member_id.clone(),
            group_instance_id: self.config.instance.clone(),
            ..Default::default()
        };
        let answer = self.coordinator.call(&request, i16::MAX).map(|answer| answer.error_code);
        self.settled("cannot stay in", answer)
    }

    /// Sends LeaveGroup, so that the group does not wait for the end of the session. A failure is ignored.
    fn leave(&mut self) {
        let mut leave = || {
            let version = self.coordinator.connection()?.version::<LeaveGroupRequest>()?;
            let of_list = MemberIdentity {
                member_id: self.member_id.clone(),
                reason: Some(Text::from_static("the consumer is being closed")),
                ..Default::default()
            };
            let request = LeaveGroupRequest {
                group_id: self.config.group.clone(),
                member_id: if version <= LEAVE_ONE_VERSION { self.member_id.clone() } else { Text::default() },
                members: if version <= LEAVE_ONE_VERSION { Vec::new() } else { vec![of_list] },
                ..Default::default()
            };
            self.coordinator.call(&request, i16::MAX)
        };
        // Stopping a join has closed the connection, so the first attempt may fail. The second attempt opens a new
        // connection.
        let _ = leave().or_else(|_| leave());
    }
}

fn split<T>(
    answer: Result<T, ClientError>,
    code: impl Fn(&T) -> ErrorCode,
) -> (Result<ErrorCode, ClientError>, Option<T>) {
    match answer {
        Ok(answer) => (Ok(code(&answer)), Some(answer)),
        Err(error) => (Err(error), None),
    }
}

fn counts(places: &BTreeMap<Text, Vec<PartitionPlace>>) -> BTreeMap<Text, i32> {
    let count = |places: &Vec<PartitionPlace>| i32::try_from(places.len()).unwrap_or(i32::MAX);
    places.iter().map(|(topic, places)| (topic.clone(), count(places))).collect()
}

fn ms(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

fn encoded<T: consumer_protocol::Embedded>(message: &T, version: i16) -> Result<Bytes, ClientError> {
    consumer_protocol::encode(message, version).map_err(|source| ClientError::Encode { api: "JoinGroup", source })
}

fn by_topic(partitions: &[TopicPartition]) -> Vec<consumer_protocol::TopicPartition> {
    let mut topics: BTreeMap<&Text, Vec<i32>> = BTreeMap::new();
    partitions.iter().for_each(|(topic, partition)| topics.entry(topic).or_default().push(*partition));
    let topic = |(topic, partitions): (&Text, Vec<i32>)| consumer_protocol::TopicPartition {
        topic: topic.clone(),
        partitions,
        ..Default::default()
    };
    topics.into_iter().map(topic).collect()
}

/// Decodes an assignment. Empty bytes mean that there are no partitions.
fn partitions_of(assignment: Bytes) -> Result<Vec<TopicPartition>, ClientError> {
    if assignment.is_empty() {
        return Ok(Vec::new());
    }
    let decoded = consumer_protocol::decode::<ConsumerProtocolAssignment>(assignment);
    let (_, decoded) = decoded.map_err(|source| ClientError::Decode {
        address: "the group's leader".to_owned(),
        api: "SyncGroup",
        source,
    })?;
    let of_topic = |of: consumer_protocol::TopicPartition| {
        of.partitions.into_iter().map(move |partition| (of.topic.clone(), partition))
    };
    Ok(decoded.assigned_partitions.into_iter().flat_map(of_topic).collect())
}
