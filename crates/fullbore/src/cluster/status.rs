//! `cluster status` prints the processes of a cluster with their states and addresses.

use super::broker::{self, BrokerFile};
use super::directory::{ClusterDirectory, DirectoryArg};
use super::postgres::OwnPostgres;
use super::process::Daemon;
use crate::failure::Failure;
use crate::output::{Format, line};
use crate::table::{aligned, or_dash, row};
use clap::Args;
use fullbore_bench::report::json::{array, null, object, plain, string};
use std::path::Path;

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    directory: DirectoryArg,
    #[command(flatten)]
    format: Format,
}

/// Prints the status.
///
/// # Errors
/// Fails if the directory has no cluster, or if no broker of the cluster runs.
pub fn run(status: &StatusArgs) -> Result<(), Failure> {
    status.format.choose();
    let (directory, brokers) = ClusterDirectory::existing(&status.directory.data_dir)?;
    if status.format.json {
        line(&document(&directory.path, &brokers));
    } else {
        table(&directory.path, &brokers).iter().for_each(|text| line(text));
    }
    match brokers.iter().any(|file| broker::daemon(&directory.path, file.id).pid().is_some()) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "no broker runs in {}; `fullbore cluster up` starts them",
            directory.path.display()
        ))),
    }
}

fn pid(daemon: &Daemon) -> Option<i32> {
    daemon.pid().map(|pid| pid.as_raw_nonzero().get())
}

fn table(directory: &Path, brokers: &[BrokerFile]) -> Vec<String> {
    let mut rows = vec![row(["PROCESS", "ADDRESS", "METRICS", "STATE", "PID", "LOG"])];
    let mut add = |address: String, metrics: Option<&str>, daemon: &Daemon| {
        let pid = pid(daemon);
        let state = if pid.is_some() { "running" } else { "stopped" };
        rows.push(row([
            &daemon.name,
            &address,
            metrics.unwrap_or("-"),
            state,
            &or_dash(pid),
            &daemon.log.display().to_string(),
        ]));
    };
    for file in brokers {
        add(or_dash(file.address()), file.admin_address(), &broker::daemon(directory, file.id));
    }
    let postgres = OwnPostgres::of(directory);
    if postgres.is_there() {
        add("-".to_owned(), None, &postgres.daemon);
    }
    aligned(&rows, &[10, 15, 15, 7, 7])
}

/// Returns the status as JSON. `cluster up` prints the same document.
pub fn document(directory: &Path, brokers: &[BrokerFile]) -> String {
    let process = |daemon: &Daemon| [("pid", plain(pid(daemon))), ("log", string(&daemon.log.display().to_string()))];
    let broker = |file: &BrokerFile| {
        let metrics = file.admin_address().map_or_else(null, |address| string(&format!("http://{address}/metrics")));
        let address = string(&file.address().unwrap_or_default());
        let own = [("id", file.id.to_string()), ("address", address), ("metrics", metrics)];
        object(own.into_iter().chain(process(&broker::daemon(directory, file.id))))
    };
    let servers: Vec<String> = brokers.iter().filter_map(BrokerFile::address).collect();
    let postgres = OwnPostgres::of(directory);
    object([
        ("directory", string(&directory.display().to_string())),
        ("bootstrap_servers", string(&servers.join(","))),
        ("brokers", array(brokers.iter().map(broker))),
        ("postgres", if postgres.is_there() { object(process(&postgres.daemon)) } else { null() }),
    ])
}
