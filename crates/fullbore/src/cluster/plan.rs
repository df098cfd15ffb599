//! Plans a cluster: the contents of each broker's file, from the existing brokers and the user's flags. There is no I/O
//! here.
//!
//! Invariant: the file of a running broker is not changed, so that it always has the settings with which the broker
//! runs.

use super::broker::{ADMIN_LISTENER, BrokerFile};
use crate::failure::Failure;
use crate::output::shell_word;
use fullbore_config::Properties;
use fullbore_wire::{host_port, split_host_port};
use std::collections::BTreeSet;
use std::path::Path;

/// The setting that names the database that the brokers share.
pub const CONTROL_PLANE: &str = "control.plane";
/// The default port of the first broker.
const PORT_DEFAULT: u16 = 9092;
/// The default number of brokers in a new directory.
const BROKERS_DEFAULT: u32 = 3;
/// The setting for the number of replicas of new topics.
const REPLICAS: &str = "default.replication.factor";
/// The number of replicas of topics in a new cluster. In a cluster with fewer brokers, topics have one replica per
/// broker.
const REPLICAS_MAX: u32 = 3;
/// The setting for the number of in-sync replicas that a topic needs to accept records.
const MIN_IN_SYNC: &str = "min.insync.replicas";
/// The value of [`MIN_IN_SYNC`] if topics have three replicas. If one broker dies, no record is lost, and all topics
/// still accept records.
const MIN_IN_SYNC_OF_THREE: u32 = 2;
/// The prefix of error messages about a `--set`.
const SET: &str = "--set ";
/// The setting for the number of replicas of the topic with the committed offsets of groups.
const OFFSETS_REPLICAS: &str = "offsets.topic.replication.factor";
/// The default of [`OFFSETS_REPLICAS`]. A cluster with fewer brokers sets a smaller value.
const OFFSETS_REPLICAS_DEFAULT: u32 = 3;
const WORKER_THREADS: &str = "fullbore.worker.threads";
/// The setting that names the object store of diskless topics, which all brokers share.
const STORAGE: &str = "diskless.storage";
/// The name of the object store's directory in the cluster's directory.
const STORE: &str = "diskless";
/// The default difference between the port of the admin page and the port for clients.
const TO_ADMIN_PORT: u16 = 9644 - PORT_DEFAULT;
/// The keys that `--set` refuses, and the flag that sets each of them.
const OWN: [(&str, &str); 6] = [
    ("node.id", "--brokers"),
    ("broker.id", "--brokers"),
    ("log.dirs", "--data-dir"),
    ("log.dir", "--data-dir"),
    ("listeners", "--port"),
    (CONTROL_PLANE, "--control-plane"),
];

/// The cluster that the user wants, from the flags.
#[derive(Clone, Debug, Default)]
pub struct WantedCluster {
    pub brokers: Option<u32>,
    pub port: Option<u16>,
    pub control_plane: Option<String>,
    /// Pairs `KEY=VALUE`.
    pub settings: Vec<String>,
}

/// The present state of the directory.
#[derive(Clone, Debug)]
pub struct Present<'a> {
    pub directory: &'a Path,
    pub brokers: &'a [BrokerFile],
    /// The ids of the brokers that are running.
    pub running: BTreeSet<u32>,
    /// True if the directory has its own PostgreSQL.
    pub has_postgres: bool,
    /// The URL of the directory's own PostgreSQL, which need not exist yet.
    pub postgres_url: String,
}

/// The plan of a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// True if the brokers share the directory's own PostgreSQL.
    pub has_own_postgres: bool,
    /// The brokers, sorted by id.
    pub brokers: Vec<PlannedBroker>,
}

/// A broker, as it will run.
#[derive(Clone, Debug)]
pub struct PlannedBroker {
    pub file: BrokerFile,
    /// True if the broker's file is missing.
    pub is_new: bool,
    /// True if the broker's file must be written.
    pub is_changed: bool,
    /// True if the broker already runs.
    pub runs: bool,
}

impl Plan {
    /// Plans the wanted cluster.
    ///
    /// # Errors
    /// Fails if the flags contradict the existing cluster, for example with a smaller number of brokers.
    pub fn new(present: &Present<'_>, wanted: &WantedCluster) -> Result<Plan, Failure> {
        present.brokers.iter().try_for_each(|broker| broker.check_address(present.directory))?;
        let count = count(present, wanted.brokers)?;
        let (control_plane, has_own_postgres) = control_plane(present, wanted.control_plane.as_deref())?;
        let port = first_port(present, wanted.port)?;
        let settings = settings(&wanted.settings)?;
        let sets_admin = settings.iter().any(|(key, _)| key == ADMIN_LISTENER);
        let first_admin = first_admin(present, &settings, port);
        let broker = |id: u32| {
            let there = present.brokers.iter().find(|broker| broker.id == id);
            let runs = present.running.contains(&id);
            let mut properties = there.or(present.brokers.first()).map(|broker| broker.properties.clone());
            let properties = properties.get_or_insert_default();
            settings.iter().for_each(|(key, value)| properties.set_at(key, value, SET));
            if there.is_none() || sets_admin {
                properties.set_at(ADMIN_LISTENER, admin_address(&first_admin, id), if sets_admin { SET } else { "" });
            }
            if present.brokers.is_empty() {
                set_for_size(properties, count);
            }
            if there.is_none() {
                listen(properties, id, port)?;
            }
            if !runs {
                // The URL contains the path of the directory, which the user may have moved, so it is set again.
                if present.running.is_empty() && !has_other_store(properties) {
                    properties.set(STORAGE, present.directory.join(STORE).display().to_string());
                }
                properties.set("node.id", id.to_string());
                properties.set("log.dirs", present.directory.join(format!("broker-{id}")).display().to_string());
                properties.set(CONTROL_PLANE, control_plane.as_str());
            }
            let file = BrokerFile { id, properties: properties.clone() };
            let is_changed = there.is_none_or(|there| !is_same(&there.properties, &file.properties));
            Ok(PlannedBroker { file, is_new: there.is_none(), is_changed, runs })
        };
        let brokers = (1..=count).map(broker).collect::<Result<Vec<PlannedBroker>, Failure>>()?;
        match brokers.iter().find(|broker| broker.runs && broker.is_changed) {
            Some(broker) => {
                let directory = shell_word(&present.directory.display().to_string());
                Err(Failure::new(format!(
                    "broker {} is running with other settings; stop the cluster first with `fullbore cluster down \
                     --data-dir {directory}`",
                    broker.file.id
                )))
            }
            None => Ok(Plan { has_own_postgres, brokers }),
        }
    }

    /// Returns the addresses for clients, as `host:port,host:port`.
    pub fn bootstrap_servers(&self) -> String {
        self.brokers.iter().filter_map(|broker| broker.file.address()).collect::<Vec<_>>().join(",")
    }
}

/// Sets those settings of a new cluster whose defaults depend on the number of brokers.
fn set_for_size(properties: &mut Properties, brokers: u32) {
    // If the user has set the number of replicas, min.insync.replicas is not set here either.
    let says_replicas = properties.get(REPLICAS).is_some();
    let mut set = |key, value: u32| {
        if properties.get(key).is_none() {
            properties.set(key, value.to_string());
        }
    };
    if brokers < OFFSETS_REPLICAS_DEFAULT {
        set(OFFSETS_REPLICAS, brokers);
    }
    if !says_replicas && brokers > 1 {
        set(REPLICAS, brokers.min(REPLICAS_MAX));
        if brokers >= REPLICAS_MAX {
            set(MIN_IN_SYNC, MIN_IN_SYNC_OF_THREE);
        }
    }
    // The brokers share one machine, so each gets only its share of the cores as threads. More threads would only delay
    // other brokers.
    let cores = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
    set(WORKER_THREADS, (cores / brokers).max(1));
}

/// Returns true if a broker's settings name an object store other than the one in the cluster's directory.
fn has_other_store(properties: &Properties) -> bool {
    let beside = properties.get("log.dirs").and_then(|directory| Some(Path::new(directory).parent()?.join(STORE)));
    properties.get(STORAGE).is_some_and(|set| beside.is_none_or(|beside| beside != Path::new(set)))
}

fn count(present: &Present<'_>, wanted: Option<u32>) -> Result<u32, Failure> {
    let there = present.brokers.last().map(|broker| broker.id);
    match (wanted, there) {
        (None, there) => Ok(there.unwrap_or(BROKERS_DEFAULT)),
        (Some(wanted), Some(there)) if wanted < there => Err(Failure::new(format!(
            "{} has {there} brokers, which have replicas; --brokers can add brokers but not remove any",
            present.directory.display()
        ))),
        (Some(wanted), _) => Ok(wanted),
    }
}

/// Returns the URL of the control plane, and true if it is the directory's own PostgreSQL.
fn control_plane(present: &Present<'_>, wanted: Option<&str>) -> Result<(String, bool), Failure> {
    let directory = present.directory.display();
    if present.has_postgres && !(wanted.is_some() && present.brokers.is_empty()) {
        return match wanted {
            Some(_) => Err(Failure::new(format!(
                "the brokers of {directory} have a PostgreSQL of their own; leave --control-plane out, or give another --data-dir"
            ))),
            None => Ok((present.postgres_url.clone(), true)),
        };
    }
    // The message contains neither of the two URLs, because a URL may contain a password.
    let there = present.brokers.first().and_then(|broker| broker.properties.get(CONTROL_PLANE));
    match (wanted, there) {
        (Some(wanted), Some(there)) if wanted != there => Err(Failure::new(format!(
            "the brokers of {directory} have another control plane: leave --control-plane out, give another --data-dir, or, if the \
             database is the same, change {CONTROL_PLANE} in {directory}/broker-*.properties"
        ))),
        (Some(url), _) | (None, Some(url)) => Ok((url.to_owned(), false)),
        (None, None) => Ok((present.postgres_url.clone(), true)),
    }
}

/// Returns the port of the first broker.
fn first_port(present: &Present<'_>, wanted: Option<u16>) -> Result<u16, Failure> {
    let Some(first) = present.brokers.first() else { return Ok(wanted.unwrap_or(PORT_DEFAULT)) };
    let address = first.address().unwrap_or_default();
    let there = split_host_port(&address).and_then(|(_, port)| port.checked_sub(u16::try_from(first.id - 1).ok()?));
    match (there, wanted) {
        (Some(there), Some(wanted)) if there != wanted => Err(Failure::new(format!(
            "the brokers of {} listen on {there} and the ports after it; leave --port out",
            present.directory.display()
        ))),
        (there, wanted) => Ok(there.or(wanted).unwrap_or(PORT_DEFAULT)),
    }
}

fn listen(properties: &mut Properties, id: u32, first: u16) -> Result<(), Failure> {
    let behind = |first: u16| first.checked_add(u16::try_from(id - 1).ok()?);
    let port = behind(first).ok_or_else(|| {
        Failure::new(format!("--port {first}: broker {id} would need a port above 65535; give a smaller port"))
    })?;
    properties.set("listeners", format!("PLAINTEXT://127.0.0.1:{port}"));
    Ok(())
}

/// Returns the address of the first broker's admin page. An address in the user's settings takes precedence over the
/// existing one. If both are missing, returns the default, which is derived from `port`, the port for clients.
fn first_admin(present: &Present<'_>, settings: &[(String, String)], port: u16) -> String {
    let set = settings.iter().find(|(key, _)| key == ADMIN_LISTENER).map(|(_, value)| value.clone());
    let there = present.brokers.first().and_then(|broker| {
        let address = broker.properties.get(ADMIN_LISTENER)?;
        let first =
            |(host, port): (&str, u16)| Some(host_port(host, port.checked_sub(u16::try_from(broker.id - 1).ok()?)?));
        Some(split_host_port(address).and_then(first).unwrap_or_else(|| address.to_owned()))
    });
    let default = || host_port("127.0.0.1", port.checked_add(TO_ADMIN_PORT).unwrap_or(0));
    set.or(there).unwrap_or_else(default)
}

/// Returns the address of a broker's admin page. All brokers use the host of the first broker's page, and each broker
/// uses the next port. If the first broker has port 0 (any free port) or an empty address (no page), the others have
/// the same.
fn admin_address(first: &str, id: u32) -> String {
    match split_host_port(first) {
        Some((host, 0)) => host_port(host, 0),
        Some((host, port)) => {
            let own = u16::try_from(id - 1).ok().and_then(|behind| port.checked_add(behind));
            host_port(host, own.unwrap_or(0))
        }
        None => first.to_owned(),
    }
}

fn settings(pairs: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let mut settings = Properties::default();
    for pair in pairs {
        settings.set_pair(pair, SET).map_err(|mistake| Failure::new(format!("{SET}{mistake}")))?;
    }
    let own = OWN.iter().find(|(key, _)| settings.get(key).is_some());
    match own {
        Some((key, flag)) => {
            Err(Failure::new(format!("--set {key}: each broker has its own value, which {flag} sets")))
        }
        None => Ok(settings.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()),
    }
}

fn is_same(one: &Properties, other: &Properties) -> bool {
    one.iter().eq(other.iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(brokers: &[BrokerFile]) -> Present<'_> {
        Present {
            directory: Path::new("/c"),
            brokers,
            running: BTreeSet::new(),
            has_postgres: false,
            postgres_url: "postgres://own".to_owned(),
        }
    }

    fn plan(present: &Present<'_>, change: impl FnOnce(&mut WantedCluster)) -> Result<Plan, String> {
        let mut wanted = WantedCluster::default();
        change(&mut wanted);
        Plan::new(present, &wanted).map_err(|failure| failure.to_string())
    }

    fn files(plan: &Plan) -> Vec<BrokerFile> {
        plan.brokers.iter().map(|broker| broker.file.clone()).collect()
    }

    fn value(plan: &Plan, at: usize, key: &str) -> String {
        plan.brokers[at].file.properties.get(key).unwrap_or("none").to_owned()
    }

    #[test]
    fn a_new_directory_gets_three_brokers_with_settings_of_their_own() {
        let new = plan(&present(&[]), |wanted| wanted.settings = vec!["num.partitions=6".into()]).expect("possible");
        assert!(new.has_own_postgres && new.brokers.iter().all(|broker| broker.is_new && broker.is_changed));
        assert_eq!(new.bootstrap_servers(), "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094");
        let threads = value(&new, 0, WORKER_THREADS);
        assert!(threads.parse::<usize>().is_ok_and(|threads| threads > 0), "{threads}");
        assert_eq!(
            new.brokers[1].file.properties.to_text(),
            format!(
                "control.plane=postgres://own\ndefault.replication.factor=3\ndiskless.storage=/c/diskless\nfullbore.admin.listener=127.0.0.1:9645\nfullbore.worker.threads={threads}\n\
                 listeners=PLAINTEXT://127.0.0.1:9093\nlog.dirs=/c/broker-2\nmin.insync.replicas=2\nnode.id=2\nnum.partitions=6\n"
            )
        );
        let given = |wanted: &mut WantedCluster| {
            (wanted.brokers, wanted.port) = (Some(1), Some(65_000));
            wanted.control_plane = Some("postgres://ann@db/x".into());
        };
        let given = plan(&present(&[]), given).expect("possible");
        assert!(!given.has_own_postgres && given.brokers.len() == 1);
        assert_eq!(value(&given, 0, CONTROL_PLANE), "postgres://ann@db/x");
        assert_eq!(value(&given, 0, ADMIN_LISTENER), "127.0.0.1:0");
        assert_eq!((value(&given, 0, OFFSETS_REPLICAS), value(&new, 0, OFFSETS_REPLICAS)), ("1".into(), "none".into()));
        let without_page = |wanted: &mut WantedCluster| wanted.settings = vec![format!("{ADMIN_LISTENER}=")];
        assert_eq!(value(&plan(&present(&[]), without_page).expect("possible"), 2, ADMIN_LISTENER), "");
    }

    /// Topics get one replica per broker, up to three. Topics with three replicas accept records while one broker is
    /// dead.
    #[test]
    fn topics_survive_the_death_of_a_broker_unless_something_else_is_set() {
        let replicas = |brokers, set: &[&str]| {
            let change = |wanted: &mut WantedCluster| {
                wanted.brokers = Some(brokers);
                wanted.settings = set.iter().map(|pair| (*pair).to_owned()).collect();
            };
            let new = plan(&present(&[]), change).expect("possible");
            [REPLICAS, MIN_IN_SYNC].map(|key| value(&new, 0, key))
        };
        assert_eq!(replicas(1, &[]), ["none", "none"]);
        assert_eq!(replicas(2, &[]), ["2", "none"]);
        assert_eq!(replicas(3, &[]), ["3", "2"]);
        assert_eq!(replicas(5, &[]), ["3", "2"]);
        assert_eq!(replicas(3, &["default.replication.factor=1"]), ["1", "none"]);
        assert_eq!(replicas(3, &["min.insync.replicas=1"]), ["3", "1"]);
        let mut properties = Properties::default();
        properties.set("listeners", "PLAINTEXT://127.0.0.1:9092");
        let older = BrokerFile { id: 1, properties };
        let more = plan(&present(&[older]), |wanted| wanted.brokers = Some(3)).expect("possible");
        assert_eq!(
            [0, 2].map(|at| value(&more, at, REPLICAS)),
            ["none", "none"],
            "a directory that is there keeps what it has"
        );
    }

    #[test]
    fn a_second_start_changes_nothing_and_added_brokers_copy_the_first() {
        let set = |wanted: &mut WantedCluster| {
            (wanted.port, wanted.settings) = (Some(1000), vec!["num.partitions=6".into()]);
            wanted.control_plane = Some("postgres://ann@db/x".into());
        };
        let there = files(&plan(&present(&[]), set).expect("possible"));
        let again = plan(&present(&there), |_| {}).expect("possible");
        assert!(again.brokers.iter().all(|broker| !broker.is_new && !broker.is_changed && !broker.runs));
        assert!(!again.has_own_postgres);
        let running = Present { running: [1, 3].into(), ..present(&there) };
        let more = plan(&running, |wanted| wanted.brokers = Some(4)).expect("possible");
        let states: Vec<_> =
            more.brokers.iter().map(|broker| (broker.is_new, broker.is_changed, broker.runs)).collect();
        let old = |runs| (false, false, runs);
        assert_eq!(states, [old(true), old(false), old(true), (true, true, false)]);
        assert_eq!(value(&more, 3, "listeners"), "PLAINTEXT://127.0.0.1:1003");
        assert_eq!(value(&more, 3, ADMIN_LISTENER), "127.0.0.1:1555");
        assert_eq!((value(&more, 3, "num.partitions"), value(&more, 3, "node.id")), ("6".into(), "4".into()));
        assert_eq!(value(&more, 3, CONTROL_PLANE), "postgres://ann@db/x");
        // If the file of a broker is missing, the plan creates it again.
        let gap: Vec<BrokerFile> = there.iter().filter(|broker| broker.id != 1).cloned().collect();
        let filled = plan(&present(&gap), |_| {}).expect("possible");
        assert_eq!(
            files(&filled).iter().map(|file| file.properties.to_text()).collect::<Vec<_>>(),
            there.iter().map(|file| file.properties.to_text()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn metrics_of_every_broker_have_a_port_of_their_own() {
        let pages = |plan: &Plan| (0..plan.brokers.len()).map(|at| value(plan, at, ADMIN_LISTENER)).collect::<Vec<_>>();
        let set = |pair: &'static str| move |wanted: &mut WantedCluster| wanted.settings = vec![pair.to_owned()];
        let new = plan(&present(&[]), set("fullbore.admin.listener=127.0.0.1:7000")).expect("possible");
        assert_eq!(pages(&new), ["127.0.0.1:7000", "127.0.0.1:7001", "127.0.0.1:7002"]);
        let there = files(&new);
        let more = plan(&present(&there), |wanted| wanted.brokers = Some(4)).expect("possible");
        assert_eq!(pages(&more)[3], "127.0.0.1:7003");
        assert!(more.brokers[..3].iter().all(|broker| !broker.is_changed), "what was given is kept");
        let moved = plan(&present(&there), set("fullbore.admin.listener=[::1]:8000")).expect("possible");
        assert_eq!(pages(&moved), ["[::1]:8000", "[::1]:8001", "[::1]:8002"]);
        let last = plan(&present(&there[1..]), |_| {}).expect("possible");
        assert_eq!(pages(&last)[0], "127.0.0.1:7000");
        let none = plan(&present(&there), set("fullbore.admin.listener=")).expect("possible");
        let none = files(&none);
        let none = plan(&present(&none), |wanted| wanted.brokers = Some(4)).expect("possible");
        assert_eq!(pages(&none), [""; 4]);
        let free = plan(&present(&[]), set("fullbore.admin.listener=localhost:0")).expect("possible");
        assert_eq!(pages(&free), ["localhost:0"; 3]);
    }

    #[test]
    fn settings_change_only_files_of_brokers_that_do_not_run() {
        let there = files(&plan(&present(&[]), |_| {}).expect("possible"));
        let set = |wanted: &mut WantedCluster| wanted.settings = vec!["num.partitions=9".into()];
        let changed = plan(&present(&there), set).expect("possible");
        assert!(changed.brokers.iter().all(|broker| broker.is_changed && !broker.is_new));
        let running = Present { running: [2].into(), ..present(&there) };
        let refused = plan(&running, set).expect_err("one runs");
        assert_eq!(
            refused,
            "broker 2 is running with other settings; stop the cluster first with `fullbore cluster down --data-dir /c`"
        );
        let moved =
            Present { directory: Path::new("/d"), has_postgres: true, postgres_url: "new".into(), ..present(&there) };
        let moved = plan(&moved, |_| {}).expect("possible");
        assert_eq!(
            (value(&moved, 0, "log.dirs"), value(&moved, 0, CONTROL_PLANE)),
            ("/d/broker-1".into(), "new".into())
        );
    }

    #[test]
    fn brokers_share_a_store_in_the_clusters_directory_unless_another_is_set() {
        let stores = |plan: &Plan| (0..plan.brokers.len()).map(|at| value(plan, at, STORAGE)).collect::<Vec<_>>();
        let new = plan(&present(&[]), |_| {}).expect("possible");
        assert_eq!(stores(&new), ["/c/diskless"; 3]);
        let there = files(&new);
        let moved = Present { directory: Path::new("/d"), ..present(&there) };
        assert_eq!(stores(&plan(&moved, |wanted| wanted.brokers = Some(4)).expect("possible")), ["/d/diskless"; 4]);
        let reported = |wanted: &mut WantedCluster| wanted.settings = vec![format!("{STORAGE}=s3://bucket")];
        let reported = plan(&present(&[]), reported).expect("possible");
        assert_eq!(stores(&reported), ["s3://bucket"; 3]);
        assert_eq!(stores(&plan(&moved, |_| {}).expect("possible")), ["/d/diskless"; 3]);
        let there = files(&reported);
        let moved = Present { directory: Path::new("/d"), ..present(&there) };
        assert_eq!(stores(&plan(&moved, |_| {}).expect("possible")), ["s3://bucket"; 3]);
    }

    /// An older version created the cluster, so its brokers have no object store. A broker that is added while they run
    /// must not have one either.
    #[test]
    fn running_brokers_without_a_store_get_it_when_all_are_restarted() {
        let mut there = files(&plan(&present(&[]), |_| {}).expect("possible"));
        for broker in &mut there {
            let kept: Vec<_> = broker.properties.iter().filter(|(key, _)| *key != STORAGE).collect();
            let mut without = Properties::default();
            kept.into_iter().for_each(|(key, value)| without.set(key, value));
            broker.properties = without;
        }
        let running = Present { running: [1, 2].into(), ..present(&there) };
        let more = plan(&running, |wanted| wanted.brokers = Some(4)).expect("possible");
        assert!((0..4).all(|at| value(&more, at, STORAGE) == "none"));
        let anew = plan(&present(&there), |_| {}).expect("possible");
        assert!((0..3).all(|at| value(&anew, at, STORAGE) == "/c/diskless" && anew.brokers[at].is_changed));
    }

    #[test]
    fn a_wish_that_contradicts_the_directory_is_one_line_without_password() {
        let own = files(&plan(&present(&[]), |_| {}).expect("possible"));
        let own = Present { has_postgres: true, ..present(&own) };
        let url = |wanted: &mut WantedCluster| wanted.control_plane = Some("postgres://ann:secret@db/x".into());
        let given = files(&plan(&present(&[]), url).expect("possible"));
        let other = |wanted: &mut WantedCluster| wanted.control_plane = Some("postgres://ann:secret@db/y".into());
        type Change = Box<dyn FnOnce(&mut WantedCluster)>;
        let setting = |pair: &str| -> Change {
            let pair = pair.to_owned();
            Box::new(move |wanted| wanted.settings = vec![pair])
        };
        // As long as there are no brokers, another control plane may replace the directory's own PostgreSQL.
        plan(&Present { brokers: &[], ..own.clone() }, url).expect("possible");
        let cases: Vec<(Present<'_>, Change, &str)> = vec![
            (own.clone(), Box::new(|wanted| wanted.brokers = Some(2)), "/c has 3 brokers, which have replicas"),
            (own.clone(), Box::new(|wanted| wanted.port = Some(1)), "listen on 9092 and the ports after it"),
            (own.clone(), Box::new(url), "have a PostgreSQL of their own"),
            (present(&given), Box::new(other), "the brokers of /c have another control plane"),
            (present(&[]), Box::new(|wanted| wanted.port = Some(u16::MAX)), "broker 2 would need a port above 65535"),
            (present(&[]), setting("x"), "--set x: must be key=value"),
            (present(&[]), setting("node.id=7"), "--set node.id: each broker has its own value, which --brokers sets"),
            (present(&[]), setting("control.plane=postgres://ann:secret@db/x"), "which --control-plane sets"),
        ];
        for (present, change, reported) in cases {
            let refused = plan(&present, change).expect_err(reported);
            assert!(refused.contains(reported) && !refused.contains("secret") && !refused.contains('\n'), "{refused}");
        }
    }
    #[test]
    fn file_of_a_broker_without_an_address_is_named_with_the_missing_key() {
        let mut there = files(&plan(&present(&[]), |_| {}).expect("possible"));
        for (listeners, says) in [
            (None, "has no `listeners`"),
            (Some(""), "has \"\" in `listeners`, which is not host:port"),
            (Some("PLAINTEXT://:9093"), "has \":9093\" in `listeners`, which is not host:port"),
        ] {
            there[1].properties = Properties::default();
            listeners.iter().for_each(|listeners| there[1].properties.set("listeners", *listeners));
            for running in [BTreeSet::new(), [1, 2, 3].into()] {
                let refused = plan(&Present { running, ..present(&there) }, |_| {}).expect_err("it has no address");
                let begins = format!("cannot use /c/broker-2.properties: it {says}; restore the file, or remove it ");
                assert!(refused.starts_with(&begins), "{refused}");
            }
        }
    }
}
