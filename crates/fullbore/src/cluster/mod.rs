//! `fullbore cluster`: several brokers on this machine, each a process of its own, and the PostgreSQL that they share.
//!
//! - `folder`: what is where in the cluster's folder, and who is at work there.
//! - `process`: processes that outlive the command; `broker`: a broker's file and its process; `postgres/`: a
//!   PostgreSQL of its own.
//! - `plan`: from what there is and what is asked for to what each broker's file says.
//! - `startup`: what was started, and its way back; `up`, `down`, `status`: the commands.

mod broker;
mod down;
mod folder;
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
    /// Start the brokers of a folder that do not run, and make those that are new.
    ///
    /// Returns once every broker answers and knows the others. They run on, each as
    /// `fullbore serve --config DIR/broker-N.properties` with its log in DIR/broker-N.log. Without --control-plane they
    /// share a PostgreSQL of their own, which is in DIR/postgres and takes connections on a Unix socket only; its
    /// programs must be installed. The machine's cores are shared out among the brokers of a new folder
    /// (fullbore.worker.threads), topics get as many replicas as there are brokers, up to three
    /// (default.replication.factor; with three, min.insync.replicas=2), and diskless topics are in DIR/diskless
    /// (diskless.storage) unless that is set. Metrics of broker N are N-1 ports after those of the first
    /// (fullbore.admin.listener). With the same folder again it starts what does not run; more --brokers are added.
    /// --json prints {"folder", "bootstrap_servers", "brokers": [{"id", "address", "metrics", "pid", "log"}],
    /// "postgres": {"pid", "log"}}; where PostgreSQL was given, the last is null.
    #[command(after_help = "Examples:
  fullbore cluster up --brokers 3
  fullbore cluster up --brokers 3 --data-dir /srv/cluster --port 19092 --set log.retention.hours=24
  fullbore cluster up --control-plane postgres://fullbore@db:5432/fullbore \\\n    --set control.plane.password.file=/etc/fullbore/password
  fullbore cluster up --json")]
    Up(up::Up),
    /// Stop all brokers of a folder, then its own PostgreSQL. The data stay.
    ///
    /// --json prints {"stopped": [BROKER]}.
    #[command(after_help = "Examples:
  fullbore cluster down
  fullbore cluster down --data-dir /var/lib/fullbore-cluster --json")]
    Down(down::Down),
    /// Print which brokers of a folder run, and where.
    ///
    /// Exits with 1 where no broker runs. --json prints what `cluster up --json` does; pid is null where nothing runs.
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
