//! Tests of subscriptions by regular expression.

use super::*;

#[test]
fn expression_counts_as_its_topics() {
    let mut stage = Stage::new();
    let regex = || Text::from("[ab]");
    let matched = |names: &[&str]| vec![(regex(), names.iter().map(|&name| Text::from(name)).collect())];
    let request = ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: None,
        subscribed_topic_regex: Some(regex()),
        ..joining("m1", &[])
    };
    let joined = stage.send_resolved(request, matched(&["a"])).unwrap();
    assert_eq!((joined.member_epoch, given(&joined)), (1, Some(vec![0, 1, 2, 3])));
    assert!(!stage.group.regexes_are_due(1, &stage.settings, stage.now));
    assert!(stage.group.regexes_are_due(2, &stage.settings, stage.now));
    assert!(stage.group.regexes_are_due(1, &stage.settings, stage.now + 600_000));
    let more = stage.send_resolved(heartbeat_of("m1", 1), matched(&["a", "b"])).unwrap();
    assert_eq!((more.member_epoch, more.assignment.unwrap().topic_partitions.len()), (2, 2));
    let none = ConsumerGroupHeartbeatRequest { subscribed_topic_regex: Some(Text::from("")), ..heartbeat_of("m1", 2) };
    assert_eq!(given(&stage.send(none).unwrap()), Some(vec![]));
    assert_eq!(stage.group.regexes().count(), 0);
}

#[test]
fn expression_removed_with_its_last_member_is_resolved_again() {
    let mut stage = Stage::new();
    let regex = || Text::from("[ab]");
    // When the caller looks for new expressions, this one is in use. When the group handles the request, it is no
    // longer in use.
    let request = ConsumerGroupHeartbeatRequest { subscribed_topic_regex: Some(regex()), ..joining("m1", &[]) };
    stage.send_resolved(request, Vec::new()).expect("it joins");
    assert!(stage.group.regexes_are_due(1, &stage.settings, stage.now));
    assert_eq!(stage.group.regexes().collect::<Vec<_>>(), [&regex()]);
    let epoch = stage.group.member("m1").expect("joined").epoch;
    let resolved = vec![(regex(), [Text::from("a")].into())];
    let answer = stage.send_resolved(heartbeat_of("m1", epoch), resolved).expect("it beats");
    assert_eq!(answer.assignment.expect("new").topic_partitions, of_a(&[0, 1, 2, 3]));
    assert!(!stage.group.regexes_are_due(1, &stage.settings, stage.now));
}

/// The topics change after the expressions are matched, but before the group handles the request. The older result must
/// not replace a newer one.
#[test]
fn match_of_an_older_topics_version_replaces_no_newer_one() {
    let mut stage = Stage::new();
    let resolved = |regex: &str, names: &[&str]| -> Resolved {
        (Text::from(regex), names.iter().map(|&name| Text::from(name)).collect())
    };
    let joins = |id: &str, regex: &str| ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: None,
        subscribed_topic_regex: Some(Text::from(regex)),
        ..joining(id, &[])
    };
    stage.table.0 = 2;
    stage.send_resolved(joins("m1", ".*"), vec![resolved(".*", &["a", "b"])]).expect("it joins");
    let epoch = stage.group.group_epoch();
    let late = |stage: &mut Stage, request, resolved| {
        check_request(&request, 1, &stage.settings).expect("valid");
        let call = Call {
            request: &request,
            fresh_id: Text::from("fresh"),
            fresh_parts_id: PARTS,
            client_id: "client",
            client_host: "/host",
            resolved,
            resolved_version: 1,
        };
        stage.group.heartbeat(call, &stage.table, &stage.settings, stage.now).expect("taken")
    };
    late(&mut stage, heartbeat_of("m1", epoch), vec![resolved(".*", &["a"])]);
    assert_eq!(stage.group.group_epoch(), epoch);
    assert!(!stage.group.regexes_are_due(2, &stage.settings, stage.now));
    // A new expression keeps its topics of the older version, and is due to be resolved again.
    late(&mut stage, joins("m2", "b.*"), vec![resolved(".*", &["a"]), resolved("b.*", &[])]);
    assert!(stage.group.regexes_are_due(2, &stage.settings, stage.now));
    assert!(stage.group.reads("b"));
    let again = vec![resolved(".*", &["a", "b"]), resolved("b.*", &["b"])];
    let epoch = stage.group.member("m1").expect("there").epoch;
    stage.send_resolved(heartbeat_of("m1", epoch), again).expect("taken");
    assert!(!stage.group.regexes_are_due(2, &stage.settings, stage.now));
}
