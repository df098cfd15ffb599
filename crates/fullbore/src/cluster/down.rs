//! `cluster down` stops the brokers, and then PostgreSQL. Brokers need PostgreSQL to hand over their partitions while
//! they stop.

use super::broker;
use super::directory::{ClusterDirectory, ClusterPatience, DirectoryArg};
use super::postgres::OwnPostgres;
use super::process::{Daemon, wait_until_gone};
use super::startup::{forget, still_runs};
use crate::failure::Failure;
use crate::output::{self, Format, line};
use clap::Args;
use fullbore_bench::report::json::{list, object};
use rustix::process::Signal;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Down {
    #[command(flatten)]
    directory: DirectoryArg,
    #[command(flatten)]
    patience: ClusterPatience,
    #[command(flatten)]
    format: Format,
}

/// Stops the cluster. PostgreSQL keeps running if a broker that needs it does not end.
pub fn run(down: &Down) -> Result<(), Failure> {
    down.format.choose();
    let (directory, brokers) = ClusterDirectory::existing(&down.directory.data_dir)?;
    let daemons: Vec<(u32, Daemon)> =
        brokers.iter().map(|broker| (broker.id, broker::daemon(&directory.path, broker.id))).collect();
    let requested: Vec<&(u32, Daemon)> = daemons.iter().filter(|(_, daemon)| daemon.signal(Signal::TERM)).collect();
    let within = down.patience.duration();
    end(&requested.iter().map(|(_, daemon)| daemon).collect::<Vec<_>>(), within)?;
    for (_, daemon) in &daemons {
        match daemon.may_run_elsewhere() {
            true => output::remark(runs_elsewhere(daemon)),
            false => forget(daemon),
        }
    }
    let postgres = OwnPostgres::of(&directory.path);
    let had_postgres = postgres.end();
    end(&[&postgres.daemon], within)?;
    let stopped: Vec<String> = requested.iter().map(|(id, _)| id.to_string()).collect();
    if down.format.json {
        line(&object([("stopped", list(stopped))]));
    } else {
        line(&summary(&stopped, had_postgres, &directory.path.display().to_string()));
    }
    Ok(())
}

fn end(daemons: &[&Daemon], within: Duration) -> Result<(), Failure> {
    let left = wait_until_gone(daemons.iter().copied(), within);
    match left.is_empty() {
        true => Ok(()),
        false => {
            let each: Vec<String> = left.into_iter().map(|daemon| still_runs(daemon, daemon.pid(), within)).collect();
            Err(Failure::new(each.join("\n")))
        }
    }
}

fn runs_elsewhere(daemon: &Daemon) -> String {
    format!(
        "{} may be running in another directory, because this directory was moved; move the directory back to stop \
         the process (its pid is in {})",
        daemon.name,
        daemon.pid_file.display()
    )
}

fn summary(stopped: &[String], had_postgres: bool, directory: &str) -> String {
    let brokers = match stopped {
        [] => None,
        [one] => Some(format!("broker {one}")),
        more => Some(format!("brokers {}", more.join(", "))),
    };
    let all = brokers.into_iter().chain(had_postgres.then(|| "PostgreSQL".to_owned())).collect::<Vec<_>>();
    match all.is_empty() {
        true => format!("No process of the cluster in {directory} runs."),
        false => format!("Stopped {}; the data stay in {directory}.", all.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_stopped_processes() {
        let ids = ["1".to_owned(), "2".to_owned()];
        assert_eq!(summary(&ids, true, "/c"), "Stopped brokers 1, 2 and PostgreSQL; the data stay in /c.");
        assert_eq!(summary(&ids[..1], false, "/c"), "Stopped broker 1; the data stay in /c.");
        assert_eq!(summary(&[], false, "/c"), "No process of the cluster in /c runs.");
    }
}
