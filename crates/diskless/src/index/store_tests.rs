//! Tests the recorded id of the object store on each back end.

use super::IndexStore;
use super::postgres::tests::PostgresBackEnd;
use super::store::KnownStore;
use super::tests::{BackEnd, Opened, SqliteBackEnd, batch};

fn the_number_of_the_store_stays<B: BackEnd>(while_unused: bool) {
    let mut opened = Opened::<B>::new(1);
    let known = |store_id: Option<&str>, is_in_use| Ok(KnownStore { store_id: store_id.map(str::to_owned), is_in_use });
    let store = &mut opened.index.store;
    assert_eq!(store.known_store(), known(None, false));
    assert_eq!(store.adopt_store("one"), Ok("one".into()));
    let counts = if while_unused { "one" } else { "other" };
    assert_eq!(opened.back_end.store().adopt_store("other"), Ok(counts.into()));
    let partition = opened.partitions[0];
    let object = opened.object();
    assert_eq!(opened.index.store.known_store(), known(Some(counts), while_unused), "a number is no object");
    opened.commit(object, &[batch(partition, 0, 0)]);
    let store = &mut opened.index.store;
    assert_eq!(store.known_store(), known(Some(counts), true));
    assert_eq!(store.adopt_store("third"), Ok(counts.into()));
}

#[test]
fn objects_are_committed_the_id_of_the_store_stays() {
    the_number_of_the_store_stays::<SqliteBackEnd>(false);
}

#[test]
fn other_brokers_may_use_the_store_its_first_id_stays() {
    the_number_of_the_store_stays::<PostgresBackEnd>(true);
}
