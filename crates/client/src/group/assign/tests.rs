//! Compares with examples of Java's assignments, and checks properties of the sticky assignor.

use super::*;
use proptest::prelude::*;

fn member(id: &str, topics: &[&str]) -> Subscriber {
    let topics = topics.iter().map(|topic| Text::from(*topic)).collect();
    Subscriber { id: id.into(), topics, generation: -1, ..Subscriber::default() }
}

fn counts(of: &[(&str, i32)]) -> BTreeMap<Text, i32> {
    of.iter().map(|(topic, count)| ((*topic).into(), *count)).collect()
}

fn shown(assignor: Assignor, members: &[Subscriber], of: &[(&str, i32)]) -> Vec<String> {
    let given = assignor.assign(members, &counts(of));
    let partitions = |of: &Vec<TopicPartition>| of.iter().map(|(t, p)| format!("{t}{p}")).collect::<Vec<_>>().join(" ");
    given.iter().map(|(id, of)| format!("{id}: {}", partitions(of))).collect()
}

#[test]
fn range_and_round_robin_assign_as_java_does() {
    // These examples are from the documentation of Java's classes.
    let two = [member("C0", &["a", "b"]), member("C1", &["a", "b"])];
    assert_eq!(shown(Assignor::Range, &two, &[("a", 3), ("b", 3)]), ["C0: a0 a1 b0 b1", "C1: a2 b2"]);
    assert_eq!(shown(Assignor::RoundRobin, &two, &[("a", 3), ("b", 3)]), ["C0: a0 a2 b1", "C1: a1 b0 b2"]);
    let three = [member("C0", &["a"]), member("C1", &["a", "b"]), member("C2", &["a", "b", "c"])];
    let of = [("a", 1), ("b", 2), ("c", 3)];
    assert_eq!(shown(Assignor::RoundRobin, &three, &of), ["C0: a0", "C1: b0", "C2: b1 c0 c1 c2"]);
    let more = [member("A", &["a"]), member("B", &["a"]), member("C", &["a"])];
    assert_eq!(shown(Assignor::Range, &more, &[("a", 2)]), ["A: a0", "B: a1", "C: "]);
    assert_eq!(shown(Assignor::Range, &more, &[]), ["A: ", "B: ", "C: "], "a topic that nobody has");
    let with_instance = Subscriber { instance: Some("z".into()), ..member("Z", &["a"]) };
    let statics = [member("A", &["a"]), with_instance];
    assert_eq!(shown(Assignor::Range, &statics, &[("a", 3)]), ["A: a2", "Z: a0 a1"], "static members come first");
}

#[test]
fn an_assignor_is_found_by_its_name_and_its_class_in_java() {
    for assignor in Assignor::ALL {
        assert_eq!(Assignor::named(assignor.name()), Some(assignor));
    }
    let class = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
    assert_eq!(Assignor::named(class), Some(Assignor::CooperativeSticky));
    assert_eq!(Assignor::named("sticky"), None);
}

#[test]
fn a_moving_partition_is_withheld_until_its_owner_gives_it_up() {
    let owned = |n: i32| (0..n).map(|p| (Text::from("a"), p)).collect::<Vec<_>>();
    let mut members = [Subscriber { owned: owned(4), generation: 1, ..member("A", &["a"]) }, member("B", &["a"])];
    let of = [("a", 4)];
    let first = Assignor::CooperativeSticky.assign(&members, &counts(&of));
    assert_eq!((first["A"].len(), first["B"].len()), (2, 0), "B waits");
    members[0].owned.clone_from(&first["A"]);
    let second = Assignor::CooperativeSticky.assign(&members, &counts(&of));
    assert_eq!((&second["A"], second["B"].len()), (&first["A"], 2));
    // Two members claim the same partitions with the same generation. Either may own them, so neither gets them yet.
    let twice = [members[0].clone(), Subscriber { id: "C".into(), ..members[0].clone() }];
    let given = Assignor::CooperativeSticky.assign(&twice, &counts(&[("a", 4)]));
    assert_eq!(given.values().map(Vec::len).sum::<usize>(), 2, "{given:?}");
}

#[test]
fn an_owned_partition_does_not_move_while_a_free_one_can() {
    // Member A owns partitions 5 and 6, and 3 and 4 are free. If free partitions were assigned first, A would have
    // three for a while, as many as B. A partition of B would then move to C and be withheld.
    let owned = |of: &[i32]| of.iter().map(|p| (Text::from("a"), *p)).collect::<Vec<_>>();
    let holder = |id, of: &[i32]| Subscriber { owned: owned(of), generation: 1, ..member(id, &["a"]) };
    let members = [holder("A", &[5, 6]), holder("B", &[0, 1, 2]), holder("C", &[])];
    let given = Assignor::CooperativeSticky.assign(&members, &counts(&[("a", 7)]));
    assert_eq!(given["B"], owned(&[0, 1, 2]), "{given:?}");
    assert_eq!((&given["A"], &given["C"]), (&owned(&[5, 6]), &owned(&[3, 4])), "{given:?}");
}

#[test]
fn thousands_of_partitions_are_balanced_before_the_leaders_session_expires() {
    let owned: Vec<TopicPartition> = (0..5000).map(|partition| ("a".into(), partition)).collect();
    let members = [Subscriber { owned, generation: 1, ..member("A", &["a"]) }, member("B", &["a"])];
    let (reports, reported) = std::sync::mpsc::channel();
    std::thread::spawn(move || reports.send(Assignor::CooperativeSticky.assign(&members, &counts(&[("a", 5000)]))));
    let given = reported.recv_timeout(std::time::Duration::from_secs(45)).expect("within session.timeout.ms");
    assert_eq!((given["A"].len(), given["B"].len()), (2500, 0), "B waits");
}

/// A random member: its topics, the partitions that it claims, and the generation of the claim.
type Drawn = (Vec<usize>, Vec<(usize, i32)>, i32);

fn groups() -> impl Strategy<Value = (Vec<Subscriber>, BTreeMap<Text, i32>)> {
    let owned = prop::collection::vec((0..3usize, 0..6i32), 0..8);
    let members = prop::collection::vec((prop::collection::vec(0..3usize, 0..4), owned, -1..3i32), 1..6);
    (members, prop::collection::vec(0..6i32, 3)).prop_map(|(members, sizes)| {
        let topics = ["a", "b", "c"];
        let subscriber = |(at, (wants, owned, generation)): (usize, Drawn)| {
            let wanted: BTreeSet<usize> = wants.into_iter().collect();
            let wanted: Vec<&str> = wanted.into_iter().map(|topic| topics[topic]).collect();
            let owned = owned.into_iter().map(|(topic, partition)| (Text::from(topics[topic]), partition)).collect();
            Subscriber { owned, generation, ..member(&format!("m{at}"), &wanted) }
        };
        let members = members.into_iter().enumerate().map(subscriber).collect();
        (members, topics.iter().zip(sizes).map(|(topic, size)| (Text::from(*topic), size)).collect())
    })
}

proptest! {
    #[test]
    fn every_partition_has_one_owner_that_subscribes_to_it((members, counts) in groups(), assignor in 0..3usize) {
        let assignor = Assignor::ALL[assignor];
        let given = assignor.assign(&members, &counts);
        let mut seen = BTreeSet::new();
        for (id, partitions) in &given {
            let member = members.iter().find(|member| member.id == *id).expect("nobody else");
            for partition in partitions {
                prop_assert!(member.topics.contains(&partition.0) && seen.insert(partition.clone()));
            }
        }
        let claimed = |partition: &TopicPartition| {
            assignor == Assignor::CooperativeSticky && members.iter().any(|member| member.owned.contains(partition))
        };
        for (topic, count) in counts.iter().filter(|(topic, _)| members.iter().any(|of| of.topics.contains(topic))) {
            for partition in (0..*count).map(|partition| (topic.clone(), partition)) {
                prop_assert!(seen.contains(&partition) || claimed(&partition), "{partition:?} has no owner");
            }
        }
    }

    #[test]
    fn members_with_equal_topics_get_equal_shares_and_keep_their_partitions(
        (mut members, counts) in groups(),
    ) {
        let all: Vec<Text> = counts.keys().cloned().collect();
        members.iter_mut().for_each(|member| member.topics.clone_from(&all));
        // After all members have given up the moving partitions, a second round assigns the rest. Later rounds change
        // nothing.
        let mut rounds = Vec::new();
        for generation in 5..8 {
            let given = Assignor::CooperativeSticky.assign(&members, &counts);
            for member in &mut members {
                member.owned.clone_from(&given[&member.id]);
                member.generation = generation;
            }
            rounds.push(given);
        }
        let sizes: Vec<usize> = rounds[1].values().map(Vec::len).collect();
        prop_assert!(sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0) <= 1, "{sizes:?}");
        let sorted = |given: &BTreeMap<Text, Vec<TopicPartition>>| -> Vec<BTreeSet<TopicPartition>> {
            given.values().map(|partitions| partitions.iter().cloned().collect()).collect()
        };
        prop_assert_eq!(sorted(&rounds[1]), sorted(&rounds[2]));
        prop_assert_eq!(sizes.iter().sum::<usize>() as i32, counts.values().sum::<i32>());
    }
}
