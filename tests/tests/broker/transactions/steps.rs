//! The broker is killed at each step of a transaction (`FULLBORE_FAULT_POINT`). No number may be lost or duplicated,
//! and no transaction may stay open.
//!
//! A client copies numbers together with its group's offsets. If it gets no response, it repeats the request in some
//! tests, and starts over from the group's offset in others. `FULLBORE_TRANSACTION_ROUNDS` is the number of rounds (by
//! default 1, in `make soak` 12). Each round kills the broker one visit of the step later than the previous one.

use fullbore_tests::{Broker, Copier, Protocol, Resolve, rounds};
use std::cell::RefCell;

const TOPIC: &str = "copied";
const PARTITIONS: i32 = 3;
const LAST: i64 = 12;
const SETS: [&str; 3] = [
    "transaction.state.log.num.partitions=1",
    "offsets.topic.num.partitions=1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=20",
];
/// The steps of a transaction. The number is the visit of the step at which the first round kills the broker.
const STEPS: [(&str, usize); 10] = [
    ("begun", 1),
    ("added", 2),
    ("appended", 2),
    ("deciding", 2),
    ("decided", 1),
    ("marked", 1),
    ("offsets", 2),
    ("offsets-ended", 1),
    ("answer", 2),
    ("completed", 1),
];

fn copied_through(step: &str, count: usize, protocol: Protocol, resolve: Resolve, configs: &[(&str, &str)]) {
    let armed = format!("env:FULLBORE_FAULT_POINT={step}:kill:{count}");
    let broker = Broker::start(&[&SETS[..], &[&armed]].concat());
    broker.client().create_topic(TOPIC, PARTITIONS, configs);
    let (broker, mut kills) = (RefCell::new(broker), 0);
    Copier::new("copier", (TOPIC, PARTITIONS), protocol, resolve, |_| {
        let mut broker = broker.borrow_mut();
        if broker.has_ended() {
            kills += 1;
            broker.wait_for_end();
            broker.restart_with(&SETS);
        }
        vec![broker.addr()]
    })
    .copy_until(LAST);
    assert_eq!(kills, 1, "the broker was killed at {step}:{count}");
}

fn survives(protocol: Protocol, resolve: Resolve) {
    survives_on(&[], protocol, resolve);
}

fn survives_on(configs: &[(&str, &str)], protocol: Protocol, resolve: Resolve) {
    for round in 0..rounds("FULLBORE_TRANSACTION_ROUNDS", 1, 12) {
        // Batches of a diskless partition are never appended to a log, so the step `appended` does not occur.
        for (step, first) in STEPS.into_iter().filter(|(step, _)| configs.is_empty() || *step != "appended") {
            let count = if step == "begun" { 1 } else { first + round };
            // A run reaches some steps only a few times. The broker is therefore killed at the fifth visit at the
            // latest, and always at the first visit of `begun`.
            eprintln!("{step}:{count}, {protocol:?}, {resolve:?}");
            copied_through(step, count.min(5), protocol, resolve, configs);
        }
    }
}

#[test]
fn kill_at_each_step_of_a_resending_old_client_copies_each_number_once() {
    survives(Protocol::Old, Resolve::Again);
}

#[test]
fn kill_at_each_step_of_a_restarting_old_client_copies_each_number_once() {
    survives(Protocol::Old, Resolve::Anew);
}

#[test]
fn kill_at_each_step_of_a_resending_new_client_copies_each_number_once() {
    survives(Protocol::New, Resolve::Again);
}

#[test]
fn kill_at_each_step_of_a_restarting_new_client_copies_each_number_once() {
    survives(Protocol::New, Resolve::Anew);
}

#[test]
fn kill_at_each_step_of_an_old_client_on_a_diskless_topic_copies_each_number_once() {
    survives_on(super::DISKLESS, Protocol::Old, Resolve::Again);
}

#[test]
fn kill_at_each_step_of_a_new_client_on_a_diskless_topic_copies_each_number_once() {
    survives_on(super::DISKLESS, Protocol::New, Resolve::Anew);
}
