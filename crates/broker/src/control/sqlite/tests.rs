//! The file itself: what an older version left, what cannot be used, and how large it gets.

use super::super::tests::{RETAIN, alter_broker, create, open, refusal, set, wanted};
use super::super::{BrokerScope, TopicRef};
use super::open::CHECKPOINT_PAGES;
use super::*;
use crate::control::owner::random_id;
use fullbore_rules::replica::PartitionRegistration;

#[tokio::test]
async fn databases_of_every_older_schema_are_taken_over() {
    for found in 1..=8 {
        let folder = tempfile::tempdir().expect("tempdir");
        create(&open(folder.path()).control, vec![wanted("kept")]).await.remove(0).expect("created");
        drop(older::age(folder.path(), found));
        let control = &open(folder.path()).control;
        let kept = control.image().topic("kept").cloned().expect("kept");
        let led = PartitionRegistration { replicas: vec![1], isr: vec![1], leader: Some(1), ..Default::default() };
        let epochs = PartitionRegistration { leader_epoch: 0, partition_epoch: 0, ..led };
        assert_eq!(kept.partitions.iter().map(|of| (**of).clone()).collect::<Vec<_>>(), vec![epochs; 2]);
        assert_eq!((control.take_kept_in_database(), control.image().epoch()), (None, 3), "versions go on");
        alter_broker(control, BrokerScope::This, RETAIN, set("9")).await.expect("altered");
    }
}

#[tokio::test]
async fn what_was_kept_of_groups_is_handed_out_until_it_is_forgotten() {
    let folder = tempfile::tempdir().expect("tempdir");
    let topic = create(&open(folder.path()).control, vec![wanted("t")]).await.remove(0).expect("created");
    let kept = KeptInDatabase {
        groups: vec![StoredGroup { group: "g".into(), version: 1, state: bytes::Bytes::from_static(&[0, 255]) }],
        offsets: vec![KeptOffset {
            group: "g".into(),
            topic_id: topic.id,
            topic: "t".into(),
            partition: 1,
            offset: 5,
            leader_epoch: 7,
            metadata: "m".into(),
            committed_ms: 11,
            expires_ms: Some(99),
        }],
    };
    older::keep_groups(folder.path(), &kept);
    for _ in 0..2 {
        let opened = open(folder.path());
        assert_eq!(opened.control.take_kept_in_database(), Some(kept.clone()));
        assert_eq!(opened.control.take_kept_in_database(), None);
    }
    open(folder.path()).control.forget_kept_in_database().await.expect("forgotten");
    let control = &open(folder.path()).control;
    assert_eq!((control.take_kept_in_database(), control.image().topics().len()), (None, 1));
    alter_broker(control, BrokerScope::This, RETAIN, set("9")).await.expect("altered");
}

#[test]
fn a_file_that_cannot_be_used_stops_the_start_by_its_name() {
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("control.db");
    std::fs::write(&file, b"this is not a database, but long enough to be taken for one".repeat(100)).expect("written");
    let error = refusal(folder.path(), "");
    assert!(error.starts_with(&format!("{} cannot be used: ", file.display())), "{error}");

    std::fs::remove_file(&file).expect("removed");
    let foreign = rusqlite::Connection::open(&file).expect("opens");
    foreign.execute_batch("CREATE TABLE theirs (x)").expect("created");
    drop(foreign);
    assert!(refusal(folder.path(), "").contains("not a Fullbore database"));
}

#[tokio::test]
async fn a_damaged_page_stops_the_start() {
    let folder = tempfile::tempdir().expect("tempdir");
    let opened = open(folder.path());
    create(&opened.control, (0..500).map(|n| wanted(&format!("topic-{n}"))).collect()).await;
    drop(opened);
    let file = folder.path().join("control.db");
    let mut bytes = std::fs::read(&file).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xff);
    std::fs::write(&file, bytes).expect("written");
    let error = refusal(folder.path(), "");
    assert!(error.starts_with(&format!("{} cannot be used: ", file.display())), "{error}");
}

#[test]
fn a_newer_schema_and_another_node_are_refused() {
    let folder = tempfile::tempdir().expect("tempdir");
    drop(open(folder.path()));
    assert!(refusal(folder.path(), "node.id=2").ends_with("belongs to node.id=1, but node.id=2 is set"));
    let connection = rusqlite::Connection::open(folder.path().join("control.db")).expect("opens");
    connection.pragma_update(None, "user_version", 10).expect("set");
    drop(connection);
    assert!(refusal(folder.path(), "").contains("newer Fullbore (schema 10, this one knows 9)"));
}

/// More than a change of one topic has.
const TRANSACTION_PAGES: usize = 12;

#[tokio::test]
async fn the_write_ahead_log_stays_small_while_topics_come_and_go() {
    let folder = tempfile::tempdir().expect("tempdir");
    let opened = open(folder.path());
    for round in 0..40 {
        let names: Vec<String> = (0..5).map(|n| format!("topic-{round}-{n}-{}", random_id())).collect();
        for name in &names {
            create(&opened.control, vec![wanted(name)]).await;
        }
        for name in names {
            opened.control.delete_topics(vec![TopicRef::Name(name.into())]).await.remove(0).expect("deleted");
        }
    }
    let log = std::fs::metadata(folder.path().join("control.db-wal")).expect("there").len() as usize;
    // A page and what SQLite writes before it.
    let pages = log / (4096 + 24);
    assert!(pages <= CHECKPOINT_PAGES as usize + TRANSACTION_PAGES, "{pages} pages");
}
