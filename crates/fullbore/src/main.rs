//! The `fullbore` binary: what the user types, and one file per command. What the commands do is in the libraries.
//!
//! Invariant: a command that fails prints one sentence to standard error and exits with 1; a command line that cannot
//! be read exits with 2, a command that was interrupted with 130.

mod client;
mod demo;
mod failure;
mod log;
mod output;
mod perf;
mod serve;
mod stop;
mod topics;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// A Kafka-compatible broker, an idempotent producer and the tools that measure the way between them.
#[derive(Parser, Debug)]
#[command(name = "fullbore", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Example: fullbore demo\nEvery command has an example: fullbore <COMMAND> --help")]
struct Cli {
    /// Log to standard error what goes on below.
    #[arg(long, global = true, value_name = "WHAT")]
    debug: Vec<log::Debug>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(serve::Serve),
    Demo(demo::Demo),
    Topics(topics::Topics),
    Perf(perf::Perf),
}

fn main() -> ExitCode {
    let cli = Cli::parse_from(topics::with_subcommand(std::env::args_os()));
    let outcome = run(cli.command, &cli.debug).and_then(|()| match output::error() {
        Some(error) => Err(Failure::new(format!("cannot write to standard output: {error}"))),
        None => Ok(()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("fullbore: {failure}");
            ExitCode::from(failure.status)
        }
    }
}

fn run(command: Command, debug: &[log::Debug]) -> Result<(), Failure> {
    if !matches!(command, Command::Serve(_)) {
        log::of_client(debug)?;
    }
    match command {
        Command::Serve(serve) => serve::run(serve, debug),
        Command::Demo(demo) => demo::run(demo),
        Command::Topics(topics) => topics::run(topics),
        Command::Perf(perf) => perf::run(perf),
    }
}
