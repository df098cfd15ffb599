//! Tests with many partitions on a real PostgreSQL server. A failover, a stop and a start are each too large for one
//! transaction.

use std::time::Duration;

use fullbore_rules::replica::{AlterPartition, BrokerState, NO_BROKER_EPOCH};
use fullbore_tests::wait_until;

use super::super::decide::unsettled;
use super::postgres::store_of;
use super::seam::afresh;
use super::*;
use fullbore_tests::postgres::Database;

/// Maximum wait of a test before it fails.
const HANGS: Duration = Duration::from_secs(120);
/// Number of partitions of the test's topic. This is more than the first transaction of a failover may change.
const PARTITIONS: i32 = 3_000;

/// Starts the brokers 1 to 3.
fn brokers(database: &Database, more: &str) -> Vec<(tempfile::TempDir, Opened)> {
    let start = |id| {
        let directory = tempfile::tempdir().expect("tempdir");
        let opened = start_in(directory.path(), &database.url(), id, more).expect("opens");
        (directory, opened)
    };
    (1..=3).map(start).collect()
}

/// Creates the topic over a separate connection, which has a longer time limit than the brokers' connections.
fn create_many(database: &Database, control: &Control) {
    let many = CreateTopic { num_partitions: PARTITIONS, replication_factor: 3, ..wanted("t") };
    let (mut owner, _images) = MetadataWriter::new(store_of(database), broker(""), Box::new(random_id)).expect("valid");
    let create = TopicsCommand::Create(CreateTopics { topics: vec![many], validate_only: false });
    owner.transact(|draft| draft.topics(&create)).expect("created");
    wait_until("a broker knows the topic", HANGS, || {
        control.catch_up();
        control.settle();
        control.image().topic("t").is_some()
    });
}

/// Waits for a future. Each call creates a runtime, because calls to the control plane block their thread.
fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Makes the database spend the time `row` on each changed row of the partitions table.
fn slow_down(database: &Database, row: Duration) {
    let seconds = row.as_secs_f64();
    database.run(&format!(
        "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END';
         CREATE TRIGGER slow AFTER INSERT OR UPDATE ON fullbore.partitions FOR EACH ROW EXECUTE FUNCTION slow()"
    ));
}

fn is_gone(id: i32) -> impl Fn(&Image) -> bool {
    move |image| {
        let topic = image.topic("t").expect("there");
        topic.partitions.iter().all(|of| of.leader.is_some_and(|leader| leader != id) && !of.isr.contains(&id))
    }
}

/// Checks that the database and the broker's image contain the same registrations.
fn assert_same(database: &Database, control: &Control) {
    control.settle();
    let reported = |image: &str| image.split("by_id").nth(1).expect("topics").to_owned();
    assert_eq!(reported(&afresh(store_of(database))), reported(&format!("{:?}", control.image())));
}

fn hand_over(control: &Control) {
    let began = Instant::now();
    while block_on(control.change_broker(control.broker_state(), BrokerChange::ShutDown, [].into())).is_err() {
        assert!(began.elapsed() < HANGS, "not handed over");
    }
    while block_on(control.settle_partitions([].into())).is_err() {
        assert!(began.elapsed() < HANGS, "not handed over");
    }
}

/// Adds a broker to the ISRs of all partitions that the owner of `control` leads.
fn let_join(control: &Control, id: i32) {
    control.catch_up();
    control.settle();
    let image = control.image();
    let topic = image.topic("t").expect("there");
    let led = (0..).zip(&topic.partitions).filter(|(_, of)| of.leader == Some(control.broker_state().broker_id));
    let joined = led.map(|(index, of)| {
        let isr = of.isr.iter().copied().chain([id]);
        let new_isr = isr.map(|broker_id| BrokerState { broker_id, broker_epoch: NO_BROKER_EPOCH }).collect();
        let change = AlterPartition { leader_epoch: of.leader_epoch, partition_epoch: of.partition_epoch, new_isr };
        (topic.id, index, change)
    });
    let outcomes = block_on(control.alter_isr(joined.collect()));
    assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
}

/// The failover of all partitions would take six seconds in one transaction, but the time limit is three seconds.
#[test]
fn broker_dies_with_a_slow_database_every_partition_fails_over() {
    let database = Database::create();
    let mut brokers = brokers(&database, "control.plane.timeout.ms=3000");
    create_many(&database, &brokers[0].1.control);
    slow_down(&database, Duration::from_millis(2));
    let whom = brokers[2].1.control.broker_state();
    drop(brokers.pop());
    let control = brokers[0].1.control.clone();
    let began = Instant::now();
    while block_on(control.change_broker(whom, BrokerChange::Fence, [].into())).is_err() {
        assert!(began.elapsed() < HANGS, "not fenced");
    }
    while block_on(control.settle_partitions([].into())).is_err() {
        assert!(began.elapsed() < HANGS, "not settled");
    }
    assert!(is_gone(3)(&control.image()), "nothing is left to it");
    assert_eq!(unsettled(&control.image()), 0);
    assert_same(&database, &control);
}

#[test]
fn broker_restarts_with_a_slow_database_it_hands_over_and_comes_back() {
    let database = Database::create();
    let mut brokers = brokers(&database, "control.plane.timeout.ms=3000");
    create_many(&database, &brokers[0].1.control);
    slow_down(&database, Duration::from_millis(2));
    let (directory, stopping) = brokers.pop().expect("the third");
    hand_over(&stopping.control);
    assert!(is_gone(3)(&stopping.control.image()));
    drop(stopping);
    // The second broker is killed and started again. Its new process fences the old process.
    let (killed, opened) = brokers.pop().expect("the second");
    let epoch = opened.control.broker_epoch();
    drop(opened);
    let third = start_in(directory.path(), &database.url(), 3, "").expect("opens");
    let second = start_in(killed.path(), &database.url(), 2, "").expect("opens");
    assert!(second.control.broker_epoch() > epoch);
    let image = second.control.image();
    assert!(is_gone(2)(&image) && is_gone(3)(&image) && unsettled(&image) == 0);
    assert_same(&database, &second.control);
    drop(third);
}

/// A third of the partitions need an election, which takes 15 seconds in this database. The time limit of a transaction
/// is four seconds. If the first transaction included 1,000 partitions, it would take five seconds.
#[test]
fn elections_of_all_partitions_with_a_slow_database_are_held_in_several_transactions() {
    let limit = "control.plane.timeout.ms=4000";
    let database = Database::create();
    let mut brokers = brokers(&database, limit);
    create_many(&database, &brokers[0].1.control);
    let (directory, stopping) = brokers.pop().expect("the third");
    hand_over(&stopping.control);
    drop(stopping);
    let third = start_in(directory.path(), &database.url(), 3, limit).expect("opens");
    brokers.iter().for_each(|(_, opened)| let_join(&opened.control, 3));
    slow_down(&database, Duration::from_millis(15));
    let all = ElectLeaders::new(ElectionKind::Preferred, (0..PARTITIONS).map(|index| ("t", index)));
    let outcomes = block_on(third.control.elect_leaders(all));
    let refusals = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    let refused: Vec<_> = refusals.filter(|refusal| refusal.code != ErrorCode::ELECTION_NOT_NEEDED).collect();
    assert_eq!((outcomes.len(), refused.first()), (PARTITIONS as usize, None));
    let image = third.control.image();
    let partitions = &image.topic("t").expect("there").partitions;
    assert!(partitions.iter().all(|of| of.leader == of.replicas.first().copied()), "each has its preferred leader");
    assert_same(&database, &third.control);
}

/// A command arrives during a failover. It must be committed with the next piece, and must not wait until all
/// partitions have failed over.
#[test]
fn change_requested_during_a_failover_is_committed_between_two_pieces() {
    let database = Database::create();
    let (mut owner, images) = registered(store_of(&database), Box::new(random_id));
    for id in 2..=3 {
        owner.transact(|draft| draft.change(&register_in(id, 10 + u128::from(id.unsigned_abs())))).expect("registered");
    }
    let many = CreateTopic { num_partitions: PARTITIONS, replication_factor: 3, ..wanted("t") };
    owner
        .transact(|draft| {
            draft.topics(&TopicsCommand::Create(CreateTopics { topics: vec![many], validate_only: false }))
        })
        .expect("done");
    let broker = BrokerState { broker_id: 3, broker_epoch: images.borrow().registrations()[&3].epoch };
    let fence = ChangeBroker { broker, change: BrokerChange::Fence, urgent: [].into() };
    let (fence, mut fenced) = queued(ChangeCommand::ChangeBroker(fence));
    owner.serve(vec![fence]);
    assert_eq!(fenced.try_recv(), Ok(Ok(())), "with its first piece");
    let left = unsettled(&images.borrow());
    assert!(images.borrow().registrations()[&3].is_fenced && left > 0 && owner.is_unfinished());
    let (create, mut answer) = queued(create_command("u"));
    owner.serve(vec![create]);
    assert!(answer.try_recv().expect("answered")[0].is_ok());
    assert!(unsettled(&images.borrow()) < left);
    while owner.is_unfinished() {
        owner.serve(Vec::new());
    }
    assert_eq!(unsettled(&images.borrow()), 0);
    assert!(is_gone(3)(&images.borrow()));
    assert_eq!(afresh(store_of(&database)), format!("{:?}", images.borrow()));
}

/// Creates the command that registers `process` as the broker `id`. The id of the directory equals the broker's id, so
/// that each broker has its own directory.
fn register_in(id: i32, process: u128) -> ChangeCommand {
    super::register_with(id, id.unsigned_abs().into(), process)
}
