//! Tests of the flags of `consume`.

use super::format::{FormatPart, Style};
use super::*;
use clap::Parser;
use fullbore_config::Properties;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    consume: Consume,
}

fn parse(flags: &[&str]) -> Result<Consume, String> {
    let line = crate::command_line::parsed::<Line>(["consume", "-t", "t"].iter().chain(flags));
    line.map(|line| line.consume).map_err(|error| error.to_string())
}

fn style(flags: &[&str]) -> Result<Style, String> {
    parse(flags)?.style().map_err(|failure| failure.to_string())
}

#[test]
fn columns_are_printed_in_kafkas_order() {
    let literal = |text: &[u8]| FormatPart::Literal(text.to_vec());
    let flags = ["--print-key", "--print-offset", "--print-timestamp", "--print-partition", "--print-headers"];
    let pieces = [
        FormatPart::NamedTimestamp,
        literal(b"\t"),
        literal(b"Partition:"),
        FormatPart::Partition,
        literal(b"\t"),
        literal(b"Offset:"),
        FormatPart::Offset,
        literal(b"\t"),
        FormatPart::NamedHeaders(b",".to_vec()),
        literal(b"\t"),
        FormatPart::Key,
        literal(b"\t"),
        FormatPart::Value,
        literal(b"\n"),
    ];
    assert_eq!(style(&flags), Ok(Style::Pieces { pieces: pieces.to_vec(), null: Vec::new() }));
    let kafkas = ["--property", "print.key=true", "--property", "key.separator= ", "--property", "null.literal=nil"];
    let pieces = vec![FormatPart::Key, literal(b" "), FormatPart::Value, literal(b"\n")];
    assert_eq!(style(&kafkas), Ok(Style::Pieces { pieces: pieces.clone(), null: b"nil".to_vec() }));
    let kcats = style(&["-K", " ", "-Z"]);
    assert_eq!(kcats, Ok(Style::Pieces { pieces, null: b"NULL".to_vec() }));
    assert_eq!(
        style(&["-D", ""]),
        Ok(Style::Pieces { pieces: vec![FormatPart::Value, literal(b"")], null: Vec::new() })
    );
}

#[test]
fn contradicting_and_malformed_flags_are_refused() {
    for (flags, expected) in [
        (&["-f", "%s %y"][..], "at byte 4 of the format: %y must be one of"),
        (&["-J", "-f", "%s"], "cannot be used with"),
        (&["-J", "-K", ":"], "cannot be used with"),
        (&["-o", "middle"], "must be beginning, end, an OFFSET"),
        (&["-c", "0"], "0 is not in 1.."),
        (&["-p", "-1"], "-1"),
    ] {
        let refused = parse(flags).expect_err(expected);
        assert!(refused.contains(expected), "{refused}");
    }
    assert!(
        style(&["--property", "print.keys=true"]).expect_err("unknown").starts_with("print.keys=true: must be one of")
    );
}

#[test]
fn properties_set_the_settings_of_fetches() {
    let args = parse(&["-X", "isolation.level=read_committed", "-X", "auto.offset.reset=earliest"]).expect("flags");
    let properties = client_properties(None, &args.consumer_property, &notice).expect("valid");
    let settings = args.settings(&properties).expect("valid");
    assert!(settings.fetch.read_committed && settings.fetch.reset == Some(StartOffset::Earliest));
    let settings = parse(&["--isolation-level", "READ_COMMITTED"]).expect("flags").settings(&Properties::default());
    let settings = settings.expect("valid");
    assert!(settings.fetch.read_committed && settings.fetch.reset.is_none());
    let refused = parse(&["--isolation-level", "x"]).expect("flags").settings(&Properties::default()).err();
    assert_eq!(refused.expect("no level").to_string(), "isolation.level=x: must be read_committed or read_uncommitted");
}

#[test]
fn a_property_without_effect_is_reported() {
    let reported = |key| notice(key).expect("not taken");
    assert_eq!(reported("fetch.min.byte"), "has no effect on this consumer; did you mean fetch.min.bytes?");
    assert_eq!(reported("max.poll.records"), "has no effect on this consumer");
    assert_eq!(reported("group.id"), "has no effect on this consumer; name the group with --group");
    assert!(reported("ssl.truststore.locaton").ends_with("; did you mean ssl.truststore.location?"));
    assert_eq!(notice("session.timeout.ms"), None);
}
