//! Waiting that takes long, as the user is told of it on standard error.
//!
//! Not what stands in the way of a reader that goes on (see `troubles`). Invariant: nothing is told within the first
//! [`TOLD_AFTER`], and each line begins with `waiting: `.

use crate::output;
use crate::patience::Patience;
use fullbore_client::ClientError;
use fullbore_client::blocking::Awaited;
use fullbore_producer::Producer;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a wait may take before the user is told.
pub const TOLD_AFTER: Duration = Duration::from_secs(2);
/// Between two lines about the same wait.
const EVERY: Duration = Duration::from_secs(5);
/// Between two looks at what is awaited.
const TICK: Duration = Duration::from_millis(100);
/// How much longer a producer is waited for: its own limit may be the same, and its error says more.
const GRACE: Duration = Duration::from_secs(1);
/// Brokers and the like that are told of at most.
const TOLD_MAX: usize = 10;

/// Tells once of each answer of a cluster that is late, from a thread of its own, for as long as there is that cluster.
///
/// # Errors
/// The system's, if it refuses the thread.
pub fn tell_of(awaited: Awaited, patience: Patience) -> io::Result<()> {
    let watch = move || {
        let mut told = BTreeSet::new();
        while !awaited.is_over() && told.len() < TOLD_MAX {
            std::thread::sleep(TICK);
            if let Some(whom) = awaited.older_than(TOLD_AFTER)
                && !told.contains(&whom)
            {
                output::tell(late(&whom, patience));
                told.insert(whom);
            }
        }
    };
    std::thread::Builder::new().name("waiting".to_owned()).spawn(watch).map(drop)
}

fn late(whom: &str, patience: Patience) -> String {
    let (told, end) = (TOLD_AFTER.as_secs(), patience.duration());
    format!("waiting: no answer from {whom} for {told} s; --timeout ends this after {end:?}")
}

/// Waits until the producer has a connection to one of `servers`. A producer itself would wait max.block.ms for one,
/// and somebody at a terminal wants to know at once.
///
/// # Errors
/// The last attempt's, or no answer within `patience`.
pub fn for_producer(
    producer: &Producer,
    runtime: &Runtime,
    servers: &str,
    patience: Patience,
) -> Result<(), ClientError> {
    let within = patience.duration();
    runtime.block_on(async {
        let mut reached = std::pin::pin!(tokio::time::timeout(within + GRACE, producer.reach()));
        let outcome = match tokio::time::timeout(TOLD_AFTER, &mut reached).await {
            Ok(outcome) => outcome,
            Err(_) => {
                output::tell(late(servers, patience));
                reached.await
            }
        };
        match outcome {
            Ok(reached) => reached.map_err(|error| error.for_user(servers)),
            Err(_) => Err(ClientError::Silent { address: servers.to_owned(), patience: within }),
        }
    })
}

/// A wait of a command that is told after [`TOLD_AFTER`], and again every [`EVERY`].
pub struct Wait {
    next: Instant,
}

impl Wait {
    /// A wait that begins now.
    pub fn begin() -> Self {
        Wait { next: Instant::now() + TOLD_AFTER }
    }

    /// Tells what is waited for if it is time.
    pub fn observe(&mut self, what: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + EVERY;
            output::tell(format!("waiting: {}", what()));
        }
    }
}

/// What a command at a terminal waits for while the user does nothing; told once.
pub struct Idle {
    since: Instant,
    is_told: bool,
}

impl Idle {
    /// Nothing has come yet. Without a terminal there is nobody to be told.
    pub fn begin() -> Self {
        Idle { since: Instant::now(), is_told: !io::stderr().is_terminal() }
    }

    /// Tells what is waited for if it is time and nothing `came` yet.
    pub fn observe(&mut self, came: bool, what: impl FnOnce() -> String) {
        self.is_told |= came;
        if !self.is_told && self.since.elapsed() >= TOLD_AFTER {
            self.is_told = true;
            output::tell(format!("waiting: {}", what()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_young_nothing_is_told() {
        let mut wait = Wait::begin();
        wait.observe(|| unreachable!("it has just begun"));
        wait.next = Instant::now();
        let mut told = 0;
        wait.observe(|| {
            told += 1;
            "for the test".to_owned()
        });
        wait.observe(|| unreachable!("it was just told"));
        assert_eq!(told, 1);
    }

    #[test]
    fn something_came_idle_user_is_told_nothing() {
        let mut idle = Idle { since: Instant::now(), is_told: false };
        idle.observe(false, || unreachable!("it has just begun"));
        idle.since -= TOLD_AFTER;
        idle.observe(true, || unreachable!("something came"));
        idle.observe(false, || unreachable!("something had come"));
    }
}
