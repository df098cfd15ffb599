//! `--wide`: the form of a perf tool's lines.

use crate::output;
use clap::Args;

/// The form of a tool's lines.
#[derive(Args, Clone, Copy, Debug)]
pub struct Lines {
    /// Print lines with the digits and the width of Kafka's tool, also where the terminal is narrower.
    #[arg(long)]
    pub wide: bool,
}

impl Lines {
    /// The columns that a line may have.
    pub fn limit(self) -> Option<usize> {
        if self.wide { None } else { output::width() }
    }
}
