//! The rules of the house, which ARCHITECTURE.md tells in words: which part may know which, that no circle of files grows,
//! how long a function may be, how many types one name may stand for, that what rustdoc shows stands by itself, and that the paths are
//! as its tables tell.
//!
//! Read from the source as `syn` parses it, without what is compiled for tests only. A file uses another if it names
//! something that is defined there, through however many re-exports; what is reached by a method alone is not seen.

mod files;
mod paths;
mod uses;

use files::{Crate, crates};
use std::collections::{BTreeMap, BTreeSet};

/// Lines that a function may have, from its signature to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Types of the workspace that may have the same name.
const NAMESAKES_MAX: usize = 2;

/// The parts of the broker, folders and files of `crates/broker/src`, as ARCHITECTURE.md tells of them: each may know those below it in
/// this list, and no others.
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
    "coordinator",
    "lost_ends",
    "replication",
    "follow_image",
    "folder_check",
    "telemetry",
    "loggers",
    "partitions",
    "membership",
    "diskless",
    "control",
    "replica",
];

/// Those that may not know each other though one is below.
const APART: &[(&str, &str)] =
    &[("groups", "replication"), ("coordinator", "replication"), ("partitions", "control"), ("membership", "replica")];

#[test]
fn no_file_uses_one_that_uses_it() {
    let circles: Vec<String> = crates().iter().flat_map(circles).collect();
    assert!(circles.is_empty(), "circles of files:\n{}", circles.join("\n"));
}

/// Each circle with the uses that make it.
fn circles(of: &Crate) -> Vec<String> {
    let uses = uses::between_files(of);
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|file| (file.as_str(), reachable(&uses, file))).collect();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut circles = Vec::new();
    for (&file, from_here) in &reached {
        if !from_here.contains(&file) || told.contains(file) {
            continue;
        }
        let circle: BTreeSet<&str> = from_here
            .iter()
            .copied()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(&file)))
            .collect();
        told.extend(circle.iter().copied());
        let mut lines = vec![format!("{}:", of.name)];
        for member in &circle {
            let inside: Vec<&str> =
                uses[*member].iter().map(String::as_str).filter(|other| circle.contains(other)).collect();
            lines.push(format!("  {member} -> {}", inside.join(", ")));
        }
        circles.push(lines.join("\n"));
    }
    circles
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
fn only_back_ends_of_the_control_plane_and_of_the_diskless_index_know_sql() {
    let clients = [
        ("rusqlite", &["broker/src/control/sqlite/", "broker/src/diskless/index/sqlite/"][..]),
        ("tokio_postgres", &["broker/src/control/postgres/"]),
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
fn no_name_stands_for_more_than_two_types() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for of in crates() {
        for file in &of.files {
            // The names there are those of Kafka's schemas.
            if of.name == "wire" && file.path.starts_with("apis/") {
                continue;
            }
            for name in uses::types(file) {
                defined.entry(name).or_default().push(format!("{}/{}", of.name, file.path));
            }
        }
    }
    let crowded: Vec<String> = defined
        .into_iter()
        .filter(|(_, files)| files.len() > NAMESAKES_MAX)
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect();
    assert!(crowded.is_empty(), "{}", crowded.join("\n"));
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
