//! The flags and the output of `fullbore perf sweep`. `fullbore_bench::sweep` makes the measurements, and
//! `fullbore_bench::report::sweep` writes the reports.
//!
//! Invariant: when a sweep ends, even by an interrupt or a failed cluster, it writes the measurements, stops its own
//! broker, and removes the broker's data.

mod facts;
mod own_broker;
mod progress;

use crate::client::{checked_properties, client_properties, key_value};
use crate::failure::Failure;
use crate::output::{self, Format, line, words};
use crate::patience::Patience;
use crate::properties::BOOTSTRAP_SERVERS;
use crate::stop::Stop;
use crate::waiting;
use clap::Args;
use fullbore_bench::link::units;
use fullbore_bench::report::json::{array, object, string};
use fullbore_bench::report::sweep::{About, FILES, json, text, write_files};
use fullbore_bench::sweep::tables::{TABLES, Table};
use fullbore_bench::sweep::{
    Amount, Axis, CLIENT_ID, Results, Run, Runner, Setting, SweepPlan, Target, cluster, fixed, setting::is_secret_key,
};
use fullbore_client::blocking::Cluster;
use fullbore_config::Properties;
use fullbore_producer::config;
use own_broker::OwnBroker;
use progress::{SweepProgress, duration};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The default duration of a measurement.
const DURATION: Duration = Duration::from_secs(2);
/// The default number of measurements of a point.
const REPEATS: u32 = 3;
/// How long stopping the broker and writing the report may take after Ctrl-C.
const REPORT_WITHIN: Duration = Duration::from_secs(30);
/// The word that users type in place of an address for the sweep's own broker.
const OWN: &str = "own";
/// Maximum number of letters of a target's name.
const NAME_LETTERS_MAX: usize = 40;

/// Measure the producer at every point of a product of settings, and draw the curves.
///
/// Each --over names a setting and its values. The first one is the axis of the curves, the second
/// one distinguishes them, and each further one multiplies the plots. Settings:
///   Producer: any by Kafka's name, or max.in.flight, linger, compression, idempotence for short.
///   Topic: partitions, replication-factor, topic.<config>.
///   Workload: record-size (1000), records, throughput (-1: no limit).
///   Link: rtt (milliseconds), bandwidth (200mbit), by a relay in this process before each broker.
///   It shows what waiting for responses costs, not what a distance costs TCP (see `perf link --help`).
///
/// Without --bootstrap-server or --against the sweep starts a broker of its own in a temporary
/// directory. It retains as many batches of a producer as a point has requests in flight (128 for
/// auto, which is also the default). Each measurement creates a topic (by default with 1 partition),
/// warms up, measures and deletes the topic. Repeats are rounds over all points, every second round
/// backwards.
///
/// Files in --output: runs.csv (each measurement), points.csv (medians and spread), sweep.json (both),
/// and report.html, one page with tables and curves that needs no network. --json prints sweep.json
/// instead of tables and progress; with `--table list`, {"tables": [{"name", "title", "about"}]}.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  fullbore perf sweep --over max.in.flight=1,2,5,20 --over acks=1,all
  fullbore perf sweep --over max.in.flight=1,5 --over record-size=64,1024,10240 --over rtt=0,150
  fullbore perf sweep --over linger.ms=0,5,20 --set throughput=10000 --set partitions=9
  fullbore perf sweep --over acks=1,all --against kafka=a:9092 --against fullbore=b:9092
  fullbore perf sweep --table list
  fullbore perf sweep --table seed-001-wan --against kafka=a:9092 --against fullbore=own")]
pub struct Sweep {
    /// A setting and its values, such as max.in.flight=1,5,20; may be repeated.
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = Axis::parse)]
    over: Vec<Axis>,
    /// A setting that is the same for every point, such as partitions=9; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = fixed)]
    set: Vec<(Setting, String)>,
    /// A ready-made sweep, printed in the layout of its document; --over and --set replace parts of it. `list` shows
    /// all.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// A cluster to measure [default: the sweep's own broker].
    #[arg(short, long, value_name = "HOST:PORT,...", conflicts_with = "against")]
    bootstrap_server: Option<String>,
    /// A cluster and its name in the report; repeated, clusters are measured side by side. HOST:PORT may be `own` for
    /// the sweep's own broker.
    #[arg(long, value_name = "NAME=HOST:PORT,...", value_parser = target)]
    against: Vec<Target>,
    /// A file of producer properties [default: the profile, if a cluster is named].
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// A producer property of every point, which overrides the file; may be repeated.
    #[arg(short = 'X', long, value_name = "KEY=VALUE", value_parser = key_value)]
    producer_property: Vec<(String, String)>,
    /// A setting of the sweep's own broker, by its name in a broker's properties; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    broker_set: Vec<(String, String)>,
    /// The time for which each measurement sends: 500ms, 10s [default: 2s, or the table's].
    #[arg(long, allow_hyphen_values = true, value_name = "TIME", value_parser = positive, conflicts_with = "num_records")]
    duration: Option<Duration>,
    /// The number of records that each measurement sends, instead of a time.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    num_records: Option<u64>,
    /// The approximate time for which each producer warms up; its records are not in the figures. 0 for no warm-up.
    #[arg(long, allow_hyphen_values = true, value_name = "TIME", value_parser = units::duration, default_value = "1s")]
    warmup: Duration,
    /// The number of measurements of each point [default: 3, or the table's].
    #[arg(long, value_name = "COUNT")]
    repeats: Option<u32>,
    /// The directory of the report and the raw files; created if it does not exist [default: ./sweep-DATE-TIME].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// A note in the report, such as the versions of the clusters.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    format: Format,
}

/// Runs the sweep.
pub fn run(args: Sweep) -> Result<(), Failure> {
    args.format.choose();
    if args.table.as_deref() == Some("list") {
        list_tables(args.format.json);
        return Ok(());
    }
    let table = args.table()?;
    let mut plan = args.plan(table)?;
    let refusals = plan.check()?;
    let directory = args.directory()?;
    let temporary = if args.needs_own(&plan) { Some(own_broker::directory()?) } else { None };
    let data = temporary.as_ref().map(|directory| directory.path().to_owned());
    // If the data cannot be removed after a second signal, the error is ignored, because the system cleans its
    // temporary directory.
    let stop = Stop::at_signal(Box::new(move || data.iter().for_each(|data| drop(std::fs::remove_dir_all(data)))))?;
    let settings = own_broker::settings(plan.in_flight_max(), &args.broker_set);
    let own = temporary.map(|directory| OwnBroker::start(directory, settings)).transpose()?;
    if let Some(own) = &own {
        let ours = plan.targets.iter_mut().filter(|target| target.bootstrap_servers == OWN);
        ours.for_each(|target| target.bootstrap_servers = own.address());
    }
    let outcome = measure(&args, table, plan, &refusals, own.as_ref(), &stop, &directory);
    if let Some(own) = own {
        own.stop()?;
    }
    outcome
}

/// Measures all points, writes the report, and returns the result.
fn measure(
    args: &Sweep,
    table: Option<&Table>,
    plan: SweepPlan,
    refusals: &[Option<String>],
    own: Option<&OwnBroker>,
    stop: &Stop,
    directory: &Path,
) -> Result<(), Failure> {
    let begun = SystemTime::now();
    let facts = args.facts(&plan, own, begun)?;
    // From here on, Ctrl-C leaves time to write the report. Before, there are no results, and a cluster that does not
    // respond must not delay the end.
    stop.allow(REPORT_WITHIN);
    let is_new = !directory.exists();
    // `remove_dir` fails if the directory contains files, as intended.
    let undo = || drop(is_new.then(|| std::fs::remove_dir(directory)));
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::new(format!("cannot make the directory {}: {error}", directory.display())))?;
    words(&intention(&plan));
    let results = turns(plan, refusals, stop).inspect_err(|_| undo())?;
    let lead =
        [table.map(|table| table.about), args.note.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let about = About { title: title(table, &results.plan), lead, facts };
    if results.runs.is_empty() {
        undo();
        return Err(Failure::interrupted("interrupted before the first measurement; nothing was written"));
    }
    write_files(directory, &about, &results).inspect_err(|_| undo())?;
    if args.format.json {
        line(&json::document(&about, &results));
        return verdict(&results, directory);
    }
    line("");
    line(&match table {
        Some(table) => format!("{}\n\n{}", table.title, text::ready_made(&results, table.layout)),
        None => text::points(&results),
    });
    let others = FILES.iter().filter(|name| **name != "report.html").copied().collect::<Vec<_>>().join(", ");
    line(&format!("\nReport: {}; raw figures beside it: {others}", directory.join("report.html").display()));
    verdict(&results, directory)
}

fn turns(plan: SweepPlan, refusals: &[Option<String>], stop: &Stop) -> Result<Results, Failure> {
    let (points, turns) = (plan.points(), plan.turns());
    let mut progress = SweepProgress::new(turns.len(), plan.turn_time());
    let mut runs = Vec::with_capacity(turns.len());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let topics = format!("fullbore-sweep-{}-{}", since.as_secs(), std::process::id());
    let mut runner = Runner::new(&plan, &topics, stop.receiver())?;
    for turn in turns {
        let target = &plan.targets[turn.target].name;
        let point = plan.label(&points[turn.point]);
        let label = if plan.targets.len() > 1 { format!("{target} {point}") } else { point };
        let started = SystemTime::now();
        progress.begins(&label);
        let refusal = refusals[turn.point].clone();
        let was_measured = refusal.is_none();
        let outcome = match refusal {
            Some(refused) => Err(refused),
            None => match runner.run(turn) {
                Ok(Some(figures)) => Ok(figures),
                Ok(None) => break,
                Err(error) => Err(error.to_string()),
            },
        };
        if stop.is_requested() && outcome.is_err() {
            break;
        }
        progress.ended(&label, &outcome, was_measured);
        runs.push(Run { turn, started, outcome });
        if stop.is_requested() {
            break;
        }
    }
    progress.finish();
    drop(runner);
    let interrupted = runs.len() < plan.turns().len();
    Ok(Results { plan, runs, interrupted })
}

/// Returns the result of the command. Fails if the sweep was interrupted or a measurement failed, although the report
/// was written.
fn verdict(results: &Results, directory: &Path) -> Result<(), Failure> {
    if results.interrupted && output::is_lost() {
        // The sweep ended because its output has no reader any more, which is not a failure.
        return Ok(());
    }
    if results.interrupted {
        let (done, all) = (results.runs.len(), results.plan.turns().len());
        let written = directory.display();
        return Err(Failure::interrupted(format!(
            "interrupted after {done} of {all} measurements; what was measured is in {written}"
        )));
    }
    let errors: Vec<&String> = results.runs.iter().filter_map(|run| run.outcome.as_ref().err()).collect();
    match errors.first() {
        Some(first) if errors.len() == results.runs.len() => {
            let written = directory.display();
            Err(Failure::new(format!(
                "no measurement succeeded; the first: {first}; the others are in {written}/runs.csv"
            )))
        }
        Some(first) => {
            let (failed, all) = (errors.len(), results.runs.len());
            Err(Failure::new(format!(
                "{failed} of {all} measurements failed; the first: {first}; the report has the reasons"
            )))
        }
        None => Ok(()),
    }
}

fn intention(plan: &SweepPlan) -> String {
    let (points, turns) = (plan.points().len(), plan.turns().len());
    let clusters = match &plan.targets[..] {
        [one] => format!("on {}", one.name),
        several => {
            format!("on each of {}", several.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", "))
        }
    };
    let time = plan.turn_time().map(|each| format!(", about {}", duration(each * turns as u32))).unwrap_or_default();
    let times = if plan.repeats == 1 { "once".to_owned() } else { format!("{} times", plan.repeats) };
    let plural = if turns == 1 { "" } else { "s" };
    let points = if points == 1 { "1 point".to_owned() } else { format!("{points} points") };
    format!("{points} {clusters}, each {times}: {turns} measurement{plural}{time}")
}

fn title(table: Option<&Table>, plan: &SweepPlan) -> String {
    match table {
        Some(table) => table.title.to_owned(),
        None => {
            let names: Vec<String> = plan.axes.iter().map(Axis::name).collect();
            format!("Throughput and latency over {}", names.join(", "))
        }
    }
}

fn list_tables(as_json: bool) {
    if as_json {
        let table = |table: &Table| {
            object([("name", string(table.name)), ("title", string(table.title)), ("about", string(table.about))])
        };
        return line(&object([("tables", array(TABLES.iter().map(table)))]));
    }
    for table in TABLES {
        line(&format!("{}\n    {}\n    {}", table.name, table.title, table.about));
    }
    line("\nExample: fullbore perf sweep --table seed-001-localhost");
}

/// Parses a target, `NAME=HOST:PORT,...`.
fn target(typed: &str) -> Result<Target, String> {
    match typed.split_once('=') {
        Some((name, servers)) if !name.trim().is_empty() && !servers.trim().is_empty() => {
            let name = name.trim().to_owned();
            if name.chars().count() > NAME_LETTERS_MAX || name.chars().any(char::is_control) {
                return Err(format!("the name must be at most {NAME_LETTERS_MAX} printable letters"));
            }
            Ok(Target { name, bootstrap_servers: servers.trim().to_owned() })
        }
        _ => Err("must be NAME=HOST:PORT, as in kafka=localhost:9092".to_owned()),
    }
}

fn positive(typed: &str) -> Result<Duration, String> {
    units::duration(typed).and_then(|time| if time.is_zero() { Err("must be above 0".to_owned()) } else { Ok(time) })
}

impl Sweep {
    fn table(&self) -> Result<Option<&'static Table>, Failure> {
        let Some(name) = &self.table else { return Ok(None) };
        let names = || TABLES.iter().map(|table| table.name).collect::<Vec<_>>().join(", ");
        Table::named(name).map(Some).ok_or_else(|| Failure::new(format!("--table {name}: must be list, {}", names())))
    }

    fn plan(&self, table: Option<&Table>) -> Result<SweepPlan, Failure> {
        if let Some((setting, _)) = self.set.iter().find(|(set, _)| self.over.iter().any(|axis| axis.setting == *set)) {
            return Err(Failure::new(format!("{} is in --over and in --set; leave one of them out", setting.name())));
        }
        let mut axes = table.map_or_else(|| self.over.clone(), |table| table.axes(&self.over));
        for axis in &mut axes {
            // If `--set` names an axis of a table, the axis has only this value, and the layout of the table does not
            // change.
            if let Some((_, value)) = self.set.iter().rev().find(|(setting, _)| *setting == axis.setting) {
                axis.values = vec![value.clone()];
            }
        }
        let mut fixed = table.map(Table::fixed).unwrap_or_default();
        for (setting, value) in &self.set {
            fixed.retain(|(earlier, _)| earlier != setting);
            fixed.push((setting.clone(), value.clone()));
        }
        fixed.retain(|(setting, _)| axes.iter().all(|axis| axis.setting != *setting));
        let of_points = fixed.iter().filter_map(|(setting, value)| match setting {
            Setting::Producer(key) => Some((key.clone(), value.clone())),
            _ => None,
        });
        let typed: Vec<(String, String)> = self.producer_property.iter().cloned().chain(of_points).collect();
        let properties = match self.command_config.is_some() || self.names_cluster(&typed) {
            true => client_properties(self.command_config.as_deref(), &typed, &config::notice)?,
            // The profile describes the user's cluster, but this sweep starts its own broker.
            false => checked_properties(Properties::default(), &typed, &config::notice)?,
        };
        let targets = self.targets(properties.get(BOOTSTRAP_SERVERS))?;
        let secure = properties.get("security.protocol").is_some_and(|protocol| protocol != "PLAINTEXT");
        if secure && targets.iter().any(|target| target.bootstrap_servers == OWN) {
            return Err(Failure::new(
                "the sweep's own broker speaks plain text; start one with an SSL listener by `fullbore serve` and name it \
                 with --bootstrap-server or --against",
            ));
        }
        let mine = |(key, value): (&str, &str)| (key != BOOTSTRAP_SERVERS).then(|| (key.to_owned(), value.to_owned()));
        let amount = self.num_records.map(Amount::Records).or(self.duration.map(Amount::Time));
        Ok(SweepPlan {
            axes,
            fixed,
            targets,
            properties: properties.iter().filter_map(mine).collect(),
            amount: amount.or(table.map(|table| table.amount)).unwrap_or(Amount::Time(DURATION)),
            warmup: self.warmup,
            repeats: self.repeats.or(table.map(|table| table.repeats)).unwrap_or(REPEATS),
        })
    }

    /// Returns true if a flag or a property names a cluster to measure.
    fn names_cluster(&self, typed: &[(String, String)]) -> bool {
        let is_cluster = |target: &Target| target.bootstrap_servers != OWN;
        let names = |(key, _): &(String, String)| key == BOOTSTRAP_SERVERS;
        self.bootstrap_server.is_some() || self.against.iter().any(is_cluster) || typed.iter().any(names)
    }

    fn targets(&self, of_file: Option<&str>) -> Result<Vec<Target>, Failure> {
        let named = |name: &str, servers: &str| Target { name: name.to_owned(), bootstrap_servers: servers.to_owned() };
        let targets = match (self.bootstrap_server.as_deref().or(of_file), &self.against[..]) {
            (_, against @ [_, ..]) => against.to_vec(),
            (Some(servers), []) => vec![named(servers, servers)],
            (None, []) => vec![named("fullbore", OWN)],
        };
        let twice = |(i, target): &(usize, &Target)| targets[..*i].iter().any(|earlier| earlier.name == target.name);
        if let Some((_, target)) = targets.iter().enumerate().find(twice) {
            return Err(Failure::new(format!(
                "--against {}: two clusters have this name; give each cluster its own name",
                target.name
            )));
        }
        for target in targets.iter().filter(|target| target.bootstrap_servers != OWN) {
            Cluster::new(&target.bootstrap_servers, CLIENT_ID)?;
        }
        if !self.broker_set.is_empty() && targets.iter().all(|target| target.bootstrap_servers != OWN) {
            return Err(Failure::new(
                "--broker-set is for the sweep's own broker, and the sweep has none; leave it out, or add --against NAME=own",
            ));
        }
        Ok(targets)
    }

    fn needs_own(&self, plan: &SweepPlan) -> bool {
        plan.targets.iter().any(|target| target.bootstrap_servers == OWN)
    }

    /// Returns the directory of the report. Fails if the directory already contains a report.
    fn directory(&self) -> Result<PathBuf, Failure> {
        let directory = self.output.clone().unwrap_or_else(|| PathBuf::from(facts::directory_name(SystemTime::now())));
        if let Some(there) = FILES.iter().find(|name| directory.join(name).exists()) {
            let shown = directory.display();
            return Err(Failure::new(format!("{shown} has a {there} already; name another directory with --output")));
        }
        Ok(directory)
    }

    /// Returns the facts for the report. Connects to every cluster, so that a cluster that cannot be reached is
    /// reported at once.
    fn facts(
        &self,
        plan: &SweepPlan,
        own: Option<&OwnBroker>,
        begun: SystemTime,
    ) -> Result<Vec<(String, String)>, Failure> {
        let note = self.note.iter().map(|note| ("Note".to_owned(), note.clone()));
        let mut facts = vec![
            ("Date".to_owned(), facts::shown(begun)),
            ("Command".to_owned(), facts::command(std::env::args())),
            ("Producer".to_owned(), facts::program()),
            ("Machine".to_owned(), facts::machine()),
        ];
        facts.splice(0..0, note);
        for target in &plan.targets {
            let mut cluster = cluster(plan, target)?.patient(self.patience.duration());
            waiting::report_late_responses(cluster.awaited(), self.patience)?;
            let brokers = cluster.metadata(Some(&[]))?.brokers.len();
            let about = match own.filter(|own| own.address() == target.bootstrap_servers) {
                Some(own) => format!(
                    "fullbore {}, in the producer's process; {}",
                    env!("CARGO_PKG_VERSION"),
                    pairs(&own.settings)
                ),
                None => {
                    let brokers = if brokers == 1 { "1 broker".to_owned() } else { format!("{brokers} brokers") };
                    format!("{}, {brokers}", target.bootstrap_servers)
                }
            };
            facts.push((format!("Cluster {}", target.name), about));
        }
        let fixed: Vec<(String, String)> =
            plan.fixed.iter().map(|(setting, value)| (setting.name(), value.clone())).collect();
        if !fixed.is_empty() {
            facts.push(("For every point".to_owned(), pairs(&fixed)));
        }
        Ok(facts)
    }
}

/// Formats pairs like `key=value key=value`. Values that may be secret are left out.
fn pairs(pairs: &[(String, String)]) -> String {
    let shown = |(key, value): &(String, String)| match is_secret_key(key) {
        true => format!("{key}=(left out)"),
        false => format!("{key}={value}"),
    };
    pairs.iter().map(shown).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use fullbore_bench::measure::Latencies;
    use fullbore_bench::sweep::Figures;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sweep: Sweep,
    }

    fn parse(flags: &[&str]) -> Result<Sweep, clap::Error> {
        crate::command_line::parsed::<Line>([&["sweep"], flags].concat()).map(|line| line.sweep)
    }

    fn plan(flags: &[&str]) -> Result<SweepPlan, Failure> {
        let sweep = parse(flags).expect("flags");
        sweep.plan(sweep.table()?)
    }

    #[test]
    fn flags_have_defaults() {
        let plan = plan(&["--over", "acks=1,all"]).expect("valid");
        assert_eq!((plan.repeats, plan.amount), (REPEATS, Amount::Time(DURATION)));
        assert_eq!(plan.warmup, Duration::from_secs(1));
        assert_eq!((plan.targets[0].name.as_str(), plan.targets[0].bootstrap_servers.as_str()), ("fullbore", OWN));
    }

    #[test]
    fn flags_replace_parts_of_a_table() {
        let wan = ["--table", "seed-001-wan"];
        let of = |more: &[&str]| plan(&[&wan[..], more].concat()).expect("valid");
        let rtt = |plan: &SweepPlan| plan.setup(&plan.points()[0]).expect("valid").link.rtt.as_millis();
        assert_eq!((rtt(&of(&[])), of(&[]).amount), (150, Amount::Records(500)));
        let near = of(&["--set", "rtt=20"]);
        assert_eq!(rtt(&near), 20);
        assert_eq!(
            near.fixed.iter().filter(|(setting, _)| *setting == Setting::Rtt).count(),
            1,
            "a report names it once"
        );
        assert_eq!(of(&["--duration", "500ms"]).amount, Amount::Time(Duration::from_millis(500)));
        let one = of(&["--set", "max.in.flight=7"]);
        assert_eq!((one.axes.len(), &one.axes[0].values), (1, &vec!["7".to_owned()]), "an axis with one value");
        let both = of(&["--over", "rtt=20,40"]);
        assert_eq!((both.axes.len(), rtt(&both)), (2, 20), "an axis wins over what the table sets");
    }

    #[test]
    fn clusters_are_named_once() {
        let of = |more: &[&str]| plan(&[&["--over", "acks=1"], more].concat()).map(|plan| plan.targets);
        let names = |targets: Vec<Target>| targets.into_iter().map(|target| target.name).collect::<Vec<_>>();
        assert_eq!(names(of(&["--bootstrap-server", "h:1,i:2"]).expect("valid")), ["h:1,i:2"]);
        assert_eq!(names(of(&["--against", "a=h:1", "--against", "b=own"]).expect("valid")), ["a", "b"]);
        for (flags, reported) in [
            (&["--against", "a=h:1", "--against", "a=h:2"][..], "two clusters have this name"),
            (&["--bootstrap-server", "nonsense"], "is not host:port"),
            (&["--bootstrap-server", "h:1", "--broker-set", "node.id=2"], "--broker-set is for the sweep's own broker"),
            (&["--set", "acks=all"], "acks is in --over and in --set"),
        ] {
            let refusal = of(flags).expect_err(reported).to_string();
            assert!(refusal.contains(reported), "{refusal}");
        }
        let refusal = of(&["--set", "security.protocol=SSL"]).expect_err("plain").to_string();
        assert!(refusal.starts_with("the sweep's own broker speaks plain text"), "{refusal}");
        let long = format!("{}=h:1", "n".repeat(41));
        for flags in
            [&["--bootstrap-server", "h:1", "--against", "a=h:1"][..], &["--against", "h:1"], &["--against", &long]]
        {
            assert!(parse(&[&["--over", "acks=1"], flags].concat()).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn a_sweep_prints_its_expected_time_first() {
        let of = |flags: &[&str]| intention(&plan(flags).expect("valid"));
        assert_eq!(
            of(&["--over", "acks=1,all", "--against", "a=h:1", "--against", "b=i:1"]),
            "2 points on each of a, b, each 3 times: 12 measurements, about 38 s"
        );
        assert_eq!(
            of(&["--over", "acks=1", "--num-records", "5", "--repeats", "1"]),
            "1 point on fullbore, each once: 1 measurement"
        );
    }

    #[test]
    fn a_sweep_with_a_failed_measurement_has_failed() {
        let plan = plan(&["--over", "acks=1,all", "--repeats", "1"]).expect("valid");
        let run = |turn| Run { turn, started: SystemTime::UNIX_EPOCH, outcome: Err("no luck".to_owned()) };
        let runs: Vec<Run> = plan.turns().into_iter().map(run).collect();
        let of = |runs: &[Run], interrupted| {
            verdict(&Results { plan: plan.clone(), runs: runs.to_vec(), interrupted }, Path::new("there"))
        };
        let failed = of(&runs, false).expect_err("every one failed");
        let reported = "no measurement succeeded; the first: no luck; the others are in there/runs.csv";
        assert_eq!((failed.status, failed.to_string().as_str()), (1, reported));
        let figures = Figures {
            records: 1,
            bytes: 1,
            elapsed: Duration::from_secs(1),
            avg_us: 1.0,
            percentiles: Latencies::default().percentiles(),
            causes: fullbore_bench::sweep::Causes::default(),
            cut_short: false,
        };
        let some = [Run { outcome: Ok(figures), ..runs[0].clone() }, runs[1].clone()];
        let failed = of(&some, false).expect_err("one failed");
        let reported = "1 of 2 measurements failed; the first: no luck; the report has the reasons";
        assert_eq!((failed.status, failed.to_string().as_str()), (1, reported));
        let ended = of(&runs[..1], true).expect_err("interrupted");
        assert_eq!(ended.status, 130);
        assert!(ended.to_string().contains("after 1 of 2 measurements; what was measured is in there"), "{ended}");
    }
}
