//! Schedules of a cluster. The seed determines the faults, and at the end the cluster must recover.

use crate::broker::Broker;
use crate::chaos_event::ChaosEvent;
use crate::client::Client;
use crate::cluster::Cluster;
use crate::database::Database;
use crate::fault::Fault;
use crate::network::{Network, Node};
use crate::settings::Settings;
use crate::world::World;
use fullbore_schedules::Random;

/// Totals of a schedule that passed all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub events: u64,
    /// A hash of all events and their times. Two runs of a seed must have the same hash.
    pub digest: u64,
    pub acknowledged: u64,
    pub committed: usize,
    pub leader_epochs: i32,
}

/// How long faults are injected, in microseconds.
const TROUBLE_US: i64 = 5_000_000;
/// How long the recovery may take, in microseconds.
const RECOVERY_US: i64 = 20_000_000;

/// Runs the schedule of `seed`.
///
/// # Errors
///
/// Returns the text of the first check that fails.
pub fn run(seed: u64, fault: Option<Fault>) -> Result<Report, String> {
    let mut world = begin(seed, fault);
    let end = TROUBLE_US;
    world.run_until(end)?;
    world.recover(end)?;
    let partition = &world.context.database.newest().cluster.partition;
    Ok(Report {
        events: world.context.timeline.scheduled(),
        digest: world.context.timeline.digest(),
        acknowledged: world.context.check.acknowledgements,
        committed: world.context.check.committed(),
        leader_epochs: partition.leader_epoch,
    })
}

fn begin(seed: u64, fault: Option<Fault>) -> World {
    let mut random = Random::new(seed);
    let brokers = random.between(3, 6);
    let replicas = random.between(2, 4);
    let min_insync_replicas = random.between(1, 3);
    let settings = Settings {
        min_insync_replicas,
        // With `min_insync_replicas` 1, a single disk may have the only copy of a committed record. A power loss would
        // lose the record if it were not flushed.
        flushes: min_insync_replicas == 1 || random.one_in(2),
        session_timeout_us: 900_000,
        heartbeat_us: 50_000,
        lag_us: random.between(100_000, 600_000),
        overdue_us: 300_000,
        fetches: [1, 2, 8][random.below(3)],
        fault,
    };
    let database = Database::new(Cluster::new(replicas, settings.min_insync_replicas), random.next());
    let network = Network::new(random.between(100, 5_000));
    let mut world = World::new(settings, random, database, network);
    for id in 1..=brokers {
        let mut broker = Broker::new(id);
        broker.start(&mut world.context);
        world.context.check.unwell(id, 0);
        world.brokers.insert(id, broker);
    }
    for at in 0..3 {
        let client = Client::new(at, at < 2);
        client.start(&mut world.context);
        world.clients.push(client);
    }
    let mut at = 300_000;
    while at < TROUBLE_US {
        for (after, what) in draw(&mut world.context.random, brokers) {
            world.context.schedule_chaos(at + after, what);
        }
        at += world.context.random.between(1_000, 400_000);
    }
    world
}

/// Draws the next faults, each with the delay that precedes it.
fn draw(random: &mut Random, brokers: i32) -> Vec<(i64, ChaosEvent)> {
    let id = random.between(1, brokers + 1);
    let one = match random.below(100) {
        0..8 => ChaosEvent::Kill(id),
        8..26 => ChaosEvent::Start(id),
        26..30 => return full(random, id),
        30..35 => ChaosEvent::Stop(id),
        35..40 => ChaosEvent::PowerCut(id),
        40..48 => ChaosEvent::Pause(id, random.between(10_000, 2_000_000)),
        48..53 => ChaosEvent::Break,
        53..60 => ChaosEvent::Stall(random.between(10_000, 2_000_000)),
        60..65 => ChaosEvent::Cut(node(random, brokers), node(random, brokers)),
        65..73 => ChaosEvent::Heal,
        73..75 => ChaosEvent::DatabaseDown,
        75..79 => ChaosEvent::DatabaseUp,
        79..83 => ChaosEvent::LoseAnswer,
        83..84 => ChaosEvent::RestoreOlder(random.between(1, 4)),
        84..85 => ChaosEvent::RestoreNewest,
        85..89 => ChaosEvent::Prefer(id),
        89..93 => return restarts(random, id),
        93..95 => return outage(random),
        95..97 => return older_directory(random, id, brokers),
        _ => return late_commands(random, id),
    };
    vec![(0, one)]
}

/// Returns two restarts within milliseconds of each other. The second follows a power loss, and commands of other
/// brokers are delayed.
fn restarts(random: &mut Random, id: i32) -> Vec<(i64, ChaosEvent)> {
    let mut at = 0;
    let mut after = |us| {
        at += random.between(1_000, us);
        at
    };
    vec![
        (0, ChaosEvent::Kill(id)),
        (after(20_000), ChaosEvent::Start(id)),
        (after(100_000), ChaosEvent::StallCommands(200_000)),
        (after(100_000), ChaosEvent::PowerCut(id)),
        (after(20_000), ChaosEvent::Start(id)),
    ]
}

/// Returns faults that repeatedly fill a disk for a while, with short pauses between.
fn full(random: &mut Random, id: i32) -> Vec<(i64, ChaosEvent)> {
    let mut at = 0;
    let mut after = |us| {
        at += random.between(10_000, us);
        at
    };
    let times = (0..3).flat_map(|_| [(after(500_000), ChaosEvent::Fill(id)), (after(1_500_000), ChaosEvent::Free(id))]);
    times.collect()
}

/// Returns faults that copy a broker's disk while it is stopped or running. Later all brokers stop, the copy replaces
/// the disk, and that broker starts before the others.
fn older_directory(random: &mut Random, id: i32, brokers: i32) -> Vec<(i64, ChaosEvent)> {
    let (mut at, is_stopped) = (0, random.one_in(2));
    let mut after = |us| {
        at += random.between(1_000, us);
        at
    };
    let copied = [
        (0, ChaosEvent::Stop(id)),
        (after(300_000), ChaosEvent::Copy(id)),
        (after(20_000), ChaosEvent::Start(id)),
        (after(1_500_000), ChaosEvent::Kill(id)),
    ];
    let mut all: Vec<_> = copied.into_iter().filter(|(_, what)| is_stopped || *what != ChaosEvent::Stop(id)).collect();
    all.extend((1..=brokers).map(|other| (after(5_000), ChaosEvent::Kill(other))));
    all.push((after(5_000), ChaosEvent::PutBack(id)));
    all.push((after(5_000), ChaosEvent::Start(id)));
    all.extend((1..=brokers).map(|other| (after(400_000), ChaosEvent::Start(other))));
    all
}

/// Returns an outage of the database. It may outlast the session timeout.
fn outage(random: &mut Random) -> Vec<(i64, ChaosEvent)> {
    vec![(0, ChaosEvent::DatabaseDown), (random.between(100_000, 2_000_000), ChaosEvent::DatabaseUp)]
}

/// Returns a pause of a broker. During the pause, commands of all brokers to the database arrive late, or the response
/// to the next commit is lost.
fn late_commands(random: &mut Random, id: i32) -> Vec<(i64, ChaosEvent)> {
    let lost = if random.one_in(2) {
        ChaosEvent::LoseAnswer
    } else {
        ChaosEvent::StallCommands(random.between(10_000, 1_000_000))
    };
    vec![(0, ChaosEvent::Pause(id, random.between(200_000, 1_500_000))), (random.between(1_000, 500_000), lost)]
}

fn node(random: &mut Random, brokers: i32) -> Node {
    match random.between(0, brokers + 1) {
        0 => Node::Database,
        id => Node::Broker(id),
    }
}

impl World {
    /// Ends all faults. Then all replicas must get in sync, all logs must become equal, and all records must be
    /// acknowledged.
    fn recover(&mut self, since: i64) -> Result<(), String> {
        self.apply_chaos(ChaosEvent::Heal);
        self.apply_chaos(ChaosEvent::RestoreNewest);
        self.apply_chaos(ChaosEvent::DatabaseUp);
        self.context.loses_answer = false;
        let ids: Vec<i32> = self.brokers.keys().copied().collect();
        ids.iter().for_each(|id| self.resume(*id));
        ids.iter().for_each(|id| self.fill(*id, false));
        let before = self.context.check.acknowledgements;
        let mut at = since;
        while at < since + RECOVERY_US {
            at += 100_000;
            ids.iter().for_each(|id| self.start(*id));
            self.run_until(at)?;
            let has_new = self.context.check.acknowledgements > before + 10;
            self.clients.iter_mut().for_each(|client| client.is_closing = has_new);
            if has_new && self.is_well() {
                return Ok(());
            }
        }
        Err(format!("not well after {RECOVERY_US} us: {}", self.state()))
    }

    fn is_well(&self) -> bool {
        let newest = self.context.database.newest();
        let partition = &newest.cluster.partition;
        let committed = self.context.check.committed();
        let mut logs = partition.replicas.iter().map(|id| &self.brokers[id].disk.log);
        partition.isr.len() == partition.replicas.len()
            && logs.all(|log| log.len() == committed)
            && self.clients.iter().all(|client| client.pending() == 0)
    }

    fn state(&self) -> String {
        let newest = self.context.database.newest();
        let logs: Vec<_> = self.brokers.values().map(|broker| broker.disk.log.len()).collect();
        let pending: Vec<_> = self.clients.iter().map(Client::pending).collect();
        let (partition, committed) = (&newest.cluster.partition, self.context.check.committed());
        format!(
            "{partition:?}, {:?}, logs {logs:?}, committed {committed}, pending {pending:?}",
            newest.cluster.brokers
        )
    }
}
