//! `fullbore cluster` runs several brokers on this machine, each in its own process, and the PostgreSQL that they
//! share.
//!
//! - `directory`: the layout and the lock of the cluster's directory.
//! - `process`: processes that outlive the command.
//! - `broker`: a broker's file and its process.
//! - `postgres/`: the cluster's own PostgreSQL.
//! - `plan`: the contents of each broker's file.
//! - `startup`: starts the processes, and stops them again if one does not become ready.
//! - `condition`: checks that the processes respond.
//! - `up`, `down`, `status`: the commands.

mod broker;
mod condition;
mod directory;
mod down;
mod plan;
mod postgres;
mod process;
mod startup;
mod status;
mod up;

use crate::failure::Failure;
use clap::{Args, Subcommand};

/// Run a cluster on this machine: several brokers on loopback that share a PostgreSQL.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore cluster up --brokers 3
  fullbore cluster down")]
pub struct ClusterArgs {
    #[command(subcommand)]
    action: ClusterCommand,
}

#[derive(Subcommand, Debug)]
enum ClusterCommand {
    /// Start the brokers of a directory, and create new ones.
    ///
    /// Returns once every broker responds and knows the others. They keep running, each as
    /// `fullbore serve --config DIR/broker-N.properties` with its log in DIR/broker-N.log. Without --control-plane they
    /// share their own PostgreSQL, which is in DIR/postgres and accepts connections on a Unix socket only; the programs
    /// of PostgreSQL must be installed.
    ///
    /// In a new directory, the brokers share the machine's cores equally (fullbore.worker.threads). Topics get one
    /// replica per broker, at most three (default.replication.factor; with three, min.insync.replicas=2). Diskless
    /// topics are in DIR/diskless, unless diskless.storage is set. Broker N has its metrics at the metrics port of the
    /// first broker plus N-1 (fullbore.admin.listener).
    ///
    /// In an existing directory, the command starts the brokers that do not run; a larger --brokers adds brokers.
    /// --json prints {"directory", "bootstrap_servers", "brokers": [{"id", "address", "metrics", "state", "pid",
    /// "log"}], "postgres": {"state", "pid", "log"}}; postgres is null with --control-plane.
    #[command(after_help = "Examples:
  fullbore cluster up --brokers 3
  fullbore cluster up --brokers 3 --data-dir /srv/cluster --port 19092 --set log.retention.hours=24
  fullbore cluster up --control-plane postgres://fullbore@db:5432/fullbore \\\n    --set control.plane.password.file=/etc/fullbore/password
  fullbore cluster up --json")]
    Up(up::Up),
    /// Stop all brokers of a directory, then their own PostgreSQL. The data stay.
    ///
    /// --json prints {"stopped": [BROKER]}.
    #[command(after_help = "Examples:
  fullbore cluster down
  fullbore cluster down --data-dir /var/lib/fullbore-cluster --json")]
    Down(down::Down),
    /// Print the brokers of a directory with their states and addresses.
    ///
    /// Exits with 1 unless every process runs and gives all its answers within --timeout. The states are: running,
    /// stopped, does not answer, has no database. --json prints the same as `cluster up --json`; pid is null for a
    /// process that does not run.
    #[command(after_help = "Examples:
  fullbore cluster status
  fullbore cluster status --data-dir /var/lib/fullbore-cluster --json")]
    Status(status::StatusArgs),
}

/// Runs the command.
pub fn run(cluster: ClusterArgs) -> Result<(), Failure> {
    match cluster.action {
        ClusterCommand::Up(up) => up::run(&up),
        ClusterCommand::Down(down) => down::run(&down),
        ClusterCommand::Status(status) => status::run(&status),
    }
}
