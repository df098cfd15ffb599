//! Tests of the flags of `produce`.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    produce: ProduceArgs,
}

fn parse(flags: &str) -> Result<ProduceArgs, clap::Error> {
    crate::command_line::parsed::<Line>(std::iter::once("produce").chain(flags.split_whitespace()))
        .map(|line| line.produce)
}

fn layout(flags: &str) -> Result<InputLayout, String> {
    parse(flags).expect("flags").layout().map_err(|failure| failure.to_string())
}

#[test]
fn kafkas_reader_properties_set_the_same_layout() {
    let kafkas = "-t t --property parse.key=true --property key.separator=: --reader-property null.marker=NUL \
                  --property parse.headers=true --property headers.separator=;";
    let separators = Separators {
        key: Some(b":".to_vec()),
        headers: Some(b"\t".to_vec()),
        between_headers: b";".to_vec(),
        null_marker: Some(b"NUL".to_vec()),
        strict: true,
        ..Separators::default()
    };
    assert_eq!(layout(kafkas), Ok(InputLayout::Text(separators.clone())));
    let lenient = Separators { strict: false, ..separators };
    assert_eq!(layout(&format!("{kafkas} --property ignore.error=true")), Ok(InputLayout::Text(lenient)));
    assert_eq!(
        layout("-t t --property key.separator=:"),
        Ok(InputLayout::Text(Separators::default())),
        "only if asked for"
    );
    let refused = layout("-t t --property acks=1").expect_err("not the reader's");
    assert!(refused.starts_with("acks=1: must be one of parse.key") && refused.contains("--producer-property"));
    assert_eq!(layout("-t t --property parse.key=1"), Err("parse.key=1: must be true or false".to_owned()));
}

#[test]
fn kcats_short_flags_are_accepted() {
    let args =
        parse("-t t -b h:1 -K : -k fixed -H a=b -H c -Z -p 3 -z lz4 -X acks=1 -D \\0 f g").expect("kcat's flags");
    assert_eq!((args.partition, args.delimiter.as_deref(), args.files.len()), (Some(3), Some(&b"\0"[..]), 2));
    let job = ProduceJob::new(&args, InputLayout::Json, 9).expect("a job");
    assert_eq!(job.headers, [("a", Some(&b"b"[..])), ("c", None)]);
    assert_eq!(args.properties().expect("valid").get("compression.type"), Some("lz4"));
    for flags in
        ["-t t -D a --whole", "-t t --json -K :", "-t t -Z --null-marker x", "-t t -D \\q", "-t t --timestamp -1"]
    {
        assert!(parse(flags).is_err(), "{flags}");
    }
    let refused = ProduceJob::new(&parse("x").expect("flags"), layout("").expect("text"), 9).err().expect("no topic");
    assert!(refused.to_string().contains("--topic"));
}

#[test]
fn transactions_need_an_id_by_flag_or_property() {
    let id = |flags: &str| {
        let properties = parse(flags).expect("flags").properties().map_err(|failure| failure.to_string())?;
        Ok::<_, String>(properties.get("transactional.id").map(str::to_owned))
    };
    assert_eq!(id("-t t --transactional-id x -X transactional.id=x"), Ok(Some("x".to_owned())));
    assert!(id("-t t --transactional-id x -X transactional.id=y").is_err_and(|error| error.starts_with("two ")));
    assert_eq!(id("-t t --transaction-records 5 -X transactional.id=y"), Ok(Some("y".to_owned())));
    let refused = id("-t t --transaction-records 5").expect_err("no id");
    assert!(refused.contains("--transactional-id"), "{refused}");
    assert!(parse("-t t --transactional-id x --transaction-records 0").is_err());
}
