//! Tests of several members that share a metadata store in memory. The tests decide which heartbeats arrive.

use super::*;
use fullbore_control::PeerHeartbeat;
use fullbore_control::test_util::{Memory, create, fence_alone, member, wanted};
use fullbore_rules::cluster::room::DiskRoom;
use fullbore_wire::Uuid;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const TIMEOUT_MS: i64 = 1_000;
const LISTENER: &str = "PLAINTEXT";

/// A port of this machine on which no process listens.
const CLOSED_PORT: u16 = 1;

fn new_member(control: &Control, id: i32, session_timeout_ms: i64) -> Membership {
    new_member_on(control, id, session_timeout_ms, Box::new(|| DiskRoom::Ample))
}

fn new_member_on(control: &Control, id: i32, session_timeout_ms: i64, disk: OwnDisk) -> Membership {
    new_member_with(control, id, session_timeout_ms, (disk, Box::new(|| ())))
}

fn new_member_with(control: &Control, id: i32, session_timeout_ms: i64, of_disk: (OwnDisk, HangUp)) -> Membership {
    Membership::new(
        control.clone(),
        id,
        session_timeout_ms,
        LISTENER,
        Arc::new(|| Urgent::from([])),
        of_disk.0,
        of_disk.1,
    )
}

struct Running {
    control: Control,
    heartbeats: watch::Sender<HeartbeatAnswer>,
    stop: watch::Sender<bool>,
    ended: Arc<ReplacedBy>,
    task: JoinHandle<()>,
}

fn run(memory: &Memory, id: i32, directory: u128, port: u16) -> Running {
    run_for(memory, id, directory, port, TIMEOUT_MS)
}

fn run_for(memory: &Memory, id: i32, directory: u128, port: u16, session_timeout_ms: i64) -> Running {
    let control = member(memory, id, directory, LISTENER, port).expect("registered");
    let membership = new_member(&control, id, session_timeout_ms);
    run_member(control, membership)
}

fn run_member(control: Control, membership: Membership) -> Running {
    let heartbeats = watch::Sender::new(HeartbeatAnswer::default());
    let (stop, ended) = (watch::Sender::new(false), Arc::new(watch::Sender::new(None)));
    let (receiver, stopping, reported) = (heartbeats.subscribe(), stop.subscribe(), Arc::clone(&ended));
    let task = tokio::spawn(membership.run(receiver, stopping, reported));
    Running { control, heartbeats, stop, ended, task }
}

impl Running {
    /// Passes heartbeats of other brokers to this member until `is_so` returns true for the image. `ages` contains the
    /// age of each broker's last heartbeat in ms. A broker with age 0 sends a new heartbeat each time.
    async fn heartbeats_until(&self, ages: &[(i32, i64)], is_so: impl Fn(&Image) -> bool) {
        for number in 1.. {
            self.control.catch_up();
            let image = self.control.image();
            if is_so(&image) {
                return;
            }
            let peer = |(id, age_ms): &(i32, i64)| {
                let process = image.node(*id).map_or(Uuid::ZERO, |node| node.process);
                let number = if *age_ms == 0 { number } else { 0 };
                PeerHeartbeat { id: *id, process, number, age_ms: *age_ms, version: 0 }
            };
            self.heartbeats.send_replace(HeartbeatAnswer { peers: ages.iter().map(peer).collect() });
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn is_fenced(id: i32) -> impl Fn(&Image) -> bool {
    move |image| image.node(id).is_some_and(|node| node.registration.is_fenced)
}

#[tokio::test]
async fn silent_broker_is_fenced_and_unfences_itself_when_it_lives() {
    let memory = Memory::default();
    let detector = run(&memory, 1, 1, CLOSED_PORT);
    // A process listens on the other broker's port, so that port does not refuse connections.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let other = run(&memory, 2, 2, listener.local_addr().expect("an address").port());
    detector.heartbeats_until(&[(2, TIMEOUT_MS)], is_fenced(2)).await;
    other.control.catch_up();
    detector.heartbeats_until(&[(2, 0)], |image| !is_fenced(2)(image)).await;
    assert!(other.ended.borrow().is_none());
    for member in [detector, other] {
        member.stop.send_replace(true);
        member.task.await.expect("no panic");
    }
}

#[tokio::test]
async fn refusing_port_is_enough_once_heartbeats_are_missing() {
    let memory = Memory::default();
    let control = member(&memory, 1, 1, LISTENER, CLOSED_PORT).expect("registered");
    let _dead = member(&memory, 2, 2, LISTENER, CLOSED_PORT).expect("registered");
    control.catch_up();
    let mut images = control.watch();
    images.wait_for(|image| image.node(2).is_some()).await.expect("open");
    let image = control.image();
    let process = image.node(2).expect("there").process;
    let heartbeat_answer =
        |number, age_ms| HeartbeatAnswer { peers: vec![PeerHeartbeat { id: 2, process, number, age_ms, version: 0 }] };
    let long = 600_000;
    let mut peers = PeerWatch::new(1, long, LISTENER);
    assert_eq!(
        peers.dead(&image, &heartbeat_answer(1, long)).await,
        [],
        "it has not beaten for a whole timeout itself"
    );
    let mut peers = PeerWatch::new(1, 0, LISTENER);
    assert_eq!(peers.dead(&image, &heartbeat_answer(1, 0)).await, [], "its beat is young");
    let is_dead = async {
        while peers.dead(&image, &heartbeat_answer(1, 1_000)).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_dead).await.expect("dead");
}

#[tokio::test]
async fn jump_of_the_databases_clock_neither_fails_nor_revives_a_broker() {
    let memory = Memory::default();
    let control = member(&memory, 1, 1, LISTENER, CLOSED_PORT).expect("registered");
    let _other = member(&memory, 2, 2, LISTENER, CLOSED_PORT).expect("registered");
    control.catch_up();
    let mut images = control.watch();
    images.wait_for(|image| image.node(2).is_some()).await.expect("open");
    let image = control.image();
    let process = image.node(2).expect("there").process;
    let heartbeat_answer =
        |number, age_ms| HeartbeatAnswer { peers: vec![PeerHeartbeat { id: 2, process, number, age_ms, version: 0 }] };
    let mut peers = PeerWatch::new(1, 0, LISTENER);
    for number in 0..10 {
        assert_eq!(
            peers.dead(&image, &heartbeat_answer(number, 3_600_000)).await,
            [],
            "it beats, whatever the clock says"
        );
    }
    let is_dead = async {
        while peers.dead(&image, &heartbeat_answer(9, 0)).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_dead).await.expect("it beats no more, whatever the clock says");
}

#[tokio::test]
async fn replaced_process_ends() {
    let memory = Memory::default();
    let first = run(&memory, 1, 7, CLOSED_PORT);
    let second = run(&memory, 1, 7, CLOSED_PORT);
    first.control.catch_up();
    let mut ended = first.ended.subscribe();
    let why = ended.wait_for(Option::is_some).await.expect("it tells").clone().expect("why");
    assert_eq!(why, "another process has replaced this process as node.id=1");
    first.task.await.expect("no panic");
    second.stop.send_replace(true);
    second.task.await.expect("no panic");
    let other_directory = member(&memory, 1, 8, LISTENER, CLOSED_PORT).err().expect("refused").to_string();
    assert!(other_directory.contains("is running with another data directory"), "{other_directory}");
}

#[tokio::test]
async fn process_registered_again_by_its_own_late_attempt_ends() {
    let memory = Memory::default();
    let first = run(&memory, 1, 7, CLOSED_PORT);
    first.control.publish(|image| {
        let mut again = image.node(1).expect("it is there").clone();
        again.registration.epoch += 2;
        image.put_node(1, again);
    });
    let mut ended = first.ended.subscribe();
    let why = ended.wait_for(Option::is_some).await.expect("it tells").clone().expect("why");
    assert!(
        why.starts_with(
            "a late registration of this process, which the process no longer waited for, has replaced this process"
        ),
        "{why}"
    );
    first.task.await.expect("no panic");
}

#[tokio::test]
async fn leaderships_are_handed_over_before_a_broker_stops() {
    let memory = Memory::default();
    let one = member(&memory, 1, 1, LISTENER, CLOSED_PORT).expect("registered");
    let two = member(&memory, 2, 2, LISTENER, CLOSED_PORT).expect("registered");
    one.catch_up();
    let topic = fullbore_control::CreateTopic {
        assignments: vec![(0, vec![1, 2])],
        num_partitions: -1,
        replication_factor: -1,
        ..wanted("t")
    };
    create(&one, vec![topic]).await.remove(0).expect("created");
    let version = one.image().epoch() + 1;
    let process = two.process();
    let heartbeat = PeerHeartbeat { id: 2, process, number: 1, age_ms: 0, version };
    // The database still has the last heartbeat of broker 2's earlier process.
    let former = PeerHeartbeat { process: Uuid([9; 16]), age_ms: 60_000, version: 1, ..heartbeat };
    let heartbeats = watch::Sender::new(HeartbeatAnswer { peers: vec![former, heartbeat] });
    let began = Instant::now();
    hand_over(&one, &mut heartbeats.subscribe(), [].into()).await;
    assert!(began.elapsed() < HANDED_OVER_MAX, "{:?}", began.elapsed());
    let led = |control: &Control| control.image().topic("t").map(|topic| topic.partitions[0].leader);
    assert_eq!(led(&one), Some(Some(2)));
    leave(&one).await;
    assert!(is_fenced(1)(&one.image()));
}

#[tokio::test]
async fn failover_of_an_ended_survivor_is_continued_by_another() {
    let memory = Memory::default();
    let members = [1, 2].map(|id| run(&memory, id, u128::from(id.unsigned_abs()), CLOSED_PORT));
    let _dead = member(&memory, 3, 3, LISTENER, CLOSED_PORT).expect("registered");
    members[0].control.catch_up();
    let topic = fullbore_control::CreateTopic {
        assignments: vec![(0, vec![3, 2, 1]), (1, vec![2, 3, 1])],
        num_partitions: -1,
        replication_factor: -1,
        ..wanted("t")
    };
    create(&members[0].control, vec![topic]).await.remove(0).expect("created");
    fence_alone(&memory, 3);
    let is_settled = |image: &Image| {
        let topic = image.topic("t").expect("there");
        topic.partitions.iter().all(|of| of.leader == Some(2) && of.isr.len() == 2)
    };
    members[0].heartbeats_until(&[(2, 0)], is_settled).await;
    for member in members {
        member.stop.send_replace(true);
        member.task.await.expect("no panic");
    }
}

/// Runs broker 1 on `disk`. It leads a partition that also has a replica on broker 2. Returns both brokers, and a
/// counter of how often broker 1 has closed its clients' connections.
async fn run_on(disk: &Arc<parking_lot::Mutex<DiskRoom>>) -> (Running, Control, Arc<AtomicUsize>) {
    let memory = Memory::default();
    let control = member(&memory, 1, 1, LISTENER, CLOSED_PORT).expect("registered");
    let other = member(&memory, 2, 2, LISTENER, CLOSED_PORT).expect("registered");
    control.catch_up();
    let topic = fullbore_control::CreateTopic {
        assignments: vec![(0, vec![1, 2])],
        num_partitions: -1,
        replication_factor: -1,
        ..wanted("t")
    };
    create(&control, vec![topic]).await.remove(0).expect("created");
    let (seen, hung_up) = (Arc::clone(disk), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&hung_up);
    let hang_up = Box::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let membership = new_member_with(&control, 1, TIMEOUT_MS, (Box::new(move || *seen.lock()), hang_up));
    (run_member(control, membership), other, hung_up)
}

fn is_out(image: &Image) -> bool {
    let leader = image.topic("t").map(|topic| topic.partitions[0].leader);
    image.node(1).is_some_and(|node| node.registration.is_full) && leader == Some(Some(2))
}

#[tokio::test]
async fn full_disk_hands_partitions_over_and_free_space_is_reported_again() {
    let disk = Arc::new(parking_lot::Mutex::new(DiskRoom::Ample));
    let (running, _other, hung_up) = run_on(&disk).await;
    *disk.lock() = DiskRoom::Full;
    running.heartbeats_until(&[(2, 0)], is_out).await;
    *disk.lock() = DiskRoom::Ample;
    running.heartbeats_until(&[(2, 0)], |image| !is_out(image)).await;
    assert_eq!(hung_up.load(Ordering::SeqCst), 0, "it answers its clients");
    running.stop.send_replace(true);
    running.task.await.expect("no panic");
}

#[tokio::test]
async fn hanging_disk_hands_partitions_over_and_hangs_up_on_clients_once() {
    let disk = Arc::new(parking_lot::Mutex::new(DiskRoom::Ample));
    let (running, _other, hung_up) = run_on(&disk).await;
    *disk.lock() = DiskRoom::Hung;
    running.heartbeats_until(&[(2, 0)], |image| is_out(image) && hung_up.load(Ordering::SeqCst) > 0).await;
    *disk.lock() = DiskRoom::Ample;
    running.heartbeats_until(&[(2, 0)], |image| !is_out(image)).await;
    assert_eq!(hung_up.load(Ordering::SeqCst), 1);
    running.stop.send_replace(true);
    running.task.await.expect("no panic");
}

/// Fences a running broker, as if only its heartbeats had been lost. Returns the time until the broker has unfenced
/// itself.
async fn fence_and_wait(detector: &Control, fenced: &Control) -> Duration {
    let mut images = fenced.watch();
    let began = Instant::now();
    detector.change_broker(fenced.broker_state(), BrokerChange::Fence, [].into()).await.expect("fenced");
    let epoch = detector.image().epoch();
    fenced.catch_up();
    let id = fenced.broker_state().broker_id;
    images.wait_for(|image| image.epoch() > epoch && !is_fenced(id)(image)).await.expect("open");
    detector.catch_up();
    began.elapsed()
}

#[tokio::test]
async fn broker_fenced_again_soon_waits_before_it_unfences_itself() {
    let memory = Memory::default();
    let other = run(&memory, 2, 2, CLOSED_PORT);
    let detector = member(&memory, 1, 1, LISTENER, CLOSED_PORT).expect("registered");
    fence_and_wait(&detector, &other.control).await;
    let waited = fence_and_wait(&detector, &other.control).await;
    assert!(waited >= Duration::from_millis(TIMEOUT_MS.unsigned_abs()), "{waited:?}");
    other.stop.send_replace(true);
    other.task.await.expect("no panic");
}

/// With a session timeout of an hour, a pause would last at least an hour and fail the test.
#[tokio::test]
async fn broker_that_alone_may_lead_a_partition_unfences_itself_at_once() {
    let memory = Memory::default();
    let other = run_for(&memory, 2, 2, CLOSED_PORT, 3_600_000);
    let detector = member(&memory, 1, 1, LISTENER, CLOSED_PORT).expect("registered");
    let alone = fullbore_control::CreateTopic {
        assignments: vec![(0, vec![2])],
        num_partitions: -1,
        replication_factor: -1,
        ..wanted("t")
    };
    create(&detector, vec![alone]).await.remove(0).expect("created");
    for _ in 0..3 {
        fence_and_wait(&detector, &other.control).await;
    }
    let leader = |control: &Control| control.image().topic("t").map(|topic| topic.partitions[0].leader);
    assert_eq!(leader(&other.control), Some(Some(2)));
    other.stop.send_replace(true);
    other.task.await.expect("no panic");
}
