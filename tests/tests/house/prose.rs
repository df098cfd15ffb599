//! The project's prose, taken out of its files: comments, documents, log and error texts, names of tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Position of a text in its file, which decides the rules that hold for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A comment on an item or a module.
    Item,
    /// Another comment.
    Inside,
    /// A paragraph, list item or table cell of a document.
    Document,
    /// A text of a log line or an error.
    Message,
    TestName,
}

/// One piece of prose without its markers; each span of code in it has become the letter `C`.
#[derive(Debug)]
pub struct Block {
    pub kind: Kind,
    /// From 1.
    pub line: usize,
    pub text: String,
}

/// Directories and files without prose of ours: built, generated from checked sources, or about to go.
const LEFT_OUT: &[&str] =
    &["target", ".git", "crates/broker/PROTOCOL.md", "docs/plans", "bench/results", "tests/tests/house/words.rs"];

/// Macros whose first text is a message.
const MESSAGES: &[&str] = &["error!(", "warn!(", "info!(", "debug!(", "trace!(", "#[error("];

/// Returns the directory of the repository, or `HOUSE_ROOT`.
pub fn root() -> PathBuf {
    std::env::var_os("HOUSE_ROOT").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from)
}

/// Returns the paths of all files with prose, in order.
pub fn files(root: &Path) -> Vec<String> {
    let (mut folders, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("it can be listed").path()) {
            let name = path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned();
            if LEFT_OUT.contains(&name.as_str()) || path.is_symlink() || name.ends_with("node_modules") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") || name.ends_with(".md") {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// Returns the prose of a file in the order of its lines.
pub fn blocks(file: &str, text: &str) -> Vec<Block> {
    let mut blocks = if file.ends_with(".md") { paragraphs(text) } else { source(text) };
    blocks.iter_mut().for_each(|block| block.text = without_code(&block.text));
    blocks.sort_by_key(|block| block.line);
    blocks
}

/// Returns number and width of each line of prose past `columns`. Tables, code and addresses may be wider.
pub fn long_lines(file: &str, text: &str, columns: usize) -> Vec<(usize, usize)> {
    let (document, mut fenced) = (file.ends_with(".md"), false);
    let mut long = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        fenced ^= document && trimmed.starts_with("```");
        let prose = if document { !fenced && !trimmed.starts_with('|') } else { trimmed.starts_with("//") };
        let width = line.chars().count();
        if prose && width > columns && !line.contains("://") {
            long.push((at + 1, width));
        }
    }
    long
}

fn source(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut last = None; // the marker and number of the comment line before this one
    let (mut test, mut fenced) = (false, false);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let Some(marker) = ["///", "//!", "//"].into_iter().find(|marker| line.starts_with(marker)) else {
            test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            if let Some(name) = function(line)
                && std::mem::take(&mut test)
            {
                blocks.push(Block { kind: Kind::TestName, line: at + 1, text: name.replace('_', " ") });
            }
            continue;
        };
        let words = line[marker.len()..].trim();
        fenced = last == Some((marker, at)) && fenced;
        fenced ^= words.starts_with("```");
        let goes_on = last == Some((marker, at)) && !new_paragraph(words);
        last = Some((marker, at + 1));
        if fenced || words.starts_with("```") || words.starts_with('|') || words.starts_with('#') {
            continue;
        }
        match blocks.last_mut().filter(|_| goes_on) {
            Some(block) => block.text.extend([" ", words]),
            None if words.is_empty() => {}
            None => {
                let first = !words.starts_with(['-', '*']) && last_ended(text, at, marker);
                let kind = if marker != "//" && first { Kind::Item } else { Kind::Inside };
                blocks.push(Block { kind, line: at + 1, text: words.trim_start_matches(['-', '*', ' ']).to_owned() });
            }
        }
    }
    blocks.extend(messages(text));
    blocks
}

/// Returns true if the line before `at` is no comment of the same marker.
fn last_ended(text: &str, at: usize, marker: &str) -> bool {
    at == 0 || text.lines().nth(at - 1).is_none_or(|line| !line.trim().starts_with(marker))
}

fn new_paragraph(words: &str) -> bool {
    words.is_empty()
        || words.starts_with("- ")
        || words.starts_with("* ")
        || words.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

fn function(line: &str) -> Option<&str> {
    let rest = line.split_once("fn ")?.1;
    rest.split_once(['(', '<']).map(|(name, _)| name)
}

fn messages(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    for name in MESSAGES {
        for (at, _) in text.match_indices(name) {
            let arguments = &text[at + name.len()..];
            let Some(message) = literal(arguments) else { continue };
            found.push(Block { kind: Kind::Message, line: text[..at].matches('\n').count() + 1, text: message });
        }
    }
    found
}

/// Returns the first text between quotes, if the macro has ended nowhere before.
fn literal(arguments: &str) -> Option<String> {
    let begin = arguments.find('"')?;
    if arguments[..begin].contains(')') {
        return None;
    }
    let mut message = String::new();
    let mut letters = arguments[begin + 1..].chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return Some(message.split_whitespace().collect::<Vec<_>>().join(" ")),
            '\\' => {
                letters.next();
                message.push(' ');
            }
            _ => message.push(letter),
        }
    }
    None
}

fn paragraphs(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut fenced, mut goes_on) = (false, false);
    for (at, line) in text.lines().enumerate() {
        let words = line.trim();
        fenced ^= words.starts_with("```");
        if fenced || words.starts_with("```") || words.starts_with('#') || words.is_empty() {
            goes_on = false;
        } else if words.starts_with('|') {
            goes_on = false;
            let cells = words.split('|').map(str::trim).filter(|cell| cell.contains(' '));
            blocks.extend(cells.map(|cell| Block { kind: Kind::Document, line: at + 1, text: cell.to_owned() }));
        } else if let Some(block) = blocks.last_mut().filter(|_| goes_on && !new_paragraph(words)) {
            block.text.extend([" ", words]);
        } else {
            goes_on = true;
            blocks.push(Block {
                kind: Kind::Document,
                line: at + 1,
                text: words.trim_start_matches(['-', '*', ' ']).to_owned(),
            });
        }
    }
    blocks
}

/// Replaces each span between backquotes by the letter `C`, and drops the addresses of links.
fn without_code(text: &str) -> String {
    let spans: Vec<&str> = text.split('`').collect();
    let mut kept = String::new();
    for (at, span) in spans.iter().enumerate() {
        if at % 2 == 1 && at + 1 < spans.len() {
            kept.push('C');
        } else {
            kept.push_str(span);
        }
    }
    while let Some((before, after)) = kept.split_once("](") {
        let rest = after.split_once(')').map_or("", |(_, rest)| rest);
        kept = format!("{before}] {rest}");
    }
    kept
}
