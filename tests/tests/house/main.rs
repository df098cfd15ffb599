//! Checks that the source keeps the rules of ARCHITECTURE.md: layers of modules, no cycles between directories, short
//! functions and self-contained docs. The tables of paths must match the source.
//!
//! The checks parse the source with `syn` and ignore code that is compiled only for tests. A file uses another one if
//! it names an item that is defined there, even through re-exports. Uses by method calls alone are not found.

mod files;
mod paths;
mod prose;
mod sample;
mod uses;
mod words;

use files::{Crate, crates};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of lines of a function, from its signature to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

/// The modules of the broker, which are the directories and files in `crates/broker/src`, in the order of
/// ARCHITECTURE.md. A module may only use those that follow it.
const LAYERS: &[&str] = &[
    "lib",
    "start",
    "net",
    "admin",
    "exposition",
    "api",
    "node",
    "fetch_sessions",
    "error",
    "groups",
    "transactions",
    "coordinator",
    "log_end_reports",
    "replication",
    "follow_image",
    "directory_check",
    "telemetry",
    "loggers",
    "partitions",
    "membership",
    "replica",
];

/// Pairs of modules that must not use each other although their order in [`LAYERS`] would permit it.
const APART: &[(&str, &str)] = &[("groups", "replication"), ("coordinator", "replication"), ("membership", "replica")];

#[test]
fn sibling_directories_have_no_cycle() {
    let circles: Vec<String> = crates().iter().flat_map(circles).collect();
    assert!(circles.is_empty(), "circles of directories:\n{}", circles.join("\n"));
}

/// Returns a line for each directory that is in a cycle of directories with the same parent. Files of one directory may
/// use each other. A directory and the directories inside it may do so, too.
fn circles(of: &Crate) -> Vec<String> {
    let mut uses_beside: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (file, used) in uses::between_files(of) {
        for other in used {
            let (from, to) = (directory_of(of, &file), directory_of(of, &other));
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(directory), Some(beside)) = (from.get(shared), to.get(shared)) {
                let uses = uses_beside.entry(from[..shared].join("/")).or_default();
                uses.entry(directory.clone()).or_default().insert(beside.clone());
            }
        }
    }
    let in_circles = uses_beside.iter().flat_map(|(parent, uses)| {
        let is_in_circle = |directory: &&String| reachable(uses, directory).contains(directory.as_str());
        uses.keys().filter(is_in_circle).map(move |directory| {
            let used = uses[directory].iter().filter(|other| reachable(uses, other).contains(directory.as_str()));
            format!("{}/{parent}: {directory} -> {}", of.name, used.cloned().collect::<Vec<_>>().join(", "))
        })
    });
    in_circles.collect()
}

/// Returns the names of the directories on the path of a file. A file with the same name as a directory counts as
/// inside that directory.
fn directory_of(of: &Crate, file: &str) -> Vec<String> {
    let own = format!("{}/", file.trim_end_matches(".rs"));
    let has_directory = of.files.iter().any(|other| other.path.starts_with(&own));
    let path = if has_directory { own.as_str() } else { file };
    let (directory, _) = path.rsplit_once('/').unwrap_or_default();
    directory.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the files that `from` uses, directly or through other files.
fn reachable<'a>(uses: &'a BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = uses.get(from).into_iter().flatten().map(String::as_str).collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(uses.get(file).into_iter().flatten().map(String::as_str));
        }
    }
    reached
}

#[test]
fn modules_of_the_broker_use_only_lower_layers() {
    let crates = crates();
    let broker = crates.iter().find(|of| of.name == "broker").expect("there is a broker");
    let part = |file: &str| file.split('/').next().unwrap_or(file).trim_end_matches(".rs").to_owned();
    let layer = |file: &str| LAYERS.iter().position(|name| *name == part(file));
    let there: BTreeSet<String> = broker.files.iter().map(|file| part(&file.path)).collect();
    assert_eq!(there, LAYERS.iter().map(|name| (*name).to_owned()).collect(), "each part has its layer");
    let uses = uses::between_files(broker);
    let pairs = uses.iter().flat_map(|(file, used)| used.iter().map(move |other| (file.as_str(), other.as_str())));
    let is_apart = |file: &str, other: &str| APART.contains(&(part(file).as_str(), part(other).as_str()));
    let wrong: Vec<_> = pairs.filter(|(file, other)| layer(file) > layer(other) || is_apart(file, other)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(APART.iter().all(|(part, other)| layer(part) < layer(other)), "what is above is not known anyway");
}

/// Reads every file as text, including tests and comments.
#[test]
fn sql_clients_are_used_only_by_db_and_the_back_ends() {
    let clients = [
        ("rusqlite", &["control/src/sqlite/", "diskless/src/index/sqlite/", "db/src/sqlite.rs"][..]),
        ("tokio_postgres", &["db/src/postgres/"]),
    ];
    for (client, places) in clients {
        let named = files::naming(client);
        let outside: Vec<_> = named.iter().filter(|path| !places.iter().any(|there| path.starts_with(there))).collect();
        assert!(outside.is_empty(), "{client} is named in {outside:?}");
        let empty: Vec<_> = places.iter().filter(|there| !named.iter().any(|path| path.starts_with(**there))).collect();
        assert!(empty.is_empty(), "{client} is not named in {empty:?} any more");
    }
}

#[test]
fn partitions_and_replicas_do_not_use_the_control_plane() {
    let named = files::naming("fullbore_control");
    let knowing: Vec<_> = named
        .iter()
        .filter(|path| ["broker/src/partitions/", "broker/src/replica/"].iter().any(|part| path.starts_with(part)))
        .collect();
    assert!(knowing.is_empty(), "{knowing:?}");
}

#[test]
fn functions_have_at_most_seventy_lines() {
    let long: Vec<String> = each_file(|of, file| {
        let functions = uses::functions(file).into_iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
        functions
            .map(|function| format!("{}/{}: {} has {} lines", of.name, file.path, function.name, function.lines))
            .collect()
    });
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn docs_in_rustdoc_are_self_contained() {
    let wrong: Vec<String> = each_file(|of, file| {
        let docs = uses::docs(file).into_iter().filter(|doc| doc.trim_start().starts_with("Of "));
        docs.map(|doc| format!("{}/{}: {}", of.name, file.path, doc.trim())).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The print macros panic if the output cannot be written, for example because its disk is full or its reader has
/// ended.
#[test]
fn no_code_prints_by_a_macro() {
    let printed: Vec<String> = each_file(|of, file| {
        let found = uses::macros(file).into_iter();
        let found = found.filter(|name| ["print", "println", "eprint", "eprintln", "dbg"].contains(&name.as_str()));
        found.map(|name| format!("{}/{}: {name}!", of.name, file.path)).collect()
    });
    assert!(printed.is_empty(), "{}", printed.join("\n"));
}

fn each_file(look: impl Fn(&Crate, &files::File) -> Vec<String>) -> Vec<String> {
    crates().iter().flat_map(|of| of.files.iter().flat_map(|file| look(of, file)).collect::<Vec<_>>()).collect()
}
