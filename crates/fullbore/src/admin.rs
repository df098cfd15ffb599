//! `fullbore admin` checks and upgrades the PostgreSQL of a cluster. The work itself is done by the `control` crate.
//!
//! Invariant: the output contains no password.

use crate::failure::Failure;
use crate::output::{Format, line};
use crate::properties::read_properties;
use clap::{ArgGroup, Args, Subcommand};
use fullbore_bench::report::json::{array, object, string};
use fullbore_broker::{DirectoryFinding, check_directory};
use fullbore_config::{BrokerConfig, PlaneSettings, Properties};
use fullbore_control::{AcceptedCopy, Finding, Migrated, accept_copy, check, find_offline, migrate};
use std::path::PathBuf;

/// The setting that names the database. The names of all settings for the database begin with this name.
const CONTROL_PLANE: &str = "control.plane";
/// The settings that name the data directory.
const DIRECTORY: [&str; 2] = ["log.dirs", "log.dir"];
/// Other settings that concern the data directory.
const OF_DIRECTORY: [&str; 4] = ["node.id", "broker.id", "broker.session.timeout.ms", "fullbore.lost.directory.accept"];

/// Check and upgrade the PostgreSQL database in which the brokers of a cluster keep their metadata.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore admin check --config server.properties
  fullbore admin migrate --config server.properties")]
pub struct Admin {
    #[command(subcommand)]
    action: AdminCommand,
}

#[derive(Subcommand, Debug)]
enum AdminCommand {
    /// Check a database, and list the brokers that use it. Changes nothing.
    ///
    /// With --config, the database is compared with the broker's data directory, if that is on this machine. The
    /// findings show whether both belong to the same cluster and to the same point in time, which partitions a start
    /// would delete, and which partitions are missing. Fails if a broker cannot use the database or the directory, or
    /// if partitions have no leader. --json prints {"database", "findings": [{"is_wrong", "finding"}]}.
    #[command(after_help = "Examples:
  fullbore admin check --config server.properties
  fullbore admin check --control-plane postgres://fullbore@db:5432/fullbore \\\n    --password-file /etc/fullbore/password
  fullbore admin check --config server.properties --json")]
    Check(DatabaseArgs),
    /// Upgrade a database of an older Fullbore to the schema that this one needs.
    ///
    /// Brokers of the older version, until you restart them, continue as if the database were not available. --json
    /// prints {"schema_before", "schema_now"}.
    #[command(after_help = "Examples:
  fullbore admin migrate --config server.properties
  fullbore admin migrate --control-plane postgres://fullbore@db:5432/fullbore --json")]
    Migrate(DatabaseArgs),
    /// Accept an older copy of a database, if its newest state is lost, so that the brokers can start with the copy.
    ///
    /// Stop all brokers first. All changes since the copy stay lost: records of diskless topics, and changes of topics
    /// and settings. Classic records of topics that the copy does not know are deleted when the brokers start, so move
    /// their directories away if you need them. In other partitions the replica with the longest log becomes the
    /// leader, so start all brokers together. --json prints {"version_before", "version_now"}.
    #[command(after_help = "Examples:
  fullbore admin accept-copy --config server.properties
  fullbore admin accept-copy --control-plane postgres://fullbore@db:5432/fullbore --json")]
    AcceptCopy(DatabaseArgs),
}

/// Flags that name the database.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("database").required(true).args(["control_plane", "config"]))]
struct DatabaseArgs {
    /// The database, postgres://USER@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    control_plane: Option<String>,
    /// A file with the database's password, which would be visible on a command line.
    #[arg(long, value_name = "FILE", requires = "control_plane")]
    password_file: Option<PathBuf>,
    /// A broker's properties file; only control.plane and the settings that belong to it are used.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

impl DatabaseArgs {
    /// Returns the settings with which a broker would connect to the database.
    fn settings(&self) -> Result<PlaneSettings, Failure> {
        Ok(self.look()?.settings)
    }

    fn look(&self) -> Result<Look, Failure> {
        let mut properties = Properties::default();
        let file = read_properties(self.config.as_deref())?;
        // Other settings are ignored, because they may name files that exist only on the broker's machine.
        let is_of_directory = |key: &str| DIRECTORY.contains(&key) || OF_DIRECTORY.contains(&key);
        let looked_at = file.iter().filter(|(key, _)| key.starts_with(CONTROL_PLANE) || is_of_directory(key));
        looked_at.for_each(|(key, value)| properties.set(key, value));
        if let Some(url) = &self.control_plane {
            properties.set(CONTROL_PLANE, url.as_str());
        }
        if let Some(file) = &self.password_file {
            properties.set("control.plane.password.file", file.display().to_string());
        }
        let (config, _) = BrokerConfig::from_properties(&properties)?;
        let settings = config.membership.control_plane.clone().ok_or_else(|| {
            let place = self.config.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default();
            Failure::new(format!(
                "{place}{CONTROL_PLANE} does not name a PostgreSQL database; this broker keeps its metadata in its \
                 data directory"
            ))
        })?;
        let has_directory = DIRECTORY.iter().any(|key| properties.get(key).is_some());
        Ok(Look { settings, broker: has_directory.then_some(config) })
    }
}

/// The database to check, and the broker whose properties file names it.
struct Look {
    settings: PlaneSettings,
    /// The configuration of the broker, if the properties file names its data directory.
    broker: Option<BrokerConfig>,
}

/// A finding, as it is printed.
struct PrintedFinding {
    is_wrong: bool,
    finding: String,
}

/// Runs the command.
pub fn run(admin: &Admin) -> Result<(), Failure> {
    match &admin.action {
        AdminCommand::Check(database) => run_check(database),
        AdminCommand::Migrate(database) => run_migrate(database),
        AdminCommand::AcceptCopy(database) => run_accept_copy(database),
    }
}

fn run_check(database: &DatabaseArgs) -> Result<(), Failure> {
    database.format.choose();
    let Look { settings, broker } = database.look()?;
    let of_database = check(&settings);
    let has_cluster = of_database.iter().any(|finding| matches!(finding, Finding::Cluster { .. }));
    let mut findings: Vec<PrintedFinding> = of_database.iter().map(of_finding).collect();
    if has_cluster {
        let starting = broker.as_ref().map(|broker| broker.node.id);
        findings.extend(find_offline(&settings, starting).iter().map(of_finding));
    }
    if let Some(broker) = broker.filter(|_| has_cluster) {
        let directory = broker.node.data_dir.display();
        findings.extend(
            check_directory(&broker, &settings).iter().map(|finding| of_directory(&directory.to_string(), finding)),
        );
    }
    // Prints the URL without the user and the password.
    let name = format!("{settings:?}");
    if database.format.json {
        let findings = array(findings.iter().map(document));
        line(&object([("database", string(&name)), ("findings", findings)]));
    } else {
        line(&name);
        findings.iter().for_each(|finding| line(&text_of(finding)));
    }
    match findings.iter().filter(|finding| finding.is_wrong).count() {
        0 => Ok(()),
        1 => Err(Failure::new("1 finding is WRONG; correct its cause")),
        count => Err(Failure::new(format!("{count} findings are WRONG; correct their causes"))),
    }
}

fn of_finding(finding: &Finding) -> PrintedFinding {
    PrintedFinding { is_wrong: finding.is_wrong(), finding: finding.to_string() }
}

fn of_directory(directory: &str, finding: &DirectoryFinding) -> PrintedFinding {
    PrintedFinding { is_wrong: finding.is_wrong(), finding: format!("data directory {directory}: {finding}") }
}

fn text_of(found: &PrintedFinding) -> String {
    let mark = if found.is_wrong { "WRONG  " } else { "       " };
    format!("{mark}{}", found.finding)
}

fn document(found: &PrintedFinding) -> String {
    object([("is_wrong", found.is_wrong.to_string()), ("finding", string(&found.finding))])
}

fn run_migrate(database: &DatabaseArgs) -> Result<(), Failure> {
    database.format.choose();
    let settings = database.settings()?;
    let Migrated { before, now } =
        migrate(&settings).map_err(|error| Failure::new(format!("{settings:?}: {error}")))?;
    if database.format.json {
        line(&object([("schema_before", before.to_string()), ("schema_now", now.to_string())]));
    } else if before == now {
        line(&format!("The schema already has version {now}, which this Fullbore needs."));
    } else {
        line(&format!("The schema was upgraded from version {before} to {now}."));
    }
    Ok(())
}

fn run_accept_copy(database: &DatabaseArgs) -> Result<(), Failure> {
    database.format.choose();
    let settings = database.settings()?;
    let AcceptedCopy { before, now } =
        accept_copy(&settings).map_err(|error| Failure::new(format!("{settings:?}: {error}")))?;
    if database.format.json {
        line(&object([("version_before", before.to_string()), ("version_now", now.to_string())]));
    } else {
        line(&format!(
            "The copy, which ends at version {before}, was accepted as version {now}. All later changes of topics, settings and \
             diskless records are lost. Start all brokers now. For an hour, retention and compaction delete nothing: set \
             lost settings of topics again in that time."
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::parse;
    use std::io::Write;
    use std::path::Path;

    fn settings(flags: &str) -> Result<PlaneSettings, String> {
        let cli = parse(&format!("fullbore admin check {flags}")).map_err(|error| error.to_string())?;
        let crate::Command::Admin(Admin { action: AdminCommand::Check(database) }) = cli.command else {
            panic!("{flags}");
        };
        database.settings().map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_database_is_that_of_the_url_or_of_a_brokers_file() {
        let url = settings("--control-plane postgres://ann@db/x --password-file /p").expect("valid");
        assert_eq!((url.url(), url.password_file.as_deref()), ("postgres://ann@db/x", Some(Path::new("/p"))));
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        // This command does not use the keystore, so the file may be missing.
        let text = "control.plane=postgres://ann@db/y\ncontrol.plane.timeout.ms=700\nssl.keystore.location=/no/such\nnum.partitions=x\n";
        file.write_all(text.as_bytes()).expect("written");
        let path = file.path().display().to_string();
        let found = settings(&format!("--config {path}")).expect("valid");
        assert_eq!((found.url(), found.timeout_ms), ("postgres://ann@db/y", 700));
        for (flags, reported) in [
            ("".to_owned(), "--control-plane"),
            (format!("--config {path} --control-plane postgres://x"), "cannot be used with"),
            ("--config /dev/null".to_owned(), "/dev/null: control.plane does not name a PostgreSQL database"),
            ("--control-plane mysql://ann:secret@db/x".to_owned(), "must be sqlite, or"),
        ] {
            let refused = settings(&flags).expect_err(reported);
            assert!(refused.contains(reported) && !refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn a_wrong_finding_is_marked() {
        assert_eq!(text_of(&of_finding(&Finding::NewerSchema(7))).split_whitespace().next(), Some("WRONG"));
        assert_eq!(
            text_of(&of_finding(&Finding::Clock(1500))),
            "       the clock of the database is 1500 ms ahead of this machine's"
        );
        let json = document(&of_finding(&Finding::Clock(1500)));
        assert_eq!(
            json,
            r#"{"is_wrong":false,"finding":"the clock of the database is 1500 ms ahead of this machine's"}"#
        );
    }
}
