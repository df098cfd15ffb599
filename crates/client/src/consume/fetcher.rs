//! The thread that fetches from one leader. It reads one response while the next fetches are in flight.
//!
//! A partition that cannot be read goes back to the run, which finds its leader and passes the partition to a fetcher
//! again. The fetcher continues with its other partitions. The [`session`](super::session) keeps the fetches in flight,
//! and the [`pace`](super::pace) determines their number and size. Invariant: at least one fetch is in flight while the
//! thread waits or reads, until every partition was requested up to its end.

use super::cursor::{Batches, Count, Cursor, Reading, Sink};
use super::epochs::FetchPosition;
use super::error::ConsumeError;
use super::inbox::{AwaitedSince, Inbox};
use super::pace::{AheadPace, AnswerTimes, FetchShare, SizePace};
use super::progress::ConsumeProgress;
use super::session::{FetchSession, Named, PartitionKey, UnderWay};
use super::settings::FetchSettings;
use crate::blocking::Connection;
use crate::error::ClientError;
use fullbore_wire::apis::fetch::{
    FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic, PartitionData,
};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// The last version of Fetch that names topics. Later versions use ids.
const NAMED_VERSION_MAX: i16 = 12;
/// The first version of Fetch with the field that requests reading ahead.
const AHEAD_VERSION_MIN: i16 = 18;

/// The reason why a fetcher ended.
pub(super) enum FetcherEnd {
    /// The run stopped the fetcher.
    Stopped,
    /// Every cursor has reached its end.
    Done,
    /// The connection broke. The run must find the leaders again.
    Stale(ClientError),
    /// An error occurred that no retry can repair.
    Failed(ConsumeError),
}

impl From<ClientError> for FetcherEnd {
    fn from(error: ClientError) -> Self {
        // Kafka's broker returns UNKNOWN_SERVER_ERROR for unexpected failures. They may pass, so this error is retried
        // too.
        let is_unexpected = matches!(error, ClientError::Kafka { code: ErrorCode::UNKNOWN_SERVER_ERROR, .. });
        if error.is_retriable() || is_unexpected { FetcherEnd::Stale(error) } else { FetcherEnd::Failed(error.into()) }
    }
}

/// A partition that goes back to the run.
pub(super) struct Returned<S> {
    pub(super) cursor: Cursor<S>,
    pub(super) why: Why,
}

/// The reason why a partition goes back to the run.
pub(super) enum Why {
    /// The partition needs a new start.
    Reset,
    /// Another broker leads the partition, as the run has learned.
    Moved,
    /// The leader refuses the partition, perhaps only for a while. The number is the newest leader epoch that it knows
    /// (KIP-951), or -1.
    Refused(ClientError, i32),
    /// The partition's records cannot be read.
    Broken(ConsumeError),
}

pub(super) struct Fetcher<S> {
    connection: Connection,
    /// The cursors in the order of the next fetch. A cursor whose records were just read comes last.
    cursors: Vec<Cursor<S>>,
    inbox: Arc<Inbox<S>>,
    returns: Box<dyn Fn(Returned<S>) + Send>,
    /// The next position to request for each cursor, which is ahead of what was read.
    requested: HashMap<PartitionKey, FetchPosition>,
    /// Partitions for which the leader has not answered without an error yet.
    unconfirmed: HashSet<PartitionKey>,
    /// Partitions that are in `ConsumeProgress::waiting` until the leader answers for them, with their names in that
    /// list.
    waited: HashMap<PartitionKey, (Text, i32)>,
    settings: FetchSettings,
    session: FetchSession,
    /// The pace for a leader that reads ahead, and the one for any other leader.
    paces: (AheadPace, SizePace),
    share: FetchShare,
    /// True if the last response had records.
    came: bool,
    progress: Arc<ConsumeProgress>,
    awaited: Arc<AwaitedSince>,
    version: i16,
}

impl<S: Sink> Fetcher<S> {
    /// Creates a fetcher that passes partitions to `returns` if they cannot be read.
    pub(super) fn new(
        connection: Connection,
        cursors: Vec<Cursor<S>>,
        settings: FetchSettings,
        share: FetchShare,
        progress: Arc<ConsumeProgress>,
        returns: impl Fn(Returned<S>) + Send + 'static,
    ) -> Self {
        let inbox = Inbox::new();
        // This cannot fail, because a new inbox is open.
        let _ = inbox.put(cursors);
        let (first, max) = (settings.partition_max_bytes.max(0) as u32, settings.max_bytes.max(0) as u32);
        Fetcher {
            connection,
            cursors: Vec::new(),
            inbox,
            returns: Box::new(returns),
            requested: HashMap::new(),
            unconfirmed: HashSet::new(),
            waited: HashMap::new(),
            settings,
            session: FetchSession::new(false),
            paces: (AheadPace::new(first, max), SizePace::new(first, max)),
            share,
            came: true,
            progress,
            awaited: Arc::default(),
            version: 0,
        }
    }

    /// Returns the time since which the fetcher has waited for its leader. The fetcher keeps the returned value up to
    /// date.
    pub(super) fn awaited(&self) -> Arc<AwaitedSince> {
        self.awaited.clone()
    }

    /// Returns the inbox, through which the fetcher gets more partitions.
    pub(super) fn inbox(&self) -> Arc<Inbox<S>> {
        self.inbox.clone()
    }

    /// Fetches until the run stops, every cursor has reached its end, or an error occurs. Returns the cursors and the
    /// reason for the end.
    pub(super) fn run(mut self) -> (Vec<Cursor<S>>, FetcherEnd) {
        let Err(end) = self.fetch_on();
        // A run that ends shuts down the reading side of its fetchers' connections, which is not an error.
        let end =
            if self.progress.stopping() && matches!(end, FetcherEnd::Stale(_)) { FetcherEnd::Stopped } else { end };
        if matches!(end, FetcherEnd::Done | FetcherEnd::Stopped) {
            self.close_session();
        }
        self.cursors.extend(self.inbox.close());
        (self.cursors, end)
    }

    /// Closes the session at the leader, where it would otherwise last for minutes.
    fn close_session(&mut self) {
        let Some(session_id) = self.session.id() else { return };
        let closing = FetchRequest { session_id, session_epoch: FetchSession::CLOSES, ..Default::default() };
        drop(self.connection.send(&closing, self.version));
    }

    fn fetch_on(&mut self) -> Result<std::convert::Infallible, FetcherEnd> {
        let highest = self.connection.version::<FetchRequest>()?;
        let cursors = self.inbox.take();
        let named = cursors.iter().any(|cursor| cursor.topic_id.is_zero());
        self.version = if named { highest.min(NAMED_VERSION_MAX) } else { highest };
        self.session = FetchSession::new(self.version >= AHEAD_VERSION_MIN);
        self.take_in(cursors);
        self.send_request()?;
        self.progress.fetches();
        loop {
            while self.session.under_way() == 0 {
                if self.inbox.close_if_empty() {
                    return Err(FetcherEnd::Done);
                }
                let more = self.inbox.take();
                self.take_in(more);
                self.send_request()?;
            }
            let waited_since = Instant::now();
            let (frame, response) = self.connection.receive::<FetchRequest>(self.version)?;
            self.awaited.set(Some(Instant::now()));
            let fetch = self.session.answered().expect("the connection takes no answer without a fetch");
            let counts = self.advance(&response, fetch)?;
            self.adapt(&response, fetch, waited_since, frame.len());
            if self.progress.stopping() {
                return Err(FetcherEnd::Stopped);
            }
            let more = self.inbox.take();
            self.take_in(more);
            self.give_back_recalled();
            self.send_request()?;
            if counts {
                self.feed(&response, fetch)?;
            }
            // The fetcher ends even if fetches are in flight that it sent before the records showed the end.
            if self.open().next().is_none() && self.inbox.close_if_empty() {
                return Err(FetcherEnd::Done);
            }
            drop(response);
            self.connection.recycle(frame);
        }
    }

    fn take_in(&mut self, cursors: Vec<Cursor<S>>) {
        for cursor in cursors {
            let key = self.key(&cursor.topic, cursor.topic_id, cursor.partition);
            let place = (cursor.topic.clone(), cursor.partition);
            if self.progress.waiting.has(&place) {
                self.waited.insert(key.clone(), place);
            }
            self.requested.insert(key.clone(), cursor.position());
            self.unconfirmed.insert(key.clone());
            self.session.name(key);
            self.cursors.push(cursor);
        }
    }

    /// Sends the next fetches, as long as there are offsets to request and there is memory for the responses.
    fn send_request(&mut self) -> Result<(), FetcherEnd> {
        let ahead = if self.came { self.paces.0.fetches(self.share.bytes()) } else { 1 };
        while self.session.has_room(ahead) && self.open().next().is_some() {
            let request = self.request();
            self.connection.send(&request, self.version)?;
        }
        Ok(())
    }

    /// Adapts the size and number of the next fetches to a response.
    fn adapt(&mut self, response: &FetchResponse, fetch: UnderWay, awaited: Instant, bytes: usize) {
        let of = response.responses.iter().flat_map(|topic| &topic.partitions).map(|data| bytes_of(data).len());
        let largest = of.max().unwrap_or(0);
        self.came = largest > 0;
        if !self.came {
            return;
        }
        let (sent, bytes) = (fetch.sent, bytes as u64);
        let (began, ended) = (self.connection.answer_began(), Instant::now());
        let times = AnswerTimes { sent, awaited, began, ended, bytes };
        if self.session.is_ahead() {
            if self.paces.0.answered(&times) {
                self.session.resize();
            }
        } else {
            self.paces.1.answered(&times, largest);
        }
    }

    fn key(&self, topic: &Text, topic_id: Uuid, partition: i32) -> PartitionKey {
        match self.version > NAMED_VERSION_MAX {
            true => (topic_id, Text::default(), partition),
            false => (Uuid::ZERO, topic.clone(), partition),
        }
    }

    /// Returns each cursor that still has something to request, with its next position to request.
    fn open(&self) -> impl Iterator<Item = (&Cursor<S>, FetchPosition)> {
        self.cursors.iter().filter_map(|cursor| {
            let requested = self.requested.get(&self.key(&cursor.topic, cursor.topic_id, cursor.partition));
            let requested = requested.copied().unwrap_or(FetchPosition::at(0));
            (!cursor.is_done() && !cursor.ends_at(requested.offset)).then_some((cursor, requested))
        })
    }

    fn request(&mut self) -> FetchRequest {
        self.session.look_again(Instant::now());
        let keys: Vec<PartitionKey> = match self.session.is_ahead() || self.session.is_by_offsets() {
            true => Vec::new(),
            false => {
                self.open().map(|(cursor, _)| self.key(&cursor.topic, cursor.topic_id, cursor.partition)).collect()
            }
        };
        let naming = self.session.next(Instant::now(), keys.into_iter());
        let share = self.share.bytes();
        let (max_bytes, partition_bytes) = match self.session.is_by_offsets() {
            true => (self.paces.1.answer_bytes(share), self.paces.1.partition_bytes(share)),
            false => (self.paces.0.answer_bytes(share), self.paces.0.partition_bytes(self.cursors.len())),
        };
        let (topics, forgotten_topics_data) = match naming.what {
            Named::All => (topics_of(self.open(), partition_bytes, false), Vec::new()),
            Named::Changes { named, forgotten, sizes } => {
                let is_new = |(cursor, _): &(&Cursor<S>, FetchPosition)| named.iter().any(|key| self.is(cursor, key));
                let mut topics = match named.is_empty() {
                    true => Vec::new(),
                    false => topics_of(self.open().filter(is_new), partition_bytes, false),
                };
                if sizes {
                    topics.extend(topics_of(self.open().filter(|of| !is_new(of)), partition_bytes, true));
                }
                (topics, forgotten.into_iter().map(forgotten_topic).collect())
            }
        };
        // A leader that only compares a position with its log has nothing to wait for.
        let is_compared = !self.unconfirmed.is_empty() && self.cursors.iter().any(Cursor::is_end_suspended);
        FetchRequest {
            max_wait_ms: if is_compared { 0 } else { self.settings.max_wait_ms },
            min_bytes: self.settings.min_bytes,
            max_bytes: i32::try_from(max_bytes).unwrap_or(i32::MAX),
            isolation_level: i8::from(self.settings.read_committed),
            session_id: naming.session_id,
            session_epoch: naming.session_epoch,
            read_ahead: !self.session.is_by_offsets(),
            topics,
            forgotten_topics_data,
            ..Default::default()
        }
    }

    /// Handles a response apart from its records. Determines the next offsets, and gives partitions back that the
    /// leader refuses. Returns false if the response belongs to a lost session and must be ignored.
    fn advance(&mut self, response: &FetchResponse, fetch: UnderWay) -> Result<bool, FetcherEnd> {
        let is_lost = matches!(
            response.error_code,
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND | ErrorCode::INVALID_FETCH_SESSION_EPOCH
        );
        if is_lost && self.session.lose() {
            return Ok(false);
        }
        if response.error_code.is_err() {
            return Err(ClientError::kafka("cannot fetch", response.error_code, None).into());
        }
        if !self.session.note(response, Instant::now()) {
            return Ok(false);
        }
        for topic in &response.responses {
            for data in &topic.partitions {
                let key = (topic.topic_id, topic.topic.clone(), data.partition_index);
                let Some(wanted) = self.requested.get(&key).copied() else { continue };
                if !self.session.accepts(fetch.number, &key, data, wanted.offset) {
                    continue;
                }
                if data.error_code.is_err() {
                    self.session.dropped(&key);
                    if !self.skip_lost(data, &key) {
                        self.refused(data, &key)?;
                    }
                    continue;
                }
                let is_diverging = data.diverging_epoch.epoch >= 0 && data.diverging_epoch.end_offset >= 0;
                if self.unconfirmed.contains(&key) {
                    self.confirmed(&key, is_diverging, data.high_watermark);
                }
                if is_diverging {
                    self.truncated(data, &key)?;
                    continue;
                }
                // A response with records proves that the partition can be read, and so does an empty one at the end of
                // the log. An empty response before the end of the log proves nothing.
                let is_read = !bytes_of(data).is_empty() || (0..=wanted.offset).contains(&data.high_watermark);
                if is_read && let Some(place) = self.waited.remove(&key) {
                    self.progress.waiting.serve(&place);
                }
                if self.session.is_ahead() && bytes_of(data).is_empty() {
                    self.requested.insert(key, wanted.or_at(data.next_offset));
                } else if self.session.is_by_offsets()
                    && let Some(last) = Batches(bytes_of(data)).filter_map(Result::ok).last()
                {
                    let next = wanted.or_after(last.last_offset() + 1, last.partition_leader_epoch());
                    self.requested.insert(key, next);
                }
            }
        }
        Ok(true)
    }

    /// Notes the leader's first response for a partition without an error. A response without a high watermark may come
    /// from a leader whose log is being opened, which has compared nothing.
    fn confirmed(&mut self, key: &PartitionKey, is_diverging: bool, high_watermark: i64) {
        let Some(at) = self.position(key) else { return };
        let cursor = &mut self.cursors[at];
        if !key.0.is_zero() {
            cursor.confirm();
        }
        if is_diverging || high_watermark >= 0 {
            cursor.epoch_is_known();
            self.unconfirmed.remove(key);
        }
        if !is_diverging && high_watermark >= 0 {
            cursor.resume_end();
        }
    }

    /// Skips records that the object store has lost for good, if the settings allow it. Returns false if no records
    /// were skipped.
    fn skip_lost(&mut self, data: &PartitionData, key: &PartitionKey) -> bool {
        let Some(at) = self.position(key).filter(|_| self.settings.skip_bad_batches) else { return false };
        let from = self.requested.get(key).map_or(0, |requested| requested.offset);
        let cursor = &mut self.cursors[at];
        if data.error_code != ErrorCode::KAFKA_STORAGE_ERROR || data.next_offset <= from {
            return false;
        }
        let (topic, partition, last) = (&cursor.topic, cursor.partition, data.next_offset - 1);
        self.progress.notice(format!(
            "skipped offsets {from} to {last} of partition {partition} of topic '{topic}': the object store no longer has them"
        ));
        cursor.skip_to(data.next_offset);
        self.requested.insert(key.clone(), FetchPosition::at(data.next_offset));
        self.session.name(key.clone());
        true
    }

    /// Moves a partition back to where its log was truncated, and requests it from there. Without auto.offset.reset,
    /// lost records are an error.
    fn truncated(&mut self, data: &PartitionData, key: &PartitionKey) -> Result<(), FetcherEnd> {
        let Some(at) = self.position(key) else { return Ok(()) };
        let (cursor, leader, restarts) = (&mut self.cursors[at], &data.diverging_epoch, self.settings.reset.is_some());
        let (topic, partition, lost) = (cursor.topic.clone(), cursor.partition, cursor.lost(leader));
        if let Some(lost) = lost.as_ref().filter(|_| !restarts) {
            let (first, last) = (lost.start, lost.end - 1);
            return Err(FetcherEnd::Failed(ConsumeError::Truncated { topic, partition, first, last }));
        }
        cursor.follow_truncation(leader, data.log_start_offset, restarts);
        if let (Some(lost), Some(next)) = (lost, cursor.offset) {
            let (first, last) = (lost.start, lost.end - 1);
            self.progress.notice(format!(
                "partition {partition} of topic '{topic}' lost offsets {first} to {last} after they were read: the read \
                 continues at offset {next}"
            ));
        }
        self.request_again(at, key);
        Ok(())
    }

    /// Makes the next fetch name the partition with the position of its cursor.
    fn request_again(&mut self, at: usize, key: &PartitionKey) {
        self.requested.insert(key.clone(), self.cursors[at].position());
        match self.cursors[at].is_done() {
            true => self.session.forget(key),
            false => self.session.name(key.clone()),
        }
    }

    fn refused(&mut self, data: &PartitionData, key: &PartitionKey) -> Result<(), FetcherEnd> {
        let Some(at) = self.position(key) else { return Ok(()) };
        let (topic, partition) = (self.cursors[at].topic.clone(), self.cursors[at].partition);
        let position = self.requested.get(key).copied().unwrap_or(FetchPosition::at(0));
        let why = match data.error_code {
            // Kafka's leader also returns this error if it does not know the epoch. The offset is then tried alone.
            ErrorCode::OFFSET_OUT_OF_RANGE if position.last_epoch >= 0 && !self.session.is_ahead() => {
                self.cursors[at].forget_epochs();
                self.request_again(at, key);
                return Ok(());
            }
            // The unread records were deleted, so the partition needs a new start.
            ErrorCode::OFFSET_OUT_OF_RANGE if self.settings.reset.is_some() || self.cursors[at].start.is_some() => {
                Why::Reset
            }
            ErrorCode::OFFSET_OUT_OF_RANGE => {
                let offset = position.offset;
                return Err(FetcherEnd::Failed(ConsumeError::OutOfRange { topic, partition, offset }));
            }
            code => {
                let offset = position.offset;
                let what = format!("cannot read partition {partition} of topic '{topic}' at offset {offset}");
                let error = ClientError::refused(what, code);
                // Kafka's broker returns UNKNOWN_SERVER_ERROR for unexpected failures. They may pass, so this error is
                // retried too.
                if !error.is_retriable() && code != ErrorCode::UNKNOWN_SERVER_ERROR {
                    return Err(FetcherEnd::Failed(error.into()));
                }
                Why::Refused(error, data.current_leader.leader_epoch)
            }
        };
        self.give_back(at, key, why);
        Ok(())
    }

    fn give_back(&mut self, at: usize, key: &PartitionKey, why: Why) {
        self.session.forget(key);
        self.requested.remove(key);
        self.unconfirmed.remove(key);
        self.waited.remove(key);
        let cursor = self.cursors.remove(at);
        (self.returns)(Returned { cursor, why });
    }

    /// Gives back the partitions that the run recalls. Their records in the present response are not read.
    fn give_back_recalled(&mut self) {
        for (topic, partition) in self.inbox.take_recalled() {
            let is_it = |cursor: &Cursor<S>| cursor.partition == partition && cursor.topic == topic;
            if let Some(at) = self.cursors.iter().position(is_it) {
                let key = self.key(&topic, self.cursors[at].topic_id, partition);
                self.give_back(at, &key, Why::Moved);
            }
        }
    }

    fn position(&self, key: &PartitionKey) -> Option<usize> {
        self.cursors.iter().position(|cursor| self.is(cursor, key))
    }

    /// Returns true if responses identify the cursor's partition by `key`.
    fn is(&self, cursor: &Cursor<S>, (topic_id, topic, partition): &PartitionKey) -> bool {
        cursor.partition == *partition
            && match self.version > NAMED_VERSION_MAX {
                true => cursor.topic_id == *topic_id,
                false => cursor.topic == *topic,
            }
    }

    /// Passes the records to the sinks. While they take records, the leader does not count as silent.
    fn feed(&mut self, response: &FetchResponse, fetch: UnderWay) -> Result<(), FetcherEnd> {
        self.progress.feed();
        self.awaited.set(None);
        let outcome = self.read(response, fetch);
        self.awaited.set(Some(Instant::now()));
        self.progress.fed();
        outcome
    }

    fn read(&mut self, response: &FetchResponse, fetch: UnderWay) -> Result<(), FetcherEnd> {
        let mut count = Count::default();
        for topic in &response.responses {
            for data in topic.partitions.iter().filter(|data| !bytes_of(data).is_empty()) {
                let key = (topic.topic_id, topic.topic.clone(), data.partition_index);
                let Some(at) = self.position(&key) else { continue };
                let wanted = self.requested.get(&key).map_or(0, |requested| requested.offset);
                if self.cursors[at].is_done() || !self.session.accepts(fetch.number, &key, data, wanted) {
                    continue;
                }
                let aborted = data.aborted_transactions.as_deref().unwrap_or_default();
                let aborted = self.settings.read_committed.then_some(aborted);
                let FetchSettings { check_crcs, skip_bad_batches: skips_bad_batches, .. } = self.settings;
                let reading = Reading { check_crcs, skips_bad_batches, aborted };
                match self.cursors[at].read(bytes_of(data), reading, &mut count) {
                    Ok(skipped) => {
                        skipped.notice().into_iter().for_each(|notice| self.progress.notice(notice));
                        self.was_read(at, key, data.next_offset);
                    }
                    Err(broken @ (ConsumeError::Corrupt { .. } | ConsumeError::BadBatch { .. })) => {
                        self.give_back(at, &key, Why::Broken(broken));
                    }
                    Err(error) => return Err(FetcherEnd::Failed(error)),
                }
            }
        }
        if count.records > 0 {
            self.progress.count(count.records, count.bytes);
        }
        Ok(())
    }

    /// Notes that a partition's records were read. `next_offset` is where a leader that reads ahead continues, or -1 if
    /// the response does not contain it.
    fn was_read(&mut self, at: usize, key: PartitionKey, next_offset: i64) {
        if !self.session.is_ahead() {
            let fed = self.cursors.remove(at);
            self.cursors.push(fed);
            return;
        }
        if self.cursors[at].is_done() {
            self.session.forget(&key);
        }
        // The leader's offset may be larger than ours, if compaction has left a gap.
        self.requested.insert(key, self.cursors[at].position().or_at(next_offset));
    }
}

/// Turns cursors with their next offsets into the topics of a fetch. With `read_on`, the topics have no offsets,
/// because the leader knows these from the session.
fn topics_of<'a, S: 'a>(
    cursors: impl Iterator<Item = (&'a Cursor<S>, FetchPosition)>,
    partition_bytes: u32,
    read_on: bool,
) -> Vec<FetchTopic> {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for (cursor, requested) in cursors {
        if topics.last().is_none_or(|last| last.topic != cursor.topic) {
            let (topic, topic_id) = (cursor.topic.clone(), cursor.topic_id);
            topics.push(FetchTopic { topic, topic_id, ..Default::default() });
        }
        topics.last_mut().expect("just pushed").partitions.push(FetchPartition {
            partition: cursor.partition,
            fetch_offset: requested.offset,
            last_fetched_epoch: requested.last_epoch,
            partition_max_bytes: i32::try_from(partition_bytes).unwrap_or(i32::MAX),
            read_on,
            ..Default::default()
        });
    }
    topics
}

fn forgotten_topic((topic_id, topic, partition): PartitionKey) -> ForgottenTopic {
    ForgottenTopic { topic, topic_id, partitions: vec![partition], ..Default::default() }
}

fn bytes_of(data: &PartitionData) -> &[u8] {
    data.records.as_ref().and_then(|records| records.memory()).map_or(&[], |bytes| bytes)
}
