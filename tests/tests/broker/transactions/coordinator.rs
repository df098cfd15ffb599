//! The running coordinator: levels of `transaction.version`, changed settings, the deletion of its topic, and its
//! metrics.

use super::{SOON, TOPIC, one, wait_for_state};
use fullbore_tests::{Broker, Client, Protocol, Transactional, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::update_features::{FeatureUpdateKey, UpdateFeaturesRequest};
use fullbore_wire::batch::{RecordIter, batches};

const STATE_TOPIC: &str = "__transaction_state";
const BROKER: i8 = 4;
const VERIFICATION: &str = "transaction.partition.verification.enable";
const ONE_SHARD: &str = "transaction.state.log.num.partitions=1";
const TIMED_OUT_SOON: &str = "transaction.abort.timed.out.transaction.cleanup.interval.ms=20";

fn started(sets: &[&str]) -> (Broker, Client) {
    let broker = Broker::start(sets);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    (broker, client)
}

fn set_level(client: &mut Client, max_version_level: i16, upgrade_type: i8) {
    let feature = "transaction.version".into();
    let update = FeatureUpdateKey { feature, max_version_level, upgrade_type, ..Default::default() };
    let request = UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() };
    let response = client.call(&request, 2);
    assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
}

/// Returns the format version of the newest record in `__transaction_state`.
fn record_version(client: &mut Client) -> u16 {
    let end = client.latest(STATE_TOPIC, 0);
    let data = client.fetch(STATE_TOPIC, 0, end - 1).records.unwrap_or_default();
    let bytes = data.memory().expect("read from a socket").clone();
    let last = batches(&bytes).last().expect("a batch").expect("whole");
    let record = RecordIter::new(last.payload(), last.record_count()).last().expect("a record").expect("whole");
    let value = record.value.expect("no tombstone");
    u16::from_be_bytes([value[0], value[1]])
}

#[test]
fn changed_level_sets_the_version_of_records_and_open_transactions_end() {
    let (_broker, mut client) = started(&[ONE_SHARD, TIMED_OUT_SOON]);
    for (level, kind) in [(2, 1), (1, 2), (0, 3), (1, 1), (2, 1), (0, 2), (2, 1)] {
        let mut open = Protocol::BOTH.map(|protocol| {
            let mut producer = Transactional::begin(&mut client, &format!("open-{protocol:?}"), protocol);
            producer.write(&mut client, TOPIC, 0, &["open over the change"]);
            producer
        });
        set_level(&mut client, level, kind);
        for producer in &mut open {
            producer.end(&mut client, true);
            wait_for_state(&mut client, &producer.transactional_id.clone(), "CompleteCommit");
            assert_eq!(record_version(&mut client), u16::from(level > 0));
            one(&mut client, producer, "after the change", true);
            one(&mut client, producer, "aborted", false);
        }
        let before = Transactional::with_timeout(&mut client, "late", Protocol::Old, 1);
        let mut late = before.clone();
        late.add(&mut client, TOPIC, &[1]);
        // On a slow machine, the transaction is aborted before this record arrives, and the record is refused.
        let batch = late.batch(TOPIC, 1, &["too late"]);
        late.send(&mut client, TOPIC, 1, &batch);
        wait_for_state(&mut client, "late", "CompleteAbort");
        let state = client.describe_transaction("late");
        assert_eq!((state.producer_id, state.producer_epoch), (before.id, before.epoch + 1), "fenced at level {level}");
        assert_eq!(late.try_end(&mut client, true).error_code, ErrorCode::PRODUCER_FENCED);
    }
    let texts = client.committed_texts(TOPIC, 0);
    assert_eq!(texts.len(), 7 * 4, "{texts:?}");
    assert!(!texts.contains(&"aborted".to_owned()));
    wait_until("nothing is open", SOON, || (0..2).all(|of| client.stable(TOPIC, of) == client.latest(TOPIC, of)));
}

#[test]
fn verification_setting_applies_at_once() {
    let (_broker, mut client) = started(&[]);
    let send = |client: &mut Client, id: &str| {
        let mut producer = Transactional::begin(client, id, Protocol::Old);
        let batch = producer.batch(TOPIC, 0, &["not added"]);
        producer.send(client, TOPIC, 0, &batch).error_code
    };
    assert_eq!(send(&mut client, "verified"), ErrorCode::TRANSACTION_ABORTABLE);
    client.set_config(BROKER, "", VERIFICATION, "false");
    assert_eq!(send(&mut client, "unverified"), ErrorCode::NONE);
    client.set_config(BROKER, "", VERIFICATION, "true");
    assert_eq!(send(&mut client, "verified again"), ErrorCode::TRANSACTION_ABORTABLE);
}

#[test]
fn deleted_topic_of_the_coordinator_aborts_open_transactions_and_resets_ids() {
    for protocol in Protocol::BOTH {
        for is_killed in [false, true] {
            let (mut broker, mut client) = started(&[]);
            let mut producers = ["open", "idle"].map(|id| Transactional::begin(&mut client, id, protocol));
            one(&mut client, &mut producers[1], "committed", true);
            producers[0].write(&mut client, TOPIC, 0, &["open"]);
            producers[0].write(&mut client, TOPIC, 1, &["open"]);
            client.delete_topic(STATE_TOPIC);
            if is_killed {
                broker.kill();
                broker.restart();
                client = broker.client();
            }
            wait_until("the stable offset reaches the end", SOON, || {
                (0..2).all(|partition| client.stable(TOPIC, partition) == client.latest(TOPIC, partition))
            });
            for old in producers {
                let refused = old.try_end(&mut client, true).error_code;
                let known = [ErrorCode::COORDINATOR_NOT_AVAILABLE, ErrorCode::INVALID_PRODUCER_ID_MAPPING];
                assert!(known.contains(&refused), "{refused}");
                let mut new = Transactional::begin(&mut client, &old.transactional_id, protocol);
                assert_ne!(new.id, old.id);
                assert_eq!(old.try_end(&mut client, true).error_code, ErrorCode::INVALID_PRODUCER_ID_MAPPING);
                one(&mut client, &mut new, "new", true);
            }
            assert_eq!(client.committed_texts(TOPIC, 0), ["committed", "new", "new"]);
            assert_eq!(client.committed_texts(TOPIC, 1), [""; 0]);
        }
    }
}

/// Returns the value of a sample on the metrics page.
fn metric(broker: &Broker, sample: &str) -> f64 {
    let page = broker.admin_page("/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample}")).parse().expect("a number")
}

#[test]
fn metrics_show_commits_ids_and_the_stable_offset() {
    let (broker, mut client) = started(&["fullbore.admin.listener=127.0.0.1:0"]);
    let mut producer = Transactional::begin(&mut client, "measured", Protocol::New);
    for is_commit in [true, true, false] {
        one(&mut client, &mut producer, "v", is_commit);
    }
    wait_for_state(&mut client, "measured", "CompleteAbort");
    for part in ["decision", "markers"] {
        let sample = format!("fullbore_transaction_commit_duration_seconds_count{{part=\"{part}\"}}");
        assert_eq!(metric(&broker, &sample), 2.0, "{part}");
    }
    assert_eq!(metric(&broker, "fullbore_transactional_ids{state=\"CompleteAbort\"}"), 1.0);
    assert_eq!(metric(&broker, "fullbore_last_stable_offset_lag_max"), 0.0);
    producer.write(&mut client, TOPIC, 0, &["a", "b", "c"]);
    assert_eq!(metric(&broker, "fullbore_transactional_ids{state=\"Ongoing\"}"), 1.0);
    assert_eq!(metric(&broker, "fullbore_transactional_ids{state=\"CompleteAbort\"}"), 0.0);
    wait_until("the stable offset lags", SOON, || metric(&broker, "fullbore_last_stable_offset_lag_max") == 3.0);
    metric(&broker, "fullbore_transaction_oldest_open_seconds{transactional_id=\"\"}");
}
