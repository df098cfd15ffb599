//! `fullbore serve`: the broker until a signal ends it. What it does is in `fullbore-broker`.

use crate::failure::Failure;
use crate::output;
use clap::Args;
use fullbore_broker::Broker;
use fullbore_broker::config::{BrokerConfig, Properties};
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};

/// Runs a broker. Without an argument it listens on 127.0.0.1:9092 and keeps its data in ./fullbore-data.
#[derive(Args, Debug)]
#[command(after_help = "Example: fullbore serve --data-dir /var/lib/fullbore --set log.retention.hours=24\n\n\
                        Every key is described in docs/configuration.md; --set comes before --config.")]
pub struct Serve {
    /// A Kafka server.properties file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where topics and records are kept (log.dirs)
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where clients connect (listeners); port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// One configuration key; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// What to log: error, warn, info, debug, trace, or RUST_LOG's filters
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    log: String,
}

pub fn run(args: Serve) -> Result<(), Failure> {
    start_logging(&args.log)?;
    let (config, warnings) = BrokerConfig::from_properties(&properties(&args)?)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config))
}

fn start_logging(filter: &str) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure::new(format!("--log {filter}: {error}; try --log info")))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}

/// The file, with what the command line says on top.
fn properties(args: &Serve) -> Result<Properties, Failure> {
    let mut properties = match &args.config {
        Some(path) => Properties::parse(&read(path)?)?,
        None => Properties::default(),
    };
    for pair in &args.set {
        properties.set_pair(pair)?;
    }
    if let Some(folder) = &args.data_dir {
        let folder = folder.to_str().ok_or_else(|| Failure::new("--data-dir must be UTF-8"))?;
        properties.set("log.dirs", folder);
    }
    if let Some(address) = &args.listen {
        properties.set("listeners", format!("PLAINTEXT://{address}"));
    }
    Ok(properties)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::new(format!("--config {}: {error}", path.display())))
}

async fn serve(config: BrokerConfig) -> Result<(), Failure> {
    // Before the broker starts, so that no signal is lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let folder = config.data_dir.display().to_string();
    let broker = Broker::start(config).await?;
    let addr = broker.addr();
    output::line(&format!("Fullbore listens on {addr}, cluster {}, data in {folder}", broker.cluster_id()));
    if let Some(admin) = broker.admin_addr() {
        output::line(&format!("Metrics: http://{admin}/metrics"));
    }
    output::line(&format!(
        "Try: fullbore topics create --topic test --bootstrap-server {addr} && \
         fullbore perf produce --topic test --num-records 1000000 --record-size 1000 --bootstrap-server {addr}"
    ));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    output::line("Stopping");
    broker.shutdown().await;
    Ok(())
}
