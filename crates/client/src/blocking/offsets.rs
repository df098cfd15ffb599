//! Finds the offsets at which partitions start, end, or reach a timestamp. The requests (ListOffsets) go to the
//! partitions' leaders.

use super::cluster::Cluster;
use super::connection::Connection;
use crate::error::ClientError;
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, ListOffsetsTopicResponse,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// In ListOffsets this timestamp stands for the start of a partition.
pub const EARLIEST: i64 = -2;
/// In ListOffsets this timestamp stands for the end of a partition.
pub const LATEST: i64 = -1;

/// How long the client retries if a leader has moved or cannot be reached. This is a little longer than the session of
/// a failed broker (broker.session.timeout.ms). If the cluster's patience is shorter, that applies.
const LEADER_PATIENCE: Duration = Duration::from_secs(15);
/// Maximum number of partitions in pipelined requests, counted over all of these requests.
const TOGETHER_MAX: usize = 1000;
/// How long to retry if a leader cannot read its log or the object store. This is shorter than [`LEADER_PATIENCE`],
/// because no other broker soon takes over such a partition.
const STORAGE_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two attempts.
const LEADER_BACKOFF: Duration = Duration::from_millis(100);

impl Cluster {
    /// Returns the offset at `timestamp` (or [`EARLIEST`], [`LATEST`]) of each of these partitions. The offset is -1 if
    /// the partition has no record with this or a later timestamp. Omits partitions that do not exist or have no
    /// leader, or whose leader refuses. Retries for up to [`LEADER_PATIENCE`] if a leader has moved or cannot be
    /// reached.
    ///
    /// # Errors
    /// Returns [`ClientError`] if a leader cannot be reached.
    pub fn offsets_at(
        &mut self,
        of: &[(Text, i32)],
        timestamp: i64,
    ) -> Result<BTreeMap<(Text, i32), i64>, ClientError> {
        let found = self.offsets_found_at(of, timestamp);
        match found.unreached {
            Some(error) => Err(error),
            None => Ok(found.offsets),
        }
    }

    /// Returns offsets like [`Cluster::offsets_at`], and also the errors of the partitions without an offset.
    pub fn offsets_found_at(&mut self, of: &[(Text, i32)], timestamp: i64) -> FoundOffsets {
        let began = Instant::now();
        let patience = LEADER_PATIENCE.min(self.patience() * 3 / 2);
        let _wait = self.awaited().begin("the leaders of partitions");
        let (mut found, mut left) = (FoundOffsets::default(), of.to_vec());
        loop {
            let mut outcome = match self.offsets_now(&left, timestamp) {
                Ok(outcome) => outcome,
                Err(error) => return FoundOffsets { unreached: Some(error), ..found },
            };
            found.offsets.append(&mut outcome.offsets);
            left.iter().for_each(|of| drop(found.refused.remove(of)));
            let is_storage = |of| outcome.refused.get(of) == Some(&ErrorCode::KAFKA_STORAGE_ERROR);
            let patience = match outcome.again.iter().all(is_storage) {
                true => patience.min(STORAGE_PATIENCE),
                false => patience,
            };
            found.refused.extend(outcome.refused.into_iter().map(|(of, code)| {
                let what = format!("cannot find the offset in partition {} of topic '{}'", of.1, of.0);
                (of, ClientError::refused(what, code))
            }));
            let is_late = began.elapsed() + LEADER_BACKOFF > patience;
            if outcome.again.is_empty() || is_late || matches!(outcome.unreached, Some(ClientError::Silent { .. })) {
                return FoundOffsets { unreached: outcome.unreached, ..found };
            }
            left = outcome.again;
            std::thread::sleep(LEADER_BACKOFF);
        }
    }

    /// Sends one request to each leader, without retries.
    fn offsets_now(&mut self, of: &[(Text, i32)], timestamp: i64) -> Result<OffsetsNow, ClientError> {
        let mut topics: Vec<Text> = of.iter().map(|(topic, _)| topic.clone()).collect();
        topics.sort();
        topics.dedup();
        let places = self.partitions_of(&topics)?;
        let mut by_leader: BTreeMap<String, BTreeMap<Text, Vec<i32>>> = BTreeMap::new();
        let wanted: HashSet<(&str, i32)> = of.iter().map(|(topic, partition)| (&**topic, *partition)).collect();
        for place in places.into_values().flatten() {
            let is_wanted = wanted.contains(&(&*place.topic, place.partition));
            if let Some(leader) = place.leader.filter(|_| is_wanted) {
                by_leader.entry(leader).or_default().entry(place.topic).or_default().push(place.partition);
            }
        }
        let mut outcome = OffsetsNow::default();
        for (leader, topics) in by_leader {
            let requested =
                topics.iter().flat_map(|(name, all)| all.iter().map(|partition| (name.clone(), *partition)));
            let requested: Vec<(Text, i32)> = requested.collect();
            let request =
                ListOffsetsRequest { replica_id: -1, topics: wanted_at(topics, timestamp), ..Default::default() };
            match self.call_at(&leader, &request, i16::MAX) {
                Ok(answer) => answer.topics.into_iter().for_each(|topic| outcome.take(topic)),
                Err(error) if error.is_retriable() => {
                    outcome.again.extend(requested);
                    outcome.unreached = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }
}

/// The offsets that leaders returned, and the errors of the partitions without an offset.
#[derive(Debug, Default)]
pub struct FoundOffsets {
    /// The offset of each partition whose leader returned one. -1 if no record has the requested or a later timestamp.
    pub offsets: BTreeMap<(Text, i32), i64>,
    /// The last error of each partition whose leader refused.
    pub refused: BTreeMap<(Text, i32), ClientError>,
    /// The error of a leader that was not reached.
    pub unreached: Option<ClientError>,
}

/// The outcome of one request to each leader.
#[derive(Default)]
struct OffsetsNow {
    offsets: BTreeMap<(Text, i32), i64>,
    refused: BTreeMap<(Text, i32), ErrorCode>,
    /// The partitions to request again, perhaps from a new leader.
    again: Vec<(Text, i32)>,
    /// The error of a leader that was not reached.
    unreached: Option<ClientError>,
}

impl OffsetsNow {
    fn take(&mut self, topic: ListOffsetsTopicResponse) {
        for found in topic.partitions {
            let of = (topic.name.clone(), found.partition_index);
            let code = found.error_code;
            if !code.is_err() {
                self.offsets.insert(of, found.offset);
                continue;
            }
            if code.is_retriable() {
                self.again.push(of.clone());
            }
            self.refused.insert(of, code);
        }
    }
}

fn wanted_at(topics: BTreeMap<Text, Vec<i32>>, timestamp: i64) -> Vec<ListOffsetsTopic> {
    let partition = |partition_index| ListOffsetsPartition { partition_index, timestamp, ..Default::default() };
    let topic = |(name, partitions): (Text, Vec<i32>)| ListOffsetsTopic {
        name,
        partitions: partitions.into_iter().map(partition).collect(),
        ..Default::default()
    };
    topics.into_iter().map(topic).collect()
}

impl Connection {
    /// Returns the offset at `timestamp` of each of these partitions, which this broker must lead. The offsets include
    /// records of open transactions.
    ///
    /// # Errors
    /// Returns the error of the connection if it breaks, or else the error of the first partition that the broker
    /// refuses.
    pub fn offsets(&mut self, of: &[(Text, i32)], timestamp: i64) -> Result<Vec<i64>, ClientError> {
        self.offsets_at(of, timestamp, false)?.into_iter().collect()
    }

    /// Returns the offset at `timestamp` (or [`EARLIEST`], [`LATEST`]), or the broker's error, for each of these
    /// partitions. The offset is -1 if no record has this or a later timestamp. This broker must lead the partitions.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the connection breaks.
    pub fn offsets_at(
        &mut self,
        of: &[(Text, i32)],
        timestamp: i64,
        read_committed: bool,
    ) -> Result<Vec<Result<i64, ClientError>>, ClientError> {
        let version = self.version::<ListOffsetsRequest>()?;
        self.list_offsets_at(of, timestamp, read_committed, version)?;
        self.receive_offsets_at(of, version)
    }

    /// Returns offsets like [`Connection::offsets_at`], for several timestamps with their partitions. Requests of at
    /// most [`TOGETHER_MAX`] partitions in all are pipelined. Longer requests are sent one by one. Otherwise client and
    /// broker could deadlock, each blocked in a write that the other one does not read.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the connection breaks.
    pub(crate) fn offsets_at_each(
        &mut self,
        each: &[(i64, Vec<(Text, i32)>)],
        read_committed: bool,
    ) -> Result<Vec<Vec<Result<i64, ClientError>>>, ClientError> {
        if each.iter().map(|(_, of)| of.len()).sum::<usize>() > TOGETHER_MAX {
            return each.iter().map(|(timestamp, of)| self.offsets_at(of, *timestamp, read_committed)).collect();
        }
        let version = self.version::<ListOffsetsRequest>()?;
        for (timestamp, of) in each {
            self.list_offsets_at(of, *timestamp, read_committed, version)?;
        }
        each.iter().map(|(_, of)| self.receive_offsets_at(of, version)).collect()
    }

    fn list_offsets_at(
        &mut self,
        of: &[(Text, i32)],
        timestamp: i64,
        read_committed: bool,
        version: i16,
    ) -> Result<(), ClientError> {
        let mut topics: Vec<ListOffsetsTopic> = Vec::new();
        for (topic, partition) in of {
            if topics.last().is_none_or(|last| last.name != *topic) {
                topics.push(ListOffsetsTopic { name: topic.clone(), ..Default::default() });
            }
            let wanted = ListOffsetsPartition { partition_index: *partition, timestamp, ..Default::default() };
            topics.last_mut().expect("just pushed").partitions.push(wanted);
        }
        let isolation_level = i8::from(read_committed);
        let request = ListOffsetsRequest { replica_id: -1, isolation_level, topics, ..Default::default() };
        self.send(&request, version)
    }

    /// Receives the response to the oldest [`Connection::list_offsets_at`], which requested these partitions.
    fn receive_offsets_at(
        &mut self,
        of: &[(Text, i32)],
        version: i16,
    ) -> Result<Vec<Result<i64, ClientError>>, ClientError> {
        let (_, response) = self.receive::<ListOffsetsRequest>(version)?;
        let found: HashMap<(&Text, i32), _> = response
            .topics
            .iter()
            .flat_map(|topic| topic.partitions.iter().map(move |found| ((&topic.name, found.partition_index), found)))
            .collect();
        let offset = |(topic, partition): &(Text, i32)| match found.get(&(topic, *partition)) {
            Some(found) if !found.error_code.is_err() => Ok(found.offset),
            other => {
                let code = other.map_or(ErrorCode::UNKNOWN_SERVER_ERROR, |found| found.error_code);
                Err(ClientError::refused(
                    format!("cannot find where partition {partition} of topic '{topic}' starts or ends"),
                    code,
                ))
            }
        };
        Ok(of.iter().map(offset).collect())
    }
}
