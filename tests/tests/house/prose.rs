//! Extracts the project's prose from its files: comments, documents, texts of logs and errors, and names of tests.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The kind of a text, which follows from its position in the file and decides which rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A comment on an item or a module.
    Item,
    /// A comment inside code, or any comment of a script.
    Inside,
    /// A paragraph, list item or table cell of a document.
    Document,
    /// The text of a log line or an error.
    Message,
    TestName,
}

/// A piece of prose without its comment markers. [`blocks`] replaces each span of code in it by the letter `C`.
#[derive(Debug)]
pub struct Block {
    pub kind: Kind,
    /// The number of the block's first line, counted from 1.
    pub line: usize,
    pub text: String,
}

/// Directories and files that have no prose of ours, such as build results, or that are generated from checked sources.
const LEFT_OUT: &[&str] =
    &["target", ".git", "crates/broker/PROTOCOL.md", "docs/plans", "bench/results", "tests/tests/house/words.rs"];

/// Macros whose first string is a message.
const MESSAGES: &[&str] = &["error!(", "warn!(", "info!(", "debug!(", "trace!(", "#[error("];

/// The quotes around a docstring in Python, or around any other string of several lines.
const QUOTES: &str = "\"\"\"";

/// Returns the root of the repository, or the directory in `HOUSE_ROOT` if that is set.
pub fn root() -> PathBuf {
    std::env::var_os("HOUSE_ROOT").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from)
}

/// Returns the paths of all files that contain prose, sorted.
pub fn files(root: &Path) -> Vec<String> {
    let (mut directories, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for path in entries.map(|entry| entry.expect("it can be listed").path()) {
            let name = path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned();
            if LEFT_OUT.contains(&name.as_str()) || path.is_symlink() || name.ends_with("node_modules") {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if [".rs", ".md", ".py", ".sh"].iter().any(|end| name.ends_with(end)) || is_script(&path) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// Returns true if a file begins with `#!` and has no extension.
fn is_script(path: &Path) -> bool {
    let mut begin = [0; 2];
    path.extension().is_none()
        && fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok()
        && begin == *b"#!"
}

/// Returns the prose of a file in the order of its lines. Each span of code is replaced by the letter `C`.
pub fn blocks(file: &str, text: &str) -> Vec<Block> {
    let mut blocks = blocks_with_code(file, text);
    blocks.iter_mut().for_each(|block| block.text = without_code(&block.text));
    blocks
}

/// Returns the prose of a file in the order of its lines, including spans of code.
pub fn blocks_with_code(file: &str, text: &str) -> Vec<Block> {
    let mut blocks = match file.rsplit_once('.') {
        Some((_, "md")) => paragraphs(text),
        Some((_, "rs")) => source(text),
        _ => script(file, text),
    };
    blocks.sort_by_key(|block| block.line);
    blocks
}

/// Returns the number and width of each line of prose that is wider than `columns`. Tables, code and links may be
/// wider.
pub fn long_lines(file: &str, text: &str, columns: usize) -> Vec<(usize, usize)> {
    let lines: Vec<(usize, &str)> = match file.ends_with(".md") {
        true => lines_without_code(text).filter(|(_, line)| !line.trim_start().starts_with('|')).collect(),
        false => {
            let marker = if file.ends_with(".rs") { "//" } else { "#" };
            let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
            lines.filter(|(_, line)| line.trim_start().starts_with(marker)).collect()
        }
    };
    let wide = lines.into_iter().map(|(number, line)| (number, line.chars().count(), line));
    wide.filter(|(_, width, line)| *width > columns && !line.contains("://"))
        .map(|(number, width, _)| (number, width))
        .collect()
}

/// Returns the lines of a document with their numbers, counted from 1. Lines of code are returned empty.
fn lines_without_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut is_fenced, mut may_indent) = (false, true);
    text.lines().enumerate().map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        let is_code = is_fenced || is_fence || may_indent && line.starts_with("    ");
        may_indent = is_code || line.trim().is_empty();
        (at + 1, if is_code { "" } else { line })
    })
}

fn source(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut last = None; // marker and line number of the previous comment line
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

/// Returns true if a new comment begins at the line `at`. A line with the same marker before it would be a part of that
/// comment.
fn last_ended(text: &str, at: usize, marker: &str) -> bool {
    at == 0 || text.lines().nth(at - 1).is_none_or(|line| !line.trim().starts_with(marker))
}

fn new_paragraph(words: &str) -> bool {
    words.is_empty()
        || words.starts_with("- ")
        || words.starts_with("* ")
        || words.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// A text between triple quotes in Python.
#[derive(Clone, Copy)]
enum Quoted {
    /// A docstring, with the indentation of its first line.
    Doc(usize),
    Code,
}

/// Returns the comments of a script. For Python, also returns the docstrings.
fn script(file: &str, text: &str) -> Vec<Block> {
    let is_python = file.ends_with(".py") || text.lines().next().is_some_and(|first| first.contains("python"));
    let mut blocks: Vec<Block> = Vec::new();
    let (mut quoted, mut goes_on) = (None, false);
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let indent = line.len() - line.trim_start().len();
        let quotes = if is_python { line.matches(QUOTES).count() } else { 0 };
        let opens = quoted.is_none() && quotes > 0;
        if opens {
            quoted = Some(if trimmed.starts_with(QUOTES) { Quoted::Doc(indent) } else { Quoted::Code });
        }
        let words = match quoted {
            None => comment(trimmed).map(str::to_owned),
            Some(Quoted::Doc(of)) if opens || indent < of + 4 => Some(trimmed.replace(QUOTES, "").trim().to_owned()),
            Some(Quoted::Doc(_) | Quoted::Code) => None,
        };
        let follows_code = quoted.is_none() && !trimmed.starts_with('#');
        let closes = opens == quotes.is_multiple_of(2);
        if closes {
            quoted = None;
        }
        let Some(words) = words.filter(|words| !words.is_empty()) else {
            goes_on = false;
            continue;
        };
        let joins = goes_on && !opens && !follows_code && !new_paragraph(&words);
        match blocks.last_mut().filter(|_| joins) {
            Some(block) => block.text.extend([" ", words.as_str()]),
            None => {
                let text = words.trim_start_matches(['-', '*', ' ']).to_owned();
                blocks.push(Block { kind: Kind::Inside, line: at + 1, text });
            }
        }
        goes_on = !closes && !follows_code;
    }
    blocks
}

/// Returns the comment in a line of a script, which may follow code. `None` if the line has no comment.
fn comment(line: &str) -> Option<&str> {
    if let Some(words) = line.strip_prefix('#') {
        return (!words.starts_with('!')).then(|| words.trim());
    }
    let (code, words) = line.split_once(" # ")?;
    let is_outside = ['"', '\''].iter().all(|quote| code.matches(*quote).count().is_multiple_of(2));
    is_outside.then(|| words.trim())
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

/// Returns the first string among a macro's arguments. `None` if the macro has none.
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
    let mut goes_on = false;
    for (number, line) in lines_without_code(text) {
        let words = line.trim();
        if words.starts_with(['#', '<']) || words.is_empty() {
            goes_on = false;
        } else if words.starts_with('|') {
            goes_on = false;
            let cells = words.split('|').map(str::trim).filter(|cell| cell.contains(' '));
            blocks.extend(cells.map(|cell| Block { kind: Kind::Document, line: number, text: cell.to_owned() }));
        } else if let Some(block) = blocks.last_mut().filter(|_| goes_on && !new_paragraph(words)) {
            block.text.extend([" ", words]);
        } else {
            goes_on = true;
            let text = words.trim_start_matches(['-', '*', ' ']).to_owned();
            blocks.push(Block { kind: Kind::Document, line: number, text });
        }
    }
    blocks
}

/// Replaces each span of code by the letter `C` and removes the addresses of links.
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
