//! `--timeout`: how long a command waits for brokers.

use clap::Args;
use std::time::Duration;

/// How long brokers are waited for.
#[derive(Args, Clone, Copy, Debug)]
pub struct Patience {
    /// Milliseconds to wait for an answer, and for a coordinator or leader that is moving.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

impl Patience {
    /// A patience of so many milliseconds.
    pub fn of_ms(timeout: u64) -> Self {
        Patience { timeout }
    }

    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.timeout)
    }
}
