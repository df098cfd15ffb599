//! Random faults, several at a time, while clients produce and consume.
//!
//! A failure prints its seed, and `FULLBORE_CHAOS_SEED` replays the schedule of that seed. `FULLBORE_CHAOS_ROUNDS` is
//! the number of schedules (1, in `make soak` 20). A seed determines the schedule but not the state of the cluster at
//! each step.

use crate::faults::{ALL, PARTITIONS, TOPIC, with_topic};
use crate::workload::{logs_are_equal, produced_while};
use fullbore_tests::{Cluster, ClusterPlan, Copier, Link, Protocol, Random, Resolve};
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long faults are injected.
const SCHEDULE_MS: u64 = 20_000;
/// How long every replica may take to get in sync after the faults. A broker that was fenced several times waits for up
/// to eight session timeouts before it returns.
const WHOLE_MAX: Duration = Duration::from_secs(90);
const SETS: [&str; 5] = [
    "broker.session.timeout.ms=3000",
    "control.plane.timeout.ms=3000",
    "replica.lag.time.max.ms=2000",
    "replica.socket.timeout.ms=2000",
    "replica.fetch.backoff.ms=200",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill(i32),
    Stop(i32),
    Freeze(i32),
    CutOff(i32, Link),
    OneWay(i32, i32, Link),
    NoDatabase(i32, Link),
    DatabaseStop,
    DatabaseFreeze,
}

/// A part of the cluster that a fault affects. Concurrent faults must affect different parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Process(i32),
    Links,
    Database,
}

impl Fault {
    fn by_chance(random: &mut Random) -> Fault {
        let id = 1 + random.below(3) as i32;
        let link = [Link::Cut, Link::Held, Link::AnswersHeld][random.below(3)];
        match random.below(10) {
            0 | 1 => Fault::Kill(id),
            2 => Fault::Stop(id),
            3 | 4 => Fault::Freeze(id),
            5 => Fault::CutOff(id, link),
            6 => Fault::OneWay(id, id % 3 + 1, link),
            7 => Fault::NoDatabase(id, link),
            8 => Fault::DatabaseStop,
            _ => Fault::DatabaseFreeze,
        }
    }

    fn subject(self) -> Subject {
        match self {
            Fault::Kill(id) | Fault::Stop(id) | Fault::Freeze(id) => Subject::Process(id),
            Fault::CutOff(..) | Fault::OneWay(..) => Subject::Links,
            Fault::NoDatabase(..) | Fault::DatabaseStop | Fault::DatabaseFreeze => Subject::Database,
        }
    }

    fn begin(self, cluster: &mut Cluster) {
        match self {
            // A broker that is down stays down while the database is down. A fault of such a broker is skipped.
            Fault::Kill(id) | Fault::Stop(id) | Fault::Freeze(id) if !cluster.broker(id).is_started() => {}
            Fault::Kill(id) => {
                assert_well(cluster, id);
                cluster.broker(id).kill();
            }
            Fault::Stop(id) => {
                assert_well(cluster, id);
                cluster.broker(id).stop();
            }
            Fault::Freeze(id) => cluster.broker(id).freeze(),
            Fault::CutOff(id, link) => cluster.links().of(id, link),
            Fault::OneWay(from, to, link) => cluster.links().between(from, to, link),
            Fault::NoDatabase(id, link) => cluster.links().to_database(id, link),
            Fault::DatabaseStop => cluster.postgres().stop(),
            Fault::DatabaseFreeze => cluster.postgres().freeze(),
        }
    }

    fn end(self, cluster: &mut Cluster) {
        match self {
            Fault::Kill(id) | Fault::Stop(id) if cluster.broker(id).is_started() => {}
            Fault::Kill(id) | Fault::Stop(id) => cluster.broker(id).restart(),
            Fault::Freeze(id) if !cluster.broker(id).is_started() => {}
            Fault::Freeze(id) => cluster.broker(id).thaw(),
            Fault::CutOff(id, _) => cluster.links().of(id, Link::Open),
            Fault::OneWay(from, to, _) => cluster.links().between(from, to, Link::Open),
            Fault::NoDatabase(id, _) => cluster.links().to_database(id, Link::Open),
            Fault::DatabaseStop => cluster.postgres().start_again(),
            Fault::DatabaseFreeze => cluster.postgres().thaw(),
        }
    }
}

/// A fault with its beginning and end, counted from the start of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    fault: Fault,
    from_ms: u64,
    to_ms: u64,
}

fn schedule(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut steps: Vec<Step> = Vec::new();
    let mut at = 0;
    while at < SCHEDULE_MS {
        let fault = Fault::by_chance(&mut random);
        let lasts = random.between(50, 4_000) as u64;
        if steps.iter().all(|step| step.to_ms < at || step.fault.subject() != fault.subject()) {
            steps.push(Step { fault, from_ms: at, to_ms: at + lasts });
        }
        at += random.between(50, 2_000) as u64;
    }
    steps
}

fn assert_well(cluster: &mut Cluster, id: i32) {
    let reported = cluster.broker(id).stderr();
    assert!(!reported.contains("panicked"), "{reported}");
}

/// Carries out the steps. Starts no broker while the database is down, because the start would fail.
fn carry_out(steps: &[Step], cluster: &mut Cluster) {
    let began = Instant::now();
    let mut events: Vec<(u64, bool, Fault)> = steps.iter().map(|step| (step.from_ms, true, step.fault)).collect();
    events.extend(steps.iter().map(|step| (step.to_ms, false, step.fault)));
    events.sort_by_key(|(at, begins, _)| (*at, *begins));
    let mut active: BTreeSet<Subject> = BTreeSet::new();
    let mut to_be_started = Vec::new();
    for (at, begins, fault) in events {
        std::thread::sleep(Duration::from_millis(at).saturating_sub(began.elapsed()));
        eprintln!("{:>6} ms: {} {fault:?}", began.elapsed().as_millis(), if begins { "begins" } else { "ends" });
        if begins {
            active.insert(fault.subject());
            fault.begin(cluster);
            continue;
        }
        active.remove(&fault.subject());
        match fault {
            Fault::Kill(_) | Fault::Stop(_) if active.contains(&Subject::Database) => to_be_started.push(fault),
            _ => fault.end(cluster),
        }
        if !active.contains(&Subject::Database) {
            to_be_started.drain(..).for_each(|fault: Fault| fault.end(cluster));
        }
    }
}

fn round(seed: u64) {
    let steps = schedule(seed);
    let mut cluster = with_topic(ClusterPlan::with_own_postgres(3, &SETS).linked().start());
    produced_while(&mut cluster, TOPIC, |cluster, load| {
        carry_out(&steps, cluster);
        let healed = Instant::now();
        cluster.wait_for_isr(1, TOPIC, 3);
        assert!(healed.elapsed() < WHOLE_MAX, "in sync again after {:?}", healed.elapsed());
        load.goes_on();
        eprintln!("whole after {:?}", healed.elapsed());
        ALL.iter().for_each(|id| assert_well(cluster, *id));
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

/// Runs the rounds, each with another seed. The environment variable `variable` can set the seed of the first round.
fn for_each_seed(variable: &str, few: usize, round: fn(u64)) {
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    let first = std::env::var("FULLBORE_CHAOS_SEED").ok();
    let first = first.map_or(now, |seed| seed.parse().expect("FULLBORE_CHAOS_SEED is a number"));
    for seed in (0..fullbore_tests::rounds(variable, few, 20) as u64).map(|n| first.wrapping_add(n)) {
        let failed = std::panic::catch_unwind(|| round(seed)).err();
        if let Some(why) = failed {
            eprintln!("this was FULLBORE_CHAOS_SEED={seed}");
            std::panic::resume_unwind(why);
        }
    }
}

#[test]
fn random_faults_lose_no_acknowledged_record() {
    for_each_seed("FULLBORE_CHAOS_ROUNDS", 1, round);
}

/// Runs a round in which clients copy numbers in transactions. Each client has its own topic, and both protocols are
/// used.
fn round_of_transactions(seed: u64) {
    let steps = schedule(seed);
    let mut cluster = ClusterPlan::with_own_postgres(3, &SETS).linked().start();
    let copiers = [
        ("again-old", Protocol::Old, Resolve::Again),
        ("anew-new", Protocol::New, Resolve::Anew),
        ("again-new", Protocol::New, Resolve::Again),
    ];
    for (name, ..) in copiers {
        cluster.create(name, PARTITIONS, 3, &["min.insync.replicas=2"]);
        ALL.iter().for_each(|id| cluster.wait_for_isr(*id, name, 3));
    }
    let addresses: Vec<_> = ALL.iter().map(|id| cluster.address(*id)).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (name, protocol, resolve) in copiers {
            let (addresses, is_over) = (&addresses, &is_over);
            scope.spawn(move || {
                let mut copier = Copier::new(name, (name, PARTITIONS), protocol, resolve, |_| addresses.clone());
                copier.copy_while(|| !is_over.load(Ordering::Relaxed));
            });
        }
        let carried_out = std::panic::catch_unwind(AssertUnwindSafe(|| carry_out(&steps, &mut cluster)));
        is_over.store(true, Ordering::Relaxed);
        carried_out.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
    ALL.iter().for_each(|id| assert_well(&mut cluster, *id));
    for (name, ..) in copiers {
        cluster.wait_for_isr(1, name, 3);
    }
}

/// Runs rounds only in `make soak`, or with `FULLBORE_TRANSACTION_CHAOS_ROUNDS`.
#[test]
fn random_faults_leave_transactions_whole_and_single() {
    for_each_seed("FULLBORE_TRANSACTION_CHAOS_ROUNDS", 0, round_of_transactions);
}

#[test]
fn seed_gives_one_schedule_without_two_faults_on_one_subject() {
    for seed in 0..200 {
        let steps = schedule(seed);
        assert_eq!(steps, schedule(seed));
        for (at, step) in steps.iter().enumerate() {
            let meets = |other: &Step| other.fault.subject() == step.fault.subject() && other.to_ms >= step.from_ms;
            assert!(!steps[..at].iter().any(meets), "{steps:?}");
        }
    }
}
