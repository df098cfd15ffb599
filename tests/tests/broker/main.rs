//! Tests of the broker as a process: its protocol, its files, and how it ends. Each test starts its own broker.

mod behind_refused;
mod bulk;
mod cluster;
mod cold;
mod committed;
mod committed_kill;
mod compaction;
mod configs;
mod consumer_groups;
mod consumer_settling;
mod copy;
mod crash;
mod create_partitions;
mod damage;
mod delete_records;
mod deleted;
mod descriptors;
mod disk_freed;
mod disk_full;
mod diskless;
mod diskless_bounds;
mod diskless_cold;
mod diskless_ends;
mod diskless_full;
mod diskless_lost;
mod diskless_older;
mod diskless_polls;
mod diskless_store;
mod diskless_wal;
mod failing_disk;
mod fetch;
mod follow;
mod groups;
mod groups_bounds;
mod half_closed;
mod hostile;
mod hostile_load;
mod hung_disk;
mod internal_topics;
mod limits;
mod load;
mod log_lines;
mod log_rate_limits;
mod many;
mod members;
mod moved_directory;
mod neighbours;
mod offsets;
mod partition_state;
mod pipe;
mod pipelining;
mod postgres;
mod produce;
mod produce_bytes;
mod read_ahead;
mod readers;
mod recompression;
mod recompression_bounds;
mod recovery;
mod recreated;
mod reorder;
mod reorder_bounds;
mod resources;
mod sequence;
mod sequence_bounds;
mod sessions;
mod slow_readers;
mod start;
mod stopping;
mod telemetry;
mod tls;
mod tls_hangs;
mod tls_tools;
mod topics;
mod transactions;
mod transactions_offsets;
mod unreadable;
mod unsecured;
mod upgrade;
mod versions;
mod window;

use fullbore_tests::{Batch, Broker};

/// Checks that the broker still serves a well-behaved client.
fn assert_serves(broker: &Broker) {
    let mut client = broker.client();
    let topic = "honest";
    if client.list_offset(topic, 0, -1).error_code.is_err() {
        client.create_topic(topic, 1, &[]);
    }
    let offset = client.produced(topic, 0, &Batch::of(&["still here"]));
    let records = client.fetch_records(topic, 0);
    assert_eq!(records[usize::try_from(offset).expect("an offset")].text(), "still here");
}
