//! A standalone broker that starts on an older copy of its data directory, which has the index of its diskless topics.

use std::fs;
use std::path::Path;
use std::process::Command;

use fullbore_tests::{Batch, Broker};

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];

fn numbered(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{what} {number}")).collect()
}

fn produced(broker: &Broker, texts: &[String]) {
    let mut client = broker.client();
    for text in texts {
        client.produced(TOPIC, 0, &Batch::of(&[text]));
    }
}

fn texts(broker: &Broker) -> Vec<String> {
    broker.client().fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success(), "{} is copied", from.display());
}

/// Only the index is replaced by an older copy. The store keeps the newest objects, and writes after the replacement
/// must not overwrite them.
#[test]
fn writes_after_a_restored_older_index_overwrite_no_newer_object() {
    let place = tempfile::tempdir().expect("a directory");
    let (directory, older) = (place.path().join("data"), place.path().join("older"));
    let storage = format!("diskless.storage={}", place.path().join("store").display());
    fs::create_dir(&directory).expect("made");
    let mut broker = Broker::start_in(&directory, &[&storage]);
    broker.client().create_topic(TOPIC, 1, CONFIGS);
    let newest = numbered("newest", 100);
    produced(&broker, &newest[..1]);
    broker.stop();
    copy(&directory, &older);
    broker.restart();
    produced(&broker, &newest[1..]);
    broker.stop();
    let mut of_older = Broker::start_in(&older, &[&storage]);
    assert_eq!(texts(&of_older), newest[..1]);
    produced(&of_older, &numbered("older", 200));
    of_older.stop();
    broker.restart();
    assert_eq!(texts(&broker), newest);
}
