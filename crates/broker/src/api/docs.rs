//! Generates crates/broker/PROTOCOL.md from the declarations of the messages and the list of served APIs. A test
//! compares the committed page with the result.

use super::SERVED;
use fullbore_wire::api::{ApiKey, NEVER};
use fullbore_wire::{FieldSpec, StructSpec};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::Path;

const INTRODUCTION: &str = "# The Kafka protocol in Fullbore

Written by `UPDATE_DOCS=1 cargo test -p fullbore-broker committed_page` from the declarations in `crates/wire/src/apis`
and the table of served APIs in `crates/broker/src/api/mod.rs`; do not edit.

Types are Kafka's. A field exists in the versions named, and may be null in the versions named under *null*. A field
with a tag is a tagged field (KIP-482), which is left out if it has its default. In flexible versions lengths are
compact, and every struct ends with its tagged fields; unknown ones are retained.

The broker serves the APIs marked *served*. Of the others only the formats are here: a request closes the connection, as
with an unknown key. ApiVersions returns the served APIs and versions, with one exception: Produce is advertised from
version 0, and served from 3. A request of versions 0 to 2 is refused. librdkafka assumes a broker without compression
codecs if Produce is not advertised from 0 (KAFKA-18659). Kafka does the same for the same reason.
";

#[test]
fn committed_page_is_what_is_declared_and_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("PROTOCOL.md");
    let expected = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("PROTOCOL.md can be written");
    }
    let found = std::fs::read_to_string(&path).expect("PROTOCOL.md can be read");
    assert!(found == expected, "PROTOCOL.md is old: UPDATE_DOCS=1 cargo test -p fullbore-broker committed_page");
}

fn document() -> String {
    let mut out = format!("{INTRODUCTION}\n| key | API | versions | flexible from | broker |\n|---|---|---|---|---|\n");
    for key in ApiKey::ALL {
        let (code, name, link) = (key.code(), key.name(), key.name().to_lowercase());
        let (versions, flexible, served) = (range(&key.versions()), flexible(*key), served(*key));
        line(&mut out, format_args!("| {code} | [{name}](#{link}) | {versions} | {flexible} | {served} |"));
    }
    for key in ApiKey::ALL {
        let spec = key.spec();
        line(&mut out, format_args!("\n## {}", key.name()));
        let (code, versions, flexible, served) = (key.code(), range(&key.versions()), flexible(*key), served(*key));
        line(&mut out, format_args!("\nKey {code}, versions {versions}, flexible from {flexible}, {served}."));
        for structs in [spec.request, spec.response] {
            for (i, spec) in structs.iter().enumerate() {
                structure(&mut out, spec, i == 0, &versions_of(spec, &structs, key.versions()));
            }
        }
    }
    out
}

fn served(key: ApiKey) -> &'static str {
    if SERVED.contains(&key) { "served" } else { "not served" }
}

fn flexible(key: ApiKey) -> String {
    match key.flexible_from() {
        NEVER => "none".to_owned(),
        version => version.to_string(),
    }
}

/// Returns the versions in which a message contains the structure `spec`. `api` are the versions of the message itself.
/// A nested structure is present in the versions of the field that contains it, if these versions also contain the
/// structure around that field.
fn versions_of(spec: &StructSpec, structs: &[StructSpec], api: RangeInclusive<i16>) -> RangeInclusive<i16> {
    let holds = |field: &&FieldSpec| field.type_name.split(['<', '>']).any(|name| name == spec.name);
    match structs.iter().find_map(|outer| Some((outer, outer.fields.iter().find(holds)?))) {
        Some((outer, field)) => intersection(&field.versions, &versions_of(outer, structs, api)),
        None => api,
    }
}

fn structure(out: &mut String, spec: &StructSpec, outermost: bool, api: &RangeInclusive<i16>) {
    let level = if outermost { "###" } else { "####" };
    line(out, format_args!("\n{level} {}\n\n{}\n", spec.name, sentence(spec.doc)));
    line(
        out,
        format_args!("| field | type | versions | null | default | tag | meaning |\n|---|---|---|---|---|---|---|"),
    );
    for field in &spec.fields {
        let tag = field.tag.map(|tag| tag.to_string()).unwrap_or_default();
        let (type_name, null) = kafka_type(field, api);
        let (versions, default) = (within(&field.versions, api), field.default.map(literal).unwrap_or_default());
        let (name, doc) = (field.name.trim_start_matches("r#"), sentence(field.doc));
        line(out, format_args!("| {name} | {type_name} | {versions} | {null} | {default} | {tag} | {doc} |"));
    }
}

/// Returns Kafka's name for the type of a field, and the versions in which the field may be null.
fn kafka_type(field: &FieldSpec, api: &RangeInclusive<i16>) -> (String, String) {
    match inside(field.type_name, "Option") {
        Some(inner) => (type_name(inner), within(&field.nullable, api)),
        None => (type_name(field.type_name), String::new()),
    }
}

fn type_name(rust: &str) -> String {
    if let Some(element) = inside(rust, "Vec") {
        return format!("[]{}", type_name(element));
    }
    match rust {
        "i8" => "int8",
        "i16" => "int16",
        "u16" => "uint16",
        "i32" => "int32",
        "i64" => "int64",
        "f64" => "float64",
        "ErrorCode" => "int16 (error code)",
        "Text" => "string",
        "Uuid" => "uuid",
        "Records" => "records",
        "Bytes" => "bytes",
        name => name,
    }
    .to_owned()
}

/// Returns a default value as Kafka's documentation would write it.
fn literal(rust: &str) -> String {
    match rust {
        "Some(Vec::new())" => "empty".to_owned(),
        "Some(Text::default())" => "\"\"".to_owned(),
        "i32::MAX" => i32::MAX.to_string(),
        "i32::MIN" => i32::MIN.to_string(),
        "i64::MAX" => i64::MAX.to_string(),
        number => number.replace('_', ""),
    }
}

fn within(versions: &RangeInclusive<i16>, api: &RangeInclusive<i16>) -> String {
    range(&intersection(versions, api))
}

fn intersection(a: &RangeInclusive<i16>, b: &RangeInclusive<i16>) -> RangeInclusive<i16> {
    *a.start().max(b.start())..=*a.end().min(b.end())
}

fn range(versions: &RangeInclusive<i16>) -> String {
    match (versions.start(), versions.end()) {
        (start, end) if start == end => start.to_string(),
        (start, end) => format!("{start}-{end}"),
    }
}

fn sentence(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Returns `T` of `outer<T>`, or `None` for any other type.
fn inside<'a>(type_name: &'a str, outer: &str) -> Option<&'a str> {
    type_name.strip_prefix(outer)?.strip_prefix('<')?.strip_suffix('>')
}

fn line(out: &mut String, text: std::fmt::Arguments) {
    writeln!(out, "{text}").expect("strings take any text");
}
