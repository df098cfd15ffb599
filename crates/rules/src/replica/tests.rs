//! Tests of single rules. The model tests all rules together.

use super::epochs::{Divergence, EpochEnd, Position, divergence, end_of, truncation};
use super::*;
use fullbore_wire::ErrorCode;

const LAG_MS: i64 = 1_000;
const ME: i32 = 1;

fn settings(min_insync_replicas: usize) -> ReplicaSettings {
    ReplicaSettings { min_insync_replicas, replica_lag_time_max_ms: LAG_MS }
}

fn log(end_offset: i64) -> LocalLog {
    LocalLog { start_offset: 0, end_offset, high_watermark: 0 }
}

fn registration(leader: i32, replicas: &[i32], isr: &[i32], epochs: (i32, i32)) -> PartitionRegistration {
    let (leader_epoch, partition_epoch) = epochs;
    let leader = (leader >= 0).then_some(leader);
    PartitionRegistration {
        replicas: replicas.into(),
        isr: isr.into(),
        elr: vec![],
        lost: vec![],
        leader,
        leader_epoch,
        partition_epoch,
    }
}

/// Returns the brokers 1 to 4. The epoch of each is 10 times its id.
fn brokers() -> Brokers {
    (1..=4).map(|id| (id, BrokerRegistration { epoch: 10 * i64::from(id), ..Default::default() })).collect()
}

struct Case {
    partition: Partition,
    brokers: Brokers,
    ms: i64,
}

impl Case {
    /// Returns a case in which broker 1 leads in epoch 5 and has a log of 100 records.
    fn leading(replicas: &[i32], isr: &[i32], min_insync_replicas: usize) -> Case {
        let partition = Partition::new(ME, log(100), settings(min_insync_replicas));
        let mut case = Case { partition, brokers: brokers(), ms: 50_000 };
        let effects = case.apply(registration(ME, replicas, isr, (5, 7)));
        assert_eq!(effects.role, Some(RoleChange::Lead { epoch: 5, start_offset: 100 }));
        case
    }

    fn with<T>(&mut self, event: impl FnOnce(&mut Partition, &Now<'_>) -> T) -> T {
        event(&mut self.partition, &Now { ms: self.ms, broker_epoch: 10, brokers: &self.brokers })
    }

    fn apply(&mut self, registration: PartitionRegistration) -> Effects {
        self.with(|partition, now| partition.apply(&registration, now))
    }

    fn append(&mut self, log_end: i64) -> Option<i64> {
        self.with(|partition, now| partition.appended(log_end, now)).high_watermark
    }

    fn try_fetch(&mut self, broker_id: i32, leader_epoch: i32, offset: i64) -> Result<Effects, ErrorCode> {
        let broker_epoch = 10 * i64::from(broker_id);
        let fetch = FollowerFetch { broker_id, broker_epoch, leader_epoch, offset };
        self.with(|partition, now| partition.fetched(&fetch, now))
    }

    fn fetch(&mut self, broker_id: i32, offset: i64) -> Effects {
        self.try_fetch(broker_id, 5, offset).expect("a follower's fetch")
    }

    fn tick(&mut self) -> Effects {
        self.with(|partition, now| partition.tick(now))
    }

    fn answer(&mut self, proposal: &AlterPartition, answer: Result<PartitionRegistration, ErrorCode>) -> Effects {
        let answer = answer.as_ref().map_err(|error| *error);
        self.with(|partition, now| partition.altered(proposal, answer, now))
    }
}

fn members(proposal: &AlterPartition) -> Vec<(i32, i64)> {
    proposal.new_isr.iter().map(|member| (member.broker_id, member.broker_epoch)).collect()
}

#[test]
fn single_replica_has_its_log_end_as_high_watermark() {
    // min.insync.replicas counts only up to the number of replicas.
    let mut case = Case::leading(&[1], &[1], 2);
    assert_eq!(case.partition.high_watermark(), 100);
    assert_eq!(case.partition.check_append(true), Ok(()));
    assert_eq!(case.append(103), Some(103));
    assert_eq!(case.partition.acknowledgement(5, 103), Acknowledgement::Done);
    assert_eq!(case.partition.acknowledgement(5, 104), Acknowledgement::Wait);
    assert_eq!(case.partition.latest_offset(), Ok(103));
    assert!(!case.partition.has_followers());
    case.ms += 10 * LAG_MS;
    assert_eq!(case.tick(), Effects::default());
}

#[test]
fn checkpoint_is_limited_to_the_log() {
    for (checkpoint, expected) in [(0, 20), (50, 50), (500, 100)] {
        let found = LocalLog { start_offset: 20, end_offset: 100, high_watermark: checkpoint };
        assert_eq!(Partition::new(ME, found, settings(1)).high_watermark(), expected);
    }
}

#[test]
fn high_watermark_is_the_least_log_end_of_the_isr_and_never_falls() {
    let mut case = Case::leading(&[1, 2, 3], &[1, 2, 3], 1);
    assert_eq!(case.partition.high_watermark(), 0, "nobody has fetched");
    assert_eq!(case.append(110), None);
    assert_eq!(case.fetch(2, 110).high_watermark, None);
    assert_eq!(case.fetch(3, 104).high_watermark, Some(104));
    assert_eq!(case.fetch(3, 110).high_watermark, Some(110));
    assert_eq!(case.fetch(3, 90), Effects::default(), "a fetch that was overtaken");
    assert_eq!(case.partition.high_watermark(), 110);
}

#[test]
fn isr_below_min_insync_the_high_watermark_stands_still() {
    let mut case = Case::leading(&[1, 2, 3], &[1], 2);
    assert_eq!(case.append(110), None);
    assert_eq!(case.partition.check_append(true), Err(ErrorCode::NOT_ENOUGH_REPLICAS));
    assert_eq!(case.partition.check_append(false), Ok(()));
    let lower = settings(1);
    let effects = case.with(|partition, now| partition.configure(lower, now));
    assert_eq!(effects.high_watermark, Some(110));
    assert_eq!(case.partition.check_append(true), Ok(()));
}

#[test]
fn records_on_too_few_replicas_are_refused_after_the_append() {
    let mut case = Case::leading(&[1, 2], &[1, 2], 2);
    case.append(101);
    assert_eq!(case.partition.acknowledgement(5, 101), Acknowledgement::Wait);
    assert_eq!(case.fetch(2, 101).high_watermark, Some(101));
    assert_eq!(case.partition.acknowledgement(5, 101), Acknowledgement::Done);
    let _ = case.apply(registration(ME, &[1, 2], &[1], (5, 8)));
    let refused = Acknowledgement::Refused(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND);
    assert_eq!(case.partition.acknowledgement(5, 101), refused);
}

#[test]
fn record_of_an_interrupted_leadership_is_not_acknowledged() {
    let mut case = Case::leading(&[1, 2], &[1], 1);
    assert_eq!(case.append(101), Some(101));
    // This broker is elected again. No other broker has led in between, so its log is unchanged.
    let effects = case.apply(registration(ME, &[1, 2], &[1], (6, 8)));
    assert_eq!(effects.role, Some(RoleChange::Lead { epoch: 6, start_offset: 101 }));
    assert_eq!(case.partition.acknowledgement(5, 101), Acknowledgement::Done);
    // Now another broker leads in between.
    let effects = case.apply(registration(2, &[1, 2], &[2], (7, 9)));
    assert_eq!(effects.role, Some(RoleChange::Follow { epoch: 7, leader: Some(2) }));
    let refused = Acknowledgement::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(case.partition.acknowledgement(6, 101), refused);
    let _ = case.apply(registration(ME, &[1, 2], &[1], (8, 10)));
    assert_eq!(case.partition.acknowledgement(6, 101), refused);
    assert_eq!(case.partition.acknowledgement(8, 101), Acknowledgement::Done);
}

#[test]
fn follower_joins_at_the_high_watermark_and_the_start_of_the_epoch() {
    let mut case = Case::leading(&[1, 2, 3], &[1, 3], 1);
    assert_eq!(case.fetch(3, 40).high_watermark, Some(40));
    assert_eq!(case.fetch(2, 99).propose, None, "the epoch began at 100");
    assert_eq!(case.append(120), None);
    assert_eq!(case.fetch(3, 110).high_watermark, Some(110));
    assert_eq!(case.fetch(2, 105).propose, None, "the high watermark is 110");
    let proposal = case.fetch(2, 112).propose.expect("it is past both");
    assert_eq!((proposal.leader_epoch, proposal.partition_epoch), (5, 7));
    assert_eq!(members(&proposal), [(1, 10), (3, 30), (2, 20)]);
    // The follower that joins already counts. A second change must wait for the first.
    assert_eq!(case.fetch(3, 120), Effects { high_watermark: Some(112), ..Effects::default() });
    case.ms += 10 * LAG_MS;
    assert_eq!(case.tick(), Effects::default());
    let effects = case.answer(&proposal, Ok(registration(ME, &[1, 2, 3], &[1, 3, 2], (5, 8))));
    assert_eq!(effects, Effects::default());
    assert_eq!(case.partition.isr(), [1, 3, 2]);
    assert_eq!(case.fetch(2, 120).high_watermark, Some(120));
}

#[test]
fn follower_that_keeps_up_holds_the_high_watermark_for_the_lag_time() {
    let mut case = Case::leading(&[1, 2], &[1], 1);
    assert_eq!(case.partition.high_watermark(), 100, "one that has not fetched is not waited for");
    let proposal = case.fetch(2, 100).propose.expect("it has everything");
    assert_eq!(case.answer(&proposal, Err(ErrorCode::INELIGIBLE_REPLICA)), Effects::default());
    assert_eq!(case.append(101), None);
    case.ms += LAG_MS;
    assert_eq!(case.tick().high_watermark, None);
    case.ms += 1;
    assert_eq!(case.tick().high_watermark, Some(101));
}

#[test]
fn follower_removed_by_metadata_holds_no_record_until_it_is_caught_up() {
    let mut case = Case::leading(&[1, 2, 3], &[1, 2, 3], 2);
    for follower in [2, 3] {
        let _ = case.fetch(follower, 100);
    }
    case.append(110);
    assert_eq!(case.fetch(2, 110).high_watermark, None, "broker 3 had everything a moment ago");
    assert_eq!(case.apply(registration(ME, &[1, 2, 3], &[1, 2], (5, 8))).high_watermark, Some(110));
    assert_eq!(case.append(120), None);
    assert_eq!(case.fetch(2, 120).high_watermark, Some(120));
    let _ = case.fetch(3, 120);
    case.append(130);
    assert_eq!(case.fetch(2, 130).high_watermark, None, "it keeps up again");
}

#[test]
fn replica_of_an_ineligible_broker_does_not_join() {
    let registered = |change: fn(&mut BrokerRegistration)| {
        let mut case = Case::leading(&[1, 2], &[1], 1);
        change(case.brokers.get_mut(&2).expect("registered"));
        case
    };
    let refused: [fn(&mut BrokerRegistration); 4] = [
        |broker| broker.is_fenced = true,
        |broker| broker.is_shutting_down = true,
        |broker| broker.is_full = true,
        |broker| broker.epoch = 21,
    ];
    for change in refused {
        let mut case = registered(change);
        assert_eq!(case.fetch(2, 100).propose, None);
        assert_eq!(case.append(101), Some(101), "and is not waited for");
    }
    let mut case = registered(|_| ());
    case.brokers.remove(&2);
    assert_eq!(case.fetch(2, 100).propose, None);
    assert!(registered(|_| ()).fetch(2, 100).propose.is_some());
}

#[test]
fn fetch_from_before_the_follower_registered_again_is_refused() {
    let mut case = Case::leading(&[1, 2], &[1, 2], 1);
    let fetch = |case: &mut Case, broker_epoch, offset| {
        let fetch = FollowerFetch { broker_id: 2, broker_epoch, leader_epoch: 5, offset };
        case.with(|partition, now| partition.fetched(&fetch, now))
    };
    assert_eq!(fetch(&mut case, 21, 60).map(|effects| effects.high_watermark), Ok(Some(60)));
    assert_eq!(fetch(&mut case, 20, 100), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(case.partition.high_watermark(), 60);
}

#[test]
fn lagging_follower_leaves_and_counts_until_the_change_is_known() {
    let mut case = Case::leading(&[1, 2, 3], &[1, 2, 3], 2);
    for id in [2, 3] {
        let _ = case.fetch(id, 100);
    }
    assert_eq!(case.append(110), None);
    case.ms += LAG_MS;
    assert_eq!(case.fetch(2, 110), Effects::default());
    assert_eq!(case.tick(), Effects::default());
    case.ms += 1;
    let proposal = case.tick().propose.expect("3 has been behind for longer");
    assert_eq!(members(&proposal), [(1, 10), (2, 20)]);
    assert_eq!(case.partition.high_watermark(), 100);
    assert_eq!(case.partition.isr(), [1, 2, 3]);
    let effects = case.answer(&proposal, Ok(registration(ME, &[1, 2, 3], &[1, 2], (5, 8))));
    assert_eq!(effects.high_watermark, Some(110));
}

#[test]
fn follower_that_keeps_up_without_being_caught_up_stays() {
    let mut case = Case::leading(&[1, 2], &[1, 2], 1);
    let _ = case.fetch(2, 100);
    for round in 1..10 {
        let log_end = 100 + 10 * round;
        let _ = case.append(log_end);
        case.ms += LAG_MS - 1;
        // The follower now has the records that the leader had at the follower's previous fetch.
        assert_eq!(case.fetch(2, log_end - 10).propose, None);
        assert_eq!(case.tick().propose, None, "round {round}");
    }
    case.ms += 2 * LAG_MS;
    assert!(case.tick().propose.is_some());
}

#[test]
fn change_is_requested_again_after_an_unknown_outcome_and_not_after_a_refusal() {
    let mut case = Case::leading(&[1, 2], &[1], 1);
    let proposal = case.fetch(2, 100).propose.expect("it has everything");
    assert_eq!(case.tick().propose, None, "the answer is still to come");
    let _ = case.answer(&proposal, Err(ErrorCode::REQUEST_TIMED_OUT));
    assert_eq!(case.append(101), None, "2 may be in sync by now");
    case.ms += 10 * LAG_MS;
    assert_eq!(case.tick(), Effects { propose: Some(proposal.clone()), ..Effects::default() });
    assert_eq!(case.tick().propose, None);
    // The error shows that the leader's metadata is old. The newer metadata will show the outcome of the proposal.
    let _ = case.answer(&proposal, Err(ErrorCode::INVALID_UPDATE_VERSION));
    assert_eq!(case.tick(), Effects::default());
    assert_eq!(case.partition.high_watermark(), 100);
    let effects = case.apply(registration(ME, &[1, 2], &[1], (5, 8)));
    assert_eq!(effects.high_watermark, Some(101), "it is not");
    // This response is to a change that is no longer requested.
    assert_eq!(case.answer(&proposal, Ok(registration(ME, &[1, 2], &[1, 2], (5, 9)))), Effects::default());
    assert_eq!(case.partition.isr(), [1]);

    let proposal = case.fetch(2, 101).propose.expect("anew");
    assert_eq!(proposal.partition_epoch, 8);
    assert_eq!(case.append(102), None);
    case.ms += 10 * LAG_MS;
    let effects = case.answer(&proposal, Err(ErrorCode::INELIGIBLE_REPLICA));
    assert_eq!(effects, Effects { high_watermark: Some(102), ..Effects::default() });
}

#[test]
fn metadata_that_is_not_newer_keeps_the_requested_change() {
    let mut case = Case::leading(&[1, 2], &[1], 1);
    let proposal = case.fetch(2, 100).propose.expect("it has everything");
    assert_eq!(case.apply(registration(ME, &[1, 2], &[1], (5, 7))), Effects::default());
    case.ms += 10 * LAG_MS;
    assert_eq!(case.append(101), None, "2 may be in sync by now");
    assert_eq!(case.apply(registration(2, &[1, 2], &[2], (4, 9))), Effects::default(), "of an older epoch");
    assert!(case.partition.is_leader());
    // The response has the partition epoch that the leader already knows, so no change follows.
    let effects = case.answer(&proposal, Ok(registration(ME, &[1, 2], &[1], (5, 7))));
    assert_eq!(effects.high_watermark, Some(101));
}

#[test]
fn new_epoch_resets_the_state_of_followers() {
    let mut case = Case::leading(&[1, 2], &[1, 2], 1);
    assert_eq!(case.fetch(2, 100).high_watermark, Some(100));
    assert_eq!(case.append(110), None);
    let _ = case.apply(registration(ME, &[1, 2], &[1, 2], (7, 9)));
    assert_eq!(
        case.partition.latest_offset(),
        Err(ErrorCode::OFFSET_NOT_AVAILABLE),
        "a leader between may have told more"
    );
    assert_eq!(case.try_fetch(2, 5, 110), Err(ErrorCode::FENCED_LEADER_EPOCH));
    assert_eq!(case.try_fetch(2, 8, 110), Err(ErrorCode::UNKNOWN_LEADER_EPOCH));
    assert_eq!(case.try_fetch(2, NO_EPOCH, 110), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(case.try_fetch(4, 7, 110), Err(ErrorCode::UNKNOWN_LEADER_EPOCH), "has no replica as far as is known");
    assert_eq!(case.try_fetch(2, 7, 111), Err(ErrorCode::OFFSET_OUT_OF_RANGE));
    assert_eq!(case.try_fetch(2, 7, 110).map(|effects| effects.high_watermark), Ok(Some(110)));
    assert_eq!(case.partition.latest_offset(), Ok(110));
}

#[test]
fn broker_stands_down_and_leads_again_where_it_stopped() {
    let mut case = Case::leading(&[1, 2], &[1, 2], 1);
    case.append(110);
    assert_eq!(case.fetch(2, 105).high_watermark, Some(105));
    case.partition.stand_down(true);
    let refused = Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!((case.partition.is_leader(), case.partition.leader()), (false, None));
    assert_eq!(case.partition.check_append(true), refused);
    assert_eq!(case.partition.check_append(false), refused);
    assert_eq!(case.partition.latest_offset().map(drop), refused);
    assert_eq!(case.try_fetch(2, 5, 110).map(drop), refused);
    assert_eq!(case.partition.acknowledgement(5, 105), Acknowledgement::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    case.ms += 2 * LAG_MS;
    assert_eq!(case.tick(), Effects::default(), "it proposes no change of the ISR");
    case.partition.stand_down(true);
    case.partition.stand_down(false);
    assert_eq!((case.partition.is_leader(), case.partition.high_watermark()), (true, 105));
    assert_eq!(case.fetch(2, 110).high_watermark, Some(110));
    case.partition.stand_down(false);
    assert!(case.partition.is_leader());
}

#[test]
fn newer_metadata_replace_the_state_of_a_broker_that_stands_down() {
    let mut case = Case::leading(&[1, 2], &[1, 2], 1);
    case.partition.stand_down(true);
    assert!(case.apply(registration(2, &[1, 2], &[2], (6, 8))).role.is_some());
    case.partition.stand_down(true);
    case.partition.stand_down(false);
    assert_eq!((case.partition.leader(), case.partition.leader_epoch()), (Some(2), 6));
}

#[test]
fn reassignment_keeps_the_state_of_followers_that_stay() {
    let mut case = Case::leading(&[1, 2], &[1, 2], 1);
    assert_eq!(case.fetch(2, 100).high_watermark, Some(100));
    let effects = case.apply(registration(ME, &[1, 2, 3], &[1, 2], (5, 8)));
    assert_eq!(effects, Effects::default());
    assert_eq!(case.append(101), None);
    assert_eq!(case.fetch(2, 101).high_watermark, Some(101), "3 is not waited for");
    let effects = case.apply(registration(3, &[2, 3], &[2, 3], (6, 9)));
    assert_eq!(effects.role, Some(RoleChange::Stop));
    assert_eq!(case.partition.check_append(false), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(case.partition.leader(), None);
}

#[test]
fn follower_takes_its_leaders_high_watermark_up_to_its_own_log_end() {
    let mut case = Case { partition: Partition::new(ME, log(100), settings(1)), brokers: brokers(), ms: 0 };
    assert_eq!(case.partition.check_following(NO_EPOCH), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    let effects = case.apply(registration(2, &[1, 2], &[1, 2], (5, 7)));
    assert_eq!(effects.role, Some(RoleChange::Follow { epoch: 5, leader: Some(2) }));
    assert_eq!(case.partition.check_append(false), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    let replicated = |case: &mut Case, epoch, log_end, high_watermark| {
        case.with(|partition, _| partition.replicated(epoch, log_end, high_watermark))
            .map(|effects| effects.high_watermark)
    };
    assert_eq!(replicated(&mut case, 5, 110, 105), Ok(Some(105)));
    assert_eq!(replicated(&mut case, 5, 120, 200), Ok(Some(120)));
    assert_eq!(replicated(&mut case, 5, 130, 90), Ok(None), "an answer that was overtaken");
    assert_eq!(replicated(&mut case, 4, 140, 140), Err(ErrorCode::FENCED_LEADER_EPOCH));
    case.partition.truncated(125);
    assert_eq!(case.partition.high_watermark(), 120);
    case.partition.truncated(80);
    assert_eq!(case.partition.high_watermark(), 80);
    assert_eq!(case.partition.started_at(85).high_watermark, Some(85));
    // Metadata with the same leader and epoch has no effect, but metadata without a leader changes the role.
    assert_eq!(case.apply(registration(2, &[1, 2], &[2], (5, 8))), Effects::default());
    let effects = case.apply(registration(-1, &[1, 2], &[2], (6, 9)));
    assert_eq!(effects.role, Some(RoleChange::Follow { epoch: 6, leader: None }));
    assert_eq!(case.partition.check_following(6), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
}

#[test]
fn epoch_ends_at_the_start_of_the_next_one() {
    let epochs = [(1, 0), (3, 10), (6, 20)];
    let ends = [(0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (5, (3, 20)), (6, (6, 30)), (9, (6, 30))];
    for (requested, (epoch, end_offset)) in ends {
        assert_eq!(end_of(&epochs, requested, 30), EpochEnd { epoch, end_offset }, "{requested}");
    }
    assert_eq!(end_of(&[], 4, 0), EpochEnd { epoch: 4, end_offset: 0 });
}

#[test]
fn follower_truncates_to_the_divergence_of_the_logs() {
    let leader = [(1, 0), (3, 10), (6, 20)];
    let at = |offset, last_epoch| Position { offset, last_epoch: Some(last_epoch) };
    let end = |epoch, end_offset| EpochEnd { epoch, end_offset };
    let request = |position| divergence(&leader, 30, position);
    for same in [at(5, 1), at(10, 1), at(20, 3), at(25, 6), at(30, 6), Position { offset: 0, last_epoch: None }] {
        assert_eq!(request(same), Divergence::None, "{same:?}");
    }
    assert_eq!(request(at(15, 1)), Divergence::At(end(1, 10)), "the end of an old leader's epoch that nobody else has");
    assert_eq!(request(at(31, 6)), Divergence::At(end(6, 30)));
    assert_eq!(request(at(18, 5)), Divergence::At(end(3, 20)));
    assert_eq!(request(Position { offset: 31, last_epoch: None }), Divergence::OutOfRange);

    assert_eq!(truncation(&[(1, 0)], 15, at(15, 1), end(1, 10)), Some(10));
    // The leader does not have epoch 5, and the follower does not have epoch 3 (KIP-279). The follower truncates to the
    // end of the last epoch that both may have, and compares again.
    assert_eq!(truncation(&[(2, 0), (5, 12)], 18, at(18, 5), end(3, 20)), Some(12));
    assert_eq!(truncation(&[(5, 0)], 18, at(18, 5), end(3, 20)), Some(0));
    // The log has changed since the fetch.
    assert_eq!(truncation(&[(1, 0), (6, 10)], 13, at(15, 1), end(1, 10)), None);
}

/// Compaction has removed the leader's records before offset 10, so the leader cannot compare them with the follower's.
#[test]
fn follower_is_in_an_epoch_before_the_leaders_first_it_truncates_to_the_log_start() {
    let leader = [(3, 0), (3, 10), (6, 20)];
    for offset in [5, 10, 15] {
        let position = Position { offset, last_epoch: Some(1) };
        let end = EpochEnd { epoch: 1, end_offset: 0 };
        assert_eq!(divergence(&leader, 30, position), Divergence::At(end));
        assert_eq!(truncation(&[(1, 0)], offset, position, end), Some(0));
    }
    let is_part = Position { offset: 15, last_epoch: Some(3) };
    assert_eq!(divergence(&leader, 30, is_part), Divergence::None);
    // The leader has lost the follower's records, which begin with the second pair.
    let end = EpochEnd { epoch: 2, end_offset: 7 };
    assert_eq!(truncation(&leader, 30, Position { offset: 30, last_epoch: Some(6) }, end), Some(0));
}

#[test]
fn elr_not_empty_nothing_is_committed_despite_own_settings() {
    let mut case = Case::leading(&[1, 2, 3], &[1, 2], 1);
    let _ = case.fetch(2, 100);
    assert_eq!(case.partition.high_watermark(), 100);
    // The high watermark does not wait for the silent follower. Then a controller with a larger min.insync.replicas
    // removes the follower from the ISR.
    case.ms += 10 * LAG_MS;
    let _ = case.apply(PartitionRegistration { elr: vec![2], ..registration(ME, &[1, 2, 3], &[1], (5, 8)) });
    assert_eq!(case.append(101), None);
    let _ = case.apply(registration(ME, &[1, 2, 3], &[1], (5, 9)));
    assert_eq!(case.partition.high_watermark(), 101);
}

#[test]
fn records_are_deleted_once_every_replica_in_sync_has_deleted_them() {
    let mut case = Case::leading(&[1, 2, 3], &[1, 2], 1);
    let _ = case.fetch(2, 100);
    let _ = case.fetch(3, 50);
    assert_eq!(case.partition.is_deleted_before(0), Ok(false), "it is not known where the other begins");
    case.partition.begins_at(2, 40);
    assert_eq!((case.partition.is_deleted_before(40), case.partition.is_deleted_before(41)), (Ok(true), Ok(false)));
    let _ = case.apply(registration(ME, &[1, 2, 3], &[1, 2, 3], (5, 8)));
    assert_eq!(case.partition.is_deleted_before(40), Ok(false));
    case.partition.begins_at(3, 60);
    assert_eq!(case.partition.is_deleted_before(40), Ok(true));
    let _ = case.apply(registration(2, &[1, 2, 3], &[1, 2, 3], (6, 9)));
    assert_eq!(case.partition.is_deleted_before(40), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
}

/// When a follower changes its connection, its fetches may arrive over both connections, and an older one may come
/// last.
#[test]
fn overtaken_acknowledgement_changes_nothing() {
    let mut case = Case::leading(&[1, 2, 3], &[1, 2, 3], 2);
    assert_eq!([case.fetch(3, 100), case.fetch(3, 90)].map(|effects| effects.high_watermark), [None, None]);
    assert_eq!(case.fetch(2, 100).high_watermark, Some(100));
    // The follower's next process may have fewer records.
    let fetch = FollowerFetch { broker_id: 3, broker_epoch: 31, leader_epoch: 5, offset: 90 };
    assert_eq!(case.append(101), None);
    let noted = case.with(|partition, now| partition.fetched(&fetch, now)).expect("noted");
    assert_eq!(noted.high_watermark, None);
    assert_eq!(case.fetch(2, 101).high_watermark, None);
    assert_eq!(case.partition.high_watermark(), 100);
}
