//! Databases as older versions left them, for tests.

use std::path::Path;

use rusqlite::{Connection, params};

use super::KeptInDatabase;
use super::open::FILE;

/// Makes the database of this folder one of an older schema.
pub(super) fn age(folder: &Path, schema: usize) -> Connection {
    let connection = Connection::open(folder.join(FILE)).expect("opens");
    let brokers = "DROP TABLE log_ends; DROP TABLE broker_endpoints; DROP TABLE brokers;
        ALTER TABLE cluster ADD COLUMN broker_epoch INTEGER NOT NULL DEFAULT 2;";
    connection.execute_batch(brokers).expect("as they were");
    if schema == 8 {
        connection.pragma_update(None, "user_version", schema).expect("as it was");
        return connection;
    }
    connection.execute_batch("ALTER TABLE partitions DROP COLUMN lost").expect("it was there");
    if schema == 7 {
        connection.pragma_update(None, "user_version", schema).expect("as it was");
        return connection;
    }
    connection.execute_batch("DROP TABLE versions").expect("it was there");
    if schema == 6 {
        connection.pragma_update(None, "user_version", schema).expect("as it was");
        return connection;
    }
    let numbers = "ALTER TABLE topics ADD COLUMN partitions INTEGER NOT NULL DEFAULT 1;
        ALTER TABLE topics ADD COLUMN replication_factor INTEGER NOT NULL DEFAULT 1;
        UPDATE topics SET partitions = (SELECT sum(count) FROM partitions WHERE topic_id = id);
        DROP TABLE partitions;";
    connection.execute_batch(numbers).expect("as they were");
    let later = ["broker_configs", "resource_configs", "deleted_topics"];
    for table in later.iter().skip(schema - 1) {
        connection.execute_batch(&format!("DROP TABLE {table}")).expect("it was there");
    }
    if matches!(schema, 3 | 4) {
        connection.execute_batch("DROP TABLE resource_configs").expect("it was there");
        connection.execute_batch(include_str!("schema_3.sql")).expect("made");
    }
    connection.pragma_update(None, "user_version", schema).expect("as it was");
    connection
}

/// Makes the database of this folder one that has groups, too.
pub fn keep_groups(folder: &Path, kept: &KeptInDatabase) {
    let mut connection = age(folder, 3);
    let transaction = connection.transaction().expect("begun");
    for of in &kept.groups {
        let row = params![of.group, of.version, &of.state[..]];
        transaction.execute("INSERT INTO groups VALUES (?1, ?2, ?3)", row).expect("written");
    }
    for of in &kept.offsets {
        let insert = "INSERT INTO group_offsets VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let when = (of.committed_ms, of.expires_ms);
        let row =
            params![of.group, of.topic_id.0, of.partition, of.offset, of.leader_epoch, of.metadata, when.0, when.1];
        transaction.execute(insert, row).expect("written");
    }
    transaction.commit().expect("written");
}
