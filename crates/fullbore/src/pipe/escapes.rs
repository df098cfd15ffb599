//! The backslash escapes that a user may type in a delimiter or format: `\n \r \t \0 \\`, and `\xHH` for any byte.

/// The start of a text: an escape or another character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unescaped {
    /// An escape, with its length in the text and its byte.
    Byte(usize, u8),
    /// The text does not begin with an escape.
    No,
}

/// Parses the escape at the start of `text`.
///
/// # Errors
/// Returns an error message if a backslash does not begin a known escape.
pub fn escape(text: &[u8]) -> Result<Unescaped, String> {
    let Some((b'\\', rest)) = text.split_first() else { return Ok(Unescaped::No) };
    let simple = |byte| Ok(Unescaped::Byte(2, byte));
    match rest.first() {
        Some(b'n') => simple(b'\n'),
        Some(b'r') => simple(b'\r'),
        Some(b't') => simple(b'\t'),
        Some(b'0') => simple(0),
        Some(b'\\') => simple(b'\\'),
        Some(b'x') => {
            let digits = rest.get(1..3).and_then(|digits| std::str::from_utf8(digits).ok());
            let byte = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            byte.map(|byte| Unescaped::Byte(4, byte)).ok_or_else(|| "\\x must have two hexadecimal digits".to_owned())
        }
        Some(other) => {
            Err(format!("\\{} must be one of \\n \\r \\t \\0 \\\\ \\xHH", char::from(*other).escape_default()))
        }
        None => Err("a single backslash must not be last; write \\\\".to_owned()),
    }
}

/// Parses a delimiter, which must have at least one byte.
///
/// # Errors
/// Returns an error message if the text is empty or has an unknown escape.
pub fn delimiter(text: &str) -> Result<Vec<u8>, String> {
    let unescaped = bytes(text)?;
    if unescaped.is_empty() { Err("must not be empty".to_owned()) } else { Ok(unescaped) }
}

/// Returns the bytes of a text with escapes.
///
/// # Errors
/// Returns an error message if the text has an unknown escape.
pub fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let (mut left, mut out) = (text.as_bytes(), Vec::new());
    while let Some(first) = left.first() {
        let (len, byte) = match escape(left)? {
            Unescaped::Byte(len, byte) => (len, byte),
            Unescaped::No => (1, *first),
        };
        out.push(byte);
        left = &left[len..];
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_parsed_as_bytes() {
        assert_eq!(delimiter(r"a\n\r\t\0\\\x7f\xFFé"), Ok([b"a\n\r\t\0\\\x7f\xff", "é".as_bytes()].concat()));
        for wrong in ["", r"\", r"\q", r"\x1", r"\x+1", r"\xé"] {
            assert!(delimiter(wrong).is_err(), "{wrong}");
        }
    }
}
