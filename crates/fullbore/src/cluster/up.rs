//! The flags and the output of `cluster up`.

use super::broker::{self, ADMIN_LISTENER, BrokerFile};
use super::directory::{ClusterDirectory, ClusterPatience, DirectoryArg};
use super::plan::{Plan, PlannedBroker, Present, WantedCluster};
use super::postgres::OwnPostgres;
use super::startup::{END_WITHIN, Startup};
use super::status;
use crate::failure::{Failure, INTERRUPTED};
use crate::output::{self, Format, line, shell_word};
use crate::stop::Stop;
use clap::Args;
use fullbore_config::BrokerConfig;
use std::net::TcpListener;
use std::path::Path;

#[derive(Args, Debug)]
pub struct Up {
    /// The number of brokers of the directory [default: the present number, 3 in a new one].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=50))]
    brokers: Option<u32>,
    #[command(flatten)]
    directory: DirectoryArg,
    /// The port of the first broker on 127.0.0.1; the others have the next ones [default: 9092].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The PostgreSQL that the brokers share, postgres://USER@HOST:PORT/DATABASE [default: the directory's own]. Put the password into a file, and name the file by `--set control.plane.password.file=FILE`: a command line is visible to others.
    #[arg(long, value_name = "URL")]
    control_plane: Option<String>,
    /// A configuration value for all brokers that this command starts; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    patience: ClusterPatience,
    #[command(flatten)]
    format: Format,
}

/// Starts the cluster. If it does not become ready, ends the processes that this command has started.
pub fn run(up: &Up) -> Result<(), Failure> {
    up.format.choose();
    let program = std::env::current_exe()?;
    let stop = Stop::at_signal(Box::new(|| {}))?;
    // Ctrl-C must not end this program at once, because it must first end the processes that it has started.
    stop.allow(2 * END_WITHIN);
    let directory = ClusterDirectory::made(&up.directory.data_dir)?;
    let outcome = start(up, &directory, Startup::new(&directory.path, program, up.patience.duration()), &stop);
    if outcome.is_err() {
        directory.leave();
    }
    let plan = outcome?;
    if up.format.json {
        line(&status::document(&directory.path, &files(&plan), up.patience.of_answers()));
    } else {
        greet(&directory.path, &plan, up);
    }
    Ok(())
}

fn start(up: &Up, directory: &ClusterDirectory, mut running: Startup<'_>, stop: &Stop) -> Result<Plan, Failure> {
    let there = BrokerFile::all(&directory.path)?;
    let plan = Plan::new(&present(&directory.path, &there, &running.postgres), &up.wanted())?;
    let to_start: Vec<&PlannedBroker> = plan.brokers.iter().filter(|broker| !broker.runs).collect();
    check(&to_start, there.is_empty())?;
    let mut start = || {
        if plan.has_own_postgres {
            running.start_postgres(stop)?;
        }
        to_start.iter().try_for_each(|broker| running.start_broker(broker))?;
        running.wait(&plan.brokers, stop)
    };
    match start() {
        Ok(()) => Ok(plan),
        Err(failure) => {
            // This precedes the undo, which may free space.
            let lack = directory.lack_of_room().filter(|_| failure.status != INTERRUPTED);
            running.undo();
            Err(match lack {
                Some(lack) => failure.due_to(&lack),
                None => failure,
            })
        }
    }
}

impl Up {
    fn wanted(&self) -> WantedCluster {
        WantedCluster {
            brokers: self.brokers,
            port: self.port,
            control_plane: self.control_plane.clone(),
            settings: self.settings.clone(),
        }
    }
}

fn present<'a>(directory: &'a Path, brokers: &'a [BrokerFile], postgres: &OwnPostgres) -> Present<'a> {
    let runs = |id: &u32| broker::daemon(directory, *id).pid().is_some();
    Present {
        directory,
        brokers,
        running: brokers.iter().map(|broker| broker.id).filter(runs).collect(),
        has_postgres: postgres.is_there(),
        postgres_url: postgres.url(),
    }
}

/// Checks configurations and addresses before any file or process is created.
fn check(brokers: &[&PlannedBroker], has_choice: bool) -> Result<(), Failure> {
    for (at, broker) in brokers.iter().enumerate() {
        let (_, warnings) = BrokerConfig::from_properties(&broker.file.properties)?;
        if at == 0 {
            warnings.iter().for_each(output::remark);
        }
        let address = broker.file.address().unwrap_or_default();
        TcpListener::bind(&address).map_err(|error| {
            let next = match has_choice {
                true => "; stop the program that has it, or choose another first port with --port",
                false => "; stop the program that has it",
            };
            Failure::new(format!("broker {} cannot listen on {address}: {error}{next}", broker.file.id))
        })?;
        let Some(metrics) = broker.file.admin_address() else { continue };
        TcpListener::bind(metrics).map_err(|error| {
            Failure::new(format!(
                "broker {} cannot listen on {metrics} for its metrics: {error}; choose another first port with --set \
                 {ADMIN_LISTENER}=127.0.0.1:PORT, or turn the metrics off with --set {ADMIN_LISTENER}=",
                broker.file.id
            ))
        })?;
    }
    Ok(())
}

fn files(plan: &Plan) -> Vec<BrokerFile> {
    plan.brokers.iter().map(|broker| broker.file.clone()).collect()
}

/// Returns the addresses of the brokers' metrics, or `None` if there are none. Leaves out brokers whose metrics are
/// off, or whose port for metrics the system chooses.
fn metrics(plan: &Plan) -> Option<String> {
    let of_each: Vec<String> = plan
        .brokers
        .iter()
        .filter_map(|broker| Some(format!("http://{}/metrics", broker.file.admin_address()?)))
        .collect();
    (!of_each.is_empty()).then(|| of_each.join(" "))
}

/// Prints the addresses of the cluster, and commands to try.
fn greet(directory: &Path, plan: &Plan, up: &Up) {
    let brokers = match plan.brokers.len() {
        1 => "1 broker".to_owned(),
        count => format!("{count} brokers"),
    };
    let servers = plan.bootstrap_servers();
    line(&format!("Fullbore {} runs {brokers}, bootstrap servers {servers}", env!("CARGO_PKG_VERSION")));
    line(&format!("  data     {}", directory.display()));
    line(&match plan.has_own_postgres {
        true => format!("  metadata a PostgreSQL of its own, {}", directory.join("postgres").display()),
        false => "  metadata the PostgreSQL of --control-plane".to_owned(),
    });
    if let Some(metrics) = metrics(plan) {
        line(&format!("  metrics  {metrics}"));
    }
    let at = format!("--bootstrap-server {servers}");
    line(&format!("  try      fullbore topics create --topic orders --partitions 6 {at}"));
    line(&format!("           fullbore topics describe --topic orders {at}"));
    let data_dir = match up.directory.data_dir == Path::new(super::directory::DIRECTORY_DEFAULT) {
        true => String::new(),
        false => format!(" --data-dir {}", shell_word(&directory.display().to_string())),
    };
    line(&format!("  stop     fullbore cluster down{data_dir}"));
}
