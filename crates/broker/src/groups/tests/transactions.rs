//! Offsets that are committed in transactions: pending, committed, aborted, and after a restart.

use super::*;
use crate::coordinator::{MarkedCoordinator, MarkersSeen, VerifiedProducer};
use crate::partitions::VerificationTime;
use fullbore_rules::sequence::{Marker, PRODUCERS_MAX};
use fullbore_rules::transaction::ProducerIdAndEpoch;
use std::collections::BTreeSet;

const UNNAMED: Committer<'static> =
    Committer { member_id: "", instance_id: None, generation: -1, version: 5, is_transactional: true };

impl Opened {
    fn request_in(&self, producer: (i64, i16), group: &str, offsets: Vec<CommitOffset>) -> PendingCommit {
        let (_, seen, at) = self.groups.markers_seen(group, producer.0).expect("it serves");
        self.request_verified(producer, (seen, at), group, offsets)
    }

    /// Queues a commit in a transaction. When the verification of the transaction began, the partition had had `seen`
    /// markers.
    fn request_verified(
        &self,
        (id, epoch): (i64, i16),
        (seen, at): (MarkersSeen, VerificationTime),
        group: &str,
        offsets: Vec<CommitOffset>,
    ) -> PendingCommit {
        let producer = ProducerIdAndEpoch { id, epoch };
        let at = VerificationTime { coordinator_epoch: Some(0), ..at };
        self.request_by(VerifiedProducer { producer, seen, at }, group, offsets)
    }

    fn request_by(&self, verified: VerifiedProducer, group: &str, offsets: Vec<CommitOffset>) -> PendingCommit {
        let commit = self.groups.commit(&group.into(), &UNNAMED, Some(verified), offsets, &Unwritten::default());
        commit.expect("it may")
    }

    pub(super) async fn commit_in(&self, producer: (i64, i16), group: &str, offsets: Vec<CommitOffset>) {
        assert_eq!(self.request_in(producer, group, offsets).done().await, Ok(vec![]));
    }

    /// Ends a transaction in the group's partition, with a marker of the producer's next epoch.
    pub(super) async fn end(&self, producer: (i64, i16), group: &str, is_commit: bool) {
        let (producer_id, producer_epoch) = (producer.0, producer.1 + 1);
        let marker = Marker { producer_id, producer_epoch, coordinator_epoch: 0, is_commit };
        let partition = self.groups.partition_of(group).expect("the topic is there");
        let write = Arc::clone(&self.groups).write_marker(partition, marker, 2).expect("it serves");
        assert_eq!(write.kept().await, Ok(Ok(())));
    }

    pub(super) fn is_pending(&self, group: &str, topic: &TopicName, partition: i32) -> bool {
        self.groups.offsets.view(group, |view| view.is_pending(topic.id, partition))
    }

    fn offset(&self, group: &str, topic: &TopicName, partition: i32) -> Option<i64> {
        self.get(group, topic, partition).map(|committed| committed.offset)
    }
}

#[tokio::test]
async fn offsets_of_an_open_transaction_become_valid_with_its_marker() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    opened.commit("g", vec![one(&t, 0, committed(1, 1)), one(&t, 1, committed(1, 1))]).await;
    opened.commit_in((7, 0), "g", vec![one(&t, 0, committed(2, 2)), one(&t, 2, committed(2, 2))]).await;
    assert_eq!([0, 1, 2].map(|at| opened.offset("g", &t, at)), [Some(1), Some(1), None]);
    assert_eq!([0, 1, 2].map(|at| opened.is_pending("g", &t, at)), [true, false, true]);
    assert_eq!((opened.held(), opened.groups.offsets.pending()), (2, 2));
    opened.end((7, 0), "g", true).await;
    assert_eq!([0, 1, 2].map(|at| opened.offset("g", &t, at)), [Some(2), Some(1), Some(2)]);
    opened.commit_in((7, 1), "g", vec![one(&t, 0, committed(3, 3))]).await;
    opened.end((7, 1), "g", false).await;
    assert_eq!((opened.offset("g", &t, 0), opened.is_pending("g", &t, 0)), (Some(2), false));
    assert_eq!((opened.held(), opened.groups.offsets.pending()), (3, 0));
    let metadata: usize = [1, 2, 2].map(|offset| committed(offset, 0).metadata.len()).iter().sum();
    assert_eq!(opened.groups.offsets.metadata_bytes(), metadata);
}

#[tokio::test]
async fn plain_commit_later_in_the_log_wins_over_the_transaction() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    opened.commit_in((7, 0), "g", vec![one(&t, 0, committed(2, 2)), one(&t, 1, committed(2, 2))]).await;
    opened.commit("g", vec![one(&t, 0, committed(1, 3))]).await;
    assert!(opened.is_pending("g", &t, 0), "nobody knows yet what the transaction comes to");
    opened.end((7, 0), "g", true).await;
    for _ in 0..2 {
        assert_eq!([0, 1].map(|at| opened.offset("g", &t, at)), [Some(1), Some(2)]);
        opened = reopened(opened, directory.path()).await;
    }
}

#[tokio::test]
async fn offsets_of_open_transactions_are_pending_again_after_a_kill() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    for (producer, partition) in [(7, 0), (8, 1), (9, 2)] {
        opened.commit_in((producer, 0), "g", vec![one(&t, partition, committed(producer, 1))]).await;
    }
    opened.commit_in((9, 0), "only", vec![one(&t, 0, committed(9, 1))]).await;
    opened.end((7, 0), "g", true).await;
    opened.end((8, 0), "g", false).await;
    killed(opened).await;
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    assert_eq!([0, 1, 2].map(|at| opened.offset("g", &t, at)), [Some(7), None, None]);
    assert_eq!([0, 1, 2].map(|at| opened.is_pending("g", &t, at)), [false, false, true]);
    let ids: BTreeSet<_> = opened.groups.ids().into_iter().collect();
    assert_eq!(ids, ["g", "only"].map(Text::from).into(), "a group of pending offsets alone is there");
    for group in ["g", "only"] {
        opened.end((9, 0), group, true).await;
    }
    assert_eq!((opened.offset("g", &t, 2), opened.offset("only", &t, 0)), (Some(9), Some(9)));
}

#[tokio::test]
async fn pending_offsets_and_their_group_do_not_expire() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let (t, g) = (opened.topic("t").await, Text::from("g"));
    opened.commit("g", vec![one(&t, 0, committed(1, 1)), one(&t, 1, committed(1, 1))]).await;
    opened.commit_in((7, 0), "g", vec![one(&t, 0, committed(2, 2))]).await;
    opened.groups.expire(&g, 0).await;
    assert_eq!([0, 1].map(|at| opened.offset("g", &t, at)), [Some(1), None]);
    opened.forget("g", deletion(&t, 0, Some(1))).kept().await.expect("kept").expect("kept");
    assert_eq!(opened.offset("g", &t, 0), Some(1), "the transaction has come meanwhile");
    opened.commit_in((7, 0), "h", vec![one(&t, 0, committed(2, 2))]).await;
    opened.groups.expire(&"h".into(), 0).await;
    assert!(opened.groups.peek("h", |_| ()).is_some());
    opened.end((7, 0), "g", false).await;
    opened.end((7, 0), "h", false).await;
    for group in ["g", "h"] {
        opened.groups.expire(&group.into(), 0).await;
    }
    assert_eq!((opened.held(), opened.groups.ids().len()), (0, 0));
}

#[tokio::test]
async fn pending_offsets_are_deleted_with_their_group_their_topic_or_by_request() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let (t, gone) = (opened.topic("t").await, opened.topic("gone").await);
    for group in ["whole", "by-hand", "topic"] {
        opened.commit_in((7, 0), group, vec![one(&t, 0, committed(1, 1)), one(&gone, 0, committed(1, 1))]).await;
    }
    opened.groups.delete("whole", true).await.expect("deleted");
    opened.forget("by-hand", deletion(&t, 0, None)).kept().await.expect("kept").expect("kept");
    opened.delete(&gone).await;
    opened.groups.forget_topic(gone.id).await;
    assert_eq!(opened.groups.offsets.pending(), 1);
    opened.end((7, 0), "topic", true).await;
    for _ in 0..2 {
        assert_eq!(["whole", "by-hand", "topic"].map(|group| opened.offset(group, &t, 0)), [None, None, Some(1)]);
        assert_eq!((opened.held(), opened.groups.offsets.pending()), (1, 0));
        opened = reopened(opened, directory.path()).await;
    }
}

/// The key of a record contains only the topic's name. A tombstone for the old topic would also delete the offset of
/// the new one, and so must not be written.
#[tokio::test]
async fn deletion_of_a_recreated_topic_keeps_pending_offsets_of_the_next_one() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = unstarted(directory.path(), SteadyClock::start(), "");
    opened.groups.prepare(Missing::Create, []).await.expect("there is room");
    let old = opened.topic("t").await;
    opened.commit("g", vec![one(&old, 0, committed(1, 1)), one(&old, 1, committed(1, 1))]).await;
    opened.commit_in((6, 0), "h", vec![one(&old, 0, committed(2, 1))]).await;
    opened.delete(&old).await;
    let new = opened.topic("t").await;
    for group in ["g", "h"] {
        opened.commit_in((7, 0), group, vec![one(&new, 0, committed(3, 2))]).await;
    }
    opened.groups.forget_topic(old.id).await;
    let expected = [(true, None), (true, None)];
    for _ in 0..2 {
        let found = ["g", "h"].map(|group| (opened.is_pending(group, &new, 0), opened.offset(group, &new, 1)));
        assert_eq!(found, expected);
        opened = reopened(opened, directory.path()).await;
    }
    for group in ["g", "h"] {
        opened.end((7, 0), group, true).await;
        opened.end((6, 0), group, true).await;
        assert_eq!(opened.offset(group, &new, 0), Some(3), "{group}");
    }
}

#[tokio::test]
async fn offsets_of_a_fenced_producer_or_past_the_limit_are_refused() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "fullbore.offsets.max=2").await;
    let t = opened.topic("t").await;
    opened.commit_in((7, 1), "g", vec![one(&t, 0, committed(1, 1))]).await;
    let old = opened.request_in((7, 0), "g", vec![one(&t, 0, committed(2, 2))]);
    assert_eq!(old.done().await, Err(ErrorCode::INVALID_PRODUCER_EPOCH));
    let full = ErrorCode::INVALID_COMMIT_OFFSET_SIZE;
    let further = vec![one(&t, 0, committed(3, 3)), one(&t, 1, committed(3, 3))];
    assert_eq!(opened.request_in((8, 0), "g", further).done().await, Ok(vec![(1, full)]));
    assert_eq!(opened.commit("g", vec![one(&t, 2, committed(3, 3))]).await, [(0, full)]);
    opened.end((8, 0), "g", false).await;
    opened.end((7, 1), "g", true).await;
    assert_eq!(opened.commit("g", vec![one(&t, 2, committed(3, 3))]).await, []);
    assert_eq!((opened.held(), opened.groups.offsets.pending()), (2, 0));
}

#[tokio::test]
async fn offsets_are_refused_if_their_transaction_ends_after_its_verification() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let (_, markers, at) = opened.groups.markers_seen("g", 7).expect("it serves");
    let seen = (markers, at);
    opened.end((8, 0), "g", true).await;
    let offsets = |offset| vec![one(&t, 0, committed(offset, 1))];
    assert_eq!(opened.request_verified((7, 0), seen, "g", offsets(1)).done().await, Ok(vec![]), "another has ended");
    // With transaction version 1, the producer keeps its epoch, so the epoch alone would not fence the late commit.
    let marker = Marker { producer_id: 7, producer_epoch: 0, coordinator_epoch: 0, is_commit: true };
    let partition = opened.groups.partition_of("g").expect("the topic is there");
    let write = Arc::clone(&opened.groups).write_marker(partition, marker, 1).expect("it serves");
    assert_eq!(write.kept().await, Ok(Ok(())));
    let late = opened.request_verified((7, 0), seen, "g", offsets(2));
    assert_eq!(late.done().await, Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    assert_eq!((opened.offset("g", &t, 0), opened.is_pending("g", &t, 0)), (Some(1), false));
    opened.commit_in((7, 0), "g", offsets(3)).await;
    // With transaction version 2, the producer may already use its next epoch before the marker is appended. A commit
    // in that epoch is accepted.
    opened.end((7, 0), "g", true).await;
    assert_eq!(opened.request_verified((7, 1), seen, "g", offsets(4)).done().await, Ok(vec![]));
}

/// With transaction version 1, the producer keeps its epoch, and offsets have no sequence numbers. So a commit that is
/// late or sent twice would open a transaction that no marker ends.
#[tokio::test]
async fn offsets_are_refused_if_their_verifying_coordinator_was_replaced() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    opened.commit_in((7, 0), "g", vec![one(&t, 0, committed(1, 1))]).await;
    let marker = Marker { producer_id: 7, producer_epoch: 0, coordinator_epoch: 5, is_commit: true };
    let partition = opened.groups.partition_of("g").expect("the topic is there");
    let write = Arc::clone(&opened.groups).write_marker(partition, marker, 1).expect("it serves");
    assert_eq!(write.kept().await, Ok(Ok(())));
    let (_, seen, at) = opened.groups.markers_seen("g", 7).expect("it serves");
    let producer = ProducerIdAndEpoch { id: 7, epoch: 0 };
    let request = |coordinator_epoch| {
        let verified = VerifiedProducer { producer, seen, at: VerificationTime { coordinator_epoch, ..at } };
        opened.request_by(verified, "g", vec![one(&t, 0, committed(2, 1))])
    };
    assert_eq!(request(Some(4)).done().await, Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    assert!(!opened.is_pending("g", &t, 0));
    assert_eq!(request(Some(5)).done().await, Ok(vec![]), "the coordinator that wrote the marker");
    assert!(opened.is_pending("g", &t, 0));
    assert_eq!(request(Some(4)).done().await, Ok(vec![]), "the transaction that is open ends by its marker");
}

/// Once the log has forgotten the producer, it no longer shows whether the coordinator that verified the transaction
/// was replaced. The commit must then be refused and verified again.
#[tokio::test]
async fn offsets_are_refused_if_their_producer_was_forgotten_after_verification() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let partition = opened.groups.partition_of("g");
    let mark = |producer_id, coordinator_epoch| {
        let marker = Marker { producer_id, producer_epoch: 0, coordinator_epoch, is_commit: true };
        Arc::clone(&opened.groups).write_marker(partition.expect("the topic is there"), marker, 1).expect("it serves")
    };
    opened.commit_in((7, 0), "g", vec![one(&t, 0, committed(1, 1))]).await;
    assert_eq!(mark(7, 5).kept().await, Ok(Ok(())));
    let (_, _, at) = opened.groups.markers_seen("g", 7).expect("it serves");
    let others: Vec<_> = (0..=PRODUCERS_MAX as i64).map(|n| mark(1_000 + n, 5)).collect();
    for other in others {
        assert_eq!(other.kept().await, Ok(Ok(())));
    }
    let (_, seen, now) = opened.groups.markers_seen("g", 7).expect("it serves");
    let request = |at| {
        let at = VerificationTime { coordinator_epoch: Some(4), ..at };
        let producer = ProducerIdAndEpoch { id: 7, epoch: 0 };
        opened.request_by(VerifiedProducer { producer, seen, at }, "g", vec![one(&t, 0, committed(2, 1))])
    };
    assert_eq!(request(at).done().await, Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    assert_eq!(request(now).done().await, Ok(vec![]), "a verification that is anew is believed");
}

#[tokio::test]
async fn settling_a_group_waits_for_its_transactional_commit_under_way() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let requested = opened.request_in((7, 0), "g", vec![one(&t, 0, committed(1, 1))]);
    assert!(!opened.is_pending("g", &t, 0));
    assert_eq!(opened.groups.await_commits("g").await, Ok(()));
    assert!(opened.is_pending("g", &t, 0));
    assert_eq!(requested.done().await, Ok(vec![]));
}

/// A step of a random test. The numbers select one of a few producers, groups and partitions.
#[derive(Debug, Clone)]
enum Step {
    Commit { producer: Option<i64>, group: u8, partition: i32, offset: i64 },
    End { producer: i64, is_commit: bool },
    Delete { group: u8, partition: i32 },
    DeleteGroup { group: u8 },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (producer, group, partition) = (0..3_i64, 0..2_u8, 0..2_i32);
    prop_oneof![
        10 => (prop::option::of(producer.clone()), group.clone(), partition.clone(), 0..100_i64).prop_map(
            |(producer, group, partition, offset)| Step::Commit { producer, group, partition, offset }
        ),
        4 => (producer, any::<bool>()).prop_map(|(producer, is_commit)| Step::End { producer, is_commit }),
        2 => (group.clone(), partition).prop_map(|(group, partition)| Step::Delete { group, partition }),
        1 => group.prop_map(|group| Step::DeleteGroup { group }),
        1 => Just(Step::Restart),
    ]
}

type Key = (u8, i32);

/// A model of how Kafka replays the log. For each partition, the offset at the later position in the log wins.
#[derive(Debug, Default)]
struct Model {
    places: usize,
    committed: BTreeMap<Key, (usize, i64)>,
    pending: BTreeMap<(i64, Key), (usize, i64)>,
}

impl Model {
    fn expect(&mut self, step: &Step) {
        self.places += 1;
        match *step {
            Step::Commit { producer: None, group, partition, offset } => {
                self.committed.insert((group, partition), (self.places, offset));
            }
            Step::Commit { producer: Some(producer), group, partition, offset } => {
                self.pending.insert((producer, (group, partition)), (self.places, offset));
            }
            Step::End { producer, is_commit } => {
                let pending = std::mem::take(&mut self.pending);
                let (ended, open) = pending.into_iter().partition(|((of, _), _)| *of == producer);
                self.pending = open;
                let ended: BTreeMap<(i64, Key), (usize, i64)> = ended;
                for ((_, key), found) in ended.into_iter().filter(|_| is_commit) {
                    let held = self.committed.entry(key).or_insert(found);
                    *held = found.max(*held);
                }
            }
            Step::Delete { group, partition } => self.forget(|key| *key == (group, partition)),
            Step::DeleteGroup { group } => self.forget(|(of, _)| *of == group),
            Step::Restart => {}
        }
    }

    fn forget(&mut self, is_meant: impl Fn(&Key) -> bool) {
        self.committed.retain(|key, _| !is_meant(key));
        self.pending.retain(|(_, key), _| !is_meant(key));
    }
}

async fn run_transactions(steps: Vec<Step>) {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=2").await;
    let t = opened.topic("t").await;
    let (mut model, mut epochs) = (Model::default(), [0_i16; 3]);
    for step in steps.iter().chain(&[Step::Restart]) {
        model.expect(step);
        match *step {
            Step::Commit { producer: None, group, partition, offset } => {
                drop(opened.request(&format!("g{group}"), vec![one(&t, partition, committed(offset, 1))]));
            }
            Step::Commit { producer: Some(id), group, partition, offset } => {
                let producer = (id, epochs[usize::try_from(id).expect("few")]);
                drop(opened.request_in(producer, &format!("g{group}"), vec![one(&t, partition, committed(offset, 1))]));
            }
            Step::End { producer: id, is_commit } => {
                let epoch = &mut epochs[usize::try_from(id).expect("few")];
                let of_groups = ["g0", "g1"].map(|group| (opened.groups.partition_of(group), group));
                for (_, group) in BTreeMap::from(of_groups) {
                    opened.end((id, *epoch), group, is_commit).await;
                }
                *epoch += 1;
            }
            Step::Delete { group, partition } => {
                drop(opened.forget(&format!("g{group}"), deletion(&t, partition, None)));
            }
            Step::DeleteGroup { group } => {
                let _ = opened.groups.delete(&format!("g{group}"), true).await;
            }
            Step::Restart => {
                let keys = || (0..2_u8).flat_map(|group| (0..2_i32).map(move |partition| (group, partition)));
                for is_reopened in [false, true] {
                    if is_reopened {
                        opened = reopened(opened, directory.path()).await;
                    } else {
                        settle(&opened).await;
                    }
                    let found = keys().filter_map(|at| Some((at, opened.offset(&format!("g{}", at.0), &t, at.1)?)));
                    let held = model.committed.iter().map(|(key, (_, offset))| (*key, *offset));
                    assert!(found.eq(held), "reopened {is_reopened}: {model:?}");
                    let pending = keys().filter(|at| opened.is_pending(&format!("g{}", at.0), &t, at.1));
                    let expected: BTreeSet<Key> = model.pending.keys().map(|(_, key)| *key).collect();
                    assert_eq!(pending.collect::<BTreeSet<_>>(), expected, "reopened {is_reopened}");
                    let counts = (opened.held(), opened.groups.offsets.pending());
                    assert_eq!(counts, (model.committed.len(), model.pending.len()));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn random_events_keep_memory_log_and_a_model_of_kafkas_replay_equal(steps in prop::collection::vec(step(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(run_transactions(steps));
    }
}
