//! `fullbore serve` starts a broker from the command line, and stops it at a signal.

use crate::closed::is_stdout_closed;
use crate::failure::Failure;
use crate::log::{self, Debug};
use crate::log_format::LogFormat;
use crate::output::{Format, line};
use crate::reserve::{self, Reserve};
use crate::stop::{StopSignals, hide_panics_of_a_stopped_runtime};
use clap::Args;
use fullbore_broker::Broker;
use fullbore_broker::loggers::{LogLevels, Loggers};
use fullbore_config::{BrokerConfig, Listener, Mistakes, Properties, Warning};
use fullbore_host::files::{SETTINGS_FILE_MAX, read_text};
use fullbore_host::start_retries::StartStop;
use fullbore_host::task;
use fullbore_wire::host_port;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;

/// Run the broker. Needs no argument: data is in ./fullbore-data, clients connect to 127.0.0.1:9092.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  fullbore serve\n  fullbore serve --data-dir /var/lib/fullbore --listen 0.0.0.0:9092 \\\n    --set advertised.listeners=PLAINTEXT://my-host:9092\n  fullbore serve --config server.properties --set log.retention.hours=24\n\
    Every key is in docs/configuration.md."
)]
pub struct Serve {
    /// A properties file with Kafka's keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data directory; created if it is missing. Short for --set log.dirs=DIR [default: ./fullbore-data].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// The address for clients; port 0 takes a free port. Short for --set listeners=PLAINTEXT://HOST:PORT [default:
    /// 127.0.0.1:9092]; SSL://HOST:PORT needs ssl.keystore.location, too.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A configuration value, which overrides the file; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The filter of the log, as in RUST_LOG: warn, info, debug, fullbore_broker=debug,...
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// The format of log lines on standard error; with json, the addresses that the broker prints when it is ready are
    /// a log line, too.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// The prefix of error messages about a `--set`.
const SET: &str = "--set ";

impl Serve {
    /// Returns the configuration and its warnings, or a failure that names all mistakes.
    fn configuration(&self) -> Result<(BrokerConfig, Vec<Warning>), Failure> {
        let (properties, mut mistakes) = self.properties()?;
        match BrokerConfig::from_properties(&properties) {
            Ok(valid) if mistakes.is_empty() => return Ok(valid),
            Ok(_) => mistakes.append(BrokerConfig::misspelt(&properties)),
            Err(others) => mistakes.append(others),
        }
        Err(match mistakes.len() {
            1 => mistakes.into(),
            count => Failure::new(format!("{count} mistakes in the configuration\n{mistakes}")),
        })
    }

    /// Returns the properties of the file, overridden by `--data-dir`, `--listen` and `--set`. Also returns the
    /// mistakes: malformed lines of the file, and malformed pairs of `--set`. Fails if two flags set the same property.
    fn properties(&self) -> Result<(Properties, Mistakes), Failure> {
        let (mut properties, mut mistakes) = match &self.config {
            None => (Properties::default(), Mistakes::default()),
            Some(path) => {
                let text = read_text(path, SETTINGS_FILE_MAX).map_err(|error| {
                    Failure::new(format!("cannot read the configuration file {}: {error}", path.display()))
                })?;
                Properties::parse_file(&path.display().to_string(), &text)
            }
        };
        self.check_said_once()?;
        if let Some(data_dir) = &self.data_dir {
            properties.set_at("log.dirs", data_dir.as_str(), "--data-dir: ");
        }
        if let Some(listen) = &self.listen {
            properties.set_at("listeners", listener_of(listen)?, "--listen: ");
        }
        for pair in &self.settings {
            if let Err(mistake) = properties.set_pair(pair, SET) {
                mistakes.add(SET, mistake);
            }
        }
        Ok((properties, mistakes))
    }

    /// Refuses a flag that `--set` would override. Otherwise the broker would use another address or directory than the
    /// flag shows.
    fn check_said_once(&self) -> Result<(), Failure> {
        let flags = [
            ("--data-dir", self.data_dir.is_some(), ["log.dirs", "log.dir"].as_slice()),
            ("--listen", self.listen.is_some(), ["listeners"].as_slice()),
        ];
        for (flag, _, keys) in flags.iter().filter(|(_, given, _)| *given) {
            let set = self.settings.iter().filter_map(|pair| Some(pair.split_once('=')?.0.trim()));
            if let Some(key) = set.into_iter().find(|key| keys.contains(key)) {
                return Err(Failure::new(format!(
                    "{flag} and --set {key}=... say the same thing; leave one of them out"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the listener that `--listen` describes. The user may type HOST:PORT, or Kafka's form PROTOCOL://HOST:PORT.
fn listener_of(listen: &str) -> Result<String, Failure> {
    match listen.split_once("://") {
        None => Ok(format!("PLAINTEXT://{listen}")),
        Some(("PLAINTEXT" | "SSL", _)) => Ok(listen.to_owned()),
        Some((protocol, _)) => {
            Err(Failure::new(format!("--listen {listen}: {protocol} is not offered yet; write HOST:PORT")))
        }
    }
}

/// Serves until SIGINT, SIGTERM or SIGHUP, or until another process replaces this broker in its cluster.
pub fn run(serve: Serve, debug: &[Debug]) -> Result<(), Failure> {
    let as_json = serve.log_format == LogFormat::Json;
    Format { json: as_json }.choose();
    let (levels, output) = log::of_broker(serve.log.as_deref(), serve.log_format, debug)?;
    let ended = run_with_log(&serve, as_json, levels);
    output.end();
    ended
}

fn run_with_log(serve: &Serve, as_json: bool, levels: Arc<dyn LogLevels>) -> Result<(), Failure> {
    let (config, warnings) = serve.configuration()?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let serving = match config.node.worker_threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        configured => configured,
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(serving + reserve::THREADS).enable_all().build()?;
    let mut reserve = Reserve::hold(&runtime);
    let ended = runtime.block_on(serve_until_signal(config, Loggers::of(levels), as_json, &mut reserve));
    // The reserve threads are released, because dropping the runtime waits for all its threads.
    reserve.let_go();
    hide_panics_of_a_stopped_runtime();
    ended
}

async fn serve_until_signal(
    config: BrokerConfig,
    loggers: Loggers,
    as_json: bool,
    reserve: &mut Reserve,
) -> Result<(), Failure> {
    // The handlers are set before the broker opens any file, so that a signal cannot kill it while it starts.
    let mut signals = StopSignals::new()?;
    let data_dir = std::path::absolute(&config.node.data_dir).unwrap_or_else(|_| config.node.data_dir.clone());
    let host = config.network.listeners.first().map_or_else(String::new, |listener| listener.host.clone());
    let flags = security_flags(config.network.listeners.first());
    let stop = StartStop::default();
    let stopping = task::spawn(stop_start(StopSignals::new()?, stop.clone()));
    let started = Broker::start_until(config, loggers, stop.clone()).await;
    stopping.abort();
    let broker = match started {
        Err(error) if stop.is_requested() => {
            tracing::info!(%error, "stopped by a signal before the start was complete");
            return Ok(());
        }
        started => started?,
    };
    let (listens, data_dir) = (host_port(&host, broker.addr().port()), data_dir.display().to_string());
    // If standard output is closed, as in a daemon, the greeting is logged.
    match as_json || is_stdout_closed() {
        true => log_greeting(&broker, &listens, &data_dir),
        false => greet(&broker, &listens, &data_dir, &flags),
    }
    let ended = loop {
        tokio::select! {
            _ = signals.next() => break None,
            why = broker.ended() => break Some(why),
            () = broker.disk_hangs(), if reserve.is_held() => reserve.let_go(),
        }
    };
    tracing::info!("stopping: the broker still answers admitted requests");
    broker.shutdown().await;
    tracing::info!("stopped");
    ended.map_or(Ok(()), |why| Err(Failure::new(why)))
}

/// Stops a start at a signal. The stream of signals must be separate, so that a broker that has started gets the signal
/// as well.
async fn stop_start(mut signals: StopSignals, stop: StartStop) {
    signals.next().await;
    stop.request();
}

/// Logs what [`greet`] prints.
fn log_greeting(broker: &Broker, listens: &str, data_dir: &str) {
    let (host, port) = broker.advertised();
    let metrics = broker.admin_addr().map(|admin| format!("http://{admin}/metrics")).unwrap_or_default();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        address = listens,
        advertised = host_port(&host, port),
        cluster_id = %broker.cluster_id(),
        data_dir,
        metrics,
        "listening"
    );
}

/// The flags with which a client connects to the broker: those of kcat and those of Fullbore's tools.
type SecurityFlags = (String, String);

/// Returns the flags that clients of this listener need. Names in capitals stand for the client's own files.
fn security_flags(listener: Option<&Listener>) -> SecurityFlags {
    let Some(tls) = listener.and_then(|listener| listener.tls.as_ref()) else { return SecurityFlags::default() };
    let kcat = " -X security.protocol=SSL -X ssl.ca.location=CA.pem".to_owned();
    let own = " --command-property security.protocol=SSL ssl.truststore.location=CA.pem".to_owned();
    match tls.requires_certificates() {
        true => (
            kcat + " -X ssl.certificate.location=CLIENT.pem -X ssl.key.location=CLIENT.pem",
            own + " ssl.keystore.location=CLIENT.pem",
        ),
        false => (kcat, own),
    }
}

/// Prints the listener's address, and also the advertised address if that differs.
fn greet(broker: &Broker, listens: &str, data_dir: &str, (kcat, perf): &SecurityFlags) {
    let (host, port) = broker.advertised();
    let addr = host_port(&host, port);
    line(&format!(
        "Fullbore {} is listening on {listens}, cluster id {}",
        env!("CARGO_PKG_VERSION"),
        broker.cluster_id()
    ));
    if addr != listens {
        line(&format!("  clients  are sent to {addr} (advertised.listeners)"));
    }
    let listeners = broker.listeners();
    for (name, _, (host, port)) in listeners.iter().skip(1) {
        line(&format!("  {name:<8} {}", host_port(host, port)));
    }
    line(&format!("  data     {data_dir}"));
    if let Some(admin) = broker.admin_addr() {
        line(&format!("  metrics  http://{admin}/metrics"));
    }
    line(&format!("  try      echo hello | kcat -b {addr}{kcat} -t hello -P"));
    line(&format!(
        "           fullbore perf produce --bootstrap-server {addr} --topic hello --num-records 1000000 --record-size 1000 --throughput -1{perf}"
    ));
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

    fn serve(flags: &[&str]) -> Serve {
        crate::command_line::parsed::<Line>(std::iter::once(&"serve").chain(flags)).expect("flags").serve
    }

    fn properties(flags: &[&str]) -> Result<Properties, Failure> {
        serve(flags).properties().map(|(properties, _)| properties)
    }

    #[test]
    fn all_mistakes_are_reported_at_once_with_their_sources() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let text = "# a comment\nnum.partitions=0\nlog.retention.ms=\\\n  soon\nbroken=\\u12\nnode.id=7\nlog.segment.bytes=1\n\
                    fullbore.nothing=1\nssl.key.password=TOPSECRET\nssl.key.pasword=TOPSECRET\nnode.id=8\nbroker.id=9\n\
                    group.consumer.session.timeout.ms=1\ngroup.consumer.heartbeat.interval.ms=1\nlog.segment.bytes=2";
        writeln!(file, "{text}").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let flags = ["--config", path, "--set", "num.io.threads=x", "--set", "y", "--listen", "nobody"];
        let refused = serve(&flags).configuration().expect_err("all wrong").to_string();
        let lines: Vec<&str> = refused.lines().collect();
        for (place, named) in [
            (format!("{path}:2: num.partitions=0: "), "between 1 and"),
            (format!("{path}:3: log.retention.ms=soon: "), "at least"),
            (format!("{path}:5: broken: "), "hexadecimal"),
            (format!("{path}:8: fullbore.nothing=1: "), "is not a key"),
            (format!("{path}:10: ssl.key.pasword: "), "did you mean ssl.key.password"),
            (format!("{path}:12: broker.id=9: "), "node.id=8"),
            (format!("{path}:13: group.consumer.session.timeout.ms=1: "), "between"),
            (format!("{path}:14: group.consumer.heartbeat.interval.ms=1: "), "between"),
            (format!("{path}:15: log.segment.bytes=2: "), "between"),
            ("--set num.io.threads=x: ".to_owned(), "must be"),
            ("--set y: ".to_owned(), "must be key=value"),
            ("--listen: listeners=PLAINTEXT://nobody: ".to_owned(), "host:port"),
        ] {
            let found = lines.iter().filter(|line| line.starts_with(&place) && line.contains(named)).count();
            assert_eq!(found, 1, "{place}{named} in:\n{refused}");
        }
        assert_eq!((lines[0], lines.len()), ("12 mistakes in the configuration", 13), "{refused}");
        assert!(!refused.contains("TOPSECRET"), "{refused}");
    }

    #[test]
    fn a_warning_names_the_source_of_its_key() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "\nnum.partitons=3").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let (_, warnings) = serve(&["--config", path, "--set", "typo=1"]).configuration().expect("valid");
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert!(warnings[0].starts_with(&format!("{path}:2: num.partitons: is not a key")), "{warnings:?}");
        assert!(warnings[1].starts_with("--set typo: is not a key"), "{warnings:?}");
    }

    #[test]
    fn set_overrides_flags_and_flags_the_file() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "log.dirs=/file\nlisteners=PLAINTEXT://file:1\nnum.partitions=3").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let found =
            properties(&["--config", path, "--data-dir", "/flag", "--listen", "flag:2", "--set", "num.partitions=4"]);
        let found = found.expect("valid");
        assert_eq!(found.get("log.dirs"), Some("/flag"));
        assert_eq!(found.get("listeners"), Some("PLAINTEXT://flag:2"));
        assert_eq!(found.get("num.partitions"), Some("4"));
    }

    #[test]
    fn a_flag_and_set_of_one_key_are_refused() {
        for (flag, value, set) in [
            ("--listen", "h:1", "listeners=PLAINTEXT://h:2"),
            ("--data-dir", "/a", "log.dirs=/b"),
            ("--data-dir", "/a", " log.dir =/b"),
        ] {
            let refused = properties(&[flag, value, "--set", set]).expect_err(set).to_string();
            let key = set.split('=').next().expect("a key").trim();
            assert_eq!(refused, format!("{flag} and --set {key}=... say the same thing; leave one of them out"));
        }
        properties(&["--data-dir", "/a", "--set", "log.retention.ms=1"]).expect("different things");
    }

    #[test]
    fn a_listener_in_kafkas_form_is_accepted() {
        for (form, listener) in
            [("h:1", "PLAINTEXT://h:1"), ("PLAINTEXT://h:1", "PLAINTEXT://h:1"), ("SSL://h:1", "SSL://h:1")]
        {
            let found = properties(&["--listen", form]).expect("valid");
            assert_eq!(found.get("listeners"), Some(listener));
        }
    }

    #[test]
    fn defaults_apply_without_arguments() {
        let (config, warnings) = BrokerConfig::from_properties(&properties(&[]).expect("valid")).expect("valid");
        assert_eq!((config.node.data_dir, config.network.listeners[0].port), (PathBuf::from("fullbore-data"), 9092));
        assert!(warnings.is_empty());
    }

    #[test]
    fn an_unreadable_file_or_a_misspelt_key_is_reported_in_one_line() {
        let missing = properties(&["--config", "/no/such.properties"]).expect_err("missing").to_string();
        assert!(missing.contains("/no/such.properties"), "{missing}");
        let listen = properties(&["--listen", "SASL_SSL://h:1"]).expect_err("not spoken").to_string();
        assert_eq!(listen, "--listen SASL_SSL://h:1: SASL_SSL is not offered yet; write HOST:PORT");
        let both =
            serve(&["--set", "x", "--set", "num.partitons=3"]).configuration().expect_err("no value").to_string();
        assert!(both.starts_with("2 mistakes in the configuration\n--set x: must be key=value\n"), "{both}");
        assert!(both.ends_with("; did you mean num.partitions?"), "{both}");
        let pair = serve(&["--set", "x"]).configuration().expect_err("no value").to_string();
        assert_eq!(pair, "--set x: must be key=value");
    }
}
