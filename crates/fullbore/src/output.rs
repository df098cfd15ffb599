//! The output of commands: text or JSON on standard output, and lines on standard error.
//!
//! Invariant: if the reader of one of the two streams is gone (`| head -1`), the remaining lines are lost, but the
//! command cleans up and ends normally.

use crate::closed;
use clap::Args;
use fullbore_bench::report::json::{object, string};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static FAILED: OnceLock<io::Error> = OnceLock::new();
/// True with `--json`. It is global, because the code that prints failures has no access to the flags.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The escape sequence that begins a heading on a terminal.
const BOLD: &str = "\x1b[1m";
/// The escape sequence that ends a style.
const PLAIN: &str = "\x1b[0m";
/// The escape sequence that begins an error message.
const BOLD_RED: &str = "\x1b[1;31m";

/// Maximum number of bytes that are read of the user's answer to a question.
const ANSWER_BYTES_MAX: u64 = 64;

/// Flag that selects the form of the output.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Format {
    /// Print one JSON document to standard output. Each line on standard error is JSON, too: {"error": SENTENCE} for a
    /// failure, {"note": SENTENCE} for progress and warnings.
    #[arg(long)]
    pub json: bool,
}

impl Format {
    /// Makes errors, remarks and lines for people use the form that the flag selects.
    pub fn choose(self) {
        IS_JSON.store(self.json, Ordering::Relaxed);
    }
}

/// Prints the reason why a command failed to standard error, in the chosen form.
pub fn failure(sentence: &str) {
    if IS_JSON.load(Ordering::Relaxed) {
        return to_stderr(&object([("error", string(sentence))]));
    }
    match has_colours(&io::stderr()) {
        true => to_stderr(&format!("{BOLD_RED}fullbore:{PLAIN} {sentence}")),
        false => to_stderr(&format!("fullbore: {sentence}")),
    }
}

/// Returns the heading of a table, in bold on a terminal.
pub fn heading(text: &str) -> String {
    match has_colours(&io::stdout()) {
        true => format!("{BOLD}{text}{PLAIN}"),
        false => text.to_owned(),
    }
}

/// Returns true if the stream is a terminal, unless NO_COLOR is set (no-color.org) or TERM is `dumb`.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Escapes control characters in a name that another client chose, such as a group's name. Otherwise a terminal would
/// execute them.
pub fn name(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.chars().map(shown).collect::<String>().into(),
        false => text.into(),
    }
}

/// Returns the printed form of a character. For a control character it is an escape like `\x1b`.
fn shown(char: char) -> String {
    if char.is_control() { format!(r"\x{:02x}", u32::from(char)) } else { char.into() }
}

/// Escapes control characters in lines for people, except newlines, tabs and the styles of this module. Does not change
/// JSON, in which they are already escaped.
fn printable(text: &str) -> Cow<'_, str> {
    let is_foreign = |char: char| char.is_control() && !matches!(char, '\n' | '\t');
    if !text.contains(is_foreign) || IS_JSON.load(Ordering::Relaxed) {
        return text.into();
    }
    let (mut printed, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(is_foreign) {
        let (before, from) = rest.split_at(at);
        printed.push_str(before);
        let style = [BOLD, PLAIN, BOLD_RED].into_iter().find(|style| from.starts_with(style));
        let len = style.map_or_else(|| from.chars().next().map_or(0, char::len_utf8), str::len);
        match style {
            Some(style) => printed.push_str(style),
            None => printed.extend(from[..len].chars().map(shown)),
        }
        rest = &from[len..];
    }
    (printed + rest).into()
}

/// Returns how many columns the terminal has, or `None` if standard output is not a terminal.
pub fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Prints text whose parts are separated by commas. If there is a limit, breaks it into lines of at most `limit`
/// columns.
pub fn folded(text: &str, limit: Option<usize>) {
    fold(text, limit).iter().for_each(|text| line(text));
}

fn fold(text: &str, limit: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split_inclusive(", ") {
        match lines.last_mut() {
            Some(last) if limit.is_none_or(|limit| last.len() + part.trim_end().len() <= limit) => last.push_str(part),
            _ => lines.push(if lines.is_empty() { part.to_owned() } else { format!("  {part}") }),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Prints a line for people. With `--json`, prints nothing.
pub fn words(text: &str) {
    if !IS_JSON.load(Ordering::Relaxed) {
        line(text);
    }
}

/// Prints a remark to standard output. With `--json`, prints it to standard error.
pub fn note(text: &str) {
    if IS_JSON.load(Ordering::Relaxed) { remark(text) } else { line(text) }
}

/// Prints a remark to standard error at once, in the chosen form.
pub fn remark(text: impl Display) {
    let text = text.to_string();
    match IS_JSON.load(Ordering::Relaxed) {
        true => to_stderr(&object([("note", string(text.trim()))])),
        false => to_stderr(&text),
    }
}

/// Writes a line to standard error. If there is no reader, has no effect, while `eprintln!` would panic.
fn to_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(format!("{}\n", printable(text)).as_bytes());
}

/// Prints `question` to standard error. Returns true if the first line of `answers` (standard input) is y or yes.
pub fn agrees(question: &str, answers: &mut impl BufRead) -> bool {
    // Without a printed question, the answer is no.
    if io::stderr().lock().write_all(question.as_bytes()).is_err() {
        return false;
    }
    let mut answer = String::new();
    let is_read = answers.take(ANSWER_BYTES_MAX).read_line(&mut answer).is_ok();
    is_read && ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}

/// Prints a line to standard output at once. Does nothing after a failed write.
pub fn line(text: &str) {
    written(|| writeln!(io::stdout().lock(), "{}", printable(text)));
}

/// Prints bytes to standard output at once. Does nothing after a failed write. Returns true if they were printed.
pub fn bytes(bytes: &[u8]) -> bool {
    written(|| io::stdout().lock().write_all(bytes))
}

/// Runs `write`, which writes to standard output, and then flushes. Does nothing after a failed write. Returns true if
/// both succeeded.
pub fn written(write: impl FnOnce() -> io::Result<()>) -> bool {
    if FAILED.get().is_none() {
        let open = if closed::is_stdout_closed() { Err(Errno::BADF.into()) } else { Ok(()) };
        if let Err(error) = open.and_then(|()| write()).and_then(|()| io::stdout().flush()) {
            FAILED.get_or_init(|| error);
        }
    }
    FAILED.get().is_none()
}

/// Returns true if a write to standard output has failed. A command whose only purpose is its output may then stop.
pub fn is_lost() -> bool {
    FAILED.get().is_some()
}

/// Returns the error of the failed write, if there was one. The loss of the output's reader does not count as an error.
pub fn error() -> Option<&'static io::Error> {
    FAILED.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}

/// Returns a word for a command line of a shell, quoted if necessary.
pub fn shell_word(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=.,:/@+%".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_wider_than_its_terminal_is_folded_at_commas() {
        let text = "10 records sent, 5 records/sec, 1 ms avg latency.";
        assert_eq!(fold(text, None), [text]);
        assert_eq!(fold(text, Some(49)), [text]);
        assert_eq!(fold(text, Some(48)), ["10 records sent, 5 records/sec,", "  1 ms avg latency."]);
        assert_eq!(fold(text, Some(1)), ["10 records sent,", "  5 records/sec,", "  1 ms avg latency."]);
    }

    #[test]
    fn control_characters_of_a_name_are_printed_as_escapes() {
        assert_eq!(name("orders\u{e9}"), "orders\u{e9}");
        assert_eq!(name("a\x1b[2J\n\tb\u{7f}\u{9b}c\0"), r"a\x1b[2J\x0a\x09b\x7f\x9bc\x00");
        assert_eq!(printable("two\nlines\tof \u{e9}"), "two\nlines\tof \u{e9}");
        let styled = format!("{BOLD}GROUP{PLAIN} a\x1b[31mb\r\u{9b}");
        assert_eq!(printable(&styled), format!(r"{BOLD}GROUP{PLAIN} a\x1b[31mb\x0d\x9b"));
    }

    #[test]
    fn only_y_and_yes_agree_to_a_question() {
        for (answer, expected) in [("y\n", true), (" YES \n", true), ("yes", true), ("\n", false), ("", false)] {
            assert_eq!(agrees("", &mut answer.as_bytes()), expected, "{answer:?}");
        }
        assert!(!agrees("", &mut "no\ny\n".as_bytes()) && !agrees("", &mut "yesterday\n".as_bytes()));
    }
}
