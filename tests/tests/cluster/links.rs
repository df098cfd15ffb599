//! Links that are cut while clients produce and consume: between brokers in both directions, in one direction or
//! repeatedly, and to the database alone.

use crate::faults::{ALL, TOPIC, befalls_each, with_topic};
use fullbore_tests::{Cluster, ClusterPlan, Link, wait_until};
use std::time::{Duration, Instant};

const SETS: [&str; 4] = [
    "broker.session.timeout.ms=3000",
    "replica.lag.time.max.ms=1500",
    "replica.socket.timeout.ms=2000",
    "replica.fetch.backoff.ms=200",
];
const FLAPS: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(120);

fn linked() -> Cluster {
    with_topic(ClusterPlan::new(3, &SETS).linked().start())
}

/// Waits until each partition has a leader, and no ISR contains both broker `id` and another broker.
fn is_left_out(cluster: &Cluster, id: i32) {
    let other = id % 3 + 1;
    wait_until(&format!("broker {id} is in sync with nobody"), SOON, || {
        let partitions = cluster.partitions(other, TOPIC);
        let is_apart = |isr: &[i32]| !isr.contains(&id) || isr == [id];
        partitions.iter().all(|of| of.leader_id >= 0 && is_apart(&of.isr_nodes))
    });
}

/// Returns the one of `links` to use for broker `id`. Each broker gets a different one.
fn one_of(links: [Link; 3], id: i32) -> Link {
    links[usize::try_from(id - 1).expect("ids begin with 1")]
}

#[test]
fn unreachable_broker_loses_no_record() {
    befalls_each(linked(), &ALL, |cluster, _, id| {
        cluster.links().of(id, one_of([Link::Cut, Link::Held, Link::AnswersHeld], id));
        is_left_out(cluster, id);
        cluster.links().heal();
    });
}

#[test]
fn link_cut_in_one_direction_loses_no_record() {
    befalls_each(linked(), &ALL, |cluster, load, id| {
        // The fault affects only requests of broker `id` to `leader`, and the responses to them.
        let leader = id % 3 + 1;
        cluster.links().between(id, leader, one_of([Link::Cut, Link::Held, Link::AnswersHeld], id));
        wait_until(&format!("broker {id} is out of sync where {leader} leads"), SOON, || {
            let partitions = cluster.partitions(leader, TOPIC);
            partitions.iter().filter(|of| of.leader_id == leader).all(|of| !of.isr_nodes.contains(&id))
        });
        load.goes_on();
        cluster.links().heal();
    });
}

#[test]
fn flapping_links_lose_no_record() {
    befalls_each(linked(), &[1, 2], |cluster, load, id| {
        let began = Instant::now();
        let links = [Link::Cut, Link::Open, Link::Held, Link::Open, Link::AnswersHeld, Link::Open];
        for link in links.into_iter().cycle().take_while(|_| began.elapsed() < FLAPS) {
            cluster.links().of(id, link);
            std::thread::sleep(Duration::from_millis(50));
        }
        cluster.links().heal();
        load.goes_on();
    });
}

#[test]
fn broker_cut_off_from_the_database_alone_loses_no_record() {
    befalls_each(linked(), &[1, 2], |cluster, load, id| {
        cluster.links().to_database(id, one_of([Link::Cut, Link::Held, Link::AnswersHeld], id));
        let other = id % 3 + 1;
        wait_until("others lead", SOON, || {
            let partitions = cluster.partitions(other, TOPIC);
            partitions.iter().all(|of| of.leader_id >= 0 && of.leader_id != id)
        });
        load.goes_on();
        cluster.links().heal();
        cluster.wait_for_isr(other, TOPIC, 3);
    });
}
