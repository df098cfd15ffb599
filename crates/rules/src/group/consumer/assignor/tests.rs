//! Tests of both assignors: every partition has one subscribed owner, the loads are even, and few partitions move.

use super::uniform::loads;
use super::*;
use proptest::prelude::*;

/// A random case: the number of partitions of each topic, and for each member whether it subscribes to each topic.
type Group = (Vec<usize>, Vec<Vec<bool>>);

fn group(topics: usize, partitions: usize, members: usize) -> impl Strategy<Value = Group> {
    (1..=topics, 1..=members).prop_flat_map(move |(topics, members)| {
        let counts = prop::collection::vec(0..=partitions, topics);
        let wants = prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.6), topics), members);
        (counts, wants)
    })
}

fn subscriptions(wants: &[Vec<bool>]) -> Subscriptions {
    let topics = wants.first().map_or(0, Vec::len);
    let of = |topic: usize| (0..wants.len()).filter(|&m| wants[m][topic]).map(|m| m as MemberIndex).collect();
    Subscriptions { members: wants.len(), subscribers: (0..topics).map(of).collect() }
}

fn nobody(counts: &[usize]) -> Owners {
    counts.iter().map(|&count| vec![NO_MEMBER; count]).collect()
}

fn check_owners(group: &Subscriptions, owners: &Owners) {
    for (topic, row) in owners.iter().enumerate() {
        for &owner in row {
            match group.subscribers[topic].is_empty() {
                true => assert_eq!(owner, NO_MEMBER),
                false => assert!(group.subscribes(owner, topic), "owner {owner} of topic {topic}"),
            }
        }
    }
}

/// Tries every assignment, and returns the smallest possible sum of squared loads.
fn best_possible(group: &Subscriptions, counts: &[usize]) -> usize {
    fn place(group: &Subscriptions, rest: &[usize], loads: &mut Vec<usize>) -> usize {
        let Some((&topic, rest)) = rest.split_first() else { return loads.iter().map(|load| load * load).sum() };
        let mut best = usize::MAX;
        for &member in &group.subscribers[topic] {
            loads[member as usize] += 1;
            best = best.min(place(group, rest, loads));
            loads[member as usize] -= 1;
        }
        best
    }
    let partitions: Vec<usize> = (0..counts.len())
        .filter(|&topic| !group.subscribers[topic].is_empty())
        .flat_map(|topic| std::iter::repeat_n(topic, counts[topic]))
        .collect();
    place(group, &partitions, &mut vec![0; group.members])
}

fn kept(before: &Owners, after: &Owners) -> usize {
    before.iter().flatten().zip(after.iter().flatten()).filter(|(b, a)| a == b && **a != NO_MEMBER).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn uniform_is_as_even_as_possible((counts, wants) in group(3, 3, 4)) {
        let group = subscriptions(&wants);
        let mut owners = nobody(&counts);
        Assignor::Uniform.assign(&group, &mut owners);
        check_owners(&group, &owners);
        let squares: usize = loads(group.members, &owners).iter().map(|load| load * load).sum();
        prop_assert_eq!(squares, best_possible(&group, &counts));
    }

    /// Members join, leave and change their subscriptions. Each assignment must be as even as one without earlier
    /// owners.
    #[test]
    fn uniform_is_even_after_changes((counts, wants) in group(4, 12, 8), other in any::<u64>()) {
        let first = subscriptions(&wants);
        let mut owners = nobody(&counts);
        Assignor::Uniform.assign(&first, &mut owners);
        let changed: Vec<Vec<bool>> = wants.iter().enumerate()
            .map(|(m, row)| row.iter().enumerate().map(|(t, &want)| want ^ (other >> ((m * 7 + t) % 64) & 1 == 1)).collect())
            .collect();
        let group = subscriptions(&changed);
        let mut fresh = nobody(&counts);
        Assignor::Uniform.assign(&group, &mut owners);
        Assignor::Uniform.assign(&group, &mut fresh);
        check_owners(&group, &owners);
        let sorted = |owners: &Owners| { let mut loads = loads(group.members, owners); loads.sort_unstable(); loads };
        prop_assert_eq!(sorted(&owners), sorted(&fresh));
        let again = owners.clone();
        Assignor::Uniform.assign(&group, &mut owners);
        prop_assert_eq!(again, owners, "nothing moves when nothing has changed");
    }

    /// If all subscriptions are equal, loads differ by at most one. As many partitions as possible must stay with their
    /// owners.
    #[test]
    fn uniform_moves_as_little_as_possible(
        counts in prop::collection::vec(0usize..9, 1..4), members in 1usize..8, seed in prop::collection::vec(0u32..12, 32),
    ) {
        let group = subscriptions(&vec![vec![true; counts.len()]; members]);
        let mut owners = nobody(&counts);
        for (n, owner) in owners.iter_mut().flatten().enumerate() {
            let any = seed[n % seed.len()];
            *owner = if (any as usize) < members { any } else { NO_MEMBER };
        }
        let before = owners.clone();
        Assignor::Uniform.assign(&group, &mut owners);
        check_owners(&group, &owners);
        let after = loads(members, &owners);
        prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1);
        let partitions: usize = counts.iter().sum();
        let (share, extras) = (partitions / members, partitions % members);
        let had = loads(members, &before);
        let most = had.iter().map(|&load| load.min(share)).sum::<usize>()
            + had.iter().filter(|&&load| load > share).count().min(extras);
        prop_assert_eq!(kept(&before, &owners), most);
    }

    /// Ranges are contiguous and in the order of the members, and their sizes differ by at most one. Topics of the same
    /// size are cut at the same positions.
    #[test]
    fn range_assigns_contiguous_ranges((counts, wants) in group(4, 12, 6)) {
        let group = subscriptions(&wants);
        let mut owners = nobody(&counts);
        Assignor::Range.assign(&group, &mut owners);
        check_owners(&group, &owners);
        for (topic, row) in owners.iter().enumerate() {
            prop_assert!(row.is_sorted());
            let share = |member: &MemberIndex| row.iter().filter(|&owner| owner == member).count();
            let shares: Vec<usize> = group.subscribers[topic].iter().map(share).collect();
            prop_assert!(shares.is_sorted_by(|a, b| a >= b));
            if let (Some(first), Some(last)) = (shares.first(), shares.last()) {
                prop_assert!(first - last <= 1);
            }
            for (subscribers, other) in group.subscribers.iter().zip(&owners) {
                if *subscribers == group.subscribers[topic] && other.len() == row.len() {
                    prop_assert_eq!(other, row);
                }
            }
        }
    }
}

/// The subscriptions of the members overlap in pairs. Moving a single partition does not help, but a chain of moves
/// does.
#[test]
fn uniform_passes_on_along_chains() {
    let group = Subscriptions { members: 3, subscribers: vec![vec![0, 1], vec![1, 2]] };
    // Member 0 has all of topic 0, member 1 all of topic 1, and member 2 has nothing.
    let mut owners = vec![vec![0; 4], vec![1; 2]];
    Assignor::Uniform.assign(&group, &mut owners);
    assert_eq!(loads(3, &owners), [2, 2, 2]);
}

#[test]
fn assignor_names_are_those_of_kafka() {
    assert_eq!(Assignor::from_name("uniform"), Some(Assignor::Uniform));
    assert_eq!(Assignor::from_name("range"), Some(Assignor::Range));
    assert_eq!(Assignor::from_name("Range"), None);
}
