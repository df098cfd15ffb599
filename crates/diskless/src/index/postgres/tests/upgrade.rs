//! Tests the upgrade of a database with the schema of the first release.

use super::*;

#[test]
fn database_is_of_the_first_release_it_is_migrated_and_its_producers_go_on() {
    let mut opened = OpenedOnPostgres::new(1);
    let partition = opened.partitions[0];
    let object = opened.object();
    opened.commit(object, &[batch(partition, 0, 0)]);
    // Rows without transactions have the same format as in the first release, so the test only changes the schema back.
    opened.back_end.database.run(
        "ALTER TABLE fullbore.diskless_partitions DROP COLUMN first_unstable, DROP COLUMN IF EXISTS aborted_to;
         DROP TABLE fullbore.diskless_aborted; UPDATE fullbore.schema_version SET version = 8",
    );
    let refused = Index::new(opened.back_end.store(), 5).refresh_one(partition, 0);
    assert!(matches!(refused, Err(StoreError::Away(_))), "until it is migrated: {refused:?}");
    let server = DatabaseServer::new(&PlaneSettings::new(&opened.back_end.database.url(), None, 10_000), "test");
    let mut connection = DatabaseConnection::new(Arc::new(server.expect("a URL"))).expect("made");
    connection.connect().expect("connects");
    let migrated = connection.with_session(schema::migrate);
    assert_eq!(migrated.expect("it is connected").expect("migrated"), 8);
    opened.again();
    let row = opened.index.refresh_one(partition, 0).expect("known").expect("there").row;
    assert_eq!((row.next_offset, row.first_unstable, row.last_stable_offset()), (10, None, 10));
    let object = opened.object();
    assert_eq!(opened.commit(object, &[batch(partition, 0, 10)]), [appended(10)]);
    assert!(opened.back_end.finder().aborted(partition, 0..20, 1).expect("read").transactions.is_empty());
}
