//! Tests that a failover, stop or start in pieces has the same result as in one piece, no matter what other changes
//! happen between the pieces.

use super::*;

/// Creates three brokers, and topics with three, two and one replicas. The brokers lead in turn.
fn many() -> Image {
    let mut image = cluster();
    let three = vec![vec![1, 2, 3], vec![2, 3, 1], vec![3, 1, 2]];
    let two = vec![vec![1, 2], vec![2, 1], vec![3, 1], vec![2, 3]];
    for (id, name, replicas) in [(2, "a", three), (3, "b", two), (4, "c", vec![vec![1], vec![2]])] {
        let assignments = (0..).zip(replicas.iter().cycle().take(20).cloned()).collect();
        let topic =
            super::super::create(&image, &broker(""), &CreateTopic { assignments, ..wanted(name) }, Uuid([id; 16]));
        image.apply(&broker(""), &topic.expect("created")).expect("applied");
    }
    image
}

/// Returns the registrations of all partitions, in the order of topics and numbers.
fn partitions(image: &Image) -> Vec<PartitionRegistration> {
    let of_topics = image.topics().flat_map(|topic| &topic.partitions);
    of_topics.map(|registered| PartitionRegistration::clone(registered)).collect()
}

/// Carries out a command to its end, and returns the number of pieces.
fn finish(image: &mut Image, command: &ChangeCommand, room: usize) -> usize {
    for pieces in 1.. {
        if let Some(done) = changed(image, command, room) {
            done.expect("carried out");
            return pieces;
        }
    }
    unreachable!("it ends")
}

fn settle() -> ChangeCommand {
    ChangeCommand::Settle([].into())
}

fn register(id: i32, process: u128, ended: PreviousShutdown) -> ChangeCommand {
    let joining =
        Joining { directory: id.unsigned_abs().into(), process, ended, marks: DirectoryMarks::default(), reported: 0 };
    let endpoints = BTreeMap::new();
    ChangeCommand::RegisterBroker(RegisterBroker {
        id,
        joining,
        rack: None,
        serves_diskless: true,
        accepts_lost_directory: false,
        endpoints,
    })
}

#[test]
fn broker_fenced_in_pieces_leaves_the_same_partitions_as_fenced_at_once() {
    for state in [BrokerChange::Fence, BrokerChange::ShutDown] {
        let (mut at_once, mut in_pieces) = (many(), many());
        change(&mut at_once, 1, state);
        let command = change_command(&in_pieces, 1, state, &[]);
        assert_eq!(changed(&mut in_pieces, &command, 2), Some(Ok(())));
        assert!(unsettled(&in_pieces) > 2, "its row and the first piece");
        assert!(finish(&mut in_pieces, &settle(), 2) > 3);
        assert_eq!(partitions(&in_pieces), partitions(&at_once));
        assert_eq!((unsettled(&in_pieces), unsettled(&at_once)), (0, 0));
        let version = in_pieces.epoch();
        assert_eq!(finish(&mut in_pieces, &settle(), 2), 1);
        assert_eq!(in_pieces.epoch(), version, "settled partitions change nothing");
    }
}

#[test]
fn broker_fenced_in_pieces_hands_over_urgent_partitions_first() {
    let mut image = many();
    let of = |name: &str, number| (image.topic(name).expect("there").id, number);
    let urgent = [of("b", 9), (Uuid([99; 16]), 0), of("a", 99), of("b", 8), of("b", 4)];
    let is_settled = |image: &Image, number: usize| {
        let of = &image.topic("b").expect("there").partitions[number];
        of.isr.len() == 1 && of.leader == Some(2)
    };
    let command = change_command(&image, 1, BrokerChange::Fence, &urgent);
    assert_eq!(changed(&mut image, &command, 2), Some(Ok(())));
    assert_eq!([9, 8, 4].map(|number| is_settled(&image, number)), [true, true, false]);
    let rest = ChangeCommand::Settle(urgent.into());
    assert_eq!(changed(&mut image, &rest, 2), None);
    assert!(is_settled(&image, 4) && unsettled(&image) > 0);
}

#[test]
fn process_registered_in_pieces_leaves_the_same_partitions_as_at_once() {
    for ended in [PreviousShutdown::Killed, PreviousShutdown::Lost] {
        let (mut at_once, mut in_pieces) = (many(), many());
        done(&mut at_once, &register(1, 21, ended)).expect("registered");
        let pieces = finish(&mut in_pieces, &register(1, 21, ended), 3);
        assert!(pieces > 3, "{pieces}");
        finish(&mut in_pieces, &settle(), 3);
        assert_eq!(partitions(&in_pieces), partitions(&at_once), "{ended:?}");
        assert!(!in_pieces.node(1).expect("there").registration.is_fenced);
    }
}

/// The former process is still alive, because the new process was started with a copy of its data directory.
#[test]
fn former_process_joins_an_isr_between_pieces_the_new_process_is_not_in_it() {
    let mut image = many();
    let command = register(1, 21, PreviousShutdown::Lost);
    assert_eq!(changed(&mut image, &command, 3), None);
    assert!(image.node(1).expect("there").registration.is_fenced, "no leader takes it into an ISR");
    let topic = image.topic("a").expect("there").clone();
    let (at, of) =
        (0..).zip(&topic.partitions).find(|(_, of)| of.leader == Some(2) && !of.isr.contains(&1)).expect("one");
    let member = |image: &Image, id: i32| BrokerState { broker_id: id, broker_epoch: image.registrations()[&id].epoch };
    let join = |image: &Image| {
        let new_isr = of.isr.iter().chain([&1]).map(|id| member(image, *id)).collect();
        let requested = AlterPartition { leader_epoch: of.leader_epoch, partition_epoch: of.partition_epoch, new_isr };
        PartitionsCommand::AlterIsr(AlterIsr { from: member(image, 2), partitions: vec![(topic.id, at, requested)] })
    };
    let command_of_leader = join(&image);
    let outcomes = carried_out(&mut image.clone(), 3, |draft| draft.partitions(&command_of_leader));
    assert!(outcomes[0].is_err(), "it is fenced");
    change(&mut image, 1, BrokerChange::Unfence);
    let command_of_leader = join(&image);
    let outcomes = carried_out(&mut image, 3, |draft| draft.partitions(&command_of_leader));
    assert!(outcomes[0].is_ok(), "it lives");
    finish(&mut image, &command, 3);
    finish(&mut image, &settle(), 3);
    for of in partitions(&image).iter().filter(|of| of.isr.contains(&1)) {
        assert_eq!((&of.isr[..], of.leader), (&[1][..], Some(1)), "it leads what nobody else has");
    }
    assert_eq!(image.node(1).expect("there").process, Uuid(21_u128.to_be_bytes()));
}

#[test]
fn two_settling_commands_of_one_transaction_share_its_budget() {
    let mut image = many();
    let command = change_command(&image, 1, BrokerChange::Fence, &[]);
    changed(&mut image, &command, 1);
    let left = unsettled(&image);
    let (config, mut no_ids) = (broker(""), || Uuid::ZERO);
    let mut draft = Draft::new(&config, &image, 0..0, ChangeBudget::new(2), &mut no_ids);
    for _ in 0..2 {
        assert_eq!(draft.change(&settle()), None);
    }
    let drafted = draft.finish();
    assert!(drafted.is_full);
    assert_eq!(unsettled(&drafted.image), left - 2);
}
