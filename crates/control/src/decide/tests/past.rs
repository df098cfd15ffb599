//! Tests that deleted topics are remembered for the next topic of the same name.

use super::*;
use crate::command::TopicsCommand;
use crate::internal::CONSUMER_OFFSETS;
use fullbore_rules::sequence::PastTopic;
use imbl::Vector;

/// Carries out the commands in one transaction, publishes the image, and returns the changes.
fn transacted(image: &mut Image, commands: &[TopicsCommand]) -> Vec<Change> {
    let (config, mut drawn) = (broker(""), u128::from(image.epoch()) << 32);
    let mut new_id = || {
        drawn += 1;
        Uuid(drawn.to_be_bytes())
    };
    let mut draft = Draft::new(&config, image, 0..0, ChangeBudget::new(usize::MAX), &mut new_id);
    let is_done = commands.iter().all(|command| draft.topics(command).iter().all(Result::is_ok));
    assert!(is_done);
    let drafted = draft.finish();
    let version = Version { number: image.epoch() + 1, nonce: 0 };
    *image = drafted.image.at(version);
    drafted.changes
}

fn creating(name: &str, num_partitions: i32, configs: &[(&str, &str)]) -> TopicsCommand {
    let configs = configs.iter().map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned())));
    let topic = CreateTopic { num_partitions, configs: configs.collect(), ..wanted(name) };
    TopicsCommand::Create(crate::CreateTopics { topics: vec![topic], validate_only: false })
}

fn deleting(name: &str) -> TopicsCommand {
    TopicsCommand::Delete(vec![TopicRef::Name(name.into())])
}

/// Returns the remembered deleted topics of a name: for each the number of partitions, true if it was diskless, and the
/// version in which it was deleted.
fn past(image: &Image, name: &str) -> Vec<(i32, bool, u64)> {
    let shown = |topic: &PastTopic| (topic.partitions, topic.is_diskless, topic.deleted_at);
    image.past_topics(name).iter().map(shown).collect()
}

#[test]
fn deleted_topic_is_remembered_for_the_next_of_its_name() {
    let mut image = one_broker(1);
    let diskless = [("diskless.enable", "true")];
    for (count, configs) in [(8, &[][..]), (2, &diskless[..])] {
        transacted(&mut image, &[creating("t", count, configs)]);
        let id = image.topic("t").expect("there").id;
        image.apply(&broker(""), &Change::ProducerIdsTaken { next: i64::from(count) * 100 }).expect("applied");
        transacted(&mut image, &[deleting("t")]);
        let last = *image.past_topics("t").last().expect("remembered");
        assert_eq!((last.id, last.deleted_at), (id, image.epoch()));
        assert_eq!(last.producer_ids_below, i64::from(count) * 100);
    }
    assert_eq!(past(&image, "t"), [(8, false, 2), (2, true, 4)]);
    transacted(&mut image, &[creating("t", 8, &[])]);
    assert_eq!(past(&image, "t"), [(8, false, 2), (2, true, 4)], "the new one goes by them");
    transacted(&mut image, &[deleting("t")]);
    assert_eq!(past(&image, "t"), [(8, false, 6)]);
}

/// No image contained the topic, so no producer can have written to it.
#[test]
fn topic_created_and_deleted_in_one_transaction_is_not_remembered() {
    let mut image = one_broker(1);
    transacted(&mut image, &[creating("t", 3, &[]), deleting("t")]);
    assert_eq!(past(&image, "t"), []);
    transacted(&mut image, &[creating("t", 3, &[])]);
    transacted(&mut image, &[deleting("t"), creating("t", 5, &[]), deleting("t"), creating("t", 1, &[])]);
    assert_eq!(past(&image, "t"), [(3, false, 3)]);
}

#[test]
fn deleted_internal_topic_is_not_remembered() {
    let mut image = one_broker(1);
    transacted(&mut image, &[creating(CONSUMER_OFFSETS, 3, &[])]);
    transacted(&mut image, &[deleting(CONSUMER_OFFSETS)]);
    assert_eq!(past(&image, CONSUMER_OFFSETS), []);
}

#[test]
fn deletion_past_the_limit_of_names_forgets_the_oldest_name() {
    const NAMES_MAX: usize = 10_000;
    let mut image = one_broker(1);
    let name = |n: usize| format!("t-{n:05}");
    let all = |range: std::ops::Range<usize>, command: &dyn Fn(&str) -> TopicsCommand| -> Vec<TopicsCommand> {
        range.map(|n| command(&name(n))).collect()
    };
    for first in (0..NAMES_MAX).step_by(100) {
        transacted(&mut image, &all(first..first + 100, &|name| creating(name, 1, &[])));
        transacted(&mut image, &all(first..first + 100, &deleting));
    }
    transacted(&mut image, &[creating(&name(0), 1, &[])]);
    transacted(&mut image, &all(NAMES_MAX..NAMES_MAX + 3, &|name| creating(name, 1, &[])));
    let changes = transacted(&mut image, &all(NAMES_MAX..NAMES_MAX + 3, &deleting));
    let forgotten = changes.iter().filter_map(|change| match change {
        Change::NameRemembered { name, past } if past.is_empty() => Some(name.clone()),
        _ => None,
    });
    assert_eq!(forgotten.collect::<Vec<_>>(), [name(1), name(2)], "a topic has the first");
    assert_eq!(changes.len(), 3 * 2 + 2);
    let is_known = |n: usize| !image.past_topics(&name(n)).is_empty();
    assert_eq!([0, 1, 2, 3, NAMES_MAX + 2].map(is_known), [true, false, false, true, true]);
}

/// A lagging broker publishes one image for several versions. None of its images contains a topic that existed only in
/// between.
#[test]
fn topic_created_and_deleted_between_two_images_counts_as_missed() {
    let mut image = one_broker(1);
    transacted(&mut image, &[creating("t", 3, &[]), creating("u", 3, &[])]);
    let first = image.clone();
    transacted(&mut image, &[deleting("t")]);
    assert!(!image.misses_topics_since(&first), "it was there");
    transacted(&mut image, &[creating("t", 3, &[])]);
    assert!(!image.misses_topics_since(&first));
    let second = image.clone();
    transacted(&mut image, &[deleting("t"), deleting("u")]);
    assert_eq!((image.misses_topics_since(&first), image.misses_topics_since(&second)), (true, false));
    transacted(&mut image, &[creating("t", 3, &[])]);
    assert!(image.misses_topics_since(&first), "though one is there again");
    transacted(&mut image, &[creating("v", 3, &[])]);
    let third = image.clone();
    transacted(&mut image, &[deleting("v")]);
    assert!(image.misses_topics_since(&second) && !image.misses_topics_since(&third));
}

/// Raises the leader epoch of all partitions by two, the most that one commit can raise it. Returns the new epoch.
fn raised(image: &mut Image, name: &str) -> i32 {
    let topic = Arc::clone(image.topic(name).expect("there"));
    let raise = |of: &Arc<PartitionRegistration>| {
        Arc::new(PartitionRegistration { leader_epoch: of.leader_epoch + 2, ..PartitionRegistration::clone(of) })
    };
    let partitions: Vector<_> = topic.partitions.iter().map(raise).collect();
    let epoch = partitions[0].leader_epoch;
    image.apply(&broker(""), &Change::PartitionsChanged { topic: topic.id, first: 0, partitions }).expect("applied");
    *image = image.clone().at(Version { number: image.epoch() + 1, nonce: 0 });
    epoch
}

fn epochs(image: &Image, name: &str) -> Vec<i32> {
    image.topic(name).expect("there").partitions.iter().map(|of| of.leader_epoch).collect()
}

/// librdkafka ignores metadata whose leader epoch is older than the one it knows, even if the topic has another id.
#[test]
fn topic_of_a_deleted_name_begins_behind_all_leader_epochs_of_the_deleted() {
    let mut image = one_broker(1);
    let diskless = [("diskless.enable", "true")];
    let mut known = -1;
    for (count, configs) in [(8, &[][..]), (2, &[][..]), (2, &diskless[..]), (1, &[][..])] {
        transacted(&mut image, &[creating("t", count, configs)]);
        let grown = crate::GrowTopic { name: "t".into(), count: 9, assignments: None };
        let growing = crate::CreatePartitions { topics: vec![grown], validate_only: false };
        transacted(&mut image, &[TopicsCommand::Grow(growing)]);
        let begun = epochs(&image, "t");
        assert!(
            begun.len() == 9 && begun.iter().all(|epoch| *epoch > known && *epoch == begun[0]),
            "{known} {begun:?}"
        );
        assert_eq!(begun[0] == 0, known == -1, "only the first of its name begins at 0");
        known = (0..40).map(|_| raised(&mut image, "t")).last().expect("raised");
        transacted(&mut image, &[deleting("t")]);
    }
    let assignments = vec![(0, vec![1])];
    let topic = CreateTopic { num_partitions: -1, replication_factor: -1, assignments, ..wanted("t") };
    transacted(&mut image, &[TopicsCommand::Create(crate::CreateTopics { topics: vec![topic], validate_only: false })]);
    transacted(&mut image, &[creating("u", 1, &[])]);
    assert!(epochs(&image, "t")[0] > known);
    assert_eq!(epochs(&image, "u"), [0], "no topic had this name");
}

#[test]
fn first_leader_epoch_leaves_room_for_elections_after_any_number_of_versions() {
    let mut image = one_broker(1);
    transacted(&mut image, &[creating("t", 1, &[])]);
    image = image.at(Version { number: u64::MAX / 2, nonce: 0 });
    transacted(&mut image, &[deleting("t")]);
    assert_eq!(image.first_leader_epoch("t"), i32::MAX / 2);
}

/// The accepted copy lacks some versions. In those versions, partitions of the same names may have used any epoch below
/// `first_leader_epoch`. Partitions that are created after the acceptance must not use these epochs again.
#[test]
fn partitions_created_after_an_accepted_copy_begin_above_the_skipped_epochs() {
    let mut image = one_broker(1);
    transacted(&mut image, &[creating("deleted", 1, &[]), creating("grown", 1, &[])]);
    transacted(&mut image, &[deleting("deleted")]);
    let (version, first_leader_epoch) = (100, 200);
    let accepted = crate::change::CopyAcceptance { version, first_leader_epoch, at_ms: 1 };
    image.apply(&broker(""), &Change::CopyAccepted(accepted)).expect("applied");
    image = image.at(Version { number: version, nonce: 0 });
    let grown = crate::GrowTopic { name: "grown".into(), count: 2, assignments: None };
    let growing = crate::CreatePartitions { topics: vec![grown], validate_only: false };
    transacted(&mut image, &[creating("new", 1, &[]), creating("deleted", 1, &[]), TopicsCommand::Grow(growing)]);
    assert_eq!((epochs(&image, "new"), epochs(&image, "deleted")), (vec![200], vec![200]));
    assert_eq!(epochs(&image, "grown"), [0, 200], "accept-copy raises those that were there");
    let known = raised(&mut image, "new");
    transacted(&mut image, &[deleting("new")]);
    transacted(&mut image, &[creating("new", 1, &[])]);
    assert!(epochs(&image, "new")[0] > known, "clients ignore older epochs");
}
