//! The regular expressions by which members of the consumer protocol subscribe to topics (KIP-848).
//!
//! Kafka accepts the syntax of RE2 (RE2/J), which [`re2`](super::re2) translates into that of Rust's `regex`. This
//! syntax has neither look-around nor back-references, so the time of a match is linear in the length of the name.
//! [`PATTERN_BYTES_MAX`] and [`COMPILED_BYTES_MAX`] limit the cost of a client's expression. The group stores the
//! topics that an expression matches.

use super::re2::translated;
use fullbore_control::Image;
use fullbore_wire::Text;
use std::collections::BTreeSet;

/// Maximum length of an expression, in bytes.
const PATTERN_BYTES_MAX: usize = 8 * 1024;
/// Maximum memory that a compiled expression may take, in bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// A compiled expression that is matched with names of topics.
#[derive(Debug)]
pub struct TopicRegex(regex::Regex);

impl TopicRegex {
    /// Checks and compiles an expression.
    ///
    /// # Errors
    /// Returns the reason why the expression is refused.
    pub fn compile(pattern: &str) -> Result<TopicRegex, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!(
                "the pattern has {} bytes, and at most {PATTERN_BYTES_MAX} are allowed",
                pattern.len()
            ));
        }
        let build = |pattern: &str| regex::RegexBuilder::new(pattern).size_limit(COMPILED_BYTES_MAX).build();
        let pattern = translated(pattern)?;
        // First compiles the expression alone, which must be valid. Otherwise `a)|(b` would be accepted below, because
        // it closes the surrounding group and opens another one.
        build(&pattern)
            .and_then(|_| build(&format!(r"\A(?:{pattern})\z")))
            .map(TopicRegex)
            .map_err(|error| error.to_string())
    }

    /// Returns the topics whose whole names match the expression.
    pub fn topics(&self, image: &Image) -> BTreeSet<Text> {
        let names = image.topics().map(|topic| topic.name.as_str());
        names.filter(|name| self.is_match(name)).map(Text::from).collect()
    }

    /// Returns true if the whole name matches the expression.
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
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
    fn invalid_expressions_are_refused() {
        for pattern in ["(", "a)(b", "[", r"(?=x)", r"(a)\1", r"\", "(?<"] {
            assert!(TopicRegex::compile(pattern).is_err(), "{pattern}");
        }
        assert!(TopicRegex::compile(&"a".repeat(PATTERN_BYTES_MAX + 1)).is_err());
        assert!(TopicRegex::compile("(((a{100}){100}){100}){100}").is_err(), "too large when compiled");
    }

    /// The expected outcomes are those of RE2/J 1.8.
    #[test]
    fn patterns_that_differ_between_dialects_are_taken_or_refused_as_in_kafka() {
        let refused = [
            "a++",
            "a*+",
            "a?+",
            "a{2}+",
            "a{2}{3}",
            "a**",
            "a+*",
            "a{1001}",
            "a{2,1}",
            "[a--b]",
            "[z-a]",
            "[[:foo:]]",
            r"\1",
            r"(a)\1",
            r"\8",
            r"\u0041",
            r"\U00000041",
            r"\C",
            r"\G",
            r"\Z",
            r"\h",
            r"\k<n>",
            r"[\Q]\E]",
            r"\p",
            r"\pX",
            r"[a-\d]",
            r"\x{110000}",
            r"\x4",
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?<!a)",
            "(?>a)",
            "(?#c)a",
            "(?x)a b",
            "(?u)a",
            "(?<n.a>a)",
            "(?P=n)",
            "(?P<n>a)(?P<n>b)",
            "(?i-)a",
            "*a",
            "(",
            "a)(b",
            "(?",
        ];
        for pattern in refused {
            assert!(TopicRegex::compile(pattern).is_err(), "{pattern}");
        }
        let taken = [
            ("a??", "a"),
            ("(a+)+", "aa"),
            ("(?:a{2}){3}", "aaaaaa"),
            ("a{1000}|b", "b"),
            ("a{,3}", "a{,3}"),
            ("a{", "a{"),
            ("a{3", "a{3"),
            ("{", "{"),
            ("a]}", "a]}"),
            ("[a&&b]", "&"),
            ("[a~~b]", "~"),
            ("[[a]b]", "[b]"),
            ("[a[b]", "["),
            ("[]a]", "]"),
            (r"[\w-a]", "-"),
            (r"[\d-]", "-"),
            ("[+--]", ","),
            (r"\141", "a"),
            (r"\0", "\0"),
            (r"\x{61}\x62", "ab"),
            (r"\p{^Greek}", "a"),
            (r"\P{^Greek}|a", "a"),
            (r"\pL", "a"),
            ("[[:alpha:]]", "a"),
            ("[[:^alpha:]]", "1"),
            ("(?)a", "a"),
            ("(?i-s:A)", "a"),
            ("(?i)A", "a"),
            ("(?U)a+", "aa"),
            ("(?P<1n>a)", "a"),
            ("(?<n>a)", "a"),
            (r"\é", "é"),
            (r"\-\_", "-_"),
            (r"\Qa++\E", "a++"),
        ];
        for (pattern, name) in taken {
            assert!(matches(pattern, name), "{pattern}");
        }
    }
}
