//! Tests with topics whose settings contradict the broker's configuration file, because the broker had other settings
//! when they were created. Only changes that concern the contradiction are refused.

use super::*;

const LEAST: &str = "min.compaction.lag.ms";
const MOST: &str = "log.cleaner.max.compaction.lag.ms";

fn of_config<T>(outcome: Result<T, Refusal>) -> Option<ErrorCode> {
    outcome.err().map(|refusal| refusal.code)
}

/// Starts a broker whose configuration file contradicts a setting of the topic `t`.
async fn contradicted(directory: &Path) -> Opened {
    let first = open(directory);
    let lag = |name: &str, lag: &str| CreateTopic { configs: vec![(LEAST.into(), Some(lag.into()))], ..wanted(name) };
    for topic in [lag("t", "100000"), lag("u", "45000"), wanted("v")] {
        create(&first.control, vec![topic]).await.remove(0).expect("created");
    }
    drop(first);
    try_open(directory, &format!("{MOST}=50000")).expect("it starts")
}

#[tokio::test]
async fn a_topic_that_contradicts_the_broker_leaves_its_other_settings_alone() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = contradicted(directory.path()).await;
    let control = &opened.control;
    let refused = Some(ErrorCode::INVALID_CONFIG);
    for scope in [BrokerScope::Every, BrokerScope::This] {
        assert_eq!(of_config(alter_broker(control, scope, "max.connections", set("10")).await), None);
        assert_eq!(of_config(alter_broker(control, scope, MOST, set("60000")).await), None, "no worse than before");
        assert_eq!(
            of_config(alter_broker(control, scope, MOST, set("40000")).await),
            refused,
            "the next one would, too"
        );
    }
    assert_eq!(of_config(alter(control, "t", "retention.ms", set("5")).await), None);
    assert_eq!(of_config(alter(control, "t", LEAST, set("90000")).await), refused, "the value itself contradicts");
    assert_eq!(of_config(alter(control, "v", LEAST, set("90000")).await), refused);
    assert_eq!(of_config(alter(control, "t", LEAST, set("1000")).await), None);
    assert_eq!(of_config(alter(control, "t", LEAST, set("90000")).await), refused);
}

/// If a diskless topic got the compact policy, its records would never be deleted.
#[tokio::test]
async fn diskless_topic_of_a_compacting_broker_has_the_delete_policy() {
    let directory = tempfile::tempdir().expect("tempdir");
    let first = try_open(directory.path(), "log.diskless.enable=true").expect("opens");
    create(&first.control, vec![wanted("t")]).await.remove(0).expect("created");
    drop(first);
    let opened = try_open(directory.path(), "log.cleanup.policy=compact").expect("opens");
    let cleanup = opened.control.image().topic("t").expect("there").config.cleanup;
    assert_eq!((cleanup.delete, cleanup.compact), (true, false));
    alter_broker(&opened.control, BrokerScope::Every, "max.connections", set("10")).await.expect("another matter");
    alter(&opened.control, "t", "retention.ms", set("5")).await.expect("another matter");
}
