//! Black-box tests. They use a real broker process, a raw client of its protocol, and kill -9.
//!
//! This is not a client library: every function panics on an unexpected result, so that the test fails. Invariant: no
//! fixed sleeps. Every wait is for a condition and has a deadline.

mod batch;
mod client;
mod cluster;
mod copier;
mod copies;
mod disk;
mod fixture;
mod history;
pub mod pgbouncer;
pub mod pki;
pub mod postgres;
mod process;
mod proxy;
mod relay;
mod requests;
pub mod s3;
mod tls;
mod transactional;

pub use batch::{Batch, EndMarker, Record};
pub use client::{Client, bytes_of};
pub use cluster::{Acknowledged, Cluster, ClusterPlan, Consumed, Consuming, Producing};
pub use copier::{Copier, Resolve};
pub use copies::{Copied, CopyProcess};
pub use disk::{Disk, Frozen, another_boot};
pub use fixture::{Fixture, WAITING};
pub use fullbore_schedules::Random;
pub use history::{Attempt, History, Outcome, Reported};
pub use process::{Broker, NO_LISTENER, NO_RETENTION, Refused, binary, complaints, serve_refused};
pub use proxy::Proxy;
pub use relay::{Link, Links, Relay};
pub use requests::{FetchFrom, alter_resource, fetch_request, produce_request, topic_data};
pub use tls::Tls;
pub use transactional::{Protocol, TRANSIENT, Transactional, init_request, transactional_request};

use std::time::{Duration, Instant};

/// Returns how many rounds a loop of kills or random schedules runs. If the environment variable `variable` is set, it
/// decides. Otherwise the loop runs `many` rounds under `make soak` (which sets `FULLBORE_SOAK`), and `few` rounds in
/// other runs.
pub fn rounds(variable: &str, few: usize, many: usize) -> usize {
    match std::env::var(variable) {
        Ok(rounds) => rounds.parse().unwrap_or_else(|_| panic!("{variable} is a number")),
        Err(_) if std::env::var_os("FULLBORE_SOAK").is_some() => many,
        Err(_) => few,
    }
}

/// Ports that Linux does not use for outgoing connections.
const STABLE: std::ops::Range<u16> = 10_000..32_000;

/// Returns `count` free ports that Linux never uses for outgoing connections. A broker can thus restart on its port.
pub fn stable_ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| stable_ports_in_a_row(1)).collect()
}

/// Returns the first of `count` consecutive free ports. A UDP socket of the same number reserves each port until this
/// program ends. Otherwise, another program could take the port while a broker is down.
pub fn stable_ports_in_a_row(count: u16) -> u16 {
    static NEXT: std::sync::OnceLock<std::sync::Mutex<u16>> = std::sync::OnceLock::new();
    static RESERVED: std::sync::Mutex<Vec<std::net::UdpSocket>> = std::sync::Mutex::new(Vec::new());
    // Each test program begins its search at another port, so that parallel programs rarely collide.
    let begin = || STABLE.start + (std::process::id().wrapping_mul(367) % u32::from(STABLE.end - STABLE.start)) as u16;
    let reserve = |port: u16| {
        let reserved = std::net::UdpSocket::bind(("127.0.0.1", port)).ok()?;
        std::net::TcpListener::bind(("127.0.0.1", port)).ok().map(|_| reserved)
    };
    let mut next = NEXT.get_or_init(|| begin().into()).lock().expect("not poisoned");
    loop {
        let first = if *next + count <= STABLE.end { *next } else { STABLE.start };
        *next = first + count;
        if let Some(reserved) = (first..*next).map(reserve).collect::<Option<Vec<_>>>() {
            RESERVED.lock().expect("not poisoned").extend(reserved);
            return first;
        }
    }
}

/// Waits until `condition` is true. If that takes longer than `deadline`, panics with `what` in the message.
pub fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    /// A crate that is missing in `checked.toml` would be tested without debug assertions.
    #[test]
    fn checked_toml_has_every_crate_of_the_workspace() {
        let reported = include_str!("../checked.toml");
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates");
        let directories = std::fs::read_dir(crates).expect("the crates").map(|entry| entry.expect("readable").path());
        let manifests = directories.map(|directory| directory.join("Cargo.toml")).filter(|manifest| manifest.exists());
        let texts = manifests.map(|manifest| std::fs::read_to_string(manifest).expect("readable"));
        let name = |text: &str| {
            text.lines().find_map(|line| Some(line.strip_prefix("name = \"")?.trim_end_matches('"').to_owned()))
        };
        let mut names: Vec<String> = texts.map(|text| name(&text).expect("a crate has a name")).collect();
        names.extend([env!("CARGO_PKG_NAME"), "fullbore-sim"].map(str::to_owned));
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            let (_, section) = reported.split_once(&format!("[profile.release.package.{name}]\n")).expect(&name);
            let own = section.split("\n[").next().expect("split gives one at least");
            for flag in ["debug-assertions = true", "overflow-checks = true"] {
                assert!(own.lines().any(|line| line == flag), "{name}: {flag}");
            }
        }
    }
}
