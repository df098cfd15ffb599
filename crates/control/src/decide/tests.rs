//! Tests of the rules in `decide`, and of the properties of topic names.

mod diskless;
mod past;
mod pieces;

use super::*;
use crate::change::Version;
use crate::command::{
    AlterIsr, BrokerChange, ChangeBroker, ChangeCommand, ElectLeaders, ElectionKind, GrowTopic, PartitionsCommand,
    RegisterBroker,
};
use crate::{DeletedTopic, RegisteredBroker};
use fullbore_config::Properties;
use fullbore_rules::cluster::{DirectoryMarks, Joining, PreviousShutdown, ResignedLog};
use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{AlterPartition, BrokerState, PartitionRegistration};
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};

fn broker(text: &str) -> BrokerConfig {
    BrokerConfig::from_properties(&Properties::parse(text).expect("valid")).expect("valid").0
}

fn wanted(name: &str) -> CreateTopic {
    CreateTopic { name: name.into(), num_partitions: -1, replication_factor: -1, ..CreateTopic::default() }
}

/// Returns the topic after `change` is applied to the image.
fn made(image: &Image, broker: &BrokerConfig, name: &str, change: Change) -> Result<Arc<Topic>, Refusal> {
    let mut after = image.clone();
    image.check(broker, &change).and_then(|()| after.apply(broker, &change)).map_err(inapplicable)?;
    known(&after, name).cloned()
}

fn create(image: &Image, broker: &BrokerConfig, wanted: &CreateTopic, id: Uuid) -> Result<Arc<Topic>, Refusal> {
    made(image, broker, &wanted.name, super::create(image, broker, wanted, id)?)
}

fn alter(image: &Image, broker: &BrokerConfig, wanted: &AlterTopicConfig) -> Result<Arc<Topic>, Refusal> {
    made(image, broker, &wanted.name, super::alter(image, broker, wanted)?)
}

fn one_broker(id: i32) -> Image {
    let mut image = Image::default();
    image.put_node(id, RegisteredBroker::default());
    image
}

fn image_of(topics: &[(&str, i32)]) -> Image {
    let mut image = one_broker(1);
    for (index, (name, partitions)) in topics.iter().enumerate() {
        let wanted = CreateTopic { num_partitions: *partitions, ..wanted(name) };
        let id = Uuid((index as u128 + 1).to_be_bytes());
        image.put(create(&image, &broker(""), &wanted, id).expect("valid"));
    }
    image
}

fn refused(image: &Image, wanted: &CreateTopic) -> (ErrorCode, String) {
    let refusal = create(image, &broker(""), wanted, Uuid::ZERO).expect_err("refused");
    (refusal.code, refusal.message.into_owned())
}

/// An earlier version compared each new name with all topics. With ten thousand topics, this blocked all decisions for
/// minutes.
#[test]
fn search_for_colliding_names_takes_no_longer_with_more_topics() {
    let names: Vec<String> = (0..10_000).map(|number| format!("a.{number:05}")).collect();
    let topics: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let (image, config) = (image_of(&topics), broker(""));
    // Measure the processor time of this thread, so that other processes on the machine do not affect the result.
    let processor = || clock_gettime(ClockId::ThreadCPUTime);
    let before = processor();
    for number in 0..20_000 {
        super::create(&image, &config, &wanted(&format!("b.{number:05}")), Uuid::ZERO).expect("it collides with none");
    }
    let took = processor() - before;
    assert!(took.tv_sec < 10, "{took:?}");
    let refusal = super::create(&image, &config, &wanted("a_09999"), Uuid::ZERO).expect_err("it collides");
    assert!(refusal.message.ends_with("existing topic: a.09999"), "{refusal}");
}

#[test]
fn defaults_come_from_the_broker() {
    let topic = create(&one_broker(1), &broker("num.partitions=7"), &wanted("t"), Uuid::ZERO).expect("valid");
    assert_eq!((topic.partition_count(), topic.replication_factor()), (7, 1));
}

#[test]
fn existing_or_colliding_name_is_refused() {
    let image = image_of(&[("a.b", 1), ("plain", 1)]);
    assert_eq!(refused(&image, &wanted("plain")).0, ErrorCode::TOPIC_ALREADY_EXISTS);
    let (code, message) = refused(&image, &wanted("a_b"));
    assert_eq!(
        (code, &*message),
        (ErrorCode::INVALID_TOPIC_EXCEPTION, "Topic 'a_b' collides with existing topic: a.b")
    );
    create(&image, &broker(""), &wanted("a-b"), Uuid::ZERO).expect("'-' does not collide");
}

#[test]
fn partitions_and_replication_factor() {
    let image = one_broker(1);
    let with = |num_partitions, replication_factor| {
        refused(&image, &CreateTopic { num_partitions, replication_factor, ..wanted("t") }).0
    };
    for partitions in [0, -2, i32::MIN, PARTITIONS_PER_TOPIC_MAX + 1, i32::MAX] {
        assert_eq!(with(partitions, -1), ErrorCode::INVALID_PARTITIONS, "{partitions}");
    }
    for factor in [0, -2, 2, 3, i16::MAX] {
        assert_eq!(with(1, factor), ErrorCode::INVALID_REPLICATION_FACTOR, "{factor}");
    }
}

#[test]
fn partitions_past_the_brokers_limit_are_refused() {
    let image = image_of(&[("a", 100_000), ("b", 99_999)]);
    assert_eq!(refused(&image, &CreateTopic { num_partitions: 2, ..wanted("c") }).0, ErrorCode::POLICY_VIOLATION);
    create(&image, &broker(""), &wanted("c"), Uuid::ZERO).expect("exactly the limit");
}

#[test]
fn manual_assignments() {
    let image = one_broker(4);
    let assigned = |assignments: &[(i32, &[i32])]| CreateTopic {
        assignments: assignments.iter().map(|(partition, replicas)| (*partition, replicas.to_vec())).collect(),
        ..wanted("t")
    };
    let topic = create(&image, &broker("node.id=4"), &assigned(&[(1, &[4]), (0, &[4])]), Uuid::ZERO).expect("valid");
    assert_eq!((topic.partition_count(), topic.replication_factor()), (2, 1));
    for wrong in
        [&[(0, &[2][..])][..], &[(0, &[1, 1])], &[(0, &[])], &[(1, &[1])], &[(0, &[1]), (0, &[1])], &[(-1, &[1])]]
    {
        assert_eq!(refused(&image, &assigned(wrong)).0, ErrorCode::INVALID_REPLICA_ASSIGNMENT, "{wrong:?}");
    }
    let both = CreateTopic { num_partitions: 1, ..assigned(&[(0, &[1])]) };
    assert_eq!(refused(&image, &both).0, ErrorCode::INVALID_REQUEST);
    let both = CreateTopic { replication_factor: 1, ..assigned(&[(0, &[1])]) };
    assert_eq!(refused(&image, &both).0, ErrorCode::INVALID_REQUEST);
}

#[test]
fn configs() {
    let image = one_broker(1);
    let with = |name: &str, value: Option<&str>| CreateTopic {
        configs: vec![(name.to_owned(), value.map(str::to_owned))],
        ..wanted("t")
    };
    let topic = create(&image, &broker(""), &with("retention.ms", Some("5")), Uuid::ZERO).expect("valid");
    assert_eq!((topic.config.retention_ms, topic.overrides.len()), (Some(5), 1));
    for (name, value) in [
        ("retention.ms", Some("x")),
        ("no.such", Some("1")),
        ("retention.ms", None),
        ("cleanup.policy", Some("compress")),
    ] {
        let (code, message) = refused(&image, &with(name, value));
        assert_eq!(code, ErrorCode::INVALID_CONFIG);
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn deletion_of_an_unknown_topic_is_refused() {
    let image = image_of(&[("a", 1)]);
    let code = |target: TopicRef, text: &str| delete(&image, &broker(text), &target).map_err(|refusal| refusal.code);
    let id = image.topic("a").expect("there").id;
    assert!(code(TopicRef::Name("a".into()), "").is_ok() && code(TopicRef::Id(id), "").is_ok());
    assert_eq!(code(TopicRef::Name("b".into()), ""), Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert_eq!(code(TopicRef::Id(Uuid::ZERO), ""), Err(ErrorCode::UNKNOWN_TOPIC_ID));
    assert_eq!(code(TopicRef::Id(id), "delete.topic.enable=false"), Err(ErrorCode::TOPIC_DELETION_DISABLED));
}

#[test]
fn changes_of_configuration() {
    let image = image_of(&[("a", 1)]);
    let change = |changes: &[(&str, ConfigChange)]| {
        let changes = changes.iter().map(|(name, change)| ((*name).to_owned(), change.clone())).collect();
        alter(&image, &broker(""), &AlterTopicConfig { name: "a".into(), changes })
    };
    let set = ConfigChange::Set("7".into());
    let topic = change(&[("retention.ms", set.clone())]).expect("valid");
    assert_eq!(topic.config.retention_ms, Some(7));
    let topic = change(&[("retention.ms", set.clone()), ("retention.ms", ConfigChange::Delete)]).expect("valid");
    assert!(topic.overrides.is_empty());
    let topic = change(&[("cleanup.policy", ConfigChange::Append("delete".into()))]).expect("already in the list");
    assert_eq!(topic.overrides["cleanup.policy"], "delete");
    let topic = change(&[("cleanup.policy", ConfigChange::Append("compact".into()))]).expect("both");
    assert_eq!(topic.overrides["cleanup.policy"], "delete,compact");
    let topic = change(&[("cleanup.policy", ConfigChange::Subtract("delete".into()))]).expect("neither");
    assert!(!topic.config.cleanup.delete && !topic.config.cleanup.compact);
    for refused in [
        ("retention.ms", ConfigChange::Append("1".into())),
        ("cleanup.policy", ConfigChange::Append("compress".into())),
        ("segment.bytes", set),
    ] {
        assert_eq!(
            change(std::slice::from_ref(&refused)).expect_err("refused").code,
            ErrorCode::INVALID_CONFIG,
            "{refused:?}"
        );
    }
    let unknown = alter(&image, &broker(""), &AlterTopicConfig { name: "b".into(), changes: vec![] });
    assert_eq!(unknown.expect_err("unknown").code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}

proptest! {
    #[test]
    fn names_of_legal_characters_are_legal(name in "[a-zA-Z0-9._-]{1,249}") {
        let dots = name == "." || name == "..";
        prop_assert_eq!(check_name(&name).is_ok(), !dots);
    }

    #[test]
    fn one_other_character_makes_a_name_illegal(before in "[a-z.]{0,9}", other in "[^a-zA-Z0-9._-]", after in "[a-z.]{0,9}") {
        let refusal = check_name(&format!("{before}{other}{after}")).expect_err("illegal");
        prop_assert_eq!(refusal.code, ErrorCode::INVALID_TOPIC_EXCEPTION);
    }

    #[test]
    fn too_long_names_are_illegal(length in 250usize..2000) {
        prop_assert!(check_name(&"a".repeat(length)).is_err());
    }

    #[test]
    fn legal_names_are_safe_as_directory_names(name in ".{0,260}") {
        if check_name(&name).is_ok() {
            prop_assert!(!name.contains(['/', '\\', '\0']) && name != "." && name != ".." && !name.is_empty());
            prop_assert!(name.len() <= TOPIC_NAME_CHARS_MAX);
        }
    }

    #[test]
    fn names_collide_exactly_when_their_metrics_would(one in "[ab][ab._]{0,3}", other in "[ab][ab._]{0,3}") {
        let mut image = image_of(&[(&one, 1)]);
        let is_refused = super::create(&image, &broker(""), &wanted(&other), Uuid::ZERO).is_err();
        prop_assert_eq!(is_refused, one.replace('.', "_") == other.replace('.', "_"));
        let topic = image.topic(&one).expect("there").clone();
        let gone = DeletedTopic { id: topic.id, name: one, partitions: 1 };
        image.apply(&broker(""), &Change::TopicDeleted(gone)).expect("applied");
        prop_assert!(super::create(&image, &broker(""), &wanted(&other), Uuid::ZERO).is_ok());
    }
}

/// Creates three brokers and a topic. The topic's only partition has replicas on all three, and the first broker leads.
fn cluster() -> Image {
    let mut image = Image::empty(&broker("")).expect("valid");
    for id in 1..=3 {
        join(&mut image, id, 10 + u128::from(id.unsigned_abs()), PreviousShutdown::Killed).expect("joined");
    }
    let assignments = vec![(0, vec![1, 2, 3])];
    let configs = vec![("min.insync.replicas".to_owned(), Some("2".to_owned()))];
    let wanted = CreateTopic { assignments, configs, ..wanted("t") };
    let topic = super::create(&image, &broker(""), &wanted, Uuid([1; 16])).expect("created");
    image.apply(&broker(""), &topic).expect("applied");
    image
}

fn apply(image: &mut Image, changes: Vec<Change>) {
    for change in changes {
        image.apply(&broker(""), &change).expect("applicable");
    }
    let version = Version { number: image.epoch() + 1, nonce: 0 };
    *image = image.clone().at(version);
}

fn join(image: &mut Image, id: i32, process: u128, ended: PreviousShutdown) -> Result<(), Refusal> {
    let joining =
        Joining { directory: id.unsigned_abs().into(), process, ended, marks: DirectoryMarks::default(), reported: 0 };
    let wanted = registration(id, joining);
    done(image, &ChangeCommand::RegisterBroker(wanted))
}

fn registration(id: i32, joining: Joining) -> RegisterBroker {
    let (serves_diskless, accepts_lost_directory, endpoints) = (true, false, BTreeMap::new());
    RegisterBroker { id, joining, rack: None, serves_diskless, accepts_lost_directory, endpoints }
}

/// Carries out a command that fits into one piece.
fn done(image: &mut Image, command: &ChangeCommand) -> Result<(), Refusal> {
    changed(image, command, usize::MAX).expect("in one piece")
}

/// Carries out a command with a budget of `room` registrations. Returns `None` if the command has pieces left.
fn changed(image: &mut Image, command: &ChangeCommand, room: usize) -> Option<Result<(), Refusal>> {
    carried_out(image, room, |draft| draft.change(command))
}

/// Runs `decide` with a budget of `room` registrations, commits the changes, and returns the outcome.
fn carried_out<T>(image: &mut Image, room: usize, decide: impl FnOnce(&mut Draft<'_>) -> T) -> T {
    let (config, mut no_ids) = (broker(""), || Uuid::ZERO);
    let mut draft = Draft::new(&config, image, 0..0, ChangeBudget::new(room), &mut no_ids);
    let outcome = decide(&mut draft);
    let drafted = draft.finish();
    if !drafted.changes.is_empty() {
        let version = Version { number: image.epoch() + 1, nonce: 0 };
        *image = drafted.image.at(version);
    }
    outcome
}

fn change_command(image: &Image, id: i32, change: BrokerChange, urgent: &[(Uuid, i32)]) -> ChangeCommand {
    let broker_epoch = image.node(id).expect("registered").registration.epoch;
    let broker = BrokerState { broker_id: id, broker_epoch };
    ChangeCommand::ChangeBroker(ChangeBroker { broker, change, urgent: urgent.into() })
}

fn change(image: &mut Image, id: i32, change: BrokerChange) {
    let command = change_command(image, id, change, &[]);
    done(image, &command).expect("carried out");
}

/// Returns the partition's leader, leader epoch, ISR, ELR and `lost` (replicas whose logs may lack records).
fn state(image: &Image) -> (Option<i32>, i32, Vec<i32>, Vec<i32>, Vec<i32>) {
    let of = image.topic("t").expect("there").partition(0).expect("there");
    (of.leader, of.leader_epoch, of.isr.clone(), of.elr.clone(), of.lost.clone())
}

#[test]
fn fenced_or_stopping_broker_hands_over() {
    let mut image = cluster();
    assert_eq!(state(&image), (Some(1), 0, vec![1, 2, 3], vec![], vec![]));
    change(&mut image, 1, BrokerChange::ShutDown);
    assert_eq!(state(&image), (Some(2), 1, vec![2, 3], vec![], vec![]));
    change(&mut image, 2, BrokerChange::Fence);
    assert_eq!(state(&image), (Some(3), 2, vec![3], vec![2], vec![]), "below the least ISR who leaves has everything");
    change(&mut image, 3, BrokerChange::Fence);
    assert_eq!(state(&image), (None, 3, vec![3], vec![2], vec![]), "the last one stays in the ISR");
}

#[test]
fn broker_that_cannot_write_a_partition_leaves_its_isr_unless_it_is_the_last_member() {
    let mut image = cluster();
    let waits_for_none = (Some(1), 0, vec![1, 2], vec![], vec![]);
    assert_eq!(resign(&mut image, 3, ResignedLog::Unsure), waits_for_none, "no record waits for a follower");
    let last = (Some(2), 2, vec![2], vec![], vec![1]);
    assert_eq!(resign(&mut image, 1, ResignedLog::Unsure), last);
    assert_eq!(resign(&mut image, 2, ResignedLog::Unsure), last, "no other replica has every record");
}

#[test]
fn leader_lacks_committed_records_the_partition_waits_for_the_elr_or_an_unclean_election() {
    let mut image = cluster();
    assert_eq!(resign(&mut image, 3, ResignedLog::Whole).2, [1, 2]);
    assert_eq!(resign(&mut image, 2, ResignedLog::Whole), (Some(1), 0, vec![1], vec![2], vec![]));
    for id in [2, 3] {
        change(&mut image, id, BrokerChange::Fence);
    }
    assert_eq!(resign(&mut image, 1, ResignedLog::Unsure).0, Some(1), "it may have every record");
    assert_eq!(resign(&mut image, 1, ResignedLog::EndMissing), (None, 1, vec![], vec![2], vec![1]));
    let mut back = image.clone();
    change(&mut back, 2, BrokerChange::Unfence);
    assert_eq!(state(&back), (Some(2), 2, vec![2], vec![], vec![1]));
}

/// Makes a broker resign from the partition, and returns the partition's [`state`].
fn resign(image: &mut Image, id: i32, log: ResignedLog) -> (Option<i32>, i32, Vec<i32>, Vec<i32>, Vec<i32>) {
    let topic = image.topic("t").expect("there").id;
    let broker_epoch = image.node(id).expect("there").registration.epoch;
    let broker = BrokerState { broker_id: id, broker_epoch };
    done(image, &ChangeCommand::Resign(broker, [((topic, 0), log)].into())).expect("carried out");
    state(image)
}

#[test]
fn broker_with_a_complete_but_unwritable_log_leaves_into_the_elr() {
    let mut image = cluster();
    assert_eq!(resign(&mut image, 1, ResignedLog::Whole), (Some(2), 1, vec![2, 3], vec![], vec![]));
    let below = (Some(2), 1, vec![2], vec![3], vec![]);
    assert_eq!(resign(&mut image, 3, ResignedLog::Whole), below, "below the least ISR it has everything");
    assert_eq!(resign(&mut image, 2, ResignedLog::Whole), below, "the last one may have records that the ELR lacks");
    let mut broken = image.clone();
    assert_eq!(resign(&mut broken, 3, ResignedLog::Unsure).3, Vec::<i32>::new(), "an fsync has failed since");
    change(&mut image, 2, BrokerChange::Fence);
    assert_eq!(state(&image).0, Some(3), "it leads what only it has whole");
}

#[test]
fn broker_without_the_object_store_stops_serving_unless_it_is_the_last() {
    let mut image = cluster();
    let serve = |image: &Image| [1, 2, 3].map(|id| image.node(id).expect("there").serves_diskless);
    let before = state(&image);
    change(&mut image, 1, BrokerChange::Fence);
    change(&mut image, 2, BrokerChange::StoreLost);
    assert_eq!(serve(&image), [true, false, true]);
    let epoch = image.node(3).expect("there").registration.epoch;
    let last = BrokerState { broker_id: 3, broker_epoch: epoch };
    let refused = members::change_broker(&image, &last, BrokerChange::StoreLost).expect_err("the last");
    assert_eq!(refused.code, ErrorCode::INVALID_REQUEST);
    change(&mut image, 1, BrokerChange::Unfence);
    change(&mut image, 3, BrokerChange::StoreLost);
    assert_eq!(serve(&image), [true, false, false]);
    change(&mut image, 2, BrokerChange::StoreBack);
    assert_eq!(serve(&image), [true, true, false]);
    assert_ne!(before.0, None);
    join(&mut image, 3, 33, PreviousShutdown::Killed).expect("joined");
    assert_eq!(serve(&image), [true; 3], "the new process has reported nothing");
}

#[test]
fn broker_with_a_full_disk_hands_over_and_leaves_isrs_in_one_command() {
    let mut image = cluster();
    change(&mut image, 1, BrokerChange::Full);
    assert_eq!(state(&image), (Some(2), 1, vec![2, 3], vec![], vec![]));
    change(&mut image, 3, BrokerChange::Full);
    assert_eq!(state(&image), (Some(2), 1, vec![2], vec![3], vec![]), "below the least ISR it has everything");
    change(&mut image, 2, BrokerChange::Full);
    let last = (Some(2), 1, vec![2], vec![3], vec![]);
    assert_eq!(state(&image), last, "the last one stays, and leads");
    change(&mut image, 1, BrokerChange::Room);
    assert_eq!(state(&image), last, "it is not in sync");
    join(&mut image, 2, 22, PreviousShutdown::Killed).expect("joined");
    assert!(!image.node(2).expect("there").registration.is_full, "the new process has reported nothing");
}

#[test]
fn broker_restarted_without_loss_keeps_its_epoch_only_if_no_other_may_lead() {
    let mut image = cluster();
    join(&mut image, 1, 21, PreviousShutdown::Killed).expect("joined");
    assert_eq!(state(&image), (Some(2), 1, vec![2, 3], vec![], vec![]));
    change(&mut image, 3, BrokerChange::Fence);
    change(&mut image, 2, BrokerChange::Fence);
    let before = state(&image);
    assert_eq!(before, (None, 2, vec![2], vec![3], vec![]), "the last one stays in the ISR");
    join(&mut image, 2, 22, PreviousShutdown::Clean).expect("joined");
    assert_eq!(state(&image).0, Some(2));
    let epoch = state(&image).1;
    join(&mut image, 2, 23, PreviousShutdown::Killed).expect("joined");
    assert_eq!((state(&image).0, state(&image).1), (Some(2), epoch), "nobody else may lead");
}

#[test]
fn broker_with_truncated_logs_leads_only_if_no_other_has_the_records() {
    let mut image = cluster();
    join(&mut image, 1, 21, PreviousShutdown::Lost).expect("joined");
    assert_eq!(state(&image), (Some(2), 2, vec![2, 3], vec![], vec![]));
    let mut alone = cluster();
    for id in [2, 3] {
        change(&mut alone, id, BrokerChange::Fence);
    }
    let before = state(&alone);
    assert_eq!(before, (Some(1), 0, vec![1], vec![3], vec![]));
    join(&mut alone, 1, 21, PreviousShutdown::Lost).expect("joined");
    assert_eq!(state(&alone), (None, 1, vec![], vec![3], vec![1]));
    change(&mut alone, 3, BrokerChange::Unfence);
    assert_eq!(state(&alone).0, Some(3));
}

#[test]
fn live_broker_stays_registered_against_another_directory() {
    let mut image = cluster();
    let joining = Joining {
        directory: 99,
        process: 99,
        ended: PreviousShutdown::Clean,
        marks: DirectoryMarks::default(),
        reported: 0,
    };
    let wanted = registration(1, joining);
    let register = ChangeCommand::RegisterBroker(wanted);
    let refusal = done(&mut image, &register).expect_err("refused");
    assert_eq!(refusal.code, ErrorCode::DUPLICATE_BROKER_REGISTRATION);
    change(&mut image, 1, BrokerChange::Fence);
    done(&mut image, &register).expect("registered");
    assert!(state(&image).4.is_empty(), "who had left the ISR has nothing to lose");
    let version = image.epoch();
    done(&mut image, &register).expect("the answer to the first was lost");
    assert_eq!(image.epoch(), version);
}

#[test]
fn new_directory_of_the_only_complete_replica_is_refused_unless_the_loss_is_accepted() {
    let mut image = cluster();
    for id in [3, 2] {
        resign(&mut image, id, ResignedLog::Unsure);
    }
    change(&mut image, 1, BrokerChange::Fence);
    assert_eq!(state(&image).2, [1]);
    let (ended, marks) = (PreviousShutdown::Clean, DirectoryMarks::default());
    let joining = Joining { directory: 99, process: 99, ended, marks, reported: 0 };
    let before = state(&image);
    let register = ChangeCommand::RegisterBroker(registration(1, joining));
    let refusal = done(&mut image, &register).expect_err("a volume may not be mounted");
    assert_eq!(refusal.code, ErrorCode::INVALID_REGISTRATION);
    assert!(refusal.message.contains("of 1 partitions, for example t-0"), "{}", refusal.message);
    assert_eq!(state(&image), before);
    let accepting = RegisterBroker { accepts_lost_directory: true, ..registration(1, joining) };
    done(&mut image, &ChangeCommand::RegisterBroker(accepting)).expect("registered");
    assert!(!state(&image).2.contains(&1));
}

#[test]
fn isr_changes_and_elections_are_decided_by_partition() {
    let mut image = cluster();
    let topic = image.topic("t").expect("there").id;
    let member = |image: &Image, id| BrokerState {
        broker_id: id,
        broker_epoch: image.node(id).expect("registered").registration.epoch,
    };
    let shrink = |image: &Image, partition_epoch| AlterIsr {
        from: member(image, 1),
        partitions: vec![(
            topic,
            0,
            AlterPartition { leader_epoch: 0, partition_epoch, new_isr: vec![member(image, 1), member(image, 2)] },
        )],
    };
    let (changes, outcomes) = alter_isrs(&image, &shrink(&image, 0));
    assert_eq!(outcomes[0].as_ref().expect("done").isr, [1, 2]);
    apply(&mut image, changes);
    let (changes, outcomes) = alter_isrs(&image, &shrink(&image, 0));
    assert_eq!(outcomes[0].as_ref().expect_err("refused").code, ErrorCode::INVALID_UPDATE_VERSION);
    assert!(changes.is_empty());
    let requested = |name: &str, index, kind| ElectLeaders::new(kind, [(name, index)]);
    let code =
        |image: &Image, requested: &ElectLeaders| elect(image, requested).1.remove(0).map_err(|refusal| refusal.code);
    assert_eq!(code(&image, &requested("t", 0, ElectionKind::Preferred)), Err(ErrorCode::ELECTION_NOT_NEEDED));
    assert_eq!(code(&image, &requested("t", 1, ElectionKind::Preferred)), Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert_eq!(code(&image, &requested("u", 0, ElectionKind::Unclean)), Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    change(&mut image, 1, BrokerChange::ShutDown);
    let refused = code(&image, &requested("t", 0, ElectionKind::Preferred));
    assert_eq!(refused, Err(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE));
    for id in [2, 1] {
        change(&mut image, id, BrokerChange::Fence);
    }
    assert_eq!(state(&image).0, None);
    let elected = code(&image, &requested("t", 0, ElectionKind::Unclean)).expect("elected");
    assert_eq!((elected.leader, elected.isr.as_slice()), (Some(3), &[3][..]));
}

#[test]
fn new_partitions_are_spread_over_live_brokers() {
    let mut image = cluster();
    let spread = |image: &Image, factor: i16| {
        let wanted = CreateTopic { num_partitions: 60, replication_factor: factor, ..wanted("s") };
        match super::create(image, &broker(""), &wanted, Uuid([3; 16])).expect("created") {
            Change::TopicCreated { partitions, .. } => partitions,
            other => panic!("{other:?}"),
        }
    };
    let partitions = spread(&image, 2);
    for leader in 1..=3 {
        assert_eq!(partitions.iter().filter(|of| of.leader == Some(leader)).count(), 20);
        for follower in (1..=3).filter(|id| *id != leader) {
            assert_eq!(partitions.iter().filter(|of| of.replicas == [leader, follower]).count(), 10);
        }
    }
    change(&mut image, 2, BrokerChange::Fence);
    let is_whole = |of: &Arc<PartitionRegistration>| of.isr == of.replicas && !of.replicas.contains(&2);
    assert!(spread(&image, 2).iter().all(is_whole), "enough others are there");
    for of in &spread(&image, 3) {
        assert_eq!((of.replicas[2], of.isr.len(), of.leader), (2, 2, Some(of.replicas[0])));
    }
    let assigned = CreateTopic { assignments: vec![(0, vec![2])], ..wanted("a") };
    assert_eq!(refused(&image, &assigned).0, ErrorCode::INVALID_REPLICA_ASSIGNMENT);
    change(&mut image, 1, BrokerChange::Fence);
    change(&mut image, 3, BrokerChange::Fence);
    let (code, message) = refused(&image, &wanted("f"));
    assert_eq!((code, &*message), (ErrorCode::INVALID_REPLICATION_FACTOR, "All brokers are currently fenced."));
}

/// All machines lose power. All brokers report their log ends, and the replica in `lost` with the longest log becomes
/// leader. Broker 1 is not in `lost`, because the other two could commit records without it.
#[test]
fn longest_log_of_the_lost_replicas_leads() {
    let mut image = cluster();
    for id in 1..=3 {
        join(&mut image, id, 30 + u128::from(id.unsigned_abs()), PreviousShutdown::Lost).expect("joined");
    }
    assert_eq!(state(&image), (None, 5, vec![], vec![], vec![2, 3]), "the first was missed by nobody");
    let topic = image.topic("t").expect("there").id;
    for (id, offset) in [(1, 11), (2, 7), (3, 9)] {
        assert_eq!(state(&image).0, None);
        let broker_epoch = image.node(id).expect("registered").registration.epoch;
        let reported = [
            (topic, 0, Position { offset, last_epoch: Some(0) }),
            (Uuid([9; 16]), 0, Position { offset, last_epoch: None }),
        ];
        let broker = BrokerState { broker_id: id, broker_epoch };
        let stale = BrokerState { broker_epoch: broker_epoch - 1, ..broker };
        assert_eq!(
            report_log_ends(&image, &stale, &reported).expect_err("refused").code,
            ErrorCode::STALE_BROKER_EPOCH
        );
        let changes = report_log_ends(&image, &broker, &reported).expect("taken");
        apply(&mut image, changes);
    }
    assert_eq!(state(&image), (Some(3), 6, vec![3], vec![], vec![]));
    assert!(!image.has_log_ends());
}
