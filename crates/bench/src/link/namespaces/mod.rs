//! Joins two network namespaces by a simulated distance, which needs root. Each namespace has a TUN device, and threads
//! copy IP packets between the two devices. The kernel's own TCP runs at both ends, so that slow start, congestion
//! windows and socket buffers are real.
//!
//! Packets have up to 64 KB and are not cut into segments (see [`frame`]). This saves the kernel work per packet, as
//! TSO and GRO of a network card do. TCP itself decides how many bytes are in transit, how to react to a loss and when
//! to acknowledge. Invariant: a link removes its namespaces and devices at the end. If a link was killed, the next
//! start removes them. A link never removes what another program created.

pub mod direction;
mod error;
pub mod frame;
mod places;
mod tun;

pub use error::LinkError;

use super::Shape;
use direction::{Counts, Direction};
use places::Namespace;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use tun::DEVICE;

/// The addresses of the two ends.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const PREFIX_LEN: u32 = 24;
/// The allowed MTUs.
pub const MTU: std::ops::RangeInclusive<u32> = 576..=65_535;
/// Maximum number of packets that may wait between the kernel and this program.
const DEVICE_QUEUE: u32 = 10_000;

/// The settings of a link between namespaces.
#[derive(Debug, Clone)]
pub struct NamespaceSettings {
    /// The names of the namespaces.
    pub names: [String; 2],
    /// The distance and the bandwidth.
    pub shape: Shape,
    /// The probability that a packet is lost.
    pub loss: f64,
    /// The size of the largest IP packet.
    pub mtu: u32,
}

/// Two namespaces with a device in each. They are removed when this is dropped.
pub struct Pair {
    settings: NamespaceSettings,
    // The devices must be dropped before their namespaces.
    devices: [OwnedFd; 2],
    places: [Namespace; 2],
    counts: [Counts; 2],
}

impl Pair {
    /// Creates the namespaces and devices. Packets pass once [`Pair::run`] is called.
    ///
    /// # Errors
    /// Returns [`LinkError`] if a namespace or device cannot be created. Those already created are removed.
    pub fn new(settings: NamespaceSettings) -> Result<Pair, LinkError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LinkError::NotRoot);
        }
        let [a, b] = &settings.names;
        if a == b {
            return Err(LinkError::SameName(a.clone()));
        }
        let places = [Namespace::claim(a)?, Namespace::claim(b)?];
        let device = |place: &Namespace| {
            tun::in_namespace(&place.path()).map_err(|(what, error)| LinkError::System(what, error.into()))
        };
        let devices = [device(&places[0])?, device(&places[1])?];
        for (place, address) in places.iter().zip(ADDRESSES) {
            let (address, mtu) = (format!("{address}/{PREFIX_LEN}"), settings.mtu.to_string());
            let queue = DEVICE_QUEUE.to_string();
            place.ip(&["addr", "add", &address, "dev", DEVICE])?;
            place.ip(&["link", "set", DEVICE, "mtu", &mtu, "txqueuelen", &queue, "up"])?;
            place.ip(&["link", "set", "lo", "up"])?;
        }
        Ok(Pair { settings, devices, places, counts: Default::default() })
    }

    /// Returns the namespaces' names, in the order of [`ADDRESSES`].
    pub fn names(&self) -> [&str; 2] {
        self.places.each_ref().map(Namespace::name)
    }

    /// Carries packets until `requested` returns true.
    ///
    /// # Errors
    /// Returns [`LinkError`] if a device fails, for example because it was removed.
    pub fn run(&self, requested: impl Fn() -> bool + Sync) -> Result<(), LinkError> {
        // If one direction fails, the other must end as well, because a link with one direction is useless.
        let ended = AtomicBool::new(false);
        let stop = || ended.load(Ordering::Relaxed) || requested();
        let NamespaceSettings { shape, loss, .. } = &self.settings;
        let ([a, b], [there, back]) = (&self.devices, &self.counts);
        let directions = [
            Direction::new(a, b, shape, *loss, u64::from(std::process::id()), there),
            Direction::new(b, a, shape, *loss, !u64::from(std::process::id()), back),
        ];
        std::thread::scope(|scope| {
            let threads = directions.map(|direction| {
                scope.spawn(|| {
                    let outcome = direction.run(stop);
                    ended.store(true, Ordering::Relaxed);
                    outcome
                })
            });
            threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(|error| LinkError::System(format!("device {DEVICE}"), error.into()))
    }

    /// Returns the counts of the direction from the first namespace to the second, followed by those of the other
    /// direction.
    pub fn counts(&self) -> &[Counts; 2] {
        &self.counts
    }
}
