//! Regular expressions of topics, as members of the consumer protocol subscribe to them (KIP-848).
//!
//! Kafka takes RE2's syntax (RE2/J). Here it is that of Rust's `regex`, which descends from it: no look-around, no
//! back-references, time linear in the topic's name. `\Q...\E` is translated. What is left of differences: octal escapes
//! (`\123`) and `\C` are refused, and inside brackets `&&`, `--` and `~~` are set operations.
//!
//! What it is not: a subscription; the group keeps what an expression matches. Invariant: whatever a stranger sends, it
//! costs no more than [`PATTERN_BYTES_MAX`] and [`COMPILED_BYTES_MAX`] allow.

use crate::control::Image;
use fullbore_wire::Text;
use std::collections::BTreeSet;

/// A longer expression is refused: no list of topics is worth it.
const PATTERN_BYTES_MAX: usize = 8 * 1024;
/// Memory of a compiled expression.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// An expression that can be matched.
#[derive(Debug)]
pub struct TopicRegex(regex::Regex);

impl TopicRegex {
    /// Checks and compiles an expression.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn compile(pattern: &str) -> Result<TopicRegex, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("it has {} bytes, and {PATTERN_BYTES_MAX} are allowed", pattern.len()));
        }
        let build = |pattern: &str| regex::RegexBuilder::new(pattern).size_limit(COMPILED_BYTES_MAX).build();
        let pattern = unquoted(pattern);
        // By itself first: what closes the group around it and opens another is no expression.
        build(&pattern)
            .and_then(|_| build(&format!(r"\A(?:{pattern})\z")))
            .map(TopicRegex)
            .map_err(|error| error.to_string())
    }

    /// The topics whose whole name it matches.
    pub fn topics(&self, image: &Image) -> BTreeSet<Text> {
        let names = image.topics().map(|topic| topic.name.as_str());
        names.filter(|name| self.0.is_match(name)).map(Text::from).collect()
    }
}

/// `\Q...\E`, which takes what is between literally, in other words.
fn unquoted(pattern: &str) -> String {
    let mut said = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        said.push_str(before);
        if let Some(quoted) = escape.strip_prefix(r"\Q") {
            let (literal, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            said.push_str(&regex::escape(literal));
            rest = after;
        } else {
            let len = 1 + escape[1..].chars().next().map_or(0, char::len_utf8);
            said.push_str(&escape[..len]);
            rest = &escape[len..];
        }
    }
    said.push_str(rest);
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        TopicRegex::compile(pattern).expect(pattern).0.is_match(name)
    }

    #[test]
    fn the_whole_name_is_matched() {
        assert!(matches("orders|payments", "orders"));
        assert!(!matches("orders|payments", "orders-2"));
        assert!(!matches("rder", "orders"));
        assert!(matches("orders-[0-9]+", "orders-17"));
        assert!(matches("(?i)ORDERS", "orders"));
        assert!(matches("", ""));
    }

    #[test]
    fn quotes_are_literal() {
        assert!(matches(r"\Qa.b\E-.*", "a.b-1"));
        assert!(!matches(r"\Qa.b\E-.*", "axb-1"));
        assert!(matches(r"\Qa.b", "a.b"));
        assert!(matches(r"a\\Q", r"a\Q"), "an escaped backslash before a Q");
        assert!(matches(r"a\.b\d", "a.b7"));
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for pattern in ["(", "a)(b", "[", r"(?=x)", r"(a)\1", r"\", "(?<"] {
            assert!(TopicRegex::compile(pattern).is_err(), "{pattern}");
        }
        assert!(TopicRegex::compile(&"a".repeat(PATTERN_BYTES_MAX + 1)).is_err());
        assert!(TopicRegex::compile("(((a{100}){100}){100}){100}").is_err(), "too large when compiled");
    }
}
