//! Tests of `control.db`: files that cannot be used, and the size of the write-ahead log.

use super::super::TopicRef;
use super::super::test_util::{create, wanted};
use super::super::tests::{open, refusal};
use super::open::{CHECKPOINT_PAGES, SCHEMA_VERSION};
use super::*;
use fullbore_host::random_id;

#[tokio::test]
async fn file_of_a_build_before_the_first_release_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().expect("tempdir");
    create(&open(directory.path()).control, vec![wanted("t")]).await.remove(0).expect("created");
    let file = directory.path().join(FILE);
    for found in [1, 9] {
        let connection = rusqlite::Connection::open(&file).expect("opens");
        connection.pragma_update(None, "user_version", found).expect("set");
        drop(connection);
        let before = std::fs::read(&file).expect("read");
        let refused = refusal(directory.path(), "");
        let named = format!("{} has schema {found} of a build before the first release, ", file.display());
        assert!(refused.starts_with(&named), "{refused}");
        assert!(std::fs::read(&file).expect("read") == before, "it is changed");
    }
}

#[test]
fn unusable_file_stops_the_start_and_is_named() {
    let directory = tempfile::tempdir().expect("tempdir");
    let file = directory.path().join("control.db");
    std::fs::write(&file, b"this is not a database, but long enough to be taken for one".repeat(100)).expect("written");
    let error = refusal(directory.path(), "");
    assert!(error.starts_with(&format!("{} cannot be used: ", file.display())), "{error}");

    std::fs::remove_file(&file).expect("removed");
    let foreign = rusqlite::Connection::open(&file).expect("opens");
    foreign.execute_batch("CREATE TABLE theirs (x)").expect("created");
    drop(foreign);
    assert!(refusal(directory.path(), "").contains("not a Fullbore database"));
}

#[tokio::test]
async fn a_damaged_page_stops_the_start() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    create(&opened.control, (0..500).map(|n| wanted(&format!("topic-{n}"))).collect()).await;
    drop(opened);
    let file = directory.path().join("control.db");
    let mut bytes = std::fs::read(&file).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xff);
    std::fs::write(&file, bytes).expect("written");
    let error = refusal(directory.path(), "");
    assert!(error.starts_with(&format!("{} cannot be used: ", file.display())), "{error}");
}

#[test]
fn a_newer_schema_and_another_node_are_refused() {
    let directory = tempfile::tempdir().expect("tempdir");
    drop(open(directory.path()));
    assert!(refusal(directory.path(), "node.id=2").ends_with("belongs to node.id=1, but node.id=2 is set"));
    let connection = rusqlite::Connection::open(directory.path().join("control.db")).expect("opens");
    connection.pragma_update(None, "user_version", SCHEMA_VERSION + 1).expect("set");
    drop(connection);
    assert!(
        refusal(directory.path(), "")
            .contains(&format!("newer Fullbore (schema {}, this one knows {SCHEMA_VERSION})", SCHEMA_VERSION + 1))
    );
}

/// Maximum number of pages that a transaction writes when it changes one topic.
const TRANSACTION_PAGES: usize = 12;

#[tokio::test]
async fn the_write_ahead_log_stays_small_while_topics_come_and_go() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    for round in 0..40 {
        let names: Vec<String> = (0..5).map(|n| format!("topic-{round}-{n}-{}", random_id())).collect();
        for name in &names {
            create(&opened.control, vec![wanted(name)]).await;
        }
        for name in names {
            opened.control.delete_topics(vec![TopicRef::Name(name.into())]).await.remove(0).expect("deleted");
        }
    }
    let log = std::fs::metadata(directory.path().join("control.db-wal")).expect("there").len() as usize;
    // In the write-ahead log, each page has a header of 24 bytes.
    let pages = log / (4096 + 24);
    assert!(pages <= CHECKPOINT_PAGES as usize + TRANSACTION_PAGES, "{pages} pages");
}
