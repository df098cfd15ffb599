//! The command line of Fullbore, with a file or directory for each command. The other crates do the work.
//!
//! The commands are a library, and the binary has one line, because Cargo can compile a library, but not a binary, in
//! parallel with its dependencies.
//!
//! Invariant: a command that fails prints one sentence to standard error and exits with 1. It exits with 2 if the
//! command line is malformed, and with 130 if it was interrupted.

mod action;
mod admin;
mod api_versions;
mod client;
mod client_id;
mod closed;
mod cluster;
mod command_line;
mod completions;
mod configs;
mod consume;
mod copy;
mod demo;
mod failure;
mod groups;
mod info;
mod log;
mod log_dirs;
mod log_format;
mod log_output;
mod man;
mod output;
mod patience;
mod perf;
mod pipe;
mod produce;
mod profile;
mod properties;
mod reserve;
mod serve;
mod stop;
mod table;
mod time;
mod tip;
mod topics;
mod transactional;
mod transactions;
mod troubles;
mod usage;
mod version;
mod waiting;

use clap::{CommandFactory, Parser, Subcommand};
use command_line::parsed;
use failure::Failure;
use std::process::ExitCode;

/// A Kafka-compatible broker, an idempotent producer, and tools that measure the network path between them.
#[derive(Parser, Debug)]
#[command(name = "fullbore", version = version::SHORT, long_version = version::LONG)]
#[command(propagate_version = true, max_term_width = 100)]
#[command(after_help = "Example: fullbore demo\nEvery command has an example: fullbore <COMMAND> --help")]
struct Cli {
    /// Log the requests and responses of connections to standard error.
    #[arg(long, global = true, value_name = "WHAT")]
    debug: Vec<log::Debug>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(serve::Serve),
    Cluster(cluster::ClusterArgs),
    Demo(demo::Demo),
    Topics(topics::TopicsArgs),
    Configs(configs::ConfigsArgs),
    Groups(groups::GroupsArgs),
    Transactions(transactions::TransactionsArgs),
    Info(info::Info),
    LogDirs(log_dirs::LogDirsArgs),
    ApiVersions(api_versions::ApiVersionsArgs),
    Admin(admin::Admin),
    Produce(Box<produce::ProduceArgs>),
    Consume(Box<consume::Consume>),
    Copy(Box<copy::CopyArgs>),
    Perf(perf::Perf),
    Completions(completions::Completions),
    Man(man::Man),
}

/// Parses the command line, runs the command, and returns the exit status.
pub fn main() -> ExitCode {
    completions::answer_shell(Cli::command);
    let typed: Vec<_> = std::env::args_os().collect();
    output::Format { json: usage::wants_json(&typed) }.choose();
    let done = match parsed::<Cli>(action::with_words(typed.iter().cloned())) {
        Ok(cli) => run(cli.command, &cli.debug),
        Err(mistake) if mistake.use_stderr() => return usage::print_error(mistake, &typed, &Cli::command()),
        Err(help) => {
            output::written(|| help.print());
            Ok(())
        }
    };
    let outcome = done.and_then(|()| match output::error() {
        Some(error) => Err(Failure::new(format!("cannot write to standard output: {error}"))),
        None => Ok(()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::failure(&failure.to_string());
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
        Command::Cluster(cluster) => cluster::run(cluster),
        Command::Demo(demo) => demo::run(demo),
        Command::Topics(topics) => topics::run(topics),
        Command::Configs(configs) => configs::run(configs),
        Command::Info(info) => info::run(&info),
        Command::LogDirs(log_dirs) => log_dirs::run(&log_dirs),
        Command::ApiVersions(versions) => api_versions::run(&versions),
        Command::Admin(admin) => admin::run(&admin),
        Command::Groups(groups) => groups::run(groups),
        Command::Transactions(transactions) => transactions::run(transactions),
        Command::Produce(produce) => produce::run(*produce),
        Command::Consume(consume) => consume::run(*consume),
        Command::Copy(copy) => copy::run(*copy),
        Command::Perf(perf) => perf::run(perf),
        Command::Completions(completions) => completions::run(&completions),
        Command::Man(man) => man::run(&man, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a command line as the user types it. Single quotes group words.
    pub fn parse(line: &str) -> Result<Cli, clap::Error> {
        parsed(action::with_words(words(line).into_iter().map(Into::into)))
    }

    fn words(line: &str) -> Vec<String> {
        let quoted = line.split('\'').enumerate();
        let mut words = Vec::new();
        for (at, part) in quoted {
            match at % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        words
    }

    /// Returns the examples in the help of a command and of its subcommands, as the user would type them.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let typed = |line: &str| {
            let line = line.trim().trim_start_matches("Example: ");
            line.starts_with("fullbore ").then(|| line.split("  ").next().unwrap_or_default().to_owned())
        };
        // A line that ends with a backslash is joined with the next one.
        let mut found: Vec<String> = help.replace("\\\n", " ").lines().filter_map(typed).collect();
        found.extend(command.get_subcommands().flat_map(examples));
        found
    }

    #[test]
    fn every_example_of_the_help_can_be_typed() {
        let all = examples(&Cli::command());
        assert!(all.len() > 20, "{all:#?}");
        for example in all {
            // Only the first command of a pipe is checked.
            let example = example.split(" | ").next().unwrap_or_default();
            let placeholder = example.contains("<COMMAND>");
            assert!(placeholder || parse(example).is_ok(), "{example}: {:?}", parse(example).err());
        }
    }

    #[test]
    fn no_example_of_the_help_is_wrapped() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.contains("fullbore ")) {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn lines_of_the_help_fit_into_100_columns() {
        fn check(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            // The usage line may be longer, because it is never wrapped.
            for line in help.lines().filter(|line| !line.starts_with("Usage: ")) {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = Cli::command();
        command.build();
        check(&mut command);
    }

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let has_own = command.get_after_help().is_some_and(|help| help.to_string().contains("fullbore "));
            assert!(has_own || command.has_subcommands(), "{path} has none");
            command.get_subcommands().for_each(|below| check(below, &path));
        }
        check(&Cli::command(), "");
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
