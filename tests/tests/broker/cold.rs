//! Records that are not in the page cache. Consumers get them unchanged, both plain and over TLS. A client that reads
//! no responses delays no other client.

use crate::tls::Secured;
use fullbore_tests::{Batch, Broker, Client, FetchFrom, Record, fetch_request};
use fullbore_wire::apis::fetch::FetchRequest;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::sync::LazyLock;

const FETCH: i16 = 12;
/// How many batches the log has: more than fit into sockets or into the broker's cache of recent batches.
const BATCHES: usize = 24;
const BATCH_BYTES: usize = 1_000_000;

/// The value of each batch. Any two pages of the values differ.
static VALUES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let page = |number: usize| format!("{number:08}").repeat(512).into_bytes();
    let pages = BATCH_BYTES / 4096;
    (0..BATCHES).map(|batch| (0..pages).flat_map(|at| page(batch * pages + at)).collect()).collect()
});

fn fill(client: &mut Client) {
    client.create_topic("cold", 1, &[]);
    VALUES.iter().for_each(|value| _ = client.produced("cold", 0, &Batch::of(std::slice::from_ref(value))));
}

/// Evicts the topic from the page cache.
fn cool(broker: &Broker) {
    for path in broker.partition_files("cold", 0, "log") {
        let file = File::open(path).expect("a segment");
        file.sync_all().expect("on disk");
        fadvise(&file, 0, None, Advice::DontNeed).expect("advice is taken");
    }
}

/// Checks that `records` has all values from the index `first` on.
fn assert_all(records: Vec<Record>, first: usize) {
    let found: Vec<Vec<u8>> = records.into_iter().map(|record| record.value).collect();
    assert!(found == VALUES[first..], "as they were written");
}

#[test]
fn uncached_records_are_read_as_written_and_stay_uncached() {
    let secured = Secured::start(&[]);
    let broker = &secured.broker;
    fill(&mut broker.client());
    cool(broker);
    let mut before = broker.read_from_disks();
    let mut passes = Vec::new();
    for mut client in [broker.client(), secured.client(), broker.client()] {
        assert_all(client.fetch_records("cold", 0), 0);
        let after = broker.read_from_disks();
        passes.push(after - before);
        before = after;
    }
    if passes == [0, 0, 0] {
        eprintln!("files here are always in memory: only their content was looked at");
        return;
    }
    let all = BATCHES * BATCH_BYTES;
    assert!(passes.iter().all(|read| *read > all * 9 / 10), "each pass reads them from the disk: {passes:?} of {all}");
}

#[test]
fn clients_that_read_no_responses_do_not_hold_up_others() {
    let broker = Broker::start(&[]);
    fill(&mut broker.client());
    cool(&broker);
    // The fetches begin at different offsets of the log. Together they need more pieces than the read-ahead cache can
    // hold.
    let mut slow: Vec<(usize, Client)> = (0..28).map(|at| (at % BATCHES, broker.client())).collect();
    for (first, client) in &mut slow {
        let from = FetchFrom { topic: "cold", partition: 0, offset: *first as i64 };
        let mut all_of_it = fetch_request(&[from], 0, 0);
        all_of_it.topics[0].partitions[0].partition_max_bytes = i32::MAX;
        client.send(&all_of_it, FETCH);
    }
    slow.iter_mut().for_each(|(_, client)| client.wait_for_answer());
    assert_all(broker.client().fetch_records("cold", 0), 0);
    for (first, client) in &mut slow {
        let mut response = client.receive::<FetchRequest>(FETCH).1;
        let records = response.responses.remove(0).partitions.remove(0).records.expect("some");
        let batches = Batch::parse_all(records.memory().expect("read from a socket"));
        assert_all(batches.into_iter().flat_map(|batch| batch.records).collect(), *first);
    }
}
