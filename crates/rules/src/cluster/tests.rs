//! Tests of each rule on its own. `sim/` tests all of them together.

use fullbore_wire::ErrorCode;

use super::*;
use crate::replica::epochs::Position;
use crate::replica::{AlterPartition, BrokerRegistration, BrokerState, Brokers, PartitionRegistration};

fn brokers(fenced: &[i32]) -> Brokers {
    let broker =
        |id: i32| BrokerRegistration { epoch: 10, is_fenced: fenced.contains(&id), ..BrokerRegistration::default() };
    (1..=5).map(|id| (id, broker(id))).collect()
}

fn partition(isr: &[i32], elr: &[i32], leader: Option<i32>) -> PartitionRegistration {
    PartitionRegistration {
        replicas: vec![1, 2, 3],
        isr: isr.to_vec(),
        elr: elr.to_vec(),
        leader,
        leader_epoch: 4,
        partition_epoch: 7,
        ..PartitionRegistration::default()
    }
}

fn shown(partition: &PartitionRegistration) -> (Option<i32>, &[i32], &[i32], i32, i32) {
    let PartitionRegistration { isr, elr, leader, leader_epoch, partition_epoch, .. } = partition;
    (*leader, isr, elr, *leader_epoch, *partition_epoch)
}

#[test]
fn settled_partition_is_settled_again_nothing_changes() {
    let of = partition(&[1, 2, 3], &[], Some(1));
    assert_eq!(settle(&of, &brokers(&[]), 2), None);
    let settled = settle(&of, &brokers(&[1]), 2).expect("its leader is gone");
    assert_eq!(shown(&settled), (Some(2), &[2, 3][..], &[][..], 5, 8));
    assert_eq!(settle(&settled, &brokers(&[1]), 2), None);
}

#[test]
fn a_dead_follower_leaves_without_an_election() {
    let settled = settle(&partition(&[1, 2, 3], &[], Some(1)), &brokers(&[3]), 2).expect("it leaves");
    assert_eq!(shown(&settled), (Some(1), &[1, 2][..], &[][..], 4, 8));
}

#[test]
fn member_that_leaves_an_isr_below_min_insync_may_still_lead() {
    let settled = settle(&partition(&[1, 2], &[], Some(1)), &brokers(&[2]), 2).expect("it leaves");
    assert_eq!(shown(&settled), (Some(1), &[1][..], &[2][..], 4, 8));
    let led_by_2 = settle(&settled, &brokers(&[1]), 2).expect("2 has every committed record");
    assert_eq!(shown(&led_by_2), (Some(2), &[2][..], &[1][..], 5, 9));
    // Since min.insync.replicas is 1, broker 1 may have committed records alone.
    let alone = settle(&partition(&[1, 2], &[], Some(1)), &brokers(&[2]), 1).expect("it leaves");
    assert_eq!(shown(&alone), (Some(1), &[1][..], &[][..], 4, 8));
}

#[test]
fn all_brokers_down_the_last_isr_stays_and_the_first_back_leads() {
    let nobody = settle(&partition(&[1, 2], &[], Some(1)), &brokers(&[1, 2, 3]), 2).expect("nobody leads");
    assert_eq!(shown(&nobody), (None, &[1, 2][..], &[][..], 5, 8));
    assert_eq!(settle(&nobody, &brokers(&[1, 2]), 2), None, "3 was not in sync");
    let back = settle(&nobody, &brokers(&[1]), 2).expect("2 is back");
    assert_eq!(shown(&back), (Some(2), &[2][..], &[1][..], 6, 9));
}

#[test]
fn stopping_leader_hands_over_or_leads_on_as_the_last_one() {
    let mut brokers = brokers(&[]);
    brokers.get_mut(&1).expect("1 is there").is_shutting_down = true;
    let settled = settle(&partition(&[1, 2], &[], Some(1)), &brokers, 1).expect("2 leads");
    assert_eq!(shown(&settled), (Some(2), &[2][..], &[][..], 5, 8));
    assert_eq!(settle(&partition(&[1], &[], Some(1)), &brokers, 1), None);
}

fn full(full: &[i32]) -> Brokers {
    let mut brokers = brokers(&[]);
    full.iter().for_each(|id| brokers.get_mut(id).expect("it is there").is_full = true);
    brokers
}

#[test]
fn disk_full_a_leader_hands_over_in_the_isr_and_a_follower_leaves_it() {
    let of = partition(&[1, 2, 3], &[], Some(1));
    let led = settle(&of, &full(&[1]), 2).expect("2 has room");
    assert_eq!(shown(&led), (Some(2), &[2, 3][..], &[][..], 5, 8));
    let followed = settle(&of, &full(&[3]), 2).expect("nobody waits for 3");
    assert_eq!(shown(&followed), (Some(1), &[1, 2][..], &[][..], 4, 8));
    assert_eq!(followed.lost, [], "its log is whole");
    let below = settle(&partition(&[1, 2], &[], Some(1)), &full(&[1]), 2).expect("2 has room");
    assert_eq!(shown(&below), (Some(2), &[2][..], &[1][..], 5, 8), "it has every committed record, and may lead");
}

#[test]
fn disk_full_and_no_other_in_sync_the_leader_keeps_what_it_leads() {
    assert_eq!(settle(&partition(&[1], &[], Some(1)), &full(&[1]), 1), None);
    assert_eq!(settle(&partition(&[1], &[2], Some(1)), &full(&[1]), 2), None, "2 may lack records that 1 has");
    let all = partition(&[1, 2, 3], &[], Some(1));
    assert_eq!(settle(&all, &full(&[1, 2, 3]), 1), None, "each of them has all records");
    let mut stopping = full(&[2]);
    stopping.get_mut(&1).expect("it is there").is_shutting_down = true;
    let led = settle(&partition(&[1, 2], &[], Some(1)), &stopping, 1).expect("1 is about to stop");
    assert_eq!(shown(&led), (Some(2), &[2][..], &[][..], 5, 8));
}

#[test]
fn disk_full_and_a_follower_joins_the_leader_hands_over() {
    let from = BrokerState { broker_id: 1, broker_epoch: 10 };
    let requested = |isr: &[i32]| AlterPartition {
        leader_epoch: 4,
        partition_epoch: 7,
        new_isr: isr.iter().map(|id| BrokerState { broker_id: *id, broker_epoch: 10 }).collect(),
    };
    let of = partition(&[1], &[], Some(1));
    let joined = alter_isr(&of, &full(&[1]), 1, from, &requested(&[1, 3])).expect("3 has room");
    assert_eq!(shown(&joined), (Some(3), &[3][..], &[][..], 5, 9));
    let both = partition(&[1, 2], &[], Some(1));
    let joined = alter_isr(&both, &full(&[1, 2]), 1, from, &requested(&[1, 2, 3])).expect("3 has room");
    assert_eq!(shown(&joined), (Some(3), &[3][..], &[][..], 5, 9));
    let not_now = alter_isr(&of, &full(&[3]), 1, from, &requested(&[1, 3]));
    assert_eq!(not_now, Err(ErrorCode::INELIGIBLE_REPLICA));
    let preferred = elect_preferred(&partition(&[1, 2], &[], Some(2)), &full(&[1]), 1);
    assert_eq!(preferred, Err(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE));
}

#[test]
fn truncated_replica_leads_only_if_all_are_truncated_and_its_log_ends_last() {
    let all = partition(&[1, 2], &[], None);
    let first = lose(&all, 1).expect("it was in sync");
    assert_eq!((&first.isr[..], &first.lost[..]), (&[2][..], &[1][..]));
    assert_eq!(settle(&first, &brokers(&[2]), 1), None, "2 may come back whole");
    let both = lose(&first, 2).expect("it was in sync");
    assert_eq!(settle(&both, &brokers(&[]), 1), None);
    let end = |broker_id, last_epoch, offset| LogEndReport {
        broker_id,
        broker_epoch: 10,
        position: Position { offset, last_epoch: Some(last_epoch) },
    };
    let ends = [end(1, 3, 90), end(2, 4, 80), end(3, 4, 99)];
    assert_eq!(elect_among_lost(&first, &brokers(&[]), &ends), Err(ErrorCode::ELECTION_NOT_NEEDED));
    let missing = Err(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE);
    assert_eq!(elect_among_lost(&both, &brokers(&[2]), &ends), missing);
    assert_eq!(elect_among_lost(&both, &brokers(&[]), &ends[1..]), missing);
    let older = LogEndReport { broker_epoch: 9, ..ends[0] };
    assert_eq!(elect_among_lost(&both, &brokers(&[]), &[older, ends[1]]), missing, "another process said that");
    let elected = elect_among_lost(&both, &brokers(&[]), &ends).expect("both are back");
    assert_eq!(shown(&elected), (Some(2), &[2][..], &[][..], 5, 10));
    assert_eq!(elected.lost, []);
}

#[test]
fn an_unclean_election_is_the_last_resort() {
    let nobody = partition(&[1], &[], None);
    assert_eq!(elect_unclean(&partition(&[1], &[], Some(1)), &brokers(&[]), 1), Err(ErrorCode::ELECTION_NOT_NEEDED));
    let clean = elect_unclean(&nobody, &brokers(&[]), 1).expect("1 is there");
    assert_eq!(shown(&clean), (Some(1), &[1][..], &[][..], 5, 8));
    let unclean = elect_unclean(&nobody, &brokers(&[1]), 1).expect("2 is there");
    assert_eq!(shown(&unclean), (Some(2), &[2][..], &[][..], 5, 8));
    assert_eq!(elect_unclean(&nobody, &brokers(&[1, 2, 3]), 1), Err(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE));
}

#[test]
fn the_preferred_leader_must_be_in_sync() {
    let not_now = Err(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE);
    assert_eq!(elect_preferred(&partition(&[2, 3], &[], Some(2)), &brokers(&[]), 1), not_now);
    assert_eq!(elect_preferred(&partition(&[1, 2], &[], Some(2)), &brokers(&[1]), 1), not_now);
    let needless = Err(ErrorCode::ELECTION_NOT_NEEDED);
    assert_eq!(elect_preferred(&partition(&[1, 2], &[], Some(1)), &brokers(&[]), 1), needless);
    let led = elect_preferred(&partition(&[1, 2], &[], Some(2)), &brokers(&[]), 1).expect("1 is in sync");
    assert_eq!(shown(&led), (Some(1), &[1, 2][..], &[][..], 5, 8));
}

#[test]
fn isr_change_needs_the_current_leader_and_current_members() {
    let of = partition(&[1, 2], &[], Some(1));
    let from = BrokerState { broker_id: 1, broker_epoch: 10 };
    let requested = |isr: &[i32]| AlterPartition {
        leader_epoch: 4,
        partition_epoch: 7,
        new_isr: isr.iter().map(|id| BrokerState { broker_id: *id, broker_epoch: 10 }).collect(),
    };
    let alter = |from, requested: &AlterPartition, fenced: &[i32]| alter_isr(&of, &brokers(fenced), 2, from, requested);
    let joined = alter(from, &requested(&[1, 2, 3]), &[]).expect("3 may join");
    assert_eq!(shown(&joined), (Some(1), &[1, 2, 3][..], &[][..], 4, 8));
    assert_eq!(alter(from, &requested(&[1, 2]), &[]), Ok(of.clone()), "it is so already");
    let left = alter(from, &requested(&[1]), &[]).expect("2 may leave");
    assert_eq!(shown(&left), (Some(1), &[1][..], &[2][..], 4, 8));
    let older = BrokerState { broker_epoch: 9, ..from };
    assert_eq!(alter(older, &requested(&[1]), &[]), Err(ErrorCode::STALE_BROKER_EPOCH));
    let other = BrokerState { broker_id: 2, ..from };
    assert_eq!(alter(other, &requested(&[2]), &[]), Err(ErrorCode::FENCED_LEADER_EPOCH));
    let late = AlterPartition { partition_epoch: 6, ..requested(&[1]) };
    assert_eq!(alter(from, &late, &[]), Err(ErrorCode::INVALID_UPDATE_VERSION));
    for isr in [&[2][..], &[1, 4], &[1, 2, 2]] {
        assert_eq!(alter(from, &requested(isr), &[]), Err(ErrorCode::INVALID_REQUEST), "{isr:?}");
    }
    assert_eq!(alter(from, &requested(&[1, 2, 3]), &[3]), Err(ErrorCode::INELIGIBLE_REPLICA));
    let mut replaced = requested(&[1, 2, 3]);
    replaced.new_isr[2].broker_epoch = 9;
    assert_eq!(alter(from, &replaced, &[]), Err(ErrorCode::INELIGIBLE_REPLICA));
}

#[test]
fn process_with_the_directory_of_a_broker_is_registered_as_it() {
    let joining = Joining {
        directory: 1,
        process: 11,
        ended: PreviousShutdown::Killed,
        marks: DirectoryMarks::default(),
        reported: 0,
    };
    let (first, ended) = register(None, &joining, 1).expect("nobody was there");
    assert_eq!(
        (first.registration, ended),
        (BrokerRegistration { epoch: 1, is_fenced: true, ..BrokerRegistration::default() }, PreviousShutdown::Lost)
    );
    assert_eq!(register(Some(&first), &joining, 5), Ok((first, PreviousShutdown::Clean)), "it asks again");
    let mut living = first;
    living.registration.is_fenced = false;
    let again = Joining { process: 12, ..joining };
    let (second, ended) = register(Some(&living), &again, 5).expect("it is its directory");
    assert_eq!((second.registration.epoch, second.registration.is_fenced, ended), (5, true, PreviousShutdown::Killed));
    let stranger = Joining {
        directory: 2,
        process: 13,
        ended: PreviousShutdown::Clean,
        marks: DirectoryMarks::default(),
        reported: 0,
    };
    assert_eq!(register(Some(&living), &stranger, 6), Err(ErrorCode::DUPLICATE_BROKER_REGISTRATION));
    let (_, ended) = register(Some(&second), &stranger, 6).expect("nobody lives there");
    assert_eq!(ended, PreviousShutdown::Elsewhere, "an other directory has nothing of the logs");
}

#[test]
fn directory_that_does_not_name_the_registered_process_counts_as_another_one() {
    let joining = Joining {
        directory: 1,
        process: 11,
        ended: PreviousShutdown::Clean,
        marks: DirectoryMarks::default(),
        reported: 0,
    };
    let (mut before, _) = register(None, &joining, 1).expect("nobody was there");
    let ended = |before: &Member, users| {
        let joining = Joining { process: 12, marks: DirectoryMarks { users, noted: None }, ..joining };
        register(Some(before), &joining, 5).map(|(_, ended)| ended)
    };
    for users in [None, Some([11, 11]), Some([10, 11]), Some([11, 10])] {
        assert_eq!(ended(&before, users), Ok(PreviousShutdown::Clean), "{users:?}");
    }
    assert_eq!(ended(&before, Some([9, 10])), Ok(PreviousShutdown::Elsewhere));
    before.registration.is_fenced = false;
    assert_eq!(ended(&before, Some([9, 10])), Err(ErrorCode::DUPLICATE_BROKER_REGISTRATION));
}

#[test]
fn directory_with_a_smaller_number_than_reported_counts_as_another_one() {
    let of = |users, noted| DirectoryMarks { users, noted };
    let joining =
        Joining { directory: 1, process: 11, ended: PreviousShutdown::Killed, marks: of(None, None), reported: 0 };
    let (mut before, _) = register(None, &joining, 1).expect("nobody was there");
    let ended = |before: &Member, marks, reported| {
        let joining = Joining { process: 12, marks, reported, ..joining };
        register(Some(before), &joining, 5).map(|(_, ended)| ended)
    };
    let users = Some([10, 11]);
    for (noted, reported) in [(7, 7), (8, 7), (0, 0), (7, 0), (u64::MAX, u64::MAX)] {
        assert_eq!(
            ended(&before, of(users, Some(noted)), reported),
            Ok(PreviousShutdown::Killed),
            "{noted} of {reported}"
        );
    }
    assert_eq!(
        ended(&before, of(users, None), 7),
        Ok(PreviousShutdown::Killed),
        "the machine booted, and took numbers"
    );
    for marks in [of(users, Some(6)), of(users, Some(0)), of(None, Some(6)), of(Some([9, 10]), Some(7))] {
        assert_eq!(ended(&before, marks, 7), Ok(PreviousShutdown::Elsewhere), "{marks:?}");
    }
    before.registration.is_fenced = false;
    assert_eq!(ended(&before, of(users, Some(6)), 7), Err(ErrorCode::DUPLICATE_BROKER_REGISTRATION));
    assert_eq!(ended(&before, of(users, Some(7)), 7), Ok(PreviousShutdown::Killed));
}

#[test]
fn replaced_log_leads_only_if_no_replica_has_more() {
    let alone = partition(&[1], &[], None);
    let others = brokers(&[1, 2, 3]);
    let left = replace(&alone, 1, PreviousShutdown::Elsewhere, &others, 1).expect("it was in sync");
    assert_eq!((&left.isr[..], &left.lost[..]), (&[][..], &[][..]));
    assert_eq!(contenders(&left), [1, 2, 3], "nobody is left that had every record");
    let end = |broker_id, offset| LogEndReport {
        broker_id,
        broker_epoch: 10,
        position: Position { offset, last_epoch: Some(4) },
    };
    let ends = [end(1, 100), end(2, 200), end(3, 150)];
    let missing = Err(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE);
    assert_eq!(elect_among_lost(&left, &brokers(&[3]), &ends), missing);
    assert_eq!(elect_among_lost(&left, &brokers(&[]), &ends[..2]), missing);
    assert_eq!(elect_among_lost(&left, &brokers(&[]), &ends).expect("all are there").leader, Some(2));
    let lost = PartitionRegistration { lost: vec![1, 2], ..partition(&[], &[], None) };
    let left = replace(&lost, 1, PreviousShutdown::Elsewhere, &others, 1).expect("it counted");
    assert_eq!(contenders(&left), [2], "2 had every record");
    let went_on = PartitionRegistration { lost: vec![3], ..partition(&[1], &[], None) };
    let left = replace(&went_on, 1, PreviousShutdown::Elsewhere, &others, 1).expect("it was in sync");
    assert_eq!(contenders(&left), [1, 2, 3], "1 went on without 3, which may have less than 2");
    let only = PartitionRegistration { replicas: vec![1], ..partition(&[1], &[], None) };
    let left = replace(&only, 1, PreviousShutdown::Elsewhere, &others, 1).expect("it was in sync");
    assert_eq!(elect_among_lost(&left, &brokers(&[]), &[]).expect("nobody else has it").leader, Some(1));
    assert_eq!(replace(&partition(&[2], &[], Some(2)), 1, PreviousShutdown::Elsewhere, &brokers(&[1]), 1), None);
}

#[test]
fn process_registered_again_by_a_late_attempt_loses_its_older_epoch() {
    let joining = Joining {
        directory: 1,
        process: 12,
        ended: PreviousShutdown::Lost,
        marks: DirectoryMarks::default(),
        reported: 0,
    };
    let (first, _) = register(None, &joining, 7).expect("nobody was there");
    assert!(first.is_held_by(12, 7));
    let older = Joining { process: 11, ended: PreviousShutdown::Killed, ..joining };
    let (replaced, _) = register(Some(&first), &older, 8).expect("it is its directory");
    assert!(!replaced.is_held_by(12, 7));
    let (again, ended) = register(Some(&replaced), &joining, 9).expect("it is its directory");
    assert_eq!(ended, PreviousShutdown::Lost);
    assert!(!again.is_held_by(12, 7), "what it asks for is of an epoch that is over");
    assert!(again.is_held_by(12, 9));
}

#[test]
fn min_insync_lowered_only_members_in_sync_may_lead() {
    let of = partition(&[1], &[2], Some(1));
    assert_eq!(relax(&of, 2), None, "nothing is committed yet");
    let relaxed = relax(&of, 1).expect("1 commits by itself");
    assert_eq!(shown(&relaxed), (Some(1), &[1][..], &[][..], 4, 8));
    assert_eq!(relax(&relaxed, 1), None);
    assert_eq!(relax(&partition(&[1], &[2], None), 1), None, "nobody commits anything");
    let lost = PartitionRegistration { lost: vec![2], ..partition(&[1], &[], Some(1)) };
    assert!(relax(&lost, 1).expect("1 commits by itself").lost.is_empty());
}

mod settled {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    /// Any subset of the brokers 1 to 3, each in any state.
    fn any_brokers() -> impl Strategy<Value = Brokers> {
        proptest::collection::vec(proptest::option::of(any::<(bool, bool, bool)>()), 3).prop_map(|states| {
            let known = (1..).zip(states).filter_map(|(id, state)| state.map(|state| (id, state)));
            let of = |(is_fenced, is_shutting_down, is_full)| BrokerRegistration {
                epoch: 10,
                is_fenced,
                is_shutting_down,
                is_full,
            };
            known.map(|(id, state)| (id, of(state))).collect()
        })
    }

    proptest! {
        #[test]
        fn settled_partition_needs_no_follow_up(
            brokers in any_brokers(), isr in subsequence(vec![1, 2, 3], 0..4), others in subsequence(vec![1, 2, 3], 0..4),
            led: bool, is_lost: bool, min_isr in 1..4_usize, may_be_unclean: bool,
        ) {
            let mut of = partition(&isr, &[], isr.first().copied().filter(|_| led));
            // Replicas outside the ISR can have every committed record only if the ISR is below min.insync.replicas.
            if isr.len() < min_isr {
                let others: Vec<i32> = others.into_iter().filter(|id| !isr.contains(id)).collect();
                *(if is_lost { &mut of.lost } else { &mut of.elr }) = others;
            }
            if is_settled(&of, &brokers, may_be_unclean) {
                prop_assert_eq!(follow_up(&of, &brokers, min_isr, &[], may_be_unclean), None);
            }
            // A second follow-up changes nothing.
            if let Some(next) = follow_up(&of, &brokers, min_isr, &[], may_be_unclean) {
                prop_assert_eq!(follow_up(&next, &brokers, min_isr, &[], may_be_unclean), None);
            }
        }
    }
}
