//! The object store as the index knows it, on each back end.

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
fn the_number_of_the_store_stays_once_there_are_objects() {
    the_number_of_the_store_stays::<SqliteBackEnd>(false);
}

#[test]
fn the_first_number_of_a_store_stays_where_others_may_use_it() {
    the_number_of_the_store_stays::<PostgresBackEnd>(true);
}
