//! What the index knows of the object store, on each of its back ends.

use super::postgres::tests::PostgresBackEnd;
use super::store::KnownStore;
use super::tests::{BackEnd, Opened, SqliteBackEnd, batch};
use super::{IndexStore, SqliteIndex};

#[test]
fn a_file_of_a_build_before_the_first_release_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    drop(SqliteIndex::open(folder.path()).expect("made"));
    let file = folder.path().join("diskless.db");
    for found in [1, 4] {
        let connection = rusqlite::Connection::open(&file).expect("opened");
        connection.pragma_update(None, "user_version", found).expect("set");
        drop(connection);
        let before = std::fs::read(&file).expect("read");
        let refused = SqliteIndex::open(folder.path()).err().expect("refused").to_string();
        assert!(
            refused.contains(&format!("diskless.db has schema {found} of a build before the first release")),
            "{refused}"
        );
        assert!(std::fs::read(&file).expect("read") == before, "it is changed");
    }
}

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
