//! The handle through which a reader uses its membership. It returns the partitions to read, and reads and commits
//! their offsets.
//!
//! The member's thread maintains the membership. Invariant: requests for offsets have their own connection, so that no
//! commit waits for the response to a JoinGroup.

use super::assign::TopicPartition;
use super::config::{GroupConfig, Protocol, REQUEST_TIMEOUT, RETRY_BACKOFF};
use super::coordinator::{Coordinator, MemberAt, MemberCoordinator};
use super::offsets::{OffsetsQuestion, STABLE_VERSION, version_max};
use super::round_trips::RoundTrips;
use super::shared::{CommittedOffset, SharedMembership, Target};
use super::verdict;
use super::verdict::Next;
use super::{classic, consumer};
use crate::blocking::Cluster;
use crate::error::ClientError;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_fetch::OffsetFetchRequest;
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The reader's position in a partition: an offset, and the topic to which the offset belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The id of the topic. Zero if it is unknown.
    pub topic_id: Uuid,
    /// The offset of the next record to read.
    pub offset: i64,
    /// The leader epoch of the last record before that offset. `None` if it is unknown.
    pub leader_epoch: Option<i32>,
}

/// The outcome of a commit of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The offsets are committed.
    Done,
    /// The offsets are not committed, because the group is rebalancing or its coordinator is moving. A later commit may
    /// succeed.
    Later,
    /// The coordinator has not answered, so the offsets may or may not be committed.
    Unanswered,
    /// The group has removed this member.
    Lost,
}

/// A view of a membership for a transactional producer (KIP-447).
#[derive(Clone)]
pub struct MembershipView {
    shared: Arc<SharedMembership>,
    member_at: MemberAt,
}

impl MembershipView {
    /// Returns the member's id with its generation or epoch. Returns `None` while another member may own the reader's
    /// partitions. The caller must then not commit, because the coordinator would accept a commit without member id and
    /// generation.
    pub fn identity(&self) -> Option<(Text, i32)> {
        self.shared.identity_of_reader().map(|identity| (identity.member_id, identity.generation))
    }

    /// Returns the address of the coordinator that has accepted the member's last request. Returns `None` before the
    /// member has joined, and while it searches for its coordinator.
    pub fn coordinator(&self) -> Option<String> {
        match &*self.member_at.lock() {
            MemberCoordinator::At(address) => Some(address.clone()),
            MemberCoordinator::Unknown | MemberCoordinator::Sought => None,
        }
    }
}

/// A member of a group.
pub struct Member {
    config: GroupConfig,
    shared: Arc<SharedMembership>,
    thread: Option<JoinHandle<()>>,
    offsets: Offsets,
    member_at: MemberAt,
    /// The times of answered requests.
    times: Arc<RoundTrips>,
}

/// The connection for requests about offsets. A thread opens it while the member joins.
struct Offsets {
    connecting: Option<JoinHandle<Coordinator>>,
    coordinator: Coordinator,
}

impl Offsets {
    /// Returns the connection, which goes to the member's coordinator. Waits if the thread is still opening it.
    fn get(&mut self) -> &mut Coordinator {
        if let Some(thread) = self.connecting.take() {
            match thread.join() {
                Ok(connected) => self.coordinator = connected,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        self.coordinator.follow();
        &mut self.coordinator
    }
}

impl Member {
    /// Starts a member that joins the group. The member owns both clusters. It joins and sends heartbeats through
    /// `membership`, and commits through `offsets`.
    ///
    /// # Errors
    /// Returns the system's error if no thread can be started.
    pub fn start(config: GroupConfig, membership: Cluster, offsets: Cluster) -> std::io::Result<Member> {
        let shared = Arc::new(SharedMembership::default());
        // The cluster `offsets` requests no metadata. It shares the brokers that `membership` learns, so that it can
        // connect when the brokers of the bootstrap list are gone.
        let offsets = offsets.learning_with(&membership);
        let (of_thread, settings) = (shared.clone(), config.clone());
        let times = Arc::<RoundTrips>::default();
        let member_at = MemberAt::default();
        let coordinator = Coordinator::new(membership, config.group.clone(), times.clone(), member_at.clone());
        let body = move || {
            let outcome = match settings.protocol {
                Protocol::Classic => classic::Classic::new(settings, coordinator, &of_thread).run(),
                Protocol::Consumer => consumer::Consumer::new(settings, coordinator, &of_thread).run(),
            };
            of_thread.end(outcome.err());
        };
        let thread = std::thread::Builder::new().name("group-member".to_owned()).spawn(body)?;
        let mut connected =
            Coordinator::following(offsets.detached(), config.group.clone(), times.clone(), member_at.clone());
        let connect = move || {
            // An error is ignored here. The first request connects again and reports it.
            let _ = connected.connection();
            connected
        };
        let connecting = Some(std::thread::Builder::new().name("group-offsets".to_owned()).spawn(connect)?);
        let coordinator = Coordinator::following(offsets, config.group.clone(), times.clone(), member_at.clone());
        let offsets = Offsets { connecting, coordinator };
        Ok(Member { config, shared, thread: Some(thread), offsets, member_at, times })
    }

    /// Waits for a new target for at most `patience`. Returns `None` if the reader has confirmed the newest target.
    ///
    /// # Errors
    /// Returns [`ClientError`] if an error that no retry can repair has ended the membership.
    pub fn target(&mut self, patience: Duration) -> Result<Option<Target>, ClientError> {
        self.shared.target(patience)
    }

    /// Returns true if [`Member::target`] would return a target or an error at once.
    pub fn is_moving(&self) -> bool {
        self.shared.is_moving()
    }

    /// Returns the serial of the newest target.
    pub fn newest(&self) -> u64 {
        self.shared.newest()
    }

    /// Waits for at most `patience` until there is a target to confirm, or until the membership has failed.
    pub fn wait_for_move(&self, patience: Duration) {
        self.shared.wait_for_move(patience);
    }

    /// Returns the reason why the member is retrying a request, or `None` if the last request succeeded.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble().or_else(|| self.offsets.coordinator.trouble())
    }

    /// Returns about how long the coordinator takes for a slow answer, without delays that are due to other members.
    /// Zero before the first answer.
    pub fn slowest_answer(&self) -> Duration {
        self.times.slowest()
    }

    /// Returns a view of the membership, for a thread that commits without this handle.
    pub fn view(&self) -> MembershipView {
        MembershipView { shared: self.shared.clone(), member_at: self.member_at.clone() }
    }

    /// Confirms that the reader now reads only the partitions of `target`.
    pub fn confirm(&mut self, target: &Target) {
        self.shared.confirm(target);
    }

    /// Ends the membership. Waits for the coordinator for at most `patience`. If the coordinator does not answer, the
    /// group removes the member when its session ends. A static member (group.instance.id) always stays in the group
    /// until its session ends.
    pub fn leave(mut self, patience: Duration) {
        self.shared.stop();
        if let Some(thread) = self.thread.take()
            && self.shared.is_over(patience)
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }

    /// Commits offsets. Retries for `patience` while the group or its coordinator is moving. With a patience of zero
    /// there is only one attempt. Offsets of deleted topics count as committed. If a topic was recreated, a broker that
    /// identifies topics by id does not apply the old topic's offsets to the new topic.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the commit fails with an error that no retry can repair.
    pub fn commit(
        &mut self,
        offsets: &HashMap<TopicPartition, Position>,
        patience: Duration,
    ) -> Result<CommitOutcome, ClientError> {
        let until = Instant::now() + patience;
        let mut is_unanswered = false;
        loop {
            let outcome = match offsets.is_empty() {
                true => Next::Go,
                false => self.try_commit(offsets, patience, &mut is_unanswered)?,
            };
            match outcome {
                Next::Go => return Ok(CommitOutcome::Done),
                Next::RejoinLost | Next::RejoinNew => return Ok(CommitOutcome::Lost),
                _ if Instant::now() + RETRY_BACKOFF >= until => {
                    return Ok(if is_unanswered { CommitOutcome::Unanswered } else { CommitOutcome::Later });
                }
                _ => std::thread::sleep(RETRY_BACKOFF),
            }
        }
    }

    /// Sends one commit. Sets `is_unanswered` if the coordinator may have received it, but has not answered.
    fn try_commit(
        &mut self,
        offsets: &HashMap<TopicPartition, Position>,
        patience: Duration,
        is_unanswered: &mut bool,
    ) -> Result<Next, ClientError> {
        let mut topics: BTreeMap<(&Text, Uuid), Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
        for ((topic, partition_index), Position { topic_id, offset, leader_epoch }) in offsets {
            topics.entry((topic, *topic_id)).or_default().push(OffsetCommitRequestPartition {
                partition_index: *partition_index,
                committed_offset: *offset,
                committed_leader_epoch: leader_epoch.unwrap_or(-1),
                committed_metadata: Some(Text::default()),
                ..Default::default()
            });
        }
        let topic = |((name, topic_id), partitions): ((&Text, Uuid), Vec<_>)| OffsetCommitRequestTopic {
            name: name.clone(),
            topic_id,
            partitions,
            ..Default::default()
        };
        let version_max = version_max(offsets.values().map(|position| position.topic_id));
        let identity = self.shared.identity();
        let request = OffsetCommitRequest {
            group_id: self.config.group.clone(),
            generation_id_or_member_epoch: identity.generation,
            member_id: identity.member_id,
            group_instance_id: self.config.instance.clone(),
            topics: topics.into_iter().map(topic).collect(),
            ..Default::default()
        };
        let patience = if patience.is_zero() { REQUEST_TIMEOUT } else { patience.min(REQUEST_TIMEOUT) };
        let answer = self.offsets.get().connection().and_then(|connection| connection.set_patience(patience));
        let answer = answer.and_then(|()| self.offsets.get().call(&request, version_max));
        *is_unanswered |= matches!(answer, Err(ClientError::Silent { .. } | ClientError::Io { .. }));
        let codes = answer.map(|answer| {
            let codes = answer.topics.into_iter().flat_map(|topic| topic.partitions).map(|of| of.error_code);
            let codes = codes.filter(|code| code.is_err() && *code != ErrorCode::UNKNOWN_TOPIC_ID);
            codes.max_by_key(|code| verdict::next(*code) as u8).unwrap_or(ErrorCode::NONE)
        });
        self.offsets.get().next("cannot commit offsets of", codes)
    }

    /// Returns the committed offset of each of these partitions, in the same order. An offset is `None` if none is
    /// committed, for example because the topic was deleted. The whole result is `None` if the group has removed this
    /// member, so that the partitions are no longer its own.
    ///
    /// # Errors
    /// Returns an error that no retry can repair, or the last error if there is no answer for `patience`.
    pub fn committed(
        &mut self,
        of: &[(TopicPartition, Uuid)],
        patience: Duration,
    ) -> Result<Option<Vec<Option<CommittedOffset>>>, ClientError> {
        if let Some(known) = self.shared.take_committed(of) {
            return Ok(Some(known));
        }
        let until = Instant::now() + patience;
        loop {
            let found = self.try_committed(of);
            let code = found.as_ref().map_or(ErrorCode::NONE, |(code, _)| *code);
            let step = match &found {
                Err(error) if error.is_retriable() && Instant::now() < until => Next::Find,
                _ => verdict::next(code),
            };
            match step {
                Next::Go => {
                    let (_, found) = found?;
                    let committed = |(partition, _): &(TopicPartition, Uuid)| found.get(partition).copied();
                    return Ok(Some(of.iter().map(committed).collect()));
                }
                Next::RejoinLost | Next::RejoinNew => return Ok(None),
                Next::Fatal => return Err(self.refused(code)),
                _ if Instant::now() >= until => return Err(self.refused(code)),
                Next::Find => self.offsets.get().forget(),
                _ => {}
            }
            std::thread::sleep(RETRY_BACKOFF);
        }
    }

    fn refused(&self, code: ErrorCode) -> ClientError {
        ClientError::kafka(format!("cannot read the offsets of group '{}'", self.config.group), code, None)
    }

    fn try_committed(
        &mut self,
        of: &[(TopicPartition, Uuid)],
    ) -> Result<(ErrorCode, HashMap<TopicPartition, CommittedOffset>), ClientError> {
        // OffsetFetch names the member only under the consumer protocol, where the coordinator checks the member's
        // epoch.
        let member = (self.config.protocol == Protocol::Consumer).then(|| self.shared.identity());
        let version = self.offsets.get().connection()?.version::<OffsetFetchRequest>()?;
        if self.config.require_stable && version < STABLE_VERSION {
            let words = "brokers older than Kafka 2.5 cannot fence group members within transactions";
            let what = format!("cannot read the offsets of group '{}'", self.config.group);
            return Err(ClientError::kafka(what, ErrorCode::UNSUPPORTED_VERSION, Some(words)));
        }
        let question = OffsetsQuestion::new(&self.config, member, of, version);
        let answer = self.offsets.get().call(&question.request, question.version_max)?;
        Ok(question.answered(&answer))
    }
}
