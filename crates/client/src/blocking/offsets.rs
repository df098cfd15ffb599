//! The offsets at which partitions start, end, or reach a timestamp: ListOffsets, sent to their leaders.

use super::cluster::Cluster;
use super::connection::Connection;
use crate::error::ClientError;
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, ListOffsetsTopicResponse,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// The timestamp that stands for the start of a partition in ListOffsets.
pub const EARLIEST: i64 = -2;
/// The timestamp that stands for the end of a partition in ListOffsets.
pub const LATEST: i64 = -1;

/// How long leaders are looked for that have moved or cannot be reached: a little more than a dead broker is taken for
/// alive (broker.session.timeout.ms). A shorter patience makes this shorter.
const LEADER_PATIENCE: Duration = Duration::from_secs(15);
/// Partitions that requests may name altogether which leave without waiting for the answers before them.
const TOGETHER_MAX: usize = 1000;
/// Between two looks for them.
const LEADER_BACKOFF: Duration = Duration::from_millis(100);

impl Cluster {
    /// The offset at `timestamp` (or [`EARLIEST`], [`LATEST`]) of each of these partitions, asked of their leaders; those
    /// that do not exist, have no leader or whose leader refuses are left out. -1 where no record is that late. A leader that
    /// has moved, or that cannot be reached, is looked for again for a while.
    ///
    /// # Errors
    /// When a leader cannot be reached.
    pub fn offsets_at(
        &mut self,
        of: &[(Text, i32)],
        timestamp: i64,
    ) -> Result<BTreeMap<(Text, i32), i64>, ClientError> {
        match self.offsets_found_at(of, timestamp) {
            (_, Some(error)) => Err(error),
            (offsets, None) => Ok(offsets),
        }
    }

    /// As [`Cluster::offsets_at`], with the offsets that were found beside the reason for which others were not.
    pub fn offsets_found_at(
        &mut self,
        of: &[(Text, i32)],
        timestamp: i64,
    ) -> (BTreeMap<(Text, i32), i64>, Option<ClientError>) {
        let until = Instant::now() + LEADER_PATIENCE.min(self.patience() * 3 / 2);
        let _wait = self.awaited().begin("the leaders of partitions");
        let (mut offsets, mut left) = (BTreeMap::new(), of.to_vec());
        loop {
            let mut outcome = match self.offsets_now(&left, timestamp) {
                Ok(outcome) => outcome,
                Err(error) => return (offsets, Some(error)),
            };
            offsets.append(&mut outcome.offsets);
            match outcome.unreached {
                _ if outcome.moved.is_empty() => return (offsets, None),
                error @ Some(ClientError::Silent { .. }) => return (offsets, error),
                error if Instant::now() + LEADER_BACKOFF > until => return (offsets, error),
                _ => left = outcome.moved,
            }
            std::thread::sleep(LEADER_BACKOFF);
        }
    }

    /// Asks each leader once.
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
            let asked = topics.iter().flat_map(|(name, all)| all.iter().map(|partition| (name.clone(), *partition)));
            let asked: Vec<(Text, i32)> = asked.collect();
            let request =
                ListOffsetsRequest { replica_id: -1, topics: wanted_at(topics, timestamp), ..Default::default() };
            match self.ask_at(&leader, &request, i16::MAX) {
                Ok(answer) => answer.topics.into_iter().for_each(|topic| outcome.take(topic)),
                Err(error) if error.is_retriable() => {
                    outcome.moved.extend(asked);
                    outcome.unreached = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }
}

/// What leaders have answered.
#[derive(Default)]
struct OffsetsNow {
    offsets: BTreeMap<(Text, i32), i64>,
    /// Partitions that another broker may lead by now.
    moved: Vec<(Text, i32)>,
    /// Why a leader could not be asked.
    unreached: Option<ClientError>,
}

impl OffsetsNow {
    fn take(&mut self, topic: ListOffsetsTopicResponse) {
        for found in topic.partitions {
            let of = (topic.name.clone(), found.partition_index);
            match found.error_code {
                code if code.is_retriable() => self.moved.push(of),
                code if code.is_err() => {}
                _ => drop(self.offsets.insert(of, found.offset)),
            }
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
    /// As [`Connection::offsets_at`], past the records of open transactions too.
    ///
    /// # Errors
    /// The first partition's, or a broken connection.
    pub fn offsets(&mut self, of: &[(Text, i32)], timestamp: i64) -> Result<Vec<i64>, ClientError> {
        self.offsets_at(of, timestamp, false)?.into_iter().collect()
    }

    /// The offset at `timestamp` (or [`EARLIEST`], [`LATEST`]) of each of these partitions, which this broker leads, or why it
    /// does not tell; -1 where no record is as late.
    ///
    /// # Errors
    /// A broken connection.
    pub fn offsets_at(
        &mut self,
        of: &[(Text, i32)],
        timestamp: i64,
        read_committed: bool,
    ) -> Result<Vec<Result<i64, ClientError>>, ClientError> {
        let version = self.version::<ListOffsetsRequest>()?;
        self.ask_offsets_at(of, timestamp, read_committed, version)?;
        self.told_offsets_at(of, version)
    }

    /// As [`Connection::offsets_at`] for each timestamp and its partitions. Short requests leave together, so that all
    /// of them take one round trip; long ones one after another, since a broker that still writes an answer may not
    /// read the next request.
    ///
    /// # Errors
    /// A broken connection.
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
            self.ask_offsets_at(of, *timestamp, read_committed, version)?;
        }
        each.iter().map(|(_, of)| self.told_offsets_at(of, version)).collect()
    }

    fn ask_offsets_at(
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

    /// The answer to the oldest [`Connection::ask_offsets_at`], which was about these partitions.
    fn told_offsets_at(
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
