//! Checks the tables in docs/internals/paths.md, which follow a request from file to file.
//!
//! A row names a file and functions in it. A function calls another one if its body contains the name as a call, even
//! through a trait, a closure or a macro. The caller of a function is the function before it, unless the row names
//! another caller.

use super::files::{Crate, File, crates};
use super::uses::functions;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const HEADING: &str = "## Four paths, file by file";

/// The exact number of files that handle the batch or its outcome on each path. The goals were at most 20 and 26.
const FILES_MAX: [(&str, usize); 2] = [("A classic produce", 19), ("A diskless produce", 27)];

struct Table {
    name: String,
    rows: Vec<Row>,
}

struct Row {
    file: String,
    functions: Vec<String>,
    /// True for each function whose caller is also the caller of the function before it.
    are_siblings: Vec<bool>,
    /// The caller of the row's first function. Empty if the caller is the function above. A second element is a
    /// function between the two that the table leaves out.
    caller: Vec<String>,
    /// The way in which the row's first function is started, if no function above calls it: task, thread, answer, wake,
    /// future or closure. `None` if a function above calls it.
    hand_over: Option<String>,
    /// True if the file may be listed more than once.
    is_repeated: bool,
}

/// A function of a row.
struct Function {
    file: String,
    name: String,
    body: String,
    /// The index of its caller in [`Above::functions`]. `None` if no function there calls it, for example after a
    /// hand-over.
    caller: Option<usize>,
}

/// The functions of the rows above the current row.
#[derive(Default)]
struct Above {
    functions: Vec<Function>,
    /// A stack of functions that may call the functions of the next rows. Each entry is the function's index in
    /// `functions`, and the position in its body at which the search for the next call begins.
    open: Vec<(usize, usize)>,
}

impl Above {
    fn open(&mut self, function: Function) {
        self.open.push((self.functions.len(), 0));
        self.functions.push(function);
    }

    /// Returns the index of the last function with this name. `name` may have the form `FILE NAME`, in which FILE is
    /// the end of the file's path.
    fn named(&self, name: &str) -> Option<usize> {
        let (file, name) = name.rsplit_once(' ').unwrap_or(("", name));
        self.functions.iter().rposition(|of| of.name == name && of.file.ends_with(file))
    }

    /// Returns the index of the function that must call the row's function `at`. A row may name the caller of its first
    /// function. The caller of a sibling is that of the function before. In all other cases it is the function before.
    fn wanted(&self, row: &Row, at: usize) -> Option<usize> {
        let before = self.functions.len().checked_sub(1)?;
        match row.caller.first() {
            Some(caller) if at == 0 => self.named(caller),
            _ if row.are_siblings[at] => self.functions[before].caller,
            _ => Some(before),
        }
    }

    /// Notes that `caller` calls `function` next, and drops the functions above `caller` from the stack. Returns false
    /// and changes nothing if the caller is not in the stack, or has no such call after its position.
    fn calls_next(&mut self, caller: usize, function: &str) -> bool {
        let Some(depth) = self.open.iter().rposition(|(open, _)| *open == caller) else { return false };
        let from = self.open[depth].1;
        let next = calls(&self.functions[caller].body, function).into_iter().find(|place| *place >= from);
        if let Some(place) = next {
            self.open.truncate(depth + 1);
            self.open[depth].1 = place;
        }
        next.is_some()
    }

    /// Checks the body of the caller that a row names, with `is_start`. If the row names no caller, returns true if
    /// `is_start` is true of any body above.
    fn starts(&self, row: &Row, is_start: impl Fn(&str) -> bool) -> bool {
        match row.caller.first() {
            Some(caller) => self.named(caller).is_some_and(|caller| is_start(&self.functions[caller].body)),
            None => self.functions.iter().any(|function| is_start(&function.body)),
        }
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
        are_siblings: cells[2].split('`').step_by(2).map(|between| between.contains(';')).collect(),
        caller: names_before_arrows(cells[2]),
        hand_over: cells[1].split_once("=>").map(|(way, _)| way.trim().trim_start_matches('=').to_owned()),
        is_repeated: cells[1].contains("*again*") || cells[1].contains("*machine*"),
    }
}

/// Returns the names before the first function of a cell, as in `caller → left_out → function`.
fn names_before_arrows(cell: &str) -> Vec<String> {
    let before = cell.split('`').next().unwrap_or_default();
    before.split('→').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
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
        // A function inside a macro call (`dispatch`) is not parsed. The text after its name is then taken as its body.
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
        let mut caller = None;
        let is_called = |body: &str| !calls(body, name).is_empty();
        let is_reached = match row.hand_over.as_deref().filter(|_| at == 0) {
            Some("task") => above.starts(row, |body| spawns(body, name)),
            Some("future") => above.starts(row, is_called),
            Some("thread" | "answer" | "wake" | "closure") => row.caller.is_empty() || above.starts(row, is_called),
            Some(_) => false,
            None if above.functions.is_empty() => true,
            None => {
                caller = above.wanted(row, at);
                let called = row.caller.get(1).filter(|_| at == 0).unwrap_or(name);
                caller.is_some_and(|caller| above.calls_next(caller, called))
            }
        };
        if !is_reached {
            let wanted = above.wanted(row, at).map_or("no function above", |wanted| &*above.functions[wanted].name);
            wrong.push(format!("{wanted} does not call {name} of {} next", row.file));
        }
        above.open(Function { file: row.file.clone(), name: name.clone(), body: body.clone(), caller });
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

#[test]
fn row_names_another_caller_than_the_code_it_is_reported() {
    let bodies = ["a", "b", "c", "d"].map(|name| (name.to_owned(), String::new())).into_iter();
    let mut bodies: BTreeMap<_, _> = bodies.collect();
    bodies.insert("a".to_owned(), "{ b(); c(); }".to_owned());
    bodies.insert("b".to_owned(), "{ d(); }".to_owned());
    let wrong = |cells: &[&str]| {
        let mut above = Above::default();
        let lines = cells.iter().map(|cell| row(&format!("| `crate/file.rs` | {cell} | |")));
        lines.map(|row| check(&row, &bodies, &mut above).len()).sum::<usize>()
    };
    assert_eq!(wrong(&["`a`, `b`, `d`", "a → `c`"]), 0);
    assert_eq!(wrong(&["`a`, `b`; `c`"]), 0);
    assert_eq!(wrong(&["`a`, `b`, `d`", "`c`"]), 1, "d does not call c");
    assert_eq!(wrong(&["`a`, `b`, `d`", "b → `c`"]), 1, "b does not call c");
    assert_eq!(wrong(&["`a`, `b`, `c`"]), 1, "b does not call c");
    assert_eq!(wrong(&["`a`, `c`", "a → `b`"]), 1, "a calls b before c");
    assert_eq!(wrong(&["`a`", "a → b → `d`", "a → `c`"]), 0, "through b, which no row names");
    assert_eq!(wrong(&["`a`, `b`", "file.rs a → `c`"]), 0);
    assert_eq!(wrong(&["`a`, `b`", "other.rs a → `c`"]), 1, "no row has that file");
}
