//! `fullbore perf` has Kafka's perf tools with their flags and output, and tools for links and sweeps. The measurements
//! themselves are in `fullbore_bench`.

mod consume;
mod lines;
mod link;
mod produce;
mod sweep;

use crate::failure::Failure;
use clap::{Args, Subcommand};

/// Measure any Kafka cluster, with the flags and output lines of Kafka's perf tools.
#[derive(Args, Debug)]
pub struct Perf {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand, Debug)]
enum Tool {
    Produce(Box<produce::PerfProduceArgs>),
    Consume(Box<consume::Consume>),
    Link(Box<link::Link>),
    Sweep(Box<sweep::Sweep>),
}

/// Runs the tool.
pub fn run(perf: Perf) -> Result<(), Failure> {
    match perf.tool {
        Tool::Produce(produce) => produce::run(*produce),
        Tool::Consume(consume) => consume::run(*consume),
        Tool::Link(link) => link::run(*link),
        Tool::Sweep(sweep) => sweep::run(*sweep),
    }
}
