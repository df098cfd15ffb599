//! Tests of the flags of `copy`.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    copy: CopyArgs,
}

fn parse(flags: &str) -> CopyArgs {
    let words = format!("copy --from a --to b --group g {flags}");
    crate::command_line::parsed::<Line>(words.split_whitespace()).map(|line| line.copy).expect("flags")
}

fn properties(args: &CopyArgs) -> Properties {
    client_properties(None, &args.property, &|_| None).expect("properties")
}

#[test]
fn the_consumer_reads_committed_records_from_the_oldest_on_despite_properties() {
    let args = parse("-X isolation.level=read_uncommitted -X group.instance.id=x");
    let settings = args.settings(&properties(&args)).expect("settings");
    assert!(settings.fetch.read_committed && settings.group.require_stable);
    assert_eq!(settings.fetch.reset, Some(StartOffset::Earliest));
    assert_eq!(settings.group.instance.as_deref(), Some("x"));
    let args = parse("-X auto.offset.reset=latest --group-instance-id y");
    let settings = args.settings(&properties(&args)).expect("settings");
    assert_eq!(settings.fetch.reset, Some(StartOffset::Latest));
    assert_eq!(settings.group.instance.as_deref(), Some("y"));
}

#[test]
fn the_producer_has_the_id_and_a_default_timeout_of_ten_seconds() {
    let of = |flags: &str| {
        let args = parse(flags);
        let instance = InstanceId::choose(args.transactional_id.as_deref(), "g", Some("m")).expect("an id");
        args.producer(&properties(&args), &instance).expect("settings")
    };
    let config = of("");
    assert_eq!(config.transactional_id.as_deref(), Some("fullbore-copy-g-m"));
    assert_eq!(config.transaction_timeout, Duration::from_secs(10));
    let config = of("--transactional-id x -X transaction.timeout.ms=60000 -X linger.ms=7");
    assert_eq!(config.transactional_id.as_deref(), Some("x"));
    assert_eq!((config.transaction_timeout, config.linger), (Duration::from_secs(60), Duration::from_millis(7)));
}

#[test]
fn deleted_records_fail_the_copy_unless_a_property_allows_them() {
    let verdict = |deleted, allows| {
        let end = CopyEnd { finished: true, unread: None, deleted };
        parse("").verdict(end, &CopyCounts::default(), allows).map_err(|failure| (failure.status, failure.to_string()))
    };
    let (status, sentence) = verdict(7, false).expect_err("deleted");
    assert_eq!(status, 1);
    assert!(
        sentence.starts_with("records at 7 offsets of topic 'a' were deleted before they were copied"),
        "{sentence}"
    );
    assert_eq!((verdict(7, true), verdict(0, false)), (Ok(()), Ok(())));
}

#[test]
fn a_copy_of_a_topic_to_itself_is_refused() {
    let args = CopyArgs { to: "a".to_owned(), ..parse("") };
    assert!(args.check().expect_err("the same").to_string().contains("to itself"));
}
