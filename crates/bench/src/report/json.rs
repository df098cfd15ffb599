//! Writes JSON (RFC 8259). The tools only write it and never read it, so this small module is enough. Each function
//! returns the text of one value. Members of objects and elements of arrays are passed as such texts.
//!
//! Invariant: with valid parts, each function returns a valid text.

/// Returns the text `null`.
pub fn null() -> String {
    "null".to_owned()
}

/// Returns a number or boolean, which Rust writes as JSON does. `None` becomes [`null`].
pub fn plain(value: Option<impl ToString>) -> String {
    value.map_or_else(null, |value| value.to_string())
}

/// Returns a number with a fraction. NaN and infinity, which JSON lacks, become [`null`].
pub fn fraction(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { null() }
}

/// Returns a string in JSON, or [`null`] for `None`.
pub fn text(value: Option<&str>) -> String {
    value.map_or_else(null, string)
}

/// Returns an object with these members, in this order. The object is on one line if each member is.
pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let members: Vec<String> = members.into_iter().map(|(name, value)| format!("{}:{value}", string(name))).collect();
    format!("{{{}}}", members.join(","))
}

/// Returns an array with each element on its own line.
pub fn array(elements: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", elements.into_iter().collect::<Vec<_>>().join(",\n"))
}

/// Returns an array on one line, for numbers and words.
pub fn list(elements: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", elements.into_iter().collect::<Vec<_>>().join(","))
}

/// Returns a text with quotes around it.
pub fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", control as u32)),
            other => out.push(other),
        }
    }
    out + "\""
}

/// Panics if the text is not a JSON document.
#[cfg(test)]
pub(crate) fn assert_is_json(text: &str) {
    assert_eq!(text[end_of(text.as_bytes(), 0)..].trim(), "", "something comes after it");
}

#[cfg(test)]
/// Returns the position after the value that begins at this position. Panics if the text is not JSON.
fn end_of(text: &[u8], at: usize) -> usize {
    let space = |mut at: usize| {
        while text[at].is_ascii_whitespace() {
            at += 1;
        }
        at
    };
    let rest = |at: usize| String::from_utf8_lossy(&text[at..text.len().min(at + 40)]).into_owned();
    let at = space(at);
    let close = match text[at] {
        b'{' => b'}',
        b'[' => b']',
        b'"' => {
            let mut end = at + 1;
            while text[end] != b'"' {
                assert!(text[end] >= b' ', "a bare control character before {}", rest(end));
                end += if text[end] == b'\\' { 2 } else { 1 };
            }
            return end + 1;
        }
        _ => {
            let word = text[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
            let end = at + word.count();
            let word = String::from_utf8_lossy(&text[at..end]);
            let known = ["true", "false", "null"].contains(&word.as_ref());
            assert!(known || word.parse::<f64>().is_ok_and(f64::is_finite), "{}", rest(at));
            return end;
        }
    };
    let mut next = space(at + 1);
    while text[next] != close {
        if close == b'}' {
            assert_eq!(text[next], b'"', "{}", rest(next));
            next = space(end_of(text, next));
            assert_eq!(text[next], b':', "{}", rest(next));
            next += 1;
        }
        next = space(end_of(text, next));
        assert!(text[next] == close || text[next] == b',', "{}", rest(next));
        if text[next] == b',' {
            next = space(next + 1);
            assert_ne!(text[next], close, "a comma before the end");
        }
    }
    next + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(string("a\"b\\c\nd<é"), "\"a\\\"b\\\\c\\u000ad<é\"");
    }

    #[test]
    fn values_are_json() {
        let document = object([
            ("a", array([plain(Some(1)), plain(None::<bool>), text(None)])),
            ("b\"", list([fraction(f64::NAN, 1), fraction(0.25, 1), string("\t")])),
        ]);
        assert_is_json(&document);
        assert_eq!(document, "{\"a\":[1,\nnull,\nnull],\"b\\\"\":[null,0.2,\"\\u0009\"]}");
    }
}
