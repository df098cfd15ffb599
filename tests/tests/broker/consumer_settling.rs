//! While a group of the consumer protocol changes, the broker sends its members special heartbeat intervals, so that
//! the change takes as few heartbeats as possible. Kafka always sends the same interval.

use crate::members::{Member, describe, heartbeat, new_group, unique};
use fullbore_tests::{Broker, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);
const SHORT_MS: i32 = 1_000;
const CONFIGURED_MS: i32 = 5_000;

fn wait_until_settled(members: &mut [&mut Member]) {
    for member in members {
        wait_until("the member is told the configured interval", SOON, || {
            member.heartbeat().heartbeat_interval_ms == CONFIGURED_MS
        });
    }
}

#[test]
fn a_change_reaches_the_members_concerned_soon() {
    let broker = Broker::start(&["group.consumer.assignment.interval.ms=0"]);
    let mut client = broker.client();
    let (group, topic) = (new_group(&broker, "settle"), unique("t"));
    client.create_topic(&topic, 4, &[]);
    let mut old = Member::new(&broker, &group, &[&topic]);
    let mut new = Member::new(&broker, &group, &[&topic]);
    assert_eq!(old.join().heartbeat_interval_ms, SHORT_MS, "others may join, too");
    wait_until_settled(&mut [&mut old]);

    assert_eq!(new.join().heartbeat_interval_ms, SHORT_MS);
    assert_eq!(new.reads.len(), 0, "the other one holds all of it");
    assert!(new.heartbeat().heartbeat_interval_ms < CONFIGURED_MS, "it waits");
    old.heartbeat();
    assert_eq!(old.reads.len(), 2, "told by one heartbeat");
    old.heartbeat();
    new.heartbeat();
    assert_eq!(new.reads.len(), 2, "and free by the next");
    assert_eq!(&*describe(&mut client, &group).group_state, "Stable");
    wait_until_settled(&mut [&mut old, &mut new]);

    new.leave(-1);
    old.heartbeat();
    assert_eq!(old.reads.len(), 4);
}

#[test]
fn a_member_that_waits_for_a_slow_revocation_gets_growing_intervals() {
    let broker = Broker::start(&[
        "group.consumer.assignment.interval.ms=0",
        "fullbore.group.consumer.unsettled.heartbeat.interval.ms=10",
    ]);
    let (group, topic) = (new_group(&broker, "stuck"), unique("t"));
    broker.client().create_topic(&topic, 2, &[]);
    let mut stuck = Member::new(&broker, &group, &[&topic]);
    let mut waits = Member::new(&broker, &group, &[&topic]);
    stuck.join();
    assert_eq!(waits.join().heartbeat_interval_ms, 10);
    stuck.heartbeat();
    let mut reported = Vec::new();
    wait_until("the interval has grown twenty times", SOON, || {
        reported.push(waits.heartbeat().heartbeat_interval_ms);
        reported.last().is_some_and(|&last| last >= 200)
    });
    assert!(reported.is_sorted(), "{reported:?}");
    assert_eq!(waits.reads.len(), 0);
    let mut client = broker.client();
    wait_until("the one that must give up is not hurried", SOON, || {
        client.call(&heartbeat(&group, stuck.id(), stuck.epoch), 1).heartbeat_interval_ms == CONFIGURED_MS
    });
}
