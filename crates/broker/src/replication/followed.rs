//! A partition that this broker follows in one leader epoch. This module creates the partition's entries in fetches,
//! and handles the leader's responses. It handles errors like Kafka's `ReplicaFetcherThread`.
//!
//! `leader_fetcher` decides when fetches are sent.
//!
//! Invariant: if a fetch acknowledges records, the log contains them. If the topic's settings require a flush, they are
//! flushed too.

use super::lags::Lag;
use crate::partitions::{AppendError, FlushTicket, FollowError, FromLeader, Replica};
use fullbore_rules::replica::epochs::{EpochEnd, Position};
use fullbore_rules::replica::pipe::{Ask, PartitionPipe};
use fullbore_wire::apis::fetch::{FetchPartition, PartitionData};
use fullbore_wire::{ErrorCode, Records, Uuid};
use std::sync::Arc;
use std::time::Duration;

/// A topic's id and a partition's number.
pub type PartitionId = (Uuid, i32);

/// How long to wait after a partition's first failure. The wait doubles with each further failure in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The state of a partition that this broker follows.
pub struct FollowedPartition {
    pub replica: Arc<Replica>,
    pub leader_epoch: i32,
    /// True if the next fetch will include the partition.
    pub is_to_be_named: bool,
    pub lag: Lag,
    index: i32,
    pipe: PartitionPipe,
    /// The log end at which the current series of fetches began, for example after a new connection.
    requested: Position,
    log_end: i64,
    /// The log start that was reported to the leader.
    log_start: i64,
    acknowledged: i64,
    /// The offset up to which records must be flushed before a fetch may acknowledge them to the leader.
    to_be_flushed: i64,
    /// The number of the partition's failures in a row.
    failures: u32,
}

/// The result of [`FollowedPartition::name`]: the partition's entry in a fetch, or the reason why the fetch must not
/// contain the partition.
pub enum Naming {
    This(Box<FetchPartition>),
    /// The partition has nothing to request, because an earlier fetch is still unanswered.
    Nothing,
    /// The log must be opened first.
    Opening,
    /// The end of the log must be flushed first.
    Unflushed(FlushTicket),
    Failed,
}

/// The next step after the fetcher has handled a leader's response.
pub enum ResponseOutcome {
    Nothing,
    /// The next fetch must include the partition.
    ToBeNamed,
    /// The flush of the ticket must end first. Then a fetch must include the partition, to acknowledge the records
    /// before the given offset, which the flush covers.
    Unflushed(FlushTicket, i64),
    /// A fetch must include the partition again, but only after a pause.
    Failed,
}

impl FollowedPartition {
    /// Creates the state of a partition whose fetches begin at its log end.
    pub fn new((_, index): PartitionId, replica: Arc<Replica>, leader_epoch: i32, lag: Lag) -> FollowedPartition {
        FollowedPartition {
            replica,
            leader_epoch,
            is_to_be_named: false,
            lag,
            index,
            pipe: PartitionPipe::default(),
            requested: Position { offset: 0, last_epoch: None },
            log_end: 0,
            log_start: -1,
            acknowledged: 0,
            to_be_flushed: 0,
            failures: 0,
        }
    }

    /// Makes the next fetch begin at the log end, because the connection is new.
    pub fn restart_from_log_end(&mut self) {
        self.pipe.restart_from_log_end();
    }

    /// Counts a failure. Returns how long to wait before the next fetch, at most `most`.
    pub fn pause(&mut self, most: Duration) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(most);
        self.failures += 1;
        pause
    }

    /// Records that all records before the offset `upto` are flushed. Returns true if the next fetch must acknowledge
    /// them.
    pub fn flushed(&mut self, upto: i64) -> bool {
        // The records after `to_be_flushed` do not need a flush.
        let upto = if upto >= self.to_be_flushed { upto.max(self.log_end) } else { upto };
        let is_news = self.pipe.is_flowing() && upto > self.acknowledged && upto <= self.log_end;
        if is_news {
            self.acknowledged = upto;
        }
        is_news
    }

    /// Returns the partition's entry for fetch number `number`.
    pub fn name(&mut self, number: i32, max_bytes: i32) -> Naming {
        if self.pipe.is_from_log_end() {
            if !self.replica.phase().is_settled() {
                return Naming::Opening;
            }
            if self.replica.takes_no_records() {
                // The log cannot append more records. If a fetch reported its end, the leader would keep this broker in
                // the ISR.
                return Naming::Failed;
            }
            match self.replica.flushed_position() {
                Ok(Err(ticket)) => return Naming::Unflushed(ticket),
                Ok(Ok(position)) => {
                    self.requested = position;
                    self.to_be_flushed = position.offset;
                    (self.log_end, self.acknowledged) = (position.offset, position.offset);
                    self.log_start = self.replica.offsets().map_or(-1, |offsets| offsets.log_start);
                }
                Err(_) => return Naming::Failed,
            }
        }
        let (read_on, last_epoch) = match self.pipe.request(number) {
            Some(Ask::FromLogEnd) => (false, self.requested.last_epoch),
            // The leader has already compared the logs in this leader epoch, so the fetch need not contain an epoch for
            // another comparison.
            Some(Ask::Continue) => (true, None),
            None => return Naming::Nothing,
        };
        Naming::This(Box::new(FetchPartition {
            partition: self.index,
            current_leader_epoch: self.leader_epoch,
            fetch_offset: self.acknowledged,
            last_fetched_epoch: last_epoch.unwrap_or(-1),
            log_start_offset: self.log_start,
            partition_max_bytes: max_bytes,
            read_on,
            ..Default::default()
        }))
    }

    /// Returns true if handling this response may take long.
    pub fn is_long(&self, data: &PartitionData) -> bool {
        let is_change = data.diverging_epoch.epoch >= 0 || data.error_code == ErrorCode::OFFSET_OUT_OF_RANGE;
        let has_records = data.records.as_ref().is_some_and(|records| !records.is_empty());
        is_change || (has_records && !self.replica.phase().is_open())
    }

    /// Handles the leader's response.
    pub fn take(&mut self, data: &PartitionData) -> ResponseOutcome {
        let number = data.requested_in;
        if !self.pipe.concerns(number) {
            return ResponseOutcome::Nothing;
        }
        let is_of_now = data.in_epoch == self.leader_epoch;
        match data.error_code {
            ErrorCode::NONE if data.diverging_epoch.epoch >= 0 => {
                self.pipe.answered(number, false);
                if is_of_now { self.truncate(data) } else { ResponseOutcome::Failed }
            }
            ErrorCode::NONE => {
                let fits = is_of_now && data.from_offset == self.log_end;
                match self.pipe.answered(number, fits) {
                    true => self.append(data),
                    false => ResponseOutcome::ToBeNamed,
                }
            }
            ErrorCode::OFFSET_OUT_OF_RANGE if is_of_now => {
                self.pipe.answered(number, false);
                self.begin_in_range(data)
            }
            code => {
                self.pipe.answered(number, false);
                let (topic, partition) = (self.replica.topic(), self.index);
                tracing::debug!(topic, partition, epoch = self.leader_epoch, %code, "the leader refused to let this \
                     broker fetch a partition");
                ResponseOutcome::Failed
            }
        }
    }

    fn append(&mut self, data: &PartitionData) -> ResponseOutcome {
        let nothing = bytes::Bytes::new();
        let records = data.records.as_ref().and_then(Records::memory).unwrap_or(&nothing);
        let from = FromLeader {
            leader_epoch: self.leader_epoch,
            from: self.log_end,
            records,
            high_watermark: data.high_watermark,
            log_start: data.log_start_offset,
        };
        let appended = match self.replica.append_from_leader(from) {
            // The leader's log starts within this batch, but the leader sends the complete batch. So restart this log
            // at the base offset of the batch.
            Err(FollowError::BeginsWithin(base_offset)) => {
                let begun = self.replica.truncate_fully_and_start_at(self.leader_epoch, base_offset);
                begun.and_then(|()| self.replica.append_from_leader(FromLeader { from: base_offset, ..from }))
            }
            appended => appended,
        };
        match appended {
            Ok(replicated) => {
                self.failures = 0;
                self.log_end = replicated.log_end;
                let begins_elsewhere = std::mem::replace(&mut self.log_start, replicated.log_start) != self.log_start;
                self.lag.is((data.log_end_offset - self.log_end).max(0));
                if let Some(ticket) = replicated.flushed {
                    self.to_be_flushed = self.log_end;
                    return ResponseOutcome::Unflushed(ticket, self.log_end);
                }
                let is_news = self.log_end > self.acknowledged && self.to_be_flushed <= self.acknowledged;
                if is_news {
                    self.acknowledged = self.log_end;
                }
                if is_news || begins_elsewhere { ResponseOutcome::ToBeNamed } else { ResponseOutcome::Nothing }
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Truncates the log where it diverges from the leader's log.
    fn truncate(&mut self, data: &PartitionData) -> ResponseOutcome {
        let leader = EpochEnd { epoch: data.diverging_epoch.epoch, end_offset: data.diverging_epoch.end_offset };
        let (topic, partition, from) = (self.replica.topic(), self.index, self.requested.offset);
        match self.replica.truncate_by(self.leader_epoch, self.requested, leader) {
            Ok(Some(to)) if to < from => {
                tracing::info!(topic, partition, from, to, "truncated the log where it differs from the leader's log");
                ResponseOutcome::ToBeNamed
            }
            // Nothing was truncated, so an immediate fetch would get the same response.
            Ok(_) => ResponseOutcome::Failed,
            Err(error) => self.failed(&error),
        }
    }

    /// Handles OFFSET_OUT_OF_RANGE: removes all records, and restarts the log at the nearest offset of the leader's
    /// log. The leader sends this error if this log ends before the leader's log begins. It also sends the error if
    /// this log ends after the leader's log, and the fetch contained no leader epoch for a comparison.
    fn begin_in_range(&mut self, data: &PartitionData) -> ResponseOutcome {
        let (log_start, log_end) = (data.log_start_offset, data.log_end_offset);
        if log_start < 0 || log_end < log_start {
            return ResponseOutcome::Failed;
        }
        let at = self.requested.offset.clamp(log_start, log_end);
        let (topic, partition, from) = (self.replica.topic(), self.index, self.requested.offset);
        match self.replica.truncate_fully_and_start_at(self.leader_epoch, at) {
            Ok(()) => {
                tracing::info!(
                    topic,
                    partition,
                    from,
                    at,
                    "deleted all records of a replica, because its fetch offset `from` is not in the leader's log; the replica continues at `at`"
                );
                ResponseOutcome::ToBeNamed
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &FollowError) -> ResponseOutcome {
        self.pipe.restart_from_log_end();
        let (topic, partition) = (self.replica.topic(), self.index);
        match error {
            FollowError::NotNext(_) => return ResponseOutcome::ToBeNamed,
            // The metadata has changed or the partition is deleted. The fetcher will get an event for that.
            FollowError::Role(_) | FollowError::Append(AppendError::Gone) => {}
            FollowError::Records(_) | FollowError::BeginsWithin(_) => {
                tracing::error!(topic, partition, %error, "cannot replicate a partition: the records that the leader has sent cannot be appended, so this broker fetches them again");
            }
            FollowError::Append(_) => {
                // Limit the rate of this log line, because on a full disk every partition fails many times per second.
                if let Some(left_out) = self.replica.line_of_not_replicated() {
                    tracing::warn!(topic, partition, %error, left_out, "cannot replicate a partition: the disk did not take the records, and this broker fetches them again");
                }
            }
        }
        ResponseOutcome::Failed
    }
}
