//! Data directories of earlier releases under the present broker. One is of a stopped broker, the other of a killed
//! one.
//!
//! The checks are in `fullbore_tests::Fixture`. The databases of clusters are tested in `cluster`.

use fullbore_tests::{Broker, Client, Fixture, WAITING};

/// The fixtures of a standalone broker.
const NAMES: [&str; 2] = ["broker", "killed"];

/// Starts a broker on each fixture and runs the check. The settings are those of [`WAITING`], in which `sets` replace
/// those with the same keys.
fn for_each(sets: &[&str], check: impl Fn(&Fixture, &Broker)) {
    for fixture in NAMES.iter().flat_map(|name| Fixture::of_releases(name)) {
        let is_set = |key: &&str| sets.iter().any(|set| set.split('=').next() == key.split('=').next());
        let waiting = WAITING.iter().copied().filter(|set| !is_set(set));
        let sets: Vec<&str> = sets.iter().copied().chain(waiting).collect();
        check(&fixture, &Broker::start_in(&fixture.path("data"), &sets));
    }
}

#[test]
fn directory_of_an_earlier_release_reads_as_its_manifest() {
    for_each(&[], |fixture, broker| fixture.assert_described(&broker.addr().to_string()));
}

#[test]
fn compressed_batches_of_an_earlier_release_keep_their_codecs() {
    for_each(&[], |_, broker| {
        let batches = broker.client().fetch_batches("codecs", 0);
        let codecs: Vec<i16> = batches.iter().map(|batch| batch.attributes & 7).take(4).collect();
        assert_eq!(codecs, [1, 2, 3, 4]);
    });
}

#[test]
fn producers_of_an_earlier_release_continue_with_their_next_sequence() {
    for_each(&[], |fixture, broker| fixture.assert_producers_continue(|_| broker.client()));
}

#[test]
fn groups_of_an_earlier_release_continue_at_their_committed_offsets() {
    for_each(&[], |fixture, broker| fixture.assert_groups_continue(&broker.addr().to_string()));
}

#[test]
fn open_transaction_of_an_earlier_release_is_aborted_by_its_successor() {
    let client = |broker: &Broker| -> Client { broker.client() };
    for_each(&[], |fixture, broker| fixture.assert_successors_abort(|_| client(broker), |_| client(broker)));
}

#[test]
fn open_transaction_of_an_earlier_release_is_aborted_by_its_timeout() {
    let often = ["transaction.abort.timed.out.transaction.cleanup.interval.ms=100"];
    for_each(&often, |fixture, broker| fixture.assert_timeouts_abort(|_| broker.client()));
}
