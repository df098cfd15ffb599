//! The printed form of a record: text by a format like kcat's, or one JSON object.
//!
//! Invariant: printing cannot fail, since a format is checked when it is parsed.

use crate::pipe::escapes::{self, Unescaped};
use crate::pipe::{base64, json};
use fullbore_wire::batch::TimestampType;

/// A record to print, with its topic, partition and offset.
pub struct Seen<'a> {
    /// The name of the topic.
    pub topic: &'a str,
    /// The number of the partition.
    pub partition: i32,
    /// The offset of the record.
    pub offset: i64,
    /// The timestamp in ms since 1970, or -1 if there is none.
    pub timestamp: i64,
    /// The source of the timestamp.
    pub timestamp_type: TimestampType,
    /// The key, the value and the headers.
    pub record: &'a fullbore_wire::batch::Record<'a>,
}

/// The form in which records are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text, as the parts of a format describe it.
    Pieces {
        /// The parts of the format, in order.
        pieces: Vec<FormatPart>,
        /// The bytes that stand for a null key or value.
        null: Vec<u8>,
    },
    /// JSON, with one object on each line.
    Json,
}

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatPart {
    /// Bytes that are printed as they are.
    Literal(Vec<u8>),
    /// `%t`: the name of the topic.
    Topic,
    /// `%p`: the number of the partition.
    Partition,
    /// `%o`: the offset.
    Offset,
    /// `%T`: the timestamp in milliseconds, or -1 if there is none.
    Timestamp,
    /// The timestamp as kafka-console-consumer.sh prints it: `CreateTime:1690000000000`.
    NamedTimestamp,
    /// `%k`: the key.
    Key,
    /// `%K`: the length of the key, or -1 for null.
    KeyLength,
    /// `%s`: the value.
    Value,
    /// `%S`: the length of the value, or -1 for null.
    ValueLength,
    /// `%R`: the length of the value in four bytes, big-endian.
    ValueLengthBytes,
    /// `%h`: the headers, as in `a=1,b=2`. A null value is NULL.
    Headers,
    /// The headers as kafka-console-consumer.sh prints them: `a:1,b:2`, or NO_HEADERS. The field is the separator
    /// between headers.
    NamedHeaders(Vec<u8>),
}

/// The tokens of a format, for error messages.
const TOKENS: &str = "%t %p %o %T %k %K %s %S %R %h %%";

/// Parses a format of kcat's -f.
///
/// # Errors
/// Returns an error message with the position of the mistake if the format is not valid.
pub fn parse(text: &str) -> Result<Vec<FormatPart>, String> {
    let bytes = text.as_bytes();
    let (mut at, mut pieces) = (0, Vec::new());
    while let Some(byte) = bytes.get(at) {
        let wrong = |what: String| format!("at byte {} of the format: {what}", at + 1);
        let (len, piece) = match byte {
            b'%' => (2, token(bytes.get(at + 1)).map_err(wrong)?),
            _ => match escapes::escape(&bytes[at..]).map_err(wrong)? {
                Unescaped::Byte(len, byte) => (len, FormatPart::Literal(vec![byte])),
                Unescaped::No => (1, FormatPart::Literal(vec![*byte])),
            },
        };
        match (pieces.last_mut(), piece) {
            (Some(FormatPart::Literal(before)), FormatPart::Literal(more)) => before.extend(more),
            (_, piece) => pieces.push(piece),
        }
        at += len;
    }
    Ok(pieces)
}

fn token(letter: Option<&u8>) -> Result<FormatPart, String> {
    Ok(match letter {
        Some(b't') => FormatPart::Topic,
        Some(b'p') => FormatPart::Partition,
        Some(b'o') => FormatPart::Offset,
        Some(b'T') => FormatPart::Timestamp,
        Some(b'k') => FormatPart::Key,
        Some(b'K') => FormatPart::KeyLength,
        Some(b's') => FormatPart::Value,
        Some(b'S') => FormatPart::ValueLength,
        Some(b'R') => FormatPart::ValueLengthBytes,
        Some(b'h') => FormatPart::Headers,
        Some(b'%') => FormatPart::Literal(b"%".to_vec()),
        Some(other) => {
            return Err(format!("%{} must be one of {TOKENS}", char::from(*other).escape_default()));
        }
        None => return Err(format!("a format must not end with a single %; use {TOKENS}")),
    })
}

impl Style {
    /// Appends a record to `out`.
    pub fn print(&self, seen: &Seen<'_>, out: &mut Vec<u8>) {
        match self {
            Style::Pieces { pieces, null } => pieces.iter().for_each(|piece| piece.print(seen, null, out)),
            Style::Json => object(seen, out),
        }
    }
}

impl FormatPart {
    fn print(&self, seen: &Seen<'_>, null: &[u8], out: &mut Vec<u8>) {
        let length = |bytes: Option<&[u8]>| bytes.map_or(-1, |bytes| bytes.len() as i64);
        let record = seen.record;
        match self {
            FormatPart::Literal(bytes) => out.extend_from_slice(bytes),
            FormatPart::Topic => out.extend_from_slice(seen.topic.as_bytes()),
            FormatPart::Partition => number(i64::from(seen.partition), out),
            FormatPart::Offset => number(seen.offset, out),
            FormatPart::Timestamp => number(seen.timestamp, out),
            FormatPart::NamedTimestamp => named_timestamp(seen, out),
            FormatPart::Key => out.extend_from_slice(record.key.unwrap_or(null)),
            FormatPart::KeyLength => number(length(record.key), out),
            FormatPart::Value => out.extend_from_slice(record.value.unwrap_or(null)),
            FormatPart::ValueLength => number(length(record.value), out),
            FormatPart::ValueLengthBytes => out.extend_from_slice(&(length(record.value) as i32).to_be_bytes()),
            FormatPart::Headers => {
                for (at, (key, value)) in record.headers.enumerate() {
                    out.extend_from_slice(if at == 0 { b"" } else { b"," });
                    out.extend_from_slice(key);
                    out.push(b'=');
                    out.extend_from_slice(value.unwrap_or(b"NULL"));
                }
            }
            FormatPart::NamedHeaders(_) if record.headers.is_empty() => out.extend_from_slice(b"NO_HEADERS"),
            FormatPart::NamedHeaders(separator) => {
                for (at, (key, value)) in record.headers.enumerate() {
                    out.extend_from_slice(if at == 0 { b"" } else { separator });
                    out.extend_from_slice(key);
                    out.push(b':');
                    out.extend_from_slice(value.unwrap_or(null));
                }
            }
        }
    }
}

fn named_timestamp(seen: &Seen<'_>, out: &mut Vec<u8>) {
    if seen.timestamp < 0 {
        return out.extend_from_slice(b"NO_TIMESTAMP");
    }
    out.extend_from_slice(match seen.timestamp_type {
        TimestampType::CreateTime => b"CreateTime:",
        TimestampType::LogAppendTime => b"LogAppendTime:",
    });
    number(seen.timestamp, out);
}

/// Appends a decimal number. Does not use `write!`, which is several times slower, because a million numbers may be
/// printed per second.
fn number(value: i64, out: &mut Vec<u8>) {
    let (mut digits, mut at, mut left) = ([0; 20], 20, value.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(if value < 0 { b"-" } else { b"" });
    out.extend_from_slice(&digits[at..]);
}

/// Appends one line of JSON. Keys and values that are not UTF-8 are written in base64, in a member whose name ends in
/// `_base64`.
fn object(seen: &Seen<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"topic\":");
    json::string(seen.topic, out);
    for (name, value) in
        [("partition", i64::from(seen.partition)), ("offset", seen.offset), ("timestamp", seen.timestamp)]
    {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        number(value, out);
    }
    out.extend_from_slice(match seen.timestamp_type {
        TimestampType::CreateTime => b",\"timestamp_type\":\"create\"",
        TimestampType::LogAppendTime => b",\"timestamp_type\":\"log_append\"",
    });
    if !seen.record.headers.is_empty() {
        out.extend_from_slice(b",\"headers\":[");
        for (at, (key, value)) in seen.record.headers.enumerate() {
            out.extend_from_slice(if at == 0 { b"{" } else { b",{" });
            content("key", Some(key), out);
            out.push(b',');
            content("value", value, out);
            out.push(b'}');
        }
        out.push(b']');
    }
    out.push(b',');
    content("key", seen.record.key, out);
    out.push(b',');
    content("value", seen.record.value, out);
    out.extend_from_slice(b"}\n");
}

fn content(name: &str, bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    match bytes.map(std::str::from_utf8) {
        None => out.extend_from_slice(b"\":null"),
        Some(Ok(text)) => {
            out.extend_from_slice(b"\":");
            json::string(text, out);
        }
        Some(Err(_)) => {
            out.extend_from_slice(b"_base64\":\"");
            base64::encode(bytes.unwrap_or_default(), out);
            out.push(b'"');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, Header, RecordIter, Stamp};

    fn printed(style: &Style, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) -> String {
        let batch = a_batch(key, value, headers);
        let view = BatchView::first(&batch).expect("a batch");
        let record = RecordIter::new(view.payload(), 1).next().expect("one").expect("whole");
        let seen = Seen {
            topic: "t",
            partition: 3,
            offset: 1_234_567_890_123,
            timestamp: record.timestamp(&view),
            timestamp_type: view.timestamp_type(),
            record: &record,
        };
        let mut out = Vec::new();
        style.print(&seen, &mut out);
        out.escape_ascii().to_string()
    }

    fn a_batch(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(-1, key, value, headers);
        builder.seal(Stamp::NONE).expect("nothing to compress").0.to_vec()
    }

    fn pieces(text: &str) -> Style {
        Style::Pieces { pieces: parse(text).expect("a format"), null: b"NULL".to_vec() }
    }

    #[test]
    fn tokens_print_as_in_kcat() {
        let headers = [Header { key: b"a", value: Some(b"1") }, Header { key: b"b", value: None }];
        let all = pieces(r"%t|%p|%o|%T|%k|%K|%s|%S|%R|%h|%%\x41\t");
        let reported = r"t|3|1234567890123|-1|k|1|v\xff|2|\x00\x00\x00\x02|a=1,b=NULL|%A\t";
        assert_eq!(printed(&all, Some(b"k"), Some(b"v\xff"), &headers), reported);
        assert_eq!(printed(&pieces("%k|%K|%s|%S|%R|%h"), None, None, &[]), r"NULL|-1|NULL|-1|\xff\xff\xff\xff|");
        assert_eq!(printed(&pieces("%k|%K|%s|%S"), Some(b""), Some(b""), &[]), "|0||0");
    }

    #[test]
    fn a_malformed_format_is_reported_with_its_byte() {
        for (format, expected) in [
            ("ab%q", "at byte 3 of the format: %q must be one of %t %p"),
            ("%s%", "at byte 3 of the format: a format must not end with a single %"),
            (r"%s\q", r"at byte 3 of the format: \q must be one of"),
            (r"\x4", r"at byte 1 of the format: \x must have two"),
        ] {
            let refused = parse(format).expect_err(format);
            assert!(refused.starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn numbers_are_printed_in_decimal() {
        for value in [0, 7, -1, 10, 1_000_000, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            number(value, &mut out);
            assert_eq!(String::from_utf8(out).expect("ASCII"), value.to_string());
        }
    }

    #[test]
    fn json_keeps_all_bytes_and_nulls() {
        let headers = [
            Header { key: b"a\"", value: Some(b"\xff") },
            Header { key: b"\xff", value: Some(b"1") },
            Header { key: b"b", value: None },
        ];
        let reported = printed(&Style::Json, None, Some("é\n".as_bytes()), &headers);
        let reported = reported.replace("\\\"", "\"").replace(r"\xc3\xa9", "é");
        assert_eq!(
            reported,
            r#"{"topic":"t","partition":3,"offset":1234567890123,"timestamp":-1,"timestamp_type":"create","headers":[{"key":"a\\"","value_base64":"/w=="},{"key_base64":"/w==","value":"1"},{"key":"b","value":null}],"key":null,"value":"é\\n"}\n"#
        );
    }
}
