//! Java's `.properties` format, and the values that the user typed in it.
//!
//! This module does not check any value. If a key is set twice, the last value and its place count, as in Java.

use fullbore_tls::is_secret;
use std::collections::BTreeMap;
use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

use super::error::{ConfigError, Mistakes};

/// The keys and values as the user typed them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties {
    values: BTreeMap<String, Typed>,
}

/// A value, and the place where the user typed it. `place` is the text with which a line of [`Mistakes`] begins.
#[derive(Clone, PartialEq, Eq)]
struct Typed {
    value: String,
    place: String,
}

impl fmt::Debug for Properties {
    /// Shows all pairs, with secrets hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(key, value)| (key, if is_secret(key) { "[hidden]" } else { value })))
            .finish()
    }
}

impl Properties {
    /// Parses the text of a file. Pairs are written as `key=value`, `key: value` or `key value`. There may be comments
    /// with `#` or `!`, escapes `\t \n \r \f \uXXXX`, and lines continued by a backslash. Fails only if a `\u` is
    /// broken.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let (mut properties, mut first) = (Self::default(), None);
        properties.read(
            text,
            |_| String::new(),
            |number, mistake| {
                first.get_or_insert(ConfigError { key: format!("line {number}"), ..mistake });
            },
        );
        first.map_or(Ok(properties), Err)
    }

    /// Parses a file like [`Properties::parse`]. The place of each value and each mistake is the file's name and the
    /// line number. If some lines have mistakes, the values of all other lines are returned as well.
    pub fn parse_file(name: &str, text: &str) -> (Self, Mistakes) {
        let (mut properties, mut mistakes) = (Self::default(), Mistakes::default());
        let place = |number| format!("{name}:{number}: ");
        properties.read(text, place, |number, mistake| mistakes.add(place(number), mistake));
        (properties, mistakes)
    }

    fn read(&mut self, text: &str, place: impl Fn(usize) -> String, mut wrong: impl FnMut(usize, ConfigError)) {
        for (number, line) in logical_lines(text) {
            let (key, value) = split(&line);
            match unescape(key).zip(unescape(value)) {
                Some((key, value)) => self.set_at(key, value, &place(number)),
                None => {
                    wrong(number, ConfigError::of_key(key, "\\u must be followed by four hexadecimal digits"));
                }
            }
        }
    }

    /// Sets the value of a key, or replaces it.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.set_at(key, value, "");
    }

    /// Sets the value of a key that was typed at `place`, or replaces it. `place` is shown at the beginning of a
    /// mistake.
    pub fn set_at(&mut self, key: impl Into<String>, value: impl Into<String>, place: &str) {
        self.values.insert(key.into(), Typed { value: value.into(), place: place.to_owned() });
    }

    /// Sets a value from a pair `key=value` that was typed at `place`.
    pub fn set_pair(&mut self, pair: &str, place: &str) -> Result<(), ConfigError> {
        let (key, value) = pair.split_once('=').unwrap_or_default();
        if key.trim().is_empty() {
            return Err(ConfigError::of_key(pair, "must be key=value"));
        }
        self.set_at(key.trim(), value.trim(), place);
        Ok(())
    }

    /// Returns the value as typed.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|typed| typed.value.as_str())
    }

    /// Returns the place where the key was set, as it is shown in [`Mistakes`]. The text is empty if the place is
    /// unknown.
    pub fn place_of(&self, key: &str) -> String {
        self.values.get(key).map(|typed| typed.place.clone()).unwrap_or_default()
    }

    /// Formats all keys and values as the text of a file.
    pub fn to_text(&self) -> String {
        self.iter().map(|(key, value)| format!("{}={}\n", escape(key, true), escape(value, false))).collect()
    }

    /// Returns all keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, typed)| (key.as_str(), typed.value.as_str()))
    }
}

/// Returns the lines of a file without comments and empty lines. Joins continued lines into one, whose number is that
/// of its first line in the file.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    let text = text.replace("\r\n", "\n");
    for (index, raw) in text.split(['\n', '\r']).enumerate() {
        let line = raw.trim_start_matches([' ', '\t', '\x0c']);
        if !continues && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let backslashes = line.chars().rev().take_while(|&c| c == '\\').count();
        let goes_on = backslashes % 2 == 1;
        let kept = if goes_on { &line[..line.len() - 1] } else { line };
        match lines.last_mut() {
            Some((_, last)) if continues => last.push_str(kept),
            _ => lines.push((index + 1, kept.to_owned())),
        }
        continues = goes_on;
    }
    lines
}

/// Splits a line into key and value, at the first `=`, `:` or blank that has no backslash before it. Drops the blanks
/// around this separator.
fn split(line: &str) -> (&str, &str) {
    let blank = [' ', '\t', '\x0c'];
    let mut escaped = false;
    let end = line.char_indices().find(|&(_, c)| {
        let ends = !escaped && (c == '=' || c == ':' || blank.contains(&c));
        escaped = c == '\\' && !escaped;
        ends
    });
    let Some((end, _)) = end else {
        return (line, "");
    };
    let rest = line[end..].trim_start_matches(blank);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (&line[..end], value.trim_start_matches(blank))
}

/// Puts a backslash before each character that is part of the file's syntax. A space, `=`, `:`, `#` and `!` need one
/// anywhere in a key, but in a value only at the start.
fn escape(part: &str, is_key: bool) -> String {
    let mut escaped = String::with_capacity(part.len());
    for (at, c) in part.chars().enumerate() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\x0c' => escaped.push_str("\\f"),
            '\\' => escaped.push_str("\\\\"),
            ' ' | '=' | ':' | '#' | '!' if is_key || at == 0 => escaped.extend(['\\', c]),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Replaces escapes by their characters. Returns None if a `\u` is not followed by four hexadecimal digits.
fn unescape(part: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(part.len());
    let mut buffer = [0; 2];
    let mut chars = part.chars().peekable();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => match chars.next() {
                Some('u') => {
                    units.push(code_unit(&mut chars)?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\x0c',
                Some(other) => other,
                None => break,
            },
            other => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut buffer));
    }
    Some(String::from_utf16_lossy(&units))
}

fn code_unit(chars: &mut Peekable<Chars<'_>>) -> Option<u16> {
    let mut unit = 0u16;
    for _ in 0..4 {
        let digit = chars.next()?.to_digit(16)?;
        unit = unit << 4 | u16::try_from(digit).ok()?;
    }
    Some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let properties = Properties::parse(text).expect("valid");
        properties.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    fn pair(key: &str, value: &str) -> Vec<(String, String)> {
        vec![(key.to_owned(), value.to_owned())]
    }

    #[test]
    fn separators_comments_and_blanks() {
        for text in ["a=b", "a:b", "a b", "  a = b", "a\t:\tb", "#x=y\n! z=1\n\n \na=b\r\n"] {
            assert_eq!(parsed(text), pair("a", "b"), "{text:?}");
        }
        assert_eq!(parsed("a"), pair("a", ""));
        assert_eq!(parsed("listeners=PLAINTEXT://h:1"), pair("listeners", "PLAINTEXT://h:1"));
        assert_eq!(parsed("a==b"), pair("a", "=b"));
    }

    #[test]
    fn the_last_of_two_values_counts() {
        assert_eq!(parsed("a=1\na=2"), pair("a", "2"));
    }

    #[test]
    fn continued_lines_join_without_their_indent() {
        assert_eq!(parsed("a=x,\\\n   y,\\\n   #z"), pair("a", "x,y,#z"));
        assert_eq!(parsed("a=x\\\\\nb=y").len(), 2, "an escaped backslash does not continue the line");
        assert_eq!(parsed("a=x\\"), pair("a", "x"));
        assert_eq!(parsed("a=x\\\r\n y\r\nb=z").len(), 2);
        assert_eq!(parsed("a=x\\\r\n y"), pair("a", "xy"));
    }

    #[test]
    fn escapes() {
        assert_eq!(parsed(r"a\=b=c\tdé\\"), pair("a=b", "c\tdé\\"));
        assert_eq!(parsed(r"a=😀"), pair("a", "😀"));
        assert_eq!(parsed(r"a\ b\:c=\q"), pair("a b:c", "q"));
        let error = Properties::parse("x=1\ny=\\u12g4").expect_err("broken escape");
        assert_eq!(error.to_string(), "line 2: \\u must be followed by four hexadecimal digits");
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_plain_pairs_survive(text in ".{0,200}", key in "[a-z][a-z.]{0,20}", value in "[a-zA-Z0-9./:,=-]{0,30}") {
            let _ = Properties::parse(&text);
            proptest::prop_assume!(!value.starts_with(['=', ':']));
            proptest::prop_assert_eq!(parsed(&format!("{key}={value}")), pair(&key, &value));
        }

        #[test]
        fn written_pairs_read_back(key in "(?s).{1,20}", value in "(?s).{0,30}") {
            let mut properties = Properties::default();
            properties.set(key.as_str(), value.as_str());
            properties.set("last", "1");
            let read = Properties::parse(&properties.to_text()).expect("its own");
            let all = |of: &Properties| of.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect::<Vec<_>>();
            proptest::prop_assert_eq!(all(&read), all(&properties));
        }
    }
}
