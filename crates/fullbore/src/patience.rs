//! Flag `--timeout`: the longest wait of a command for brokers.

use clap::Args;
use std::time::Duration;

/// Longest wait of a command for brokers.
#[derive(Args, Clone, Copy, Debug)]
pub struct Patience {
    /// Milliseconds to wait for a response, and for a coordinator or leader that is moving.
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

impl Patience {
    /// Returns a patience of `timeout` milliseconds.
    pub fn of_ms(timeout: u64) -> Self {
        Patience { timeout }
    }

    /// Returns the patience as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.timeout)
    }
}
