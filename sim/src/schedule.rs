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

/// Totals of a schedule that passed all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub events: u64,
    /// A hash of all events and their times. Two runs of a seed must have the same one.
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
        events: world.context.events(),
        digest: world.context.digest(),
        acknowledged: world.context.check.acknowledgements,
        committed: world.context.check.committed(),
        leader_epochs: partition.leader_epoch,
    })
}

fn begin(seed: u64, fault: Option<Fault>) -> World {
    let mut rng = fastrand::Rng::with_seed(seed);
    let brokers = rng.i32(3..=5);
    let replicas = rng.i32(2..=3);
    let min_insync_replicas = rng.usize(1..=2);
    let settings = Settings {
        min_insync_replicas,
        // With `min_insync_replicas` 1 a record may be committed on one disk only, and losing its unflushed writes
        // would lose the record.
        flushes: min_insync_replicas == 1 || rng.bool(),
        session_timeout_us: 900_000,
        heartbeat_us: 50_000,
        lag_us: rng.i64(100_000..600_000),
        overdue_us: 300_000,
        fetches: [1, 2, 8][rng.usize(0..3)],
        fault,
    };
    let database = Database::new(Cluster::new(replicas, settings.min_insync_replicas), rng.u64(..));
    let network = Network::new(rng.i64(100..5_000));
    let mut world = World::new(settings, rng, database, network);
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
        for (after, what) in draw(&mut world.context.rng, brokers) {
            world.context.schedule_chaos(at + after, what);
        }
        at += world.context.rng.i64(1_000..400_000);
    }
    world
}

/// Draws the next faults, each with the delay that precedes it.
fn draw(rng: &mut fastrand::Rng, brokers: i32) -> Vec<(i64, ChaosEvent)> {
    let id = rng.i32(1..=brokers);
    let one = match rng.u32(0..100) {
        0..8 => ChaosEvent::Kill(id),
        8..26 => ChaosEvent::Start(id),
        26..30 => return full(rng, id),
        30..35 => ChaosEvent::Stop(id),
        35..40 => ChaosEvent::PowerCut(id),
        40..48 => ChaosEvent::Pause(id, rng.i64(10_000..2_000_000)),
        48..53 => ChaosEvent::Break,
        53..60 => ChaosEvent::Stall(rng.i64(10_000..2_000_000)),
        60..65 => ChaosEvent::Cut(node(rng, brokers), node(rng, brokers)),
        65..73 => ChaosEvent::Heal,
        73..75 => ChaosEvent::DatabaseDown,
        75..79 => ChaosEvent::DatabaseUp,
        79..83 => ChaosEvent::LoseAnswer,
        83..84 => ChaosEvent::RestoreOlder(rng.usize(1..4)),
        84..85 => ChaosEvent::RestoreNewest,
        85..89 => ChaosEvent::Prefer(id),
        89..93 => return restarts(rng, id),
        93..95 => return outage(rng),
        95..97 => return older_directory(rng, id, brokers),
        _ => return late_commands(rng, id),
    };
    vec![(0, one)]
}

/// Returns two restarts within milliseconds of each other. The second follows a power loss, and commands of other
/// brokers are delayed.
fn restarts(rng: &mut fastrand::Rng, id: i32) -> Vec<(i64, ChaosEvent)> {
    let mut at = 0;
    let mut after = |us| {
        at += rng.i64(1_000..us);
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
fn full(rng: &mut fastrand::Rng, id: i32) -> Vec<(i64, ChaosEvent)> {
    let mut at = 0;
    let mut after = |us| {
        at += rng.i64(10_000..us);
        at
    };
    let times = (0..3).flat_map(|_| [(after(500_000), ChaosEvent::Fill(id)), (after(1_500_000), ChaosEvent::Free(id))]);
    times.collect()
}

/// Returns faults that copy a broker's disk while it is stopped or running. Later all brokers are stopped, the copy
/// replaces the disk, and that broker is the first to start again.
fn older_directory(rng: &mut fastrand::Rng, id: i32, brokers: i32) -> Vec<(i64, ChaosEvent)> {
    let (mut at, is_stopped) = (0, rng.bool());
    let mut after = |us| {
        at += rng.i64(1_000..us);
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
fn outage(rng: &mut fastrand::Rng) -> Vec<(i64, ChaosEvent)> {
    vec![(0, ChaosEvent::DatabaseDown), (rng.i64(100_000..2_000_000), ChaosEvent::DatabaseUp)]
}

/// Returns a pause of a broker together with a fault of commands: either all are late, or the next commit's response is
/// lost.
fn late_commands(rng: &mut fastrand::Rng, id: i32) -> Vec<(i64, ChaosEvent)> {
    let lost = if rng.bool() { ChaosEvent::LoseAnswer } else { ChaosEvent::StallCommands(rng.i64(10_000..1_000_000)) };
    vec![(0, ChaosEvent::Pause(id, rng.i64(200_000..1_500_000))), (rng.i64(1_000..500_000), lost)]
}

fn node(rng: &mut fastrand::Rng, brokers: i32) -> Node {
    match rng.i32(0..=brokers) {
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
