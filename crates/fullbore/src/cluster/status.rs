//! `cluster status` prints the processes of a cluster with their states and addresses.

use super::broker::{self, BrokerFile};
use super::condition::{Condition, Conditions};
use super::directory::{ClusterDirectory, DirectoryArg};
use super::postgres::OwnPostgres;
use super::process::Daemon;
use crate::failure::Failure;
use crate::output::{Format, line};
use crate::patience::Patience;
use crate::table::{aligned, or_dash, row};
use clap::Args;
use fullbore_bench::report::json::{array, null, object, plain, string};
use std::path::Path;

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    directory: DirectoryArg,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    format: Format,
}

/// Prints the status.
///
/// # Errors
/// Fails if the directory has no cluster, or if a process of the cluster does not run or does not respond.
pub fn run(status: &StatusArgs) -> Result<(), Failure> {
    status.format.choose();
    let (directory, brokers) = ClusterDirectory::existing(&status.directory.data_dir)?;
    let conditions = Conditions::of(&directory.path, &brokers, status.patience);
    if status.format.json {
        line(&described(&directory.path, &brokers, &conditions));
    } else {
        table(&directory.path, &brokers, &conditions).iter().for_each(|text| line(text));
    }
    check(&directory.path, &brokers, &conditions, status.patience)
}

/// Checks that all processes run and respond.
fn check(directory: &Path, brokers: &[BrokerFile], conditions: &Conditions, patience: Patience) -> Result<(), Failure> {
    if conditions.brokers.iter().all(|condition| *condition == Condition::Stopped) {
        let directory = directory.display();
        return Err(Failure::new(format!(
            "no broker is running in {directory}; `fullbore cluster up` starts the \
             brokers"
        )));
    }
    // A broker whose file has no address got no request, so its condition is unknown. The mistake in the file is
    // therefore reported first.
    brokers.iter().try_for_each(|file| file.check_address(directory))?;
    let daemons = brokers.iter().map(|file| broker::daemon(directory, file.id));
    let of_postgres = conditions.postgres.map(|condition| (OwnPostgres::of(directory).daemon, condition));
    let all = daemons.zip(conditions.brokers.iter().copied()).chain(of_postgres);
    let wrong: Vec<String> = all.filter_map(|(daemon, condition)| fault(&daemon, condition, patience)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(wrong.join("; "))) }
}

/// Returns the fault of a process and its remedy. `None` if the process has no fault.
fn fault(daemon: &Daemon, condition: Condition, patience: Patience) -> Option<String> {
    let (name, log, pid) = (&daemon.name, daemon.log.display(), or_dash(pid(daemon)));
    Some(match condition {
        Condition::Running => return None,
        Condition::Stopped => format!("{name} is stopped, and `fullbore cluster up` starts it"),
        Condition::Silent if daemon.is_stopped() => format!(
            "{name} (pid {pid}) does not answer, because a signal has stopped it, and `kill -CONT {pid}` lets it go on"
        ),
        Condition::Silent => {
            let within = patience.duration();
            format!(
                "{name} (pid {pid}) does not answer within {within:?}, and its log is {log}; --timeout waits longer"
            )
        }
        Condition::WithoutDatabase => format!("{name} has no database, and its log is {log}"),
    })
}

fn pid(daemon: &Daemon) -> Option<i32> {
    daemon.pid().map(|pid| pid.as_raw_nonzero().get())
}

fn table(directory: &Path, brokers: &[BrokerFile], conditions: &Conditions) -> Vec<String> {
    let mut rows = vec![row(["PROCESS", "ADDRESS", "METRICS", "STATE", "PID", "LOG"])];
    let mut add = |address: String, metrics: Option<&str>, daemon: &Daemon, condition: Condition| {
        rows.push(row([
            &daemon.name,
            &address,
            metrics.unwrap_or("-"),
            condition.words(),
            &or_dash(pid(daemon)),
            &daemon.log.display().to_string(),
        ]));
    };
    for (file, condition) in brokers.iter().zip(&conditions.brokers) {
        add(or_dash(file.address()), file.admin_address(), &broker::daemon(directory, file.id), *condition);
    }
    if let Some(condition) = conditions.postgres {
        add("-".to_owned(), None, &OwnPostgres::of(directory).daemon, condition);
    }
    aligned(&rows, &[10, 15, 15, 7, 7])
}

/// Returns the status as JSON. `cluster up` prints this document.
pub fn document(directory: &Path, brokers: &[BrokerFile], patience: Patience) -> String {
    described(directory, brokers, &Conditions::of(directory, brokers, patience))
}

fn described(directory: &Path, brokers: &[BrokerFile], conditions: &Conditions) -> String {
    let process = |daemon: &Daemon, condition: Condition| {
        let log = string(&daemon.log.display().to_string());
        [("state", string(condition.words())), ("pid", plain(pid(daemon))), ("log", log)]
    };
    let broker = |(file, condition): (&BrokerFile, &Condition)| {
        let metrics = file.admin_address().map_or_else(null, |address| string(&format!("http://{address}/metrics")));
        let address = string(&file.address().unwrap_or_default());
        let own = [("id", file.id.to_string()), ("address", address), ("metrics", metrics)];
        object(own.into_iter().chain(process(&broker::daemon(directory, file.id), *condition)))
    };
    let servers: Vec<String> = brokers.iter().filter_map(BrokerFile::address).collect();
    let of_postgres = |condition| object(process(&OwnPostgres::of(directory).daemon, condition));
    object([
        ("directory", string(&directory.display().to_string())),
        ("bootstrap_servers", string(&servers.join(","))),
        ("brokers", array(brokers.iter().zip(&conditions.brokers).map(broker))),
        ("postgres", conditions.postgres.map_or_else(null, of_postgres)),
    ])
}
