//! Looks up a group's coordinator while a JoinGroup or SyncGroup waits for its answer.
//!
//! A broker that no longer is the coordinator, but does not know this, may never answer. Invariant: the wait ends only
//! after two brokers in a row have named the same other coordinator. Neither a slow rebalance nor one stale broker ends
//! it.

use crate::blocking::{Cluster, Stopper};
use crate::protocol::CoordinatorKind;
use fullbore_wire::Text;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

/// Maximum time until the second broker is queried.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
/// Maximum time between two look-ups. The time doubles with each look-up that names the present coordinator.
const EVERY_MAX: Duration = Duration::from_secs(60);

/// The thread that looks up the coordinator.
pub(super) struct Lookout {
    /// The thread ends when this sender is dropped.
    ends: Sender<()>,
    found: Arc<Mutex<Option<String>>>,
}

/// The request that waits.
pub(super) struct Awaited {
    pub(super) group: Text,
    /// The address of the coordinator that has got the request.
    pub(super) present: String,
    /// A handle that ends the wait.
    pub(super) stopper: Stopper,
}

impl Lookout {
    /// Starts the thread. The first look-up follows after `every`.
    pub(super) fn begin(cluster: Cluster, awaited: Awaited, every: Duration) -> io::Result<Self> {
        let (ends, ended) = channel();
        let found = Arc::<Mutex<Option<String>>>::default();
        let result = found.clone();
        let body = move || {
            if let Some(address) = another(cluster, &awaited, every, &ended) {
                *result.lock() = Some(address);
                awaited.stopper.stop();
            }
        };
        std::thread::Builder::new().name("coordinator".to_owned()).spawn(body)?;
        Ok(Lookout { ends, found })
    }

    /// Ends the look-ups. Returns the address of the other coordinator, if the thread has ended the wait.
    pub(super) fn end(self) -> Option<String> {
        drop(self.ends);
        self.found.lock().take()
    }
}

/// Returns the address of another coordinator once two brokers in a row have named it. Returns `None` if the request is
/// answered before.
fn another(mut cluster: Cluster, awaited: &Awaited, every: Duration, ended: &Receiver<()>) -> Option<String> {
    // The coordinator that the last look-up has named, and the broker that has named it.
    let mut named: Option<(String, String)> = None;
    let mut pause = every;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        cluster.rotate();
        let answer = cluster.coordinator(CoordinatorKind::Group, &awaited.group);
        // A broker that does not answer changes nothing.
        let (Ok(address), Some(by)) = (answer.map(|found| found.address()), cluster.connected_to()) else {
            pause = every;
            continue;
        };
        if address == awaited.present {
            (named, pause) = (None, (2 * pause).min(EVERY_MAX.max(every)));
            continue;
        }
        if named.as_ref().is_some_and(|(known, first)| *known == address && *first != by) {
            return (ended.try_recv() == Err(TryRecvError::Empty)).then_some(address);
        }
        (named, pause) = (Some((address, by)), every.min(CONFIRMED_WITHIN));
    }
    None
}
