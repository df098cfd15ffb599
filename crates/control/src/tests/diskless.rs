//! Tests that a classic topic stays classic, and a diskless topic stays diskless.

use super::*;

const ENABLE: &str = "diskless.enable";
const BY_DEFAULT: &str = "log.diskless.enable=true";

fn is_diskless(control: &Control, name: &str) -> bool {
    control.image().topic(name).expect("there").config.diskless
}

#[tokio::test]
async fn a_restart_with_another_default_changes_no_topic() {
    let directory = tempfile::tempdir().expect("tempdir");
    let first = open(directory.path());
    let inkless = CreateTopic { configs: vec![("inkless.enable".into(), Some("true".into()))], ..wanted("inkless") };
    assert!(create(&first.control, vec![wanted("classic"), inkless]).await.iter().all(Result::is_ok));
    drop(first);

    let second = try_open(directory.path(), BY_DEFAULT).expect("opens");
    let control = &second.control;
    create(control, vec![wanted("default")]).await.remove(0).expect("created");
    let all = |control: &Control| ["classic", "inkless", "default"].map(|name| is_diskless(control, name));
    assert_eq!(all(control), [false, true, true]);
    alter(control, "classic", "retention.ms", set("5")).await.expect("altered");
    assert_eq!(all(control), [false, true, true]);
    drop(second);

    let third = open(directory.path());
    assert_eq!(all(&third.control), [false, true, true]);
    let stored = |name| third.control.image().topic(name).expect("there").overrides.get(ENABLE).cloned();
    assert_eq!(["classic", "inkless", "default"].map(stored), [None, Some("true".into()), Some("true".into())]);
}

#[tokio::test]
async fn refused_change_applies_nothing_also_with_validate_only() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &try_open(directory.path(), BY_DEFAULT).expect("opens").control;
    create(control, vec![wanted("t")]).await.remove(0).expect("created");
    let epoch = control.image().epoch();
    let requested = |validate_only, change: &ConfigChange| {
        let changes = vec![("retention.ms".into(), set("5")), (ENABLE.into(), change.clone())];
        AlterTopicConfigs { topics: vec![AlterTopicConfig { name: "t".into(), changes }], validate_only }
    };
    for change in [set("false"), ConfigChange::Delete] {
        for validate_only in [true, false] {
            let results = control.alter_topic_configs(requested(validate_only, &change)).await;
            assert_eq!(codes(&results), [Some(ErrorCode::INVALID_CONFIG)]);
        }
    }
    let topic = Arc::clone(control.image().topic("t").expect("there"));
    assert_eq!((control.image().epoch(), topic.overrides.len()), (epoch, 1));
    let results = control.alter_topic_configs(requested(false, &set("true"))).await;
    assert_eq!(results[0].as_ref().expect("as it is").config.retention_ms, Some(5));
    let (factor, policy) = (
        CreateTopic { replication_factor: 2, ..wanted("u") },
        CreateTopic { configs: vec![("cleanup.policy".into(), Some("compact".into()))], ..wanted("v") },
    );
    let results =
        control.create_topics(CreateTopics { topics: vec![wanted("w"), factor, policy], validate_only: true }).await;
    let refused = [None, Some(ErrorCode::INVALID_REPLICATION_FACTOR), Some(ErrorCode::INVALID_CONFIG)];
    assert_eq!(codes(&results), refused);
}

/// The default must not become `compact`, because a diskless topic without its own `cleanup.policy` would then be
/// compacted.
#[tokio::test]
async fn brokers_cannot_be_set_to_compact_while_a_diskless_topic_follows_them() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = try_open(directory.path(), BY_DEFAULT).expect("opens");
    let own = CreateTopic { configs: vec![("cleanup.policy".into(), Some("delete".into()))], ..wanted("own") };
    create(&opened.control, vec![own]).await.remove(0).expect("created");
    let compact = "log.cleanup.policy";
    alter_broker(&opened.control, BrokerScope::Every, compact, set("compact"))
        .await
        .expect("no topic has it from there");
    alter_broker(&opened.control, BrokerScope::Every, compact, ConfigChange::Delete).await.expect("taken back");
    create(&opened.control, vec![wanted("t")]).await.remove(0).expect("created");
    let refused = alter_broker(&opened.control, BrokerScope::Every, compact, set("compact")).await;
    assert_eq!(refused.expect_err("t has it from there").code, ErrorCode::INVALID_CONFIG);
    drop(opened);
    // A broker must still start if its configuration file has the policy `compact`, because another broker may have
    // created the topic.
    let opened = try_open(directory.path(), "log.cleanup.policy=compact").expect("opens");
    assert!(!opened.control.image().topic("t").expect("there").config.cleanup.compact);
}
