//! The failure detector. It reads the heartbeats of the other brokers. If the age of a heartbeat reaches
//! [`REFUSING_HEARTBEAT_AGE_MS`], it also checks whether the broker's port refuses connections.
//!
//! The rule is in [`fullbore_rules::cluster::lease`].

use fullbore_host::task;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use fullbore_rules::cluster::lease::{FailureDetector, PeerEvidence, REFUSING_HEARTBEAT_AGE_MS};
use fullbore_rules::replica::BrokerState;
use fullbore_wire::{Uuid, host_port};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use fullbore_control::{HeartbeatAnswer, Image, RegisteredBroker};

/// Maximum duration of the probe of a port. The limit is short, because a probe delays this broker's next check. After
/// a long gap between checks, this broker must not consider any other broker failed (see
/// [`FailureDetector::may_judge`]).
const PROBE_MAX: Duration = Duration::from_millis(300);
/// With a short session timeout, a probe may last at most the timeout divided by this number.
const PROBE_SHARE: u32 = 8;

/// The failure detector and the heartbeats that it knows.
pub struct PeerWatch {
    node_id: i32,
    listener: String,
    detector: FailureDetector,
    /// Maximum duration of the probe of a port.
    probe_max: Duration,
    began: Instant,
    /// The last known heartbeat of each broker.
    received: BTreeMap<i32, LastHeard>,
    /// The time of the last check, in ms since `began`.
    looked_ms: Option<i64>,
}

/// The last known heartbeat of a process. `number` is `None` if the process has not sent any.
struct LastHeard {
    process: Uuid,
    number: Option<u64>,
    /// The times of the check that first saw the heartbeat and of the check before it, in ms since the detector began.
    /// The heartbeat was sent between these two checks.
    first_ms: i64,
    before_ms: i64,
}

impl PeerWatch {
    /// Creates a detector that knows no heartbeats yet.
    pub fn new(node_id: i32, session_timeout_ms: i64, listener: &str) -> PeerWatch {
        let detector = FailureDetector::new(session_timeout_ms);
        let session = Duration::from_millis(u64::try_from(session_timeout_ms).unwrap_or(0));
        PeerWatch {
            node_id,
            listener: listener.to_owned(),
            detector,
            probe_max: PROBE_MAX.min(session / PROBE_SHARE),
            began: Instant::now(),
            received: BTreeMap::new(),
            looked_ms: None,
        }
    }

    /// Returns the brokers that have failed. Must be called each time the database has answered this broker's
    /// heartbeat.
    pub async fn dead(&mut self, image: &Image, heartbeat_answer: &HeartbeatAnswer) -> Vec<BrokerState> {
        let now_ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.detector.heartbeat(now_ms);
        let ages = self.ages(image, heartbeat_answer, now_ms);
        if !self.detector.may_judge(now_ms) {
            return Vec::new();
        }
        let (mut suspects, probe_max) = (JoinSet::new(), self.probe_max);
        for (id, heartbeat_age_ms) in ages.into_iter().filter(|(_, age_ms)| *age_ms >= REFUSING_HEARTBEAT_AGE_MS) {
            let Some(node) = image.node(id) else { continue };
            let whom = BrokerState { broker_id: id, broker_epoch: node.registration.epoch };
            let address = self.address(node);
            suspects.spawn(task::boxed(async move {
                let refuses = match address {
                    Some(address) => is_refused(&address, probe_max).await,
                    None => false,
                };
                (whom, PeerEvidence { heartbeat_age_ms, refuses })
            }));
        }
        let signs = suspects.join_all().await.into_iter();
        signs.filter(|(_, signs)| self.detector.is_dead(signs, now_ms)).map(|(whom, _)| whom).collect()
    }

    /// Returns the age of the last heartbeat in ms, for each other broker that is not fenced. The database's clock may
    /// jump, so its ages are limited to the range that this broker has observed itself.
    fn ages(&mut self, image: &Image, heartbeat_answer: &HeartbeatAnswer, now_ms: i64) -> Vec<(i32, i64)> {
        let before_ms = self.looked_ms.replace(now_ms).unwrap_or(now_ms);
        let mut ages = Vec::new();
        let mut received = BTreeMap::new();
        let others = image.nodes().iter().filter(|(id, node)| **id != self.node_id && !node.registration.is_fenced);
        for (id, node) in others {
            let last = heartbeat_answer.peers.iter().find(|peer| peer.id == *id && peer.process == node.process);
            let number = last.map(|last| last.number);
            let known =
                self.received.remove(id).filter(|known| known.process == node.process && known.number == number);
            let of_now = LastHeard { process: node.process, number, first_ms: now_ms, before_ms };
            let known = known.unwrap_or(of_now);
            let (least_ms, most_ms) = (now_ms - known.first_ms, now_ms - known.before_ms);
            ages.push((*id, last.map_or(least_ms, |last| last.age_ms.clamp(least_ms, most_ms))));
            received.insert(*id, known);
        }
        self.received = received;
        ages
    }

    fn address(&self, node: &RegisteredBroker) -> Option<String> {
        let at = node.endpoint(&self.listener)?;
        Some(host_port(&at.host, at.port))
    }
}

/// Returns true if the address refuses a connection within `probe_max`.
async fn is_refused(address: &str, probe_max: Duration) -> bool {
    let attempt = timeout(probe_max, TcpStream::connect(address)).await;
    matches!(attempt, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
}
