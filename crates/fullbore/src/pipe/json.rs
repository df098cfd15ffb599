//! A small implementation of JSON (RFC 8259). It writes strings, and parses single values without copying them.
//!
//! A parsed array or object has its elements or members, and also its text. Invariant: each byte of a parsed value was
//! checked, and the value is not nested deeper than [`DEPTH_MAX`].

use std::borrow::Cow;

/// Maximum nesting of arrays and objects.
const DEPTH_MAX: usize = 64;

/// A parsed value, which borrows from the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// A string without its escapes.
    String(Cow<'a, str>),
    /// A number, as text.
    Number(&'a str),
    /// `true` or `false`.
    Bool(bool),
    /// An array, with its text.
    Array(Vec<Value<'a>>, &'a str),
    /// An object, with its members in order and its text. Several members may have the same name.
    Object(Vec<(Cow<'a, str>, Value<'a>)>, &'a str),
}

/// A syntax error, with its position.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The position of the wrong byte, counted from 1.
    pub position: usize,
    /// The input that was expected instead.
    pub expected: &'static str,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not JSON at byte {}: expected {}", self.position, self.expected)
    }
}

/// Parses a text that consists of one value.
///
/// # Errors
/// Returns the position of the first wrong byte, and the input that was expected.
pub fn parse(text: &str) -> Result<Value<'_>, Wrong> {
    let mut parser = Parser { text, at: 0 };
    parser.space();
    let value = parser.value(DEPTH_MAX)?;
    parser.space();
    if parser.at < text.len() { Err(parser.wrong("the end")) } else { Ok(value) }
}

/// Appends `text` as a JSON string, with quotes and escapes.
pub fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let (bytes, mut copied) = (text.as_bytes(), 0);
    for (at, byte) in bytes.iter().enumerate() {
        let escaped: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..0x20 => b"",
            _ => continue,
        };
        out.extend_from_slice(&bytes[copied..at]);
        match escaped {
            [] => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            escaped => out.extend_from_slice(escaped),
        }
        copied = at + 1;
    }
    out.extend_from_slice(&bytes[copied..]);
    out.push(b'"');
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn wrong(&self, expected: &'static str) -> Wrong {
        Wrong { position: self.at + 1, expected }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// If the next byte is this one, skips it and returns true.
    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, Wrong> {
        match self.peek() {
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'[' | b'{') if depth == 0 => Err(self.wrong("no deeper nesting")),
            Some(b'[') => self.array(depth - 1),
            Some(b'{') => self.object(depth - 1),
            Some(b'n') => self.word("null", Value::Null),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            _ => Err(self.wrong("a value")),
        }
    }

    fn word(&mut self, word: &'static str, value: Value<'a>) -> Result<Value<'a>, Wrong> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.wrong(word));
        }
        self.at += word.len();
        Ok(value)
    }

    fn digits(&mut self) -> Result<(), Wrong> {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == from { Err(self.wrong("a digit")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Value<'a>, Wrong> {
        let from = self.at;
        self.takes(b'-');
        if !self.takes(b'0') {
            self.digits()?;
        }
        if self.takes(b'.') {
            self.digits()?;
        }
        if self.takes(b'e') || self.takes(b'E') {
            let _ = self.takes(b'+') || self.takes(b'-');
            self.digits()?;
        }
        Ok(Value::Number(&self.text[from..self.at]))
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>, Wrong> {
        let (from, mut values) = (self.at, Vec::new());
        self.at += 1;
        self.space();
        if !self.takes(b']') {
            loop {
                self.space();
                values.push(self.value(depth)?);
                self.space();
                if self.takes(b']') {
                    break;
                }
                if !self.takes(b',') {
                    return Err(self.wrong(", or ]"));
                }
            }
        }
        Ok(Value::Array(values, &self.text[from..self.at]))
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, Wrong> {
        let (from, mut members) = (self.at, Vec::new());
        self.at += 1;
        self.space();
        if !self.takes(b'}') {
            loop {
                self.space();
                if self.peek() != Some(b'"') {
                    return Err(self.wrong("a name in quotes"));
                }
                let name = self.string()?;
                self.space();
                if !self.takes(b':') {
                    return Err(self.wrong(":"));
                }
                self.space();
                members.push((name, self.value(depth)?));
                self.space();
                if self.takes(b'}') {
                    break;
                }
                if !self.takes(b',') {
                    return Err(self.wrong(", or }"));
                }
            }
        }
        Ok(Value::Object(members, &self.text[from..self.at]))
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Wrong> {
        self.at += 1;
        let (mut from, mut unescaped) = (self.at, String::new());
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    unescaped.push_str(&self.text[from..self.at]);
                    unescaped.push(self.escape()?);
                    from = self.at;
                }
                None | Some(0..0x20) => return Err(self.wrong("the string to go on, or a quote")),
                Some(_) => self.at += 1,
            }
        }
        let rest = &self.text[from..self.at];
        self.at += 1;
        // If `unescaped` is empty, the string had no escapes, because each escape adds a character to it.
        Ok(if unescaped.is_empty() { Cow::Borrowed(rest) } else { Cow::Owned(unescaped + rest) })
    }

    fn escape(&mut self) -> Result<char, Wrong> {
        self.at += 1;
        let simple = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return Err(self.wrong("an escape")),
        };
        self.at += 1;
        Ok(simple)
    }

    /// Parses `uXXXX`, or two such escapes (a surrogate pair) for a character above U+FFFF.
    fn unicode(&mut self) -> Result<char, Wrong> {
        let high = self.four_digits()?;
        let code = match high {
            0xd800..0xdc00 if self.text[self.at..].starts_with("\\u") => {
                self.at += 1;
                match self.four_digits()? {
                    low @ 0xdc00..0xe000 => 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00),
                    _ => return Err(self.wrong("the second half of a surrogate pair before")),
                }
            }
            other => other,
        };
        char::from_u32(code).ok_or_else(|| self.wrong("a whole surrogate pair before"))
    }

    fn four_digits(&mut self) -> Result<u32, Wrong> {
        let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let code = code.ok_or_else(|| self.wrong("u and four hexadecimal digits"))?;
        self.at += 5;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_borrow_their_text() {
        let text = r#" {"a" : [1, -2.5e+3, true,false , null], "b":{"c":"d\u00e9\n\ud83d\ude00"},"":""} "#;
        let Ok(Value::Object(members, raw)) = parse(text) else { panic!("an object") };
        assert_eq!(raw, text.trim());
        let Value::Array(values, raw) = &members[0].1 else { panic!("an array") };
        assert_eq!((values.len(), *raw), (5, "[1, -2.5e+3, true,false , null]"));
        assert_eq!(values[1], Value::Number("-2.5e+3"));
        let Value::Object(inner, _) = &members[1].1 else { panic!("an object") };
        assert_eq!(inner[0].1, Value::String("dé\n😀".into()));
        assert_eq!(members[2], ("".into(), Value::String("".into())));
    }

    #[test]
    fn a_fault_is_reported_with_its_byte() {
        for (text, position) in [
            ("", 1),
            ("{", 2),
            ("{\"a\"}", 5),
            ("{\"a\":1,}", 8),
            ("[1 2]", 4),
            ("\"a", 3),
            ("\"a\u{1}\"", 3),
            ("\"\\q\"", 3),
            ("\"\\ud800\"", 8),
            ("\"\\u12\"", 3),
            ("01", 2),
            ("-", 2),
            ("1.", 3),
            ("nul", 1),
            ("1 x", 3),
        ] {
            assert_eq!(parse(text).expect_err(text).position, position, "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err(), "depth is bounded");
        assert!(parse(&("[".repeat(64) + &"]".repeat(64))).is_ok());
    }

    #[test]
    fn written_strings_parse_to_themselves() {
        for text in ["", "plain", "\"\\\n\r\t\u{0}\u{1f}\u{7f}é😀", "a\u{2028}b"] {
            let mut out = Vec::new();
            string(text, &mut out);
            let written = String::from_utf8(out).expect("UTF-8");
            assert_eq!(parse(&written), Ok(Value::String(text.into())), "{written}");
        }
    }
}
