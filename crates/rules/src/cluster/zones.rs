//! Chooses a broker in the client's zone, for a partition that every broker can serve.
//!
//! The choice is rendezvous hashing (Thaler and Ravishankar 1998). Every broker has a weight for every partition. The
//! heaviest broker of a zone serves the partition there. A broker that joins takes about the same number of partitions
//! from each of the others in its zone. When it leaves, each of them gets about the same number. No other partition
//! moves.
//!
//! The caller decides which brokers are alive and which zone a client is in. Invariant: the result depends only on ids
//! and names of zones. So all brokers agree on it, even after restarts and across versions of the program.

use std::collections::BTreeMap;

/// The brokers to choose from, by zone. The brokers without a zone form a zone of their own.
#[derive(Clone, Debug, Default)]
pub struct Zones<'z> {
    by_name: BTreeMap<Option<&'z str>, Vec<i32>>,
}

impl<'z> Zones<'z> {
    /// Creates the zones from brokers. Each broker must be in the list only once.
    pub fn new(brokers: impl IntoIterator<Item = (i32, Option<&'z str>)>) -> Self {
        let mut by_name: BTreeMap<Option<&str>, Vec<i32>> = BTreeMap::new();
        for (id, zone) in brokers {
            by_name.entry(zone).or_default().push(id);
        }
        Self { by_name }
    }

    /// Returns the zone that a client means by `name`. This is the zone with that name. If there is none, it is the
    /// only zone for which `name` begins with the zone's name and a dash. Kafka Connect and Streams append such
    /// suffixes to the configured client.id. None if no zone matches, or if several do.
    pub fn meant(&self, name: &str) -> Option<&'z str> {
        let zones = || self.by_name.keys().copied().flatten();
        let is_prefix = |zone: &&str| name.strip_prefix(zone).is_some_and(|appended| appended.starts_with('-'));
        zones().find(|zone| *zone == name).or_else(|| {
            let mut prefixes = zones().filter(is_prefix);
            prefixes.next().filter(|_| prefixes.next().is_none())
        })
    }

    /// Returns the broker in this zone that serves a partition (topic id and number); None if the zone has no broker.
    pub fn broker_in(&self, zone: &str, partition: (u128, i32)) -> Option<i32> {
        Some(heaviest(self.by_name.get(&Some(zone))?, partition)?.1)
    }

    /// Returns a broker for the partition from each zone, in the order of the zones' names. The broker for the client's
    /// own zone comes first. If the client has no zone, or its zone has no broker, the heaviest broker of all comes
    /// first. The list is empty if there are no brokers.
    pub fn brokers_of(&self, partition: (u128, i32), client: Option<&str>) -> Vec<i32> {
        let heaviest_by_zone = self.by_name.iter().filter_map(|(zone, ids)| Some((*zone, heaviest(ids, partition)?)));
        let of_zones: Vec<_> = heaviest_by_zone.collect();
        let of_client = of_zones.iter().find(|(zone, _)| zone.is_some() && *zone == client);
        let Some((_, first)) = of_client.or_else(|| of_zones.iter().max_by_key(|(_, broker)| *broker)).copied() else {
            return Vec::new();
        };
        let others = of_zones.iter().map(|(_, broker)| *broker).filter(|broker| *broker != first);
        std::iter::once(first).chain(others).map(|(_, id)| id).collect()
    }
}

/// Returns the largest weight with its broker; None if there is no broker.
fn heaviest(ids: &[i32], partition: (u128, i32)) -> Option<(u64, i32)> {
    ids.iter().map(|id| (weight(partition, *id), *id)).max()
}

fn weight((topic, number): (u128, i32), broker: i32) -> u64 {
    let [high, low] = [(topic >> 64) as u64, topic as u64];
    let ids = [high, low, u64::from(number.cast_unsigned()), u64::from(broker.cast_unsigned())];
    ids.into_iter().fold(0, |hash, id| mixed(hash ^ id))
}

/// Does a step of SplitMix64 (Steele, Lea and Flood 2014): each input bit changes half of the output bits.
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashMap};

    const NAMES: [Option<&str>; 4] = [None, Some("a"), Some("b"), Some("c")];

    fn zones(brokers: &[(i32, usize)]) -> Zones<'static> {
        Zones::new(brokers.iter().map(|(id, zone)| (*id, NAMES[*zone])))
    }

    /// Returns brokers by id, each with its zone.
    fn brokers() -> impl Strategy<Value = Vec<(i32, usize)>> {
        proptest::collection::btree_map(0..1000_i32, 0..NAMES.len(), 1..12).prop_map(Vec::from_iter)
    }

    #[test]
    fn name_with_a_suffix_means_the_only_zone_before_it() {
        let zones = Zones::new([(1, None), (2, Some("eu-1a")), (3, Some("eu-1b")), (4, Some("us")), (5, Some("us-1"))]);
        for (name, zone) in [
            ("eu-1a", Some("eu-1a")),
            ("eu-1a-configs", Some("eu-1a")),
            ("eu-1b-6d7b5a3e-StreamThread-1-consumer", Some("eu-1b")),
            ("us-1", Some("us-1")),
            ("us-2", Some("us")),
            ("us-1-configs", None),
            ("eu-1ab", None),
            ("eu", None),
            ("", None),
        ] {
            assert_eq!(zones.meant(name), zone, "{name}");
        }
    }

    proptest! {
        #[test]
        fn all_brokers_agree(
            (brokers, others) in brokers().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
            topic: u128, number in 0..10_000, client in 0..NAMES.len(),
        ) {
            let reported = |brokers: &[(i32, usize)]| zones(brokers).brokers_of((topic, number), NAMES[client]);
            prop_assert_eq!(reported(&brokers), reported(&others));
        }

        #[test]
        fn each_zone_has_one_broker_and_the_clients_is_first(
            brokers in brokers(), topic: u128, number in 0..10_000, client in 0..NAMES.len(),
        ) {
            let zones = zones(&brokers);
            let partition = (topic, number);
            let reported = zones.brokers_of(partition, NAMES[client]);
            let zone_of: HashMap<i32, usize> = brokers.iter().copied().collect();
            let of_reported: Vec<usize> = reported.iter().map(|id| zone_of[id]).collect();
            let all: BTreeSet<usize> = brokers.iter().map(|(_, zone)| *zone).collect();
            prop_assert_eq!(of_reported.iter().copied().collect::<BTreeSet<_>>(), all.clone());
            prop_assert_eq!(of_reported.len(), all.len());
            prop_assert!(of_reported[1..].is_sorted());
            if client > 0 && all.contains(&client) {
                prop_assert_eq!(of_reported[0], client);
            } else {
                let together: Vec<_> = brokers.iter().map(|(id, _)| (*id, 0)).collect();
                prop_assert_eq!(&reported[..1], &super::tests::zones(&together).brokers_of(partition, None)[..]);
            }
            for (id, zone) in reported.iter().zip(&of_reported) {
                if let Some(name) = NAMES[*zone] {
                    prop_assert_eq!(zones.broker_in(name, partition), Some(*id));
                }
            }
            prop_assert_eq!(zones.broker_in("elsewhere", partition), None);
        }

        #[test]
        fn broker_that_leaves_moves_only_its_own_partitions(
            brokers in brokers(), gone: prop::sample::Index, topic: u128, client in 0..NAMES.len(),
        ) {
            let gone = gone.get(&brokers).0;
            let left: Vec<_> = brokers.iter().copied().filter(|(id, _)| *id != gone).collect();
            for number in 0..50 {
                let of = |brokers: &[(i32, usize)]| zones(brokers).brokers_of((topic, number), NAMES[client]);
                let (before, after) = (of(&brokers), of(&left));
                if !before.contains(&gone) {
                    prop_assert_eq!(before, after);
                } else if before[0] != gone {
                    prop_assert_eq!(before[0], after[0]);
                }
            }
        }
    }

    #[test]
    fn partitions_are_spread_over_the_brokers_of_a_zone_and_over_all() {
        let brokers: Vec<(i32, usize)> = (1..=6).map(|id| (id, 1 + usize::from(id > 3))).collect();
        let zones = zones(&brokers);
        for (client, share) in [(None, 1000), (Some("a"), 2000), (Some("b"), 2000), (Some("c"), 1000)] {
            let mut count = HashMap::new();
            // Many topics with one partition each, and one topic with many partitions.
            let partitions = (0..3000).flat_map(|topic| [(topic, 0), (7, i32::try_from(topic).expect("small"))]);
            for partition in partitions {
                *count.entry(zones.brokers_of(partition, client)[0]).or_insert(0) += 1;
            }
            let is_near = |count: &i32| (count - share).abs() < share / 8;
            assert!(count.values().all(is_near) && count.values().sum::<i32>() == 6000, "{client:?}: {count:?}");
            assert_eq!(count.len(), if share == 1000 { 6 } else { 3 });
        }
    }

    /// During an upgrade, a cluster has brokers of two versions. Both must choose the same brokers, so the expected
    /// values never change.
    #[test]
    fn the_choice_is_the_same_in_every_version() {
        let zones = Zones::new([(1, Some("a")), (2, Some("a")), (3, Some("b")), (4, None)]);
        let topic = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
        let reported: Vec<_> = (0..4).map(|number| zones.brokers_of((topic, number), Some("b"))).collect();
        assert_eq!(reported, [[3, 4, 1], [3, 4, 2], [3, 4, 2], [3, 4, 2]]);
        assert_eq!(weight((topic, 3), 2), 0xf53a_6312_372b_d175);
        assert!(Zones::default().brokers_of((1, 1), None).is_empty());
    }
}
