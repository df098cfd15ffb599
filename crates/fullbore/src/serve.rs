//! `fullbore serve`: from what the user typed to a running broker, and back out at a signal.

use crate::failure::Failure;
use crate::output::line;
use clap::Args;
use fullbore_broker::Broker;
use fullbore_broker::config::{BrokerConfig, Properties};
use std::io::IsTerminal;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Run the broker. Needs no argument: data goes to ./fullbore-data, clients come to 127.0.0.1:9092.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  fullbore serve\n  fullbore serve --data-dir /var/lib/fullbore --listen 0.0.0.0:9092 \
    --set advertised.listeners=PLAINTEXT://my-host:9092\n  fullbore serve --config server.properties --set log.retention.hours=24\n\
    Every key is in docs/configuration.md."
)]
pub struct Serve {
    /// A properties file with Kafka's keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the data lives; created when missing. Short for --set log.dirs=DIR [default: ./fullbore-data].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Where clients connect; port 0 takes a free one. Short for --set listeners=PLAINTEXT://HOST:PORT [default: 127.0.0.1:9092].
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A configuration value, before those of the file; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// What to log, as in RUST_LOG: warn, info, debug, fullbore_broker=debug,...
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

impl Serve {
    /// The file, over it `--data-dir` and `--listen`, over those `--set`.
    fn properties(&self) -> Result<Properties, Failure> {
        let mut properties = match &self.config {
            None => Properties::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Failure::new(format!("cannot read the configuration file {}: {error}", path.display()))
                })?;
                Properties::parse(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?
            }
        };
        if let Some(data_dir) = &self.data_dir {
            properties.set("log.dirs", data_dir.as_str());
        }
        if let Some(listen) = &self.listen {
            properties.set("listeners", format!("PLAINTEXT://{listen}"));
        }
        for pair in &self.settings {
            properties.set_pair(pair).map_err(|error| Failure::new(format!("--set {error}")))?;
        }
        Ok(properties)
    }
}

/// Serves until SIGINT or SIGTERM.
pub fn run(serve: Serve) -> Result<(), Failure> {
    start_log(serve.log.as_deref())?;
    let (config, warnings) = BrokerConfig::from_properties(&serve.properties()?)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve_until_signal(config))
}

async fn serve_until_signal(config: BrokerConfig) -> Result<(), Failure> {
    // Before the broker opens anything, so that no signal finds it half open.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let data_dir = std::path::absolute(&config.data_dir).unwrap_or_else(|_| config.data_dir.clone());
    let broker = Broker::start(config).await?;
    greet(&broker, &data_dir.display().to_string());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping");
    broker.shutdown().await;
    Ok(())
}

fn greet(broker: &Broker, data_dir: &str) {
    let addr = broker.addr();
    line(&format!("Fullbore {} is listening on {addr}, cluster id {}", env!("CARGO_PKG_VERSION"), broker.cluster_id()));
    line(&format!("  data     {data_dir}"));
    if let Some(admin) = broker.admin_addr() {
        line(&format!("  metrics  http://{admin}/metrics"));
    }
    line(&format!("  try      echo hello | kcat -b {addr} -t hello -P"));
    line(&format!(
        "           fullbore perf produce --bootstrap-server {addr} --topic hello --num-records 1000000 --record-size 1000 --throughput -1"
    ));
}

/// `--log`, or RUST_LOG, or warnings; to standard error, so that standard output stays for people and scripts.
fn start_log(filter: Option<&str>) -> Result<(), Failure> {
    let from_environment = std::env::var("RUST_LOG").ok();
    let text = filter.or(from_environment.as_deref()).unwrap_or("warn");
    let filter = EnvFilter::try_new(text).map_err(|error| Failure::new(format!("--log {text}: {error}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::io::Write;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    fn properties(flags: &[&str]) -> Result<Properties, Failure> {
        Line::try_parse_from(std::iter::once(&"serve").chain(flags)).expect("flags").serve.properties()
    }

    #[test]
    fn the_more_particular_wins() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "log.dirs=/file\nlisteners=PLAINTEXT://file:1\nnum.partitions=3").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let found = properties(&[
            "--config",
            path,
            "--data-dir",
            "/flag",
            "--listen",
            "flag:2",
            "--set",
            "listeners=PLAINTEXT://set:3",
        ]);
        let found = found.expect("valid");
        assert_eq!(found.get("log.dirs"), Some("/flag"));
        assert_eq!(found.get("listeners"), Some("PLAINTEXT://set:3"));
        assert_eq!(found.get("num.partitions"), Some("3"));
    }

    #[test]
    fn without_arguments_the_defaults_hold() {
        let (config, warnings) = BrokerConfig::from_properties(&properties(&[]).expect("valid")).expect("valid");
        assert_eq!((config.data_dir, config.listeners[0].port), (PathBuf::from("fullbore-data"), 9092));
        assert!(warnings.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_one_line() {
        let missing = properties(&["--config", "/no/such.properties"]).expect_err("missing").to_string();
        assert!(missing.contains("/no/such.properties"), "{missing}");
        let pair = properties(&["--set", "x"]).expect_err("no value").to_string();
        assert_eq!(pair, "--set x: must be key=value");
    }
}
