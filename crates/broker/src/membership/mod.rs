//! The broker as a member of its cluster. The broker fences other brokers that have failed, and unfences itself after
//! it was fenced. The broker hands its partitions over before it stops, and if its disk is full or hangs. If the broker
//! loses the object store, it stops serving diskless topics. If it alone loses the database, it stands down
//! ([`cut_off`]). If another process registers with the same `node.id`, this process ends.
//!
//! The rules are in [`fullbore_rules::cluster`]. Every change is a command of the control plane, and any broker may
//! send it. The control plane also sends the heartbeats, over a connection of its own. A standalone broker has no
//! membership.
//!
//! Invariant: safety does not depend on this module. A broker that is considered failed by mistake loses no records. It
//! only loses its leaderships for a while.

pub mod balance;
mod comeback;
pub mod cut_off;
mod disk;
mod store;
mod unsettled;
mod watch;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_rules::replica::BrokerState;
use fullbore_wire::ErrorCode;
use tokio::sync::watch as channel;

use comeback::{Comeback, is_needed};
use disk::DiskWatch;
pub use disk::{HangUp, OwnDisk};
use fullbore_control::{BrokerChange, Control, HeartbeatAnswer, Image, PeerHeartbeat, RegisteredBroker, Urgent};
use fullbore_diskless::StoreHealth;
use fullbore_host::backoff::Backoff;
use fullbore_host::log_rate_limit::LogRateLimit;
use store::LostStoreWatch;
use unsettled::UnsettledWatch;
use watch::PeerWatch;

/// Maximum time that a stopping broker waits for the other brokers to learn the new leaders of its partitions. Their
/// heartbeats show which metadata version they have applied.
const HANDED_OVER_MAX: Duration = Duration::from_secs(5);
/// How long this broker waits before it repeats a refused command.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Maximum pause between two attempts to fence a broker.
const FENCE_PAUSE_MAX: Duration = Duration::from_secs(8);

/// Returns the partitions in use, which get new leaders before all others.
pub type InUse = Arc<dyn Fn() -> Urgent + Send + Sync>;

/// This broker as a member of its cluster.
pub struct Membership {
    control: Control,
    node_id: i32,
    peers: PeerWatch,
    in_use: InUse,
    /// The pauses between attempts to fence a broker.
    fencing: Backoff,
    comeback: Comeback,
    unsettled: UnsettledWatch,
    disk: DiskWatch,
    store: Option<LostStoreWatch>,
    refused: LogRateLimit,
}

/// Channel for the reason why this process must end: another process has been registered as this broker.
pub type ReplacedBy = channel::Sender<Option<String>>;

impl Membership {
    /// Creates the membership. `listener` is the name of the listener that brokers use among themselves.
    pub fn new(
        control: Control,
        node_id: i32,
        session_timeout_ms: i64,
        listener: &str,
        in_use: InUse,
        disk: OwnDisk,
        hang_up: HangUp,
    ) -> Membership {
        let session = Duration::from_millis(u64::try_from(session_timeout_ms).unwrap_or(0));
        Membership {
            peers: PeerWatch::new(node_id, session_timeout_ms, listener),
            in_use,
            fencing: Backoff::new(AGAIN_AFTER, FENCE_PAUSE_MAX),
            comeback: Comeback::new(session),
            unsettled: UnsettledWatch::new(control.clone()),
            disk: DiskWatch::new(disk, hang_up),
            store: None,
            refused: LogRateLimit::default(),
            control,
            node_id,
        }
    }

    /// Adds the check of the object store.
    pub fn with_store(self, store: Arc<StoreHealth>) -> Membership {
        Membership { store: Some(LostStoreWatch::new(store)), ..self }
    }

    /// Reacts to heartbeats and new images until the broker stops or is replaced. If it is replaced, sends the reason
    /// to `ended`.
    pub async fn run(
        mut self,
        mut heartbeats: channel::Receiver<HeartbeatAnswer>,
        mut stop: channel::Receiver<bool>,
        ended: Arc<ReplacedBy>,
    ) {
        let mut images = self.control.watch();
        let mut again = None;
        loop {
            let is_heartbeat = tokio::select! {
                changed = heartbeats.changed() => changed.map(|()| true),
                changed = images.changed() => changed.map(|()| false),
                () = until(again) => Ok(false),
                () = stopped(&mut stop) => return,
            };
            let Ok(is_heartbeat) = is_heartbeat else { return };
            if is_heartbeat {
                let heartbeat_answer = heartbeats.borrow_and_update().clone();
                self.judge(&heartbeat_answer).await;
            }
            let image = Arc::clone(&images.borrow_and_update());
            if let Some(why) = self.replaced(&image) {
                ended.send_replace(Some(why));
                return;
            }
            if is_heartbeat {
                self.disk.check(&self.control, &image, || (self.in_use)()).await;
                if let Some(store) = &mut self.store {
                    store.check(&self.control, &image).await;
                }
                self.unsettled.check(&image, Instant::now(), || (self.in_use)());
            }
            again = self.come_back(&image).await;
        }
    }

    /// Returns the reason if another registration has replaced this process, or `None` if this process is still
    /// registered.
    fn replaced(&self, image: &Image) -> Option<String> {
        let own = image.node(self.node_id)?.member();
        let process = u128::from_be_bytes(self.control.process().0);
        if own.is_held_by(process, self.control.broker_epoch()) {
            return None;
        }
        let place = format!("replaced this process as node.id={}", self.node_id);
        Some(match own.process == process {
            true => format!("a late registration of this process, which the process no longer waited for, has {place}"),
            false => format!("another process has {place}"),
        })
    }

    /// Unfences this broker if it is fenced. Returns the time of the next attempt if the broker must wait or the
    /// control plane refused the command. Returns `None` if no further attempt is needed.
    async fn come_back(&mut self, image: &Image) -> Option<Instant> {
        let own = image.node(self.node_id)?;
        if !own.registration.is_fenced {
            return None;
        }
        let now = Instant::now();
        let is_new = !self.comeback.is_waiting();
        let due = self.comeback.due(now);
        if due > now && !is_needed(image, self.node_id) {
            if is_new {
                let seconds = (due - now).as_secs();
                tracing::warn!(
                    seconds,
                    "this broker was fenced again soon after its return: it waits before it unfences itself"
                );
            }
            return Some(due);
        }
        match self.control.change_broker(self.control.broker_state(), BrokerChange::Unfence, [].into()).await {
            Ok(()) => {
                self.comeback.back(Instant::now());
                tracing::warn!("this broker was fenced, and has unfenced itself");
                None
            }
            Err(refusal) => {
                if let Some(left_out) = self.refused.due() {
                    tracing::warn!(%refusal, left_out, "cannot unfence this broker: it leads nothing until a later try succeeds");
                }
                Some(Instant::now() + AGAIN_AFTER)
            }
        }
    }

    /// Fences the brokers that have failed. Fences none during the pause after a refused attempt.
    async fn judge(&mut self, heartbeat_answer: &HeartbeatAnswer) {
        let image = self.control.image();
        for broker in self.peers.dead(&image, heartbeat_answer).await {
            if !self.fencing.is_due(Instant::now()) {
                return;
            }
            let BrokerState { broker_id, broker_epoch } = broker;
            match self.control.change_broker(broker, BrokerChange::Fence, (self.in_use)()).await {
                Ok(()) => {
                    self.fencing.reset();
                    tracing::warn!(broker_id, broker_epoch, "fenced a broker that has failed");
                }
                // Another broker has fenced the failed broker first, or the failed broker has come back.
                Err(refusal) if refusal.code == ErrorCode::STALE_BROKER_EPOCH => {}
                Err(refusal) => {
                    self.fencing.pause(Instant::now());
                    tracing::warn!(broker_id, %refusal, "cannot fence a broker that has failed: the broker stays leader of its partitions until a retry succeeds");
                }
            }
        }
    }
}

/// Hands over all partitions that other brokers can lead, beginning with `urgent`. Then waits, for at most
/// [`HANDED_OVER_MAX`], until heartbeats show that all other live brokers know the new leaders.
pub async fn hand_over(control: &Control, heartbeats: &mut channel::Receiver<HeartbeatAnswer>, urgent: Urgent) {
    let own = control.broker_state();
    if control.image().nodes().len() < 2 {
        return;
    }
    let mut handed_over = control.change_broker(own, BrokerChange::ShutDown, Arc::clone(&urgent)).await;
    if handed_over.is_ok() {
        handed_over = control.settle_partitions(urgent).await;
    }
    if let Err(refusal) = handed_over {
        tracing::warn!(%refusal, "cannot hand over leadership on shutdown: partitions have no leader until the other brokers fence this broker, or this broker restarts");
        return;
    }
    let image = control.image();
    let version = image.epoch();
    // The database keeps the heartbeats of ended processes for a while. Skip them, and wait only for live processes.
    let lives = |peer: &&PeerHeartbeat| {
        let is_that = |node: &RegisteredBroker| node.process == peer.process && !node.registration.is_fenced;
        peer.id != own.broker_id && image.node(peer.id).is_some_and(is_that)
    };
    let all_show_it = |heartbeat_answer: &HeartbeatAnswer| {
        heartbeat_answer.peers.iter().filter(lives).all(|peer| peer.version >= version)
    };
    match tokio::time::timeout(HANDED_OVER_MAX, heartbeats.wait_for(all_show_it)).await {
        Ok(_) => tracing::info!("handed over the leadership of this broker's partitions"),
        Err(_) => {
            tracing::warn!(
                "cannot confirm the hand-over of leadership: some brokers have not reported in time that they know \
                 the new leaders, and may still send clients here"
            )
        }
    }
}

/// Fences this broker, so that the other brokers need not wait until its session expires.
pub async fn leave(control: &Control) {
    // A broker without peers stays unfenced, so that it leads its partitions again right after its restart.
    if control.image().nodes().len() > 1 {
        fence(control).await;
    }
}

/// Fences this broker.
pub async fn fence(control: &Control) {
    if let Err(refusal) = control.change_broker(control.broker_state(), BrokerChange::Fence, [].into()).await {
        tracing::debug!(%refusal, "cannot report that this broker stops: the other brokers detect the stop once its heartbeats are missing");
    }
}

async fn stopped(stop: &mut channel::Receiver<bool>) {
    let _ = stop.wait_for(|stopping| *stopping).await;
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
