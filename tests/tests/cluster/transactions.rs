//! Coordinators and leaders that are killed, or frozen past their session, at each step of a transaction
//! (`FULLBORE_FAULT_POINT`). A client copies numbers in transactions. No number may be lost or duplicated, and no
//! transaction may stay open.
//!
//! Each broker is killed or frozen when it first reaches the step, and so is the broker that takes over.
//! `FULLBORE_TRANSACTION_STEPS` is the number of steps to try (by default 2, in `make soak` all).

use crate::faults::{ALL, SOON};
use crate::offsets;
use crate::workload::logs_are_equal;
use fullbore_tests::{Cluster, ClusterPlan, Copier, Protocol, Reported, Resolve, rounds};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const TOPIC: &str = "copied";
const PARTITIONS: i32 = 3;
const LAST: i64 = 20;
const SETS: [&str; 5] = [
    "broker.session.timeout.ms=2000",
    // This setting also applies to internal topics. With 1, their ISR could shrink to a single broker, which the test
    // then keeps down.
    "min.insync.replicas=2",
    "transaction.state.log.num.partitions=1",
    "offsets.topic.num.partitions=1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=20",
];
/// The steps of a transaction. A shorter run tries the first ones.
const STEPS: [&str; 10] =
    ["decided", "marked", "offsets-ended", "added", "appended", "answer", "deciding", "completed", "offsets", "begun"];

/// The fault of a broker that reaches the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The broker is killed and restarted at once.
    Restarts,
    /// The broker is killed, and restarted after the other brokers have continued.
    StaysAway,
    /// The broker is frozen until the other brokers have continued. When it resumes, it coordinates or leads in an
    /// outdated epoch.
    Freezes,
}

/// The brokers that were killed or frozen at the step and are not back. `since` has the number that the client had
/// reached when each of them was noted.
struct Stricken {
    fate: Fate,
    since: BTreeMap<i32, i64>,
    times: usize,
}

impl Stricken {
    /// Notes the brokers that have reached the step, and brings back those that have been away long enough.
    fn look(&mut self, cluster: &mut Cluster, copied: i64) {
        for id in ALL {
            let broker = cluster.broker(id);
            let is_stricken = if self.fate == Fate::Freezes { broker.is_frozen() } else { broker.has_ended() };
            if is_stricken && !self.since.contains_key(&id) {
                eprintln!("broker {id} at {copied}: {:?}", self.fate);
                self.since.insert(id, copied);
                self.times += 1;
            }
        }
        let is_alone = self.since.len() < 2;
        let waits = |since: &i64| is_alone && copied <= *since && self.fate != Fate::Restarts;
        let back: Vec<i32> = self.since.iter().filter(|(_, since)| !waits(since)).map(|(id, _)| *id).collect();
        back.into_iter().for_each(|id| self.bring_back(cluster, id));
    }

    fn bring_back(&mut self, cluster: &mut Cluster, id: i32) {
        self.since.remove(&id);
        if self.fate == Fate::Freezes {
            return cluster.broker(id).thaw();
        }
        let sets: Vec<String> = cluster.sets_of(id).iter().filter(|set| !set.starts_with("env:")).cloned().collect();
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        cluster.broker(id).wait_for_end();
        cluster.broker(id).restart_with(&sets);
    }
}

/// Polls the last stable offsets of the partitions that broker `id` leads.
fn watch(id: i32, address: SocketAddr, is_over: &Arc<AtomicBool>) -> JoinHandle<Vec<Reported>> {
    let is_over = Arc::clone(is_over);
    std::thread::spawn(move || {
        let marks = offsets::watched(id, address, TOPIC, &is_over).into_iter();
        marks.map(|marks| (marks.of, (marks.last_stable_offset, marks.high_watermark))).collect()
    })
}

fn copied_through(step: &str, fate: Fate, protocol: Protocol, resolve: Resolve) {
    eprintln!("{step}: {fate:?}, {protocol:?}, {resolve:?}");
    let action = if fate == Fate::Freezes { "stop" } else { "kill" };
    let armed = format!("env:FULLBORE_FAULT_POINT={step}:{action}");
    let cluster = ClusterPlan::new(3, &[&SETS[..], &[&armed]].concat()).start();
    cluster.create(TOPIC, PARTITIONS, 3, &["min.insync.replicas=2"]);
    ALL.iter().for_each(|id| cluster.wait_for_isr(*id, TOPIC, 3));
    let addresses: Vec<SocketAddr> = cluster.ids().map(|id| cluster.address(id)).collect();
    let consuming = cluster.consuming_at(TOPIC, "read_committed");
    let is_over = Arc::new(AtomicBool::new(false));
    let watching: Vec<_> =
        ALL.iter().zip(addresses.clone()).map(|(id, address)| watch(*id, address, &is_over)).collect();
    let stricken = Stricken { fate, since: BTreeMap::new(), times: 0 };
    let world = RefCell::new((cluster, stricken));
    let mut copier = Copier::new("copier", (TOPIC, PARTITIONS), protocol, resolve, |copied| {
        let (cluster, stricken) = &mut *world.borrow_mut();
        stricken.look(cluster, copied);
        addresses.clone()
    });
    copier.copy_until(LAST);
    {
        let (cluster, stricken) = &mut *world.borrow_mut();
        assert!(stricken.times > 0, "no broker came to {step}");
        let left: Vec<i32> = stricken.since.keys().copied().collect();
        left.into_iter().for_each(|id| stricken.bring_back(cluster, id));
        ALL.iter().for_each(|id| cluster.wait_for_isr(*id, TOPIC, 3));
    }
    // All brokers run again, and the client continues.
    copier.copy_until(LAST + 4);
    let mut history = copier.history();
    drop(copier);
    is_over.store(true, Ordering::Relaxed);
    history.reported = watching.into_iter().flat_map(|one| one.join().expect("it answers or closes")).collect();
    let polled = consuming.finish(history.found.len(), SOON).into_iter();
    history.polled = polled.map(|record| (record.partition, record.value)).collect();
    assert_eq!(history.violations(), [""; 0]);
    let (mut cluster, mut stricken) = world.into_inner();
    stricken.look(&mut cluster, i64::MAX);
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

fn survives(fate: Fate) {
    let steps = rounds("FULLBORE_TRANSACTION_STEPS", 2, STEPS.len());
    for (at, step) in STEPS.into_iter().enumerate().take(steps) {
        let resolve = if at / 2 % 2 == 0 { Resolve::Again } else { Resolve::Anew };
        copied_through(step, fate, Protocol::BOTH[(at + 1) % 2], resolve);
    }
}

#[test]
fn brokers_killed_at_a_step_and_restarted_copy_each_number_once() {
    survives(Fate::Restarts);
}

#[test]
fn brokers_killed_at_a_step_and_away_copy_each_number_once() {
    survives(Fate::StaysAway);
}

#[test]
fn brokers_frozen_at_a_step_and_resumed_copy_each_number_once() {
    survives(Fate::Freezes);
}

/// Transactions begin, continue and end while the database is down.
#[test]
fn database_outage_does_not_stop_transactions() {
    let cluster = ClusterPlan::with_own_postgres(3, &SETS).start();
    cluster.create(TOPIC, PARTITIONS, 3, &["min.insync.replicas=2"]);
    ALL.iter().for_each(|id| cluster.wait_for_isr(*id, TOPIC, 3));
    let addresses: Vec<SocketAddr> = cluster.ids().map(|id| cluster.address(id)).collect();
    for protocol in Protocol::BOTH {
        let (name, is_away) = (format!("copier-{protocol:?}"), Cell::new(false));
        cluster.create(&name, PARTITIONS, 3, &["min.insync.replicas=2"]);
        ALL.iter().for_each(|id| cluster.wait_for_isr(*id, &name, 3));
        let mut copier = Copier::new(&name, (&name, PARTITIONS), protocol, Resolve::Again, |copied| {
            let is_due = (4..LAST).contains(&copied);
            match (is_due, is_away.replace(is_due)) {
                (true, false) => cluster.postgres().stop(),
                (false, true) => cluster.postgres().start_again(),
                _ => {}
            }
            addresses.clone()
        });
        copier.copy_until(LAST + 4);
    }
}
