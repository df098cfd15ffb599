//! The tables of ARCHITECTURE.md that follow a request file by file.
//!
//! A row names a file and its functions. What is called through a trait or a macro counts by its name, too.

use super::files::{Crate, File, crates};
use super::uses::functions;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const HEADING: &str = "## Four paths, file by file";

/// Paths with a limit on the files that are handed the batch.
const FILES_MAX: [(&str, usize); 2] = [("A classic produce", 20), ("A diskless produce", 26)];

struct Table {
    name: String,
    rows: Vec<Row>,
}

struct Row {
    file: String,
    functions: Vec<String>,
    /// True if it is reached by another way than a call from a row above.
    is_handed_over: bool,
    /// True if the file may be listed more than once.
    is_repeated: bool,
}

fn tables() -> Vec<Table> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let text = fs::read_to_string(&path).expect("ARCHITECTURE.md can be read");
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
        is_handed_over: cells[1].contains("=>"),
        is_repeated: cells[1].contains("*again*") || cells[1].contains("*machine*"),
    }
}

/// The file of a row, whose path begins with the name of its crate.
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

/// Returns true if the text has the function's name other than where it is defined.
fn names(text: &str, function: &str) -> bool {
    text.match_indices(function).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + function.len()..]);
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        is_whole && !before.ends_with("fn ") && (after.starts_with('(') || after.starts_with("::<"))
    })
}

#[test]
fn tables_of_paths_name_files_and_functions_in_the_order_of_calls() {
    let (crates, mut wrong) = (crates(), Vec::new());
    let tables = tables();
    assert_eq!(tables.len(), 4, "the paths are told elsewhere now");
    for Table { name, rows } in &tables {
        assert!(rows.len() > 10, "{name} has a table");
        let mut above = String::new();
        for (at, row) in rows.iter().enumerate() {
            let Some(file) = source(&crates, row) else {
                wrong.push(format!("{name}: there is no {}", row.file));
                continue;
            };
            above.push_str(&text(row));
            let defined: BTreeSet<String> = functions(file).into_iter().map(|function| function.name).collect();
            for function in &row.functions {
                // `dispatch` is made by a macro.
                if !defined.contains(function) && !above.contains(&format!("fn {function}(")) {
                    wrong.push(format!("{name}: {} has no {function}", row.file));
                }
                if at > 0 && !row.is_handed_over && !names(&above, function) {
                    wrong.push(format!("{name}: nothing above calls {function} of {}", row.file));
                }
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
            assert!(files.len() <= *max, "{name} passes {} files", files.len());
        }
    }
}
