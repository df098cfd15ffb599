//! Reports long waits on standard error.
//!
//! The module `troubles` reports obstacles of a running reader. Invariant: no line is printed within the first
//! [`REPORTED_AFTER`] of a wait. Each line begins with `waiting: `.

use crate::output;
use crate::patience::Patience;
use fullbore_client::ClientError;
use fullbore_client::blocking::Awaited;
use fullbore_producer::Producer;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a wait must last to be reported.
pub const REPORTED_AFTER: Duration = Duration::from_secs(2);
/// The time between two lines about the same wait.
const EVERY: Duration = Duration::from_secs(5);
/// How often the waits are checked.
const TICK: Duration = Duration::from_millis(100);
/// How much longer than `patience` the command waits for a producer. If the producer has the same time limit, it thus
/// fails first, with a more precise error.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of brokers and coordinators that are reported.
const REPORTED_MAX: usize = 10;

/// Starts a thread that reports late responses, once for each broker or list of brokers. The thread ends with the
/// cluster, or after [`REPORTED_MAX`] reports.
///
/// # Errors
/// Returns the system's error if it refuses the thread.
pub fn report_late_responses(awaited: Awaited, patience: Patience) -> io::Result<()> {
    let watch = move || {
        let mut reported = BTreeSet::new();
        while !awaited.is_over() && reported.len() < REPORTED_MAX {
            std::thread::sleep(TICK);
            if let Some(whom) = awaited.older_than(REPORTED_AFTER)
                && !reported.contains(&whom)
            {
                output::remark(late(&whom, patience));
                reported.insert(whom);
            }
        }
    };
    std::thread::Builder::new().name("waiting".to_owned()).spawn(watch).map(drop)
}

fn late(whom: &str, patience: Patience) -> String {
    let (waited, end) = (REPORTED_AFTER.as_secs(), patience.duration());
    format!("waiting: no answer from {whom} for {waited} s; --timeout ends this after {end:?}")
}

/// Waits until the producer has a connection to one of `servers`. The producer itself would wait for max.block.ms,
/// which is too long for a user at a terminal.
///
/// # Errors
/// Returns [`ClientError`] if no attempt to connect succeeds, or no answer comes within `patience`.
pub fn for_producer(
    producer: &Producer,
    runtime: &Runtime,
    servers: &str,
    patience: Patience,
) -> Result<(), ClientError> {
    let within = patience.duration();
    runtime.block_on(async {
        let mut reached = std::pin::pin!(tokio::time::timeout(within + GRACE, producer.reach()));
        let outcome = match tokio::time::timeout(REPORTED_AFTER, &mut reached).await {
            Ok(outcome) => outcome,
            Err(_) => {
                output::remark(late(servers, patience));
                reached.await
            }
        };
        match outcome {
            Ok(reached) => reached.map_err(|error| error.for_user(servers)),
            Err(_) => Err(ClientError::Silent { address: servers.to_owned(), patience: within }),
        }
    })
}

/// A wait of a command. It is reported after [`REPORTED_AFTER`], and then every [`EVERY`].
pub struct Wait {
    next: Instant,
}

impl Wait {
    /// Begins a wait now.
    pub fn begin() -> Self {
        Wait { next: Instant::now() + REPORTED_AFTER }
    }

    /// Reports the wait if a line is due.
    pub fn observe(&mut self, what: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + EVERY;
            output::remark(format!("waiting: {}", what()));
        }
    }
}

/// The wait of a command at a terminal for its first input or its first records, which is reported once.
pub struct Idle {
    since: Instant,
    is_reported: bool,
}

impl Idle {
    /// Begins the wait. Without a terminal it is not reported.
    pub fn begin() -> Self {
        Idle { since: Instant::now(), is_reported: !io::stderr().is_terminal() }
    }

    /// Reports the wait if a line is due. If `came` is true, input has arrived, and nothing is reported any more.
    pub fn observe(&mut self, came: bool, what: impl FnOnce() -> String) {
        self.is_reported |= came;
        if !self.is_reported && self.since.elapsed() >= REPORTED_AFTER {
            self.is_reported = true;
            output::remark(format!("waiting: {}", what()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_is_not_reported() {
        let mut wait = Wait::begin();
        wait.observe(|| unreachable!("it has just begun"));
        wait.next = Instant::now();
        let mut reported = 0;
        wait.observe(|| {
            reported += 1;
            "for the test".to_owned()
        });
        wait.observe(|| unreachable!("it was just told"));
        assert_eq!(reported, 1);
    }

    #[test]
    fn an_idle_wait_is_not_reported_after_the_first_input() {
        let mut idle = Idle { since: Instant::now(), is_reported: false };
        idle.observe(false, || unreachable!("it has just begun"));
        idle.since -= REPORTED_AFTER;
        idle.observe(true, || unreachable!("something came"));
        idle.observe(false, || unreachable!("something had come"));
    }
}
