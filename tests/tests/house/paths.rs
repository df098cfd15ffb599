//! Checks the tables in docs/internals/paths.md, which follow a request from file to file.
//!
//! A row names a file and functions in it. A function calls another one if its body contains the name as a call, even
//! through a trait, a closure or a macro.

use super::files::{Crate, File, crates};
use super::uses::functions;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const HEADING: &str = "## Four paths, file by file";

/// Maximum number of files that handle the batch or its outcome on each path. The goals are 20 and 26.
/// docs/internals/paths.md explains why they are exceeded.
const FILES_MAX: [(&str, usize); 2] = [("A classic produce", 22), ("A diskless produce", 32)];

struct Table {
    name: String,
    rows: Vec<Row>,
}

struct Row {
    file: String,
    functions: Vec<String>,
    /// How the row's first function is started: task, thread, answer, wake, future or closure. `None` if a row above
    /// calls the function.
    hand_over: Option<String>,
    /// True if the file may be listed more than once.
    is_repeated: bool,
}

/// The functions of the rows so far.
#[derive(Default)]
struct Above {
    bodies: Vec<String>,
    /// A stack of the functions that may still call others. Each is an index into `bodies` and the position in the body
    /// that the rows have reached.
    open: Vec<(usize, usize)>,
}

impl Above {
    fn open(&mut self, body: &str) {
        self.open.push((self.bodies.len(), 0));
        self.bodies.push(body.to_owned());
    }

    /// Drops functions from the stack until one calls `function` after its position. Returns true if there is such a
    /// function.
    fn calls_next(&mut self, function: &str) -> bool {
        let next = |(caller, from): (usize, usize)| {
            calls(&self.bodies[caller], function).into_iter().find(|place| *place >= from)
        };
        let found = self.open.iter().enumerate().rev().find_map(|(depth, open)| Some((depth, next(*open)?)));
        if let Some((depth, place)) = found {
            self.open.truncate(depth + 1);
            self.open[depth].1 = place;
        }
        found.is_some() || self.bodies.is_empty()
    }
}

fn tables() -> Vec<Table> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/internals/paths.md");
    let text = fs::read_to_string(&path).expect("docs/internals/paths.md can be read");
    let section = text.split(HEADING).nth(1).expect("the section is there");
    let section = section.split("\n## ").next().unwrap_or_default();
    section.split("\n### ").skip(1).map(table).collect()
}

fn table(text: &str) -> Table {
    let name = text.lines().next().unwrap_or_default().to_owned();
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1).map(row).collect();
    Table { name, rows }
}

fn row(line: &str) -> Row {
    let cells: Vec<&str> = line.split('|').collect();
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    Row {
        file: quoted(cells[1]).concat(),
        functions: quoted(cells[2]),
        hand_over: cells[1].split_once("=>").map(|(way, _)| way.trim().trim_start_matches('=').to_owned()),
        is_repeated: cells[1].contains("*again*") || cells[1].contains("*machine*"),
    }
}

/// Returns the file of a row. The row's path begins with the crate's name. `None` if there is no such file.
fn source<'c>(crates: &'c [Crate], row: &Row) -> Option<&'c File> {
    let (name, path) = row.file.split_once('/')?;
    let of = crates.iter().find(|of| of.name == name)?;
    of.files.iter().find(|file| file.path == path)
}

fn text(row: &Row) -> String {
    let (name, path) = row.file.split_once('/').unwrap_or_default();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(name).join("src").join(path);
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the bodies of a row's functions outside of tests, by name. Functions with the same name share one body.
fn bodies(file: &File, row: &Row) -> BTreeMap<String, String> {
    let text = text(row);
    let lines: Vec<&str> = text.lines().collect();
    let mut bodies = BTreeMap::new();
    for function in functions(file) {
        let body = lines.get(function.first_line - 1..function.first_line - 1 + function.lines).unwrap_or_default();
        let code = body.iter().filter(|line| !line.trim_start().starts_with("//"));
        let body: &mut String = bodies.entry(function.name).or_default();
        code.for_each(|line| body.extend([line, "\n"]));
    }
    for name in &row.functions {
        // A macro generates `dispatch`, so the macro's arms are used as its body.
        if !bodies.contains_key(name)
            && let Some((_, rest)) = text.split_once(&format!("fn {name}("))
        {
            bodies.insert(name.clone(), rest.to_owned());
        }
    }
    bodies
}

/// Returns the positions at which `body` calls a function with this name.
fn calls(body: &str, function: &str) -> Vec<usize> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let called = body.match_indices(function).filter(|(at, _)| {
        let (before, after) = (&body[..*at], &body[at + function.len()..]);
        let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        is_whole && !before.ends_with("fn ") && (after.starts_with('(') || after.starts_with("::<"))
    });
    called.map(|(at, _)| at).collect()
}

/// Returns true if code that `body` spawns calls a function with this name.
fn spawns(body: &str, function: &str) -> bool {
    body.match_indices("spawn(").any(|(at, opening)| {
        let rest = &body[at + opening.len()..];
        let mut depth = 1_i32;
        let end = rest.find(|character| {
            depth += i32::from(character == '(') - i32::from(character == ')');
            depth == 0
        });
        !calls(&rest[..end.unwrap_or(rest.len())], function).is_empty()
    })
}

/// Returns the mistakes in a row's functions, and adds the functions to `above`.
fn check(row: &Row, bodies: &BTreeMap<String, String>, above: &mut Above) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, name) in row.functions.iter().enumerate() {
        let Some(body) = bodies.get(name) else {
            wrong.push(format!("{} has no {name}", row.file));
            continue;
        };
        let is_reached = match row.hand_over.as_deref().filter(|_| at == 0) {
            Some("task") => above.bodies.iter().any(|body| spawns(body, name)),
            Some("future") => above.bodies.iter().any(|body| !calls(body, name).is_empty()),
            Some("thread" | "answer" | "wake" | "closure") => true,
            Some(_) => false,
            None => above.calls_next(name),
        };
        if !is_reached {
            wrong.push(format!("nothing above reaches {name} of {} next", row.file));
        }
        above.open(body);
    }
    wrong
}

#[test]
fn tables_of_paths_name_files_and_functions_in_the_order_of_calls() {
    let (crates, mut wrong) = (crates(), Vec::new());
    let tables = tables();
    assert_eq!(tables.len(), 5, "four paths, and what a produce waits for");
    for Table { name, rows } in &tables {
        assert!(rows.len() > 10, "{name} has a table");
        let mut above = Above::default();
        for row in rows {
            match source(&crates, row) {
                Some(file) => {
                    let found = check(row, &bodies(file, row), &mut above);
                    wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
                }
                None => wrong.push(format!("{name}: there is no {}", row.file)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn path_of_a_batch_is_short_and_enters_no_file_twice() {
    for Table { name, rows } in tables() {
        let mut files = BTreeSet::new();
        for row in &rows {
            assert!(files.insert(row.file.as_str()) || row.is_repeated, "{name} enters {} twice", row.file);
        }
        if let Some((_, max)) = FILES_MAX.iter().find(|(of, _)| *of == name) {
            assert_eq!(files.len(), *max, "{name} passes other files");
        }
    }
}

#[test]
fn calls_are_found_by_whole_names_and_spawned_code_by_its_parentheses() {
    let body = "{ precommit(a); self.commit_now(); drop(spawn(Arc::clone(self).upload(queue.close(now)))); go_on(); }";
    assert!(calls(body, "commit").is_empty());
    assert!(calls(body, "go_on").len() == 1 && calls(body, "upload").len() == 1);
    assert!(spawns(body, "upload") && spawns(body, "close") && !spawns(body, "go_on") && !spawns(body, "precommit"));
}
