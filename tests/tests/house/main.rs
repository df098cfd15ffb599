//! The rules of the house, which ARCHITECTURE.md tells in words: which part may know which, that no circle of folders
//! grows, how long a function may be, that what rustdoc shows stands by itself, and that the paths are as its tables
//! tell.
//!
//! Read from the source as `syn` parses it, without what is compiled for tests only. A file uses another if it names
//! something that is defined there, through however many re-exports; what is reached by a method alone is not seen.

mod files;
mod paths;
mod prose;
mod uses;
mod words;

use files::{Crate, crates};
use std::collections::{BTreeMap, BTreeSet};

/// Lines that a function may have, from its signature to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

/// The parts of the broker, folders and files of `crates/broker/src`, as ARCHITECTURE.md tells of them: each may know
/// those below it in this list, and no others.
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
    "folder_check",
    "telemetry",
    "loggers",
    "partitions",
    "membership",
    "diskless",
    "replica",
];

/// Those that may not know each other though one is below.
const APART: &[(&str, &str)] = &[("groups", "replication"), ("coordinator", "replication"), ("membership", "replica")];

#[test]
fn no_folder_uses_one_beside_it_that_uses_it() {
    let circles: Vec<String> = crates().iter().flat_map(circles).collect();
    assert!(circles.is_empty(), "circles of folders:\n{}", circles.join("\n"));
}

/// Returns each circle of folders that stand side by side. Files of one folder know each other, and so do a folder and
/// those in it.
fn circles(of: &Crate) -> Vec<String> {
    let mut uses_beside: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (file, used) in uses::between_files(of) {
        for other in used {
            let (from, to) = (folder_of(of, &file), folder_of(of, &other));
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(folder), Some(beside)) = (from.get(shared), to.get(shared)) {
                let uses = uses_beside.entry(from[..shared].join("/")).or_default();
                uses.entry(folder.clone()).or_default().insert(beside.clone());
            }
        }
    }
    let in_circles = uses_beside.iter().flat_map(|(parent, uses)| {
        let is_in_circle = |folder: &&String| reachable(uses, folder).contains(folder.as_str());
        uses.keys().filter(is_in_circle).map(move |folder| {
            let used = uses[folder].iter().filter(|other| reachable(uses, other).contains(folder.as_str()));
            format!("{}/{parent}: {folder} -> {}", of.name, used.cloned().collect::<Vec<_>>().join(", "))
        })
    });
    in_circles.collect()
}

/// Returns the folders that lead to a file. A file beside a folder of its name is of that folder.
fn folder_of(of: &Crate, file: &str) -> Vec<String> {
    let own = format!("{}/", file.trim_end_matches(".rs"));
    let has_folder = of.files.iter().any(|other| other.path.starts_with(&own));
    let path = if has_folder { own.as_str() } else { file };
    let (folder, _) = path.rsplit_once('/').unwrap_or_default();
    folder.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The files that are used by this one, by those, and so on.
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
fn the_parts_of_the_broker_know_only_what_is_below_them() {
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

/// Every file, tests and comments, too.
#[test]
fn only_db_and_back_ends_of_the_control_plane_and_of_the_diskless_index_know_sql_clients() {
    let clients = [
        ("rusqlite", &["control/src/sqlite/", "broker/src/diskless/index/sqlite/", "db/src/sqlite.rs"][..]),
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
fn partitions_and_replicas_do_not_know_the_control_plane() {
    let named = files::naming("fullbore_control");
    let knowing: Vec<_> = named
        .iter()
        .filter(|path| ["broker/src/partitions/", "broker/src/replica/"].iter().any(|part| path.starts_with(part)))
        .collect();
    assert!(knowing.is_empty(), "{knowing:?}");
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let long: Vec<String> = each_file(|of, file| {
        let functions = uses::functions(file).into_iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
        functions
            .map(|function| format!("{}/{}: {} has {} lines", of.name, file.path, function.name, function.lines))
            .collect()
    });
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn what_rustdoc_shows_stands_by_itself() {
    let wrong: Vec<String> = each_file(|of, file| {
        let docs = uses::docs(file).into_iter().filter(|doc| doc.trim_start().starts_with("Of "));
        docs.map(|doc| format!("{}/{}: {}", of.name, file.path, doc.trim())).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// They panic where what they write to is full or read by nobody any more.
#[test]
fn nothing_is_printed_by_a_macro() {
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
