//! The layout of one input record: headers, key and value as text with separators, or one JSON object.
//!
//! Invariant: a record that does not fit the layout is refused with a sentence. Only a layout that is not strict
//! accepts a missing separator.

use crate::pipe::{base64, json};
use json::Value;
use std::borrow::Cow;

/// The key of a header, with its value or null.
type FieldHeader<'a> = (Cow<'a, [u8]>, Option<Cow<'a, [u8]>>);

/// The parts of an input record. A part that the record lacks is `None`.
#[derive(Debug, Default, PartialEq)]
pub struct Fields<'a> {
    /// The topic, which only JSON can have.
    pub topic: Option<Cow<'a, str>>,
    /// The partition, which only JSON can have.
    pub partition: Option<i32>,
    /// The timestamp, which only JSON can have.
    pub timestamp: Option<i64>,
    /// The key. `None` if it is null or missing.
    pub key: Option<Cow<'a, [u8]>>,
    /// The value. `None` if it is null or missing.
    pub value: Option<Cow<'a, [u8]>>,
    /// The headers in order.
    pub headers: Vec<FieldHeader<'a>>,
}

/// The layout of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputLayout {
    /// Text of the form `headers delimiter key separator value`. Headers and key are present only if their separator is
    /// set.
    Text(Separators),
    /// A JSON object.
    Json,
}

/// The separators of a record's parts, with the names and defaults of kafka-console-producer.sh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Separators {
    /// The separator of key and value, or `None` for records without keys (parse.key, key.separator).
    pub key: Option<Vec<u8>>,
    /// The delimiter after the headers, or `None` for records without headers (parse.headers, headers.delimiter).
    pub headers: Option<Vec<u8>>,
    /// The separator of two headers (headers.separator).
    pub between_headers: Vec<u8>,
    /// The separator of a header's key and its value (headers.key.separator).
    pub header_key: Vec<u8>,
    /// The text that stands for a null key, value, or header value (null.marker).
    pub null_marker: Option<Vec<u8>>,
    /// If true, a line without its separators is refused (ignore.error=false). Otherwise the whole line is the value.
    pub strict: bool,
}

impl Default for Separators {
    fn default() -> Self {
        Separators {
            key: None,
            headers: None,
            between_headers: b",".to_vec(),
            header_key: b":".to_vec(),
            null_marker: None,
            strict: false,
        }
    }
}

impl InputLayout {
    /// Parses one record. Returns `None` for a blank line among JSON objects.
    ///
    /// # Errors
    /// Returns a text about the fault if the bytes do not have the form of a record.
    pub fn read<'a>(&self, bytes: &'a [u8]) -> Result<Option<Fields<'a>>, String> {
        match self {
            InputLayout::Text(separators) => separators.read(bytes).map(Some),
            InputLayout::Json if bytes.trim_ascii().is_empty() => Ok(None),
            InputLayout::Json => of_json(bytes).map(Some),
        }
    }
}

impl Separators {
    fn read<'a>(&self, bytes: &'a [u8]) -> Result<Fields<'a>, String> {
        let mut fields = Fields::default();
        let mut rest = bytes;
        if let Some(delimiter) = &self.headers {
            match split(rest, delimiter) {
                Some((headers, after)) => (fields.headers, rest) = (self.read_headers(headers)?, after),
                None if self.strict => return Err(missing("headers", delimiter)),
                None => {}
            }
        }
        if let Some(separator) = &self.key {
            match split(rest, separator) {
                Some((key, after)) => (fields.key, rest) = (self.nullable(key), after),
                None if self.strict => return Err(missing("key", separator)),
                None => {}
            }
        }
        fields.value = self.nullable(rest);
        Ok(fields)
    }

    fn read_headers<'a>(&self, bytes: &'a [u8]) -> Result<Vec<FieldHeader<'a>>, String> {
        let (mut headers, mut left) = (Vec::new(), Some(bytes));
        if bytes.is_empty() || self.null_marker.as_deref() == Some(bytes) {
            return Ok(headers);
        }
        while let Some(bytes) = left {
            let (header, after) = match split(bytes, &self.between_headers) {
                Some((header, after)) => (header, Some(after)),
                None => (bytes, None),
            };
            left = after;
            let (key, value) = match split(header, &self.header_key) {
                Some((key, value)) => (key, self.nullable(value)),
                None if self.strict => return Err(missing("header's key", &self.header_key)),
                None => (header, None),
            };
            let key = std::str::from_utf8(key).map_err(|_| "a header's key is not UTF-8".to_owned())?;
            headers.push((Cow::Borrowed(key.as_bytes()), value));
        }
        Ok(headers)
    }

    fn nullable<'a>(&self, bytes: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        (self.null_marker.as_deref() != Some(bytes)).then_some(Cow::Borrowed(bytes))
    }
}

fn missing(what: &str, separator: &[u8]) -> String {
    format!("no {:?} after its {what}", separator.escape_ascii().to_string())
}

fn split<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = match separator {
        [byte] => bytes.iter().position(|found| found == byte),
        several => bytes.windows(several.len()).position(|found| found == several),
    }?;
    Some((&bytes[..at], &bytes[at + separator.len()..]))
}

/// The parts of a record, each with the names that its JSON member may have. A record has each part at most once.
const PARTS: [&[&str]; 6] = [
    &["topic"],
    &["partition"],
    &["timestamp", "ts"],
    &["key", "key_base64"],
    &["value", "value_base64", "payload"],
    &["headers"],
];

/// Parses an object of `fullbore consume --json`. Kcat's names and forms are accepted as well.
fn of_json(bytes: &[u8]) -> Result<Fields<'_>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8 at byte {}", error.valid_up_to() + 1))?;
    let Value::Object(members, _) = json::parse(text).map_err(|wrong| wrong.to_string())? else {
        return Err("not a JSON object".to_owned());
    };
    let (mut fields, mut seen) = (Fields::default(), [false; PARTS.len()]);
    for (name, value) in members {
        if let Some(part) = PARTS.iter().position(|names| names.contains(&&*name))
            && std::mem::replace(&mut seen[part], true)
        {
            return Err(format!("{name}: the record has its {} already", PARTS[part][0]));
        }
        match (&*name, value) {
            (_, Value::Null) => {}
            ("topic", Value::String(topic)) => fields.topic = Some(topic),
            ("topic", _) => return Err("topic: must be a string".to_owned()),
            ("partition", value) => fields.partition = Some(number("partition", &value)?),
            ("timestamp" | "ts", value) => fields.timestamp = Some(number(&name, &value)?),
            ("key" | "key_base64", value) => fields.key = Some(content(&name, value)?),
            ("value" | "value_base64" | "payload", value) => fields.value = Some(content(&name, value)?),
            ("headers", value) => fields.headers = headers(value)?,
            // These members describe the source of the record, not its target, so they are ignored.
            ("offset" | "timestamp_type" | "tstype" | "broker" | "leader_epoch", _) => {}
            (unknown, _) => {
                return Err(format!("{unknown}: must be one of topic, partition, timestamp, headers, key, value"));
            }
        }
    }
    Ok(fields)
}

fn number<T: std::str::FromStr>(name: &str, value: &Value<'_>) -> Result<T, String> {
    let parsed = if let Value::Number(text) = value { text.parse().ok() } else { None };
    parsed.ok_or_else(|| format!("{name}: must be a whole number"))
}

/// Returns the bytes of a member's value. A string is base64 if the name ends in `_base64`. If the value is not a
/// string, its JSON text is used.
fn content<'a>(name: &str, value: Value<'a>) -> Result<Cow<'a, [u8]>, String> {
    let refused = || format!("{name}: must be base64, as RFC 4648 has it");
    match value {
        Value::String(text) if name.ends_with("_base64") => base64::decode(&text).map(Cow::Owned).ok_or_else(refused),
        _ if name.ends_with("_base64") => Err(refused()),
        Value::String(text) => Ok(bytes_of(text)),
        Value::Number(text) | Value::Array(_, text) | Value::Object(_, text) => Ok(Cow::Borrowed(text.as_bytes())),
        Value::Bool(value) => Ok(Cow::Borrowed(if value { b"true" } else { b"false" })),
        Value::Null => Ok(Cow::Borrowed(b"null")),
    }
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Parses headers, which may be `[{"key":"k","value":"v"}]`, `{"k":"v"}`, or kcat's `["k","v"]`.
fn headers(value: Value<'_>) -> Result<Vec<FieldHeader<'_>>, String> {
    let refused = || "headers: must be an object, or an array of objects with key and value".to_owned();
    match value {
        Value::Object(members, _) => {
            members.into_iter().map(|(key, value)| Ok((bytes_of(key), nullable("headers", value)?))).collect()
        }
        Value::Array(values, _) if values.iter().all(|value| matches!(value, Value::Object(..))) => {
            values.into_iter().map(header).collect()
        }
        Value::Array(values, _) if values.len() % 2 == 0 => {
            let (mut headers, mut values) = (Vec::new(), values.into_iter());
            while let (Some(key), Some(value)) = (values.next(), values.next()) {
                let Value::String(key) = key else { return Err(refused()) };
                headers.push((bytes_of(key), nullable("headers", value)?));
            }
            Ok(headers)
        }
        _ => Err(refused()),
    }
}

fn header(value: Value<'_>) -> Result<FieldHeader<'_>, String> {
    let Value::Object(members, _) = value else { return Err("headers: must hold objects".to_owned()) };
    let (mut key, mut bytes) = (None, None);
    for (name, value) in members {
        match (&*name, value) {
            ("key" | "key_base64", _) if key.is_some() => {
                return Err(format!("headers: {name}: the header has its key already"));
            }
            ("value" | "value_base64", _) if bytes.is_some() => {
                return Err(format!("headers: {name}: the header has its value already"));
            }
            ("key", Value::String(text)) => key = Some(bytes_of(text)),
            ("key_base64", value) => key = Some(content(&name, value)?),
            ("value" | "value_base64", value) => bytes = Some(nullable(&name, value)?),
            (other, _) => return Err(format!("headers: {other}: must be key, key_base64, value or value_base64")),
        }
    }
    Ok((key.ok_or("headers: a header has no key")?, bytes.flatten()))
}

fn nullable<'a>(name: &str, value: Value<'a>) -> Result<Option<Cow<'a, [u8]>>, String> {
    if value == Value::Null { Ok(None) } else { content(name, value).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(separators: Separators, line: &str) -> Result<Fields<'_>, String> {
        InputLayout::Text(separators).read(line.as_bytes()).map(|fields| fields.expect("text is never blank"))
    }

    fn shown(fields: &Fields<'_>) -> String {
        let bytes = |bytes: &Option<Cow<'_, [u8]>>| match bytes {
            Some(bytes) => bytes.escape_ascii().to_string(),
            None => "NULL".to_owned(),
        };
        let headers = fields.headers.iter().map(|(key, value)| format!("{}={};", key.escape_ascii(), bytes(value)));
        format!("{}{}|{}", headers.collect::<String>(), bytes(&fields.key), bytes(&fields.value))
    }

    #[test]
    fn parts_are_split_at_their_separators() {
        let plain = Separators::default();
        let keyed = Separators { key: Some(b":".to_vec()), ..Separators::default() };
        let nulled = Separators { null_marker: Some(Vec::new()), ..keyed.clone() };
        let whole = Separators { headers: Some(b"\t".to_vec()), key: Some(b"::".to_vec()), ..nulled.clone() };
        for (separators, line, found) in [
            (&plain, "a:b", "NULL|a:b"),
            (&plain, "", "NULL|"),
            (&keyed, "a:b:c", "a|b:c"),
            (&keyed, ":b", "|b"),
            (&keyed, "ab", "NULL|ab"),
            (&nulled, ":", "NULL|NULL"),
            (&nulled, "k:", "k|NULL"),
            (&whole, "a:1,b:,c\tk::v", "a=1;b=NULL;c=NULL;k|v"),
            (&whole, "\tk::v", "k|v"),
            (&whole, "v", "NULL|v"),
        ] {
            assert_eq!(text(separators.clone(), line).map(|fields| shown(&fields)), Ok(found.to_owned()), "{line}");
        }
        let strict = Separators { strict: true, ..whole };
        assert_eq!(text(strict.clone(), "k::v"), Err(r#"no "\\t" after its headers"#.to_owned()));
        assert_eq!(text(strict.clone(), "a\tk::v"), Err(r#"no ":" after its header's key"#.to_owned()));
        assert_eq!(text(strict, "a:1\tv"), Err(r#"no "::" after its key"#.to_owned()));
    }

    fn of(line: &str) -> Result<String, String> {
        InputLayout::Json.read(line.as_bytes()).map(|fields| shown(&fields.expect("an object")))
    }

    #[test]
    fn a_json_record_has_all_parts() {
        let all = r#"{"topic":"t","partition":3,"timestamp":-1,"offset":7,"key":"k","value_base64":"AP8=",
                      "headers":[{"key":"a","value":"b"},{"key":"a","value":null},{"key":"c","value_base64":"/w=="},{"key_base64":"/w=="}]}"#;
        let fields = InputLayout::Json.read(all.as_bytes()).expect("valid").expect("an object");
        assert_eq!((fields.topic.as_deref(), fields.partition, fields.timestamp), (Some("t"), Some(3), Some(-1)));
        assert_eq!(shown(&fields), r"a=b;a=NULL;c=\xff;\xff=NULL;k|\x00\xff");
        for (line, found) in [
            (r#"{"value":{"a": [1]},"key":12}"#, r#"12|{\"a\": [1]}"#),
            (r#"{"payload":"p","ts":5,"tstype":"create","broker":1,"headers":["a","b"]}"#, "a=b;NULL|p"),
            (r#"{"headers":{"a":"b","c":null},"value":null}"#, "a=b;c=NULL;NULL|NULL"),
            ("{}", "NULL|NULL"),
        ] {
            assert_eq!(of(line), Ok(found.to_owned()), "{line}");
        }
        assert_eq!(InputLayout::Json.read(b" \r"), Ok(None));
    }

    #[test]
    fn malformed_json_is_refused_with_the_fault() {
        for (line, expected) in [
            ("{", "not JSON at byte 2: expected a name in quotes"),
            ("[]", "not a JSON object"),
            (r#"{"partition":1.5}"#, "partition: must be a whole number"),
            (r#"{"partition":4294967296}"#, "partition: must be a whole number"),
            (r#"{"valeu":"x"}"#, "valeu: must be one of topic, partition"),
            (r#"{"value_base64":"x"}"#, "value_base64: must be base64"),
            (r#"{"headers":["a"]}"#, "headers: must be an object, or an array"),
            (r#"{"headers":[{"value":"a"}]}"#, "headers: a header has no key"),
            (r#"{"headers":[{"key_base64":"x"}]}"#, "key_base64: must be base64"),
            (r#"{"topic":1}"#, "topic: must be a string"),
            (r#"{"value":"x","value_base64":"eA=="}"#, "value_base64: the record has its value already"),
            (r#"{"payload":"x","value":null}"#, "value: the record has its value already"),
            (r#"{"key":"x","key":"x"}"#, "key: the record has its key already"),
            (r#"{"ts":1,"timestamp":1}"#, "timestamp: the record has its timestamp already"),
            (r#"{"partition":1,"partition":2}"#, "partition: the record has its partition already"),
            (r#"{"headers":[{"key":"a","key_base64":"eA=="}]}"#, "headers: key_base64: the header has its key already"),
            (
                r#"{"headers":[{"key":"a","value":null,"value":"b"}]}"#,
                "headers: value: the header has its value already",
            ),
        ] {
            let refused = of(line).expect_err(line);
            assert!(refused.starts_with(expected), "{refused}");
        }
        let refused = InputLayout::Json.read(b"{\xff}").expect_err("not UTF-8");
        assert_eq!(refused, "not UTF-8 at byte 2");
    }
}
