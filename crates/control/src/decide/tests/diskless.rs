//! Tests of the settings that make a topic diskless, and of the limits of diskless topics.

use super::*;
use crate::internal::CONSUMER_OFFSETS;
use fullbore_config::TOPIC_KEYS;

const BY_DEFAULT: &str = "log.diskless.enable=true";
const ENABLE: &str = "diskless.enable";
const INKLESS: &str = "inkless.enable";

fn with(name: &str, configs: &[(&str, &str)]) -> CreateTopic {
    let configs = configs.iter().map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned())));
    CreateTopic { configs: configs.collect(), ..wanted(name) }
}

/// Creates the topic on a broker with the settings `file`. Returns true if the topic is diskless. Also returns the
/// value of its override `diskless.enable`.
fn made_by(file: &str, wanted: &CreateTopic) -> Result<(bool, Option<String>), Refusal> {
    let topic = create(&one_broker(1), &broker(file), wanted, Uuid::ZERO)?;
    assert!(!topic.overrides.contains_key(INKLESS));
    Ok((topic.config.diskless, topic.overrides.get(ENABLE).cloned()))
}

fn refusal_of(file: &str, wanted: &CreateTopic) -> (ErrorCode, String) {
    let refusal = made_by(file, wanted).expect_err("refused");
    (refusal.code, refusal.message.into_owned())
}

/// Creates an image with the topic `t`, which has the settings `configs`.
fn there(configs: &[(&str, &str)]) -> Image {
    let mut image = one_broker(1);
    image.put(create(&image, &broker(""), &with("t", configs), Uuid([1; 16])).expect("created"));
    image
}

fn changed(image: &Image, file: &str, changes: &[(&str, ConfigChange)]) -> Result<Arc<Topic>, Refusal> {
    let changes = changes.iter().map(|(name, change)| ((*name).to_owned(), change.clone())).collect();
    alter(image, &broker(file), &AlterTopicConfig { name: "t".into(), changes })
}

fn set(value: &str) -> ConfigChange {
    ConfigChange::Set(value.into())
}

#[test]
fn a_topic_is_diskless_by_its_setting_under_either_name() {
    let stored = |value: &str| Some(value.to_owned());
    assert_eq!(made_by("", &wanted("t")), Ok((false, None)));
    for name in [ENABLE, INKLESS] {
        for value in ["true", " TRUE "] {
            assert_eq!(made_by("", &with("t", &[(name, value)])), Ok((true, stored("true"))), "{name}={value}");
        }
        assert_eq!(made_by(BY_DEFAULT, &with("t", &[(name, "false")])), Ok((false, stored("false"))));
        let (code, message) = refusal_of("", &with("t", &[(name, "maybe")]));
        assert_eq!(
            (code, message.as_str()),
            (ErrorCode::INVALID_CONFIG, "diskless.enable=maybe: must be true or false")
        );
    }
    assert!(TOPIC_KEYS.iter().all(|key| key.name != INKLESS), "it is another name, and no other setting");
}

#[test]
fn both_names_of_the_setting_have_one_value_in_a_request() {
    let both = |one, other| with("t", &[(ENABLE, one), (INKLESS, other)]);
    assert_eq!(made_by("", &both("true", "True")), Ok((true, Some("true".to_owned()))));
    let (code, message) = refusal_of("", &both("true", "false"));
    assert_eq!(code, ErrorCode::INVALID_CONFIG);
    let expected = "inkless.enable=false: must be the same as diskless.enable=true of this request, or left out";
    assert_eq!(message, expected);
    let image = there(&[]);
    let refusal = changed(&image, "", &[(INKLESS, set("true")), (ENABLE, set("false"))]).expect_err("refused");
    assert_eq!(refusal.code, ErrorCode::INVALID_CONFIG);
    assert!(refusal.message.contains("must be the same as inkless.enable=true"), "{refusal}");
    changed(&image, "", &[(INKLESS, set("false")), (ENABLE, set("false"))]).expect("they are the same");
}

#[test]
fn brokers_default_kind_is_stored_at_creation() {
    assert_eq!(made_by(BY_DEFAULT, &wanted("t")), Ok((true, Some("true".to_owned()))));
    for (made, later) in [(BY_DEFAULT, ""), ("", BY_DEFAULT)] {
        let wanted = CreateTopic { num_partitions: 1, ..wanted("t") };
        let change = super::super::create(&one_broker(1), &broker(made), &wanted, Uuid([1; 16])).expect("created");
        let mut image = one_broker(1);
        image.apply(&broker(later), &change).expect("it is read by a broker with another default");
        let topic = image.topic("t").expect("there");
        assert_eq!(topic.config.diskless, made == BY_DEFAULT);
        let shown = describe_topic(&broker(later), image.dynamic(), &topic.overrides).expect("described");
        let shown = shown.into_iter().find(|entry| entry.name == ENABLE).expect("there");
        assert_eq!(shown.value.as_deref() == Some("true"), made == BY_DEFAULT);
        changed(&image, later, &[("retention.ms", set("5"))]).expect("other settings change");
    }
}

#[test]
fn internal_topics_stay_classic() {
    for name in [CONSUMER_OFFSETS, "__transaction_state", "__share_group_state"] {
        let compacted = with(name, &[("cleanup.policy", "compact")]);
        assert_eq!(made_by(BY_DEFAULT, &compacted), Ok((false, None)));
        let (code, message) = refusal_of("", &with(name, &[(INKLESS, "true")]));
        let expected = "diskless.enable=true: an internal topic cannot be diskless";
        assert_eq!((code, message.as_str()), (ErrorCode::INVALID_CONFIG, expected));
    }
}

#[test]
fn kind_of_a_topic_cannot_be_changed() {
    let (diskless, classic, explicit) =
        (there(&[(ENABLE, "true")]), there(&[]), there(&[(ENABLE, "false"), ("retention.ms", "5")]));
    for name in [ENABLE, INKLESS] {
        for file in ["", BY_DEFAULT] {
            let refused = |image: &Image, change: &ConfigChange| {
                let changes = [("retention.ms", set("7")), (name, change.clone())];
                let refusal = changed(image, file, &changes).expect_err("refused");
                assert_eq!(refusal.code, ErrorCode::INVALID_CONFIG);
                assert!(refusal.message.contains("is decided when a topic is created"), "{refusal}");
                refusal.message
            };
            let reported = refused(&diskless, &set("false"));
            assert!(reported.starts_with("diskless.enable=false: topic t is diskless; "), "{reported}");
            let reported = refused(&diskless, &ConfigChange::Delete);
            assert!(
                reported.starts_with("diskless.enable: topic t is diskless and keeps diskless.enable=true; "),
                "{reported}"
            );
            for image in [&classic, &explicit] {
                let reported = refused(image, &set("TRUE"));
                assert!(reported.starts_with("diskless.enable=true: topic t is not diskless; "), "{reported}");
            }
            assert!(changed(&diskless, file, &[(name, set("True"))]).expect("as it is").config.diskless);
            for image in [&classic, &explicit] {
                for change in [set("false"), ConfigChange::Delete] {
                    assert!(!changed(image, file, &[(name, change)]).expect("as it is").config.diskless);
                }
            }
            let list = ConfigChange::Append("true".into());
            assert!(changed(&diskless, file, &[(name, list)]).expect_err("no list").message.contains("not LIST"));
        }
    }
}

/// AlterConfigs replaces all settings of a topic. A request without `diskless.enable` would therefore make a diskless
/// topic classic, so it must be refused.
#[test]
fn replaced_settings_of_a_diskless_topic_must_include_its_kind() {
    let anew = |image: &Image, file: &str, configs: &[(&str, ConfigChange)]| {
        let changes: Vec<_> = std::iter::once(("", ConfigChange::DeleteAll)).chain(configs.to_vec()).collect();
        changed(image, file, &changes)
    };
    let diskless = there(&[(ENABLE, "true"), ("retention.ms", "5")]);
    for name in [ENABLE, INKLESS] {
        let topic = anew(&diskless, "", &[(name, set("true"))]).expect("as it was");
        assert_eq!((topic.config.diskless, topic.overrides.len()), (true, 1));
    }
    let refusal = anew(&diskless, BY_DEFAULT, &[("retention.ms", set("7"))]).expect_err("left out");
    assert_eq!(refusal.code, ErrorCode::INVALID_CONFIG);
    for classic in [there(&[]), there(&[(ENABLE, "false")])] {
        assert!(!anew(&classic, BY_DEFAULT, &[("retention.ms", set("7"))]).expect("as it was").config.diskless);
    }
}

#[test]
fn a_diskless_topic_is_not_compacted() {
    let expected = "compaction of diskless topics is not supported yet";
    for (file, configs) in [
        ("", &[(ENABLE, "true"), ("cleanup.policy", "compact")][..]),
        ("", &[("cleanup.policy", "delete, compact"), (INKLESS, "true")]),
        (BY_DEFAULT, &[("cleanup.policy", "compact")]),
        ("log.cleanup.policy=compact", &[(ENABLE, "true")]),
    ] {
        let (code, message) = refusal_of(file, &with("t", configs));
        assert_eq!(code, ErrorCode::INVALID_CONFIG);
        assert!(message.starts_with("cleanup.policy=") && message.contains(expected), "{message}");
    }
    let image = there(&[(ENABLE, "true")]);
    for change in [set("compact"), set("compact,delete"), ConfigChange::Append("compact".into())] {
        let refusal = changed(&image, "", &[("cleanup.policy", change)]).expect_err("refused");
        assert_eq!(refusal.code, ErrorCode::INVALID_CONFIG);
        assert!(refusal.message.contains(expected), "{refusal}");
    }
    changed(&image, "", &[("cleanup.policy", set(""))]).expect("it keeps everything");
    changed(&there(&[]), "", &[("cleanup.policy", set("compact"))]).expect("a classic one is compacted");
    let overrides = BTreeMap::from([("log.cleanup.policy".to_owned(), "compact".to_owned())]);
    let refusal = image.check(&broker(""), &Change::BrokerConfigured { broker: None, overrides });
    assert!(refusal.expect_err("a topic has it from there").to_string().contains(expected));
}

#[test]
fn settings_without_effect_on_a_diskless_topic_are_accepted() {
    let configs = [
        (ENABLE, "true"),
        ("min.insync.replicas", "2"),
        ("segment.bytes", "2000000"),
        ("segment.ms", "5"),
        ("flush.messages", "1"),
        ("flush.ms", "1"),
    ];
    assert!(made_by("", &with("t", &configs)).expect("created").0);
    for (name, value) in configs {
        changed(&there(&[(ENABLE, "true")]), "", &[(name, set(value))]).expect(name);
    }
}

#[test]
fn diskless_topic_has_one_replica_of_each_partition() {
    let mut image = one_broker(1);
    image.put_node(2, RegisteredBroker::default());
    let of = |wanted: CreateTopic| {
        let wanted = CreateTopic { configs: vec![(INKLESS.into(), Some("true".into()))], ..wanted };
        create(&image, &broker(""), &wanted, Uuid::ZERO).map(|topic| topic.replication_factor())
    };
    for replication_factor in [1, -1] {
        assert_eq!(of(CreateTopic { replication_factor, num_partitions: 3, ..wanted("t") }), Ok(1));
    }
    let mut config = broker("");
    config.topics.replication_factor = 2;
    let by_default = with("t", &[(ENABLE, "true")]);
    assert_eq!(create(&image, &config, &by_default, Uuid::ZERO).expect("created").replication_factor(), 1);
    for replication_factor in [2, 3, 0, -2, i16::MIN, i16::MAX] {
        let refusal = of(CreateTopic { replication_factor, ..wanted("t") }).expect_err("refused");
        assert_eq!(refusal.code, ErrorCode::INVALID_REPLICATION_FACTOR);
        assert!(refusal.message.contains("the object store replicates its records"), "{refusal}");
        assert!(refusal.message.contains(&format!("a replication factor of {replication_factor} was asked for")));
    }
    let assigned = |each: &[&[i32]]| {
        let assignments = (0..).zip(each.iter().map(|replicas| replicas.to_vec())).collect();
        of(CreateTopic { assignments, ..wanted("t") }).map_err(|refusal| refusal.code)
    };
    assert_eq!(assigned(&[&[2], &[1]]), Ok(1));
    for each in [&[&[1, 2][..]][..], &[&[1], &[2, 1]], &[&[]]] {
        assert_eq!(assigned(each), Err(ErrorCode::INVALID_REPLICATION_FACTOR), "{each:?}");
    }
    assert_eq!(assigned(&[&[7]]), Err(ErrorCode::INVALID_REPLICA_ASSIGNMENT), "there is no such broker");
}

#[test]
fn added_partitions_of_a_diskless_topic_have_one_replica() {
    let mut image = there(&[(ENABLE, "true")]);
    image.put_node(2, RegisteredBroker::default());
    let grown = |assignments| grow(&image, &GrowTopic { name: "t".into(), count: 2, assignments });
    for assignments in [None, Some(vec![vec![2]])] {
        match grown(assignments).expect("grown") {
            Change::PartitionsChanged { partitions, .. } => assert_eq!(partitions[0].replicas.len(), 1),
            other => panic!("{other:?}"),
        }
    }
    let refusal = grown(Some(vec![vec![1, 2]])).expect_err("refused");
    assert_eq!(refusal.code, ErrorCode::INVALID_REPLICATION_FACTOR);
}

#[test]
fn diskless_topic_needs_a_deciding_broker_with_an_object_store() {
    let without = "control.plane=postgres://ann@db/fullbore\nnode.id=3";
    for configs in [&[(ENABLE, "true")][..], &[(INKLESS, "true")]] {
        let (code, message) = refusal_of(without, &with("t", configs));
        assert_eq!(code, ErrorCode::INVALID_CONFIG);
        let expected = "diskless.enable=true: needs diskless.storage to be set in a cluster, the same for all its brokers: a directory that \
                    they share, or s3://bucket/prefix; broker 3, which was asked, has none";
        assert_eq!(message, expected);
    }
    assert!(!made_by(without, &with("t", &[(ENABLE, "false")])).expect("created").0);
    assert_eq!(made_by(without, &wanted("t")), Ok((false, None)));
    let with_store = format!("{without}\ndiskless.storage=/shared");
    assert_eq!(made_by(&with_store, &with("t", &[(ENABLE, "true")])), Ok((true, Some("true".to_owned()))));
    assert_eq!(made_by(&with_store, &wanted("t")), Ok((false, None)));
    let by_default = format!("{with_store}\n{BY_DEFAULT}");
    assert_eq!(made_by(&by_default, &wanted("t")), Ok((true, Some("true".to_owned()))));
    assert_eq!(made_by(&by_default, &wanted("__consumer_offsets")), Ok((false, None)));
}

#[test]
fn diskless_topic_retains_batches_by_the_broker_setting_for_diskless_topics() {
    let file = "diskless.producer.state.batches.to.retain=77\nmax.idempotence.batches.to.retain=9";
    let retained = |configs: &[(&str, &str)]| {
        let topic = create(&one_broker(1), &broker(file), &with("t", configs), Uuid::ZERO).expect("created");
        topic.config.producer_state_batches_to_retain
    };
    assert_eq!(retained(&[(ENABLE, "true")]), 77);
    assert_eq!(retained(&[]), 9);
    for enable in ["true", "false"] {
        assert_eq!(retained(&[(ENABLE, enable), ("producer.state.batches.to.retain", "6")]), 6);
    }
}

/// A diskless and a classic partition have the same replicas. Their brokers stop, fail and return. The classic
/// partition's leader changes, but the registration of the diskless partition must not change.
#[test]
fn diskless_partition_stays_registered_while_brokers_come_and_go() {
    let mut image = cluster();
    for (id, name, configs) in [(7, "classic", &[][..]), (8, "diskless", &[(ENABLE, "true")])] {
        let topic = create(&image, &broker(""), &with(name, configs), Uuid([id; 16])).expect("created");
        let both =
            PartitionRegistration { replicas: vec![1, 2], isr: vec![1, 2], leader: Some(1), ..Default::default() };
        image.put(Arc::new(Topic { partitions: [Arc::new(both)].into_iter().collect(), ..Topic::clone(&topic) }));
    }
    let registered = |image: &Image, name| image.topic(name).expect("there").partitions[0].clone();
    let (classic, diskless) = (registered(&image, "classic"), registered(&image, "diskless"));
    change(&mut image, 1, BrokerChange::ShutDown);
    assert_eq!(registered(&image, "classic").leader, Some(2));
    change(&mut image, 2, BrokerChange::Fence);
    change(&mut image, 1, BrokerChange::Fence);
    assert_eq!(registered(&image, "classic").leader, None);
    assert_eq!(registered(&image, "diskless"), diskless);
    join(&mut image, 1, 99, PreviousShutdown::Lost).expect("joined");
    assert_ne!(registered(&image, "classic"), classic);
    assert_eq!(registered(&image, "diskless"), diskless);
}

#[test]
fn election_for_a_diskless_partition_is_refused() {
    let image = there(&[(ENABLE, "true")]);
    for kind in [ElectionKind::Preferred, ElectionKind::Unclean] {
        let (changes, outcomes) = elect(&image, &ElectLeaders::new(kind, [("t", 0), ("t", 1)]));
        let [Err(refused), Err(unknown)] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert!(changes.is_empty());
        let expected = "Topic t is diskless: every broker serves its partitions, and there is no leader to elect.";
        assert_eq!((refused.code, &*refused.message), (ErrorCode::INVALID_REQUEST, expected));
        assert_eq!(unknown.code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    }
}
