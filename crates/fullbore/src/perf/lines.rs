//! The flag `--wide`, which sets the form of a perf tool's lines.

use crate::output;
use clap::Args;

/// Form of a tool's lines.
#[derive(Args, Clone, Copy, Debug)]
pub struct Lines {
    /// Print lines with the digits and the width of Kafka's tool, even if the terminal is narrower.
    #[arg(long)]
    pub wide: bool,
}

impl Lines {
    /// Returns how many columns a line may have, or `None` without a limit.
    pub fn limit(self) -> Option<usize> {
        if self.wide { None } else { output::width() }
    }
}
