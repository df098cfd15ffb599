-- Index of diskless partitions. Ids of partitions are never used again: AUTOINCREMENT sees to that.
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id BLOB NOT NULL,
    partition_index INTEGER NOT NULL,
    log_start INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    max_timestamp INTEGER NOT NULL,
    has_forgotten INTEGER NOT NULL,
    -- The largest id of a producer that was removed for its silence; -1 if none was.
    expired_to INTEGER NOT NULL,
    topic TEXT,
    UNIQUE (topic_id, partition_index)
) STRICT;
CREATE INDEX partitions_by_name ON partitions (topic, partition_index);

-- Records of partitions, existing or deleted, that must not be read any more: those before this offset.
CREATE TABLE cleared (
    partition INTEGER PRIMARY KEY,
    before INTEGER NOT NULL
) STRICT;

-- Predecessors: the last deleted partition of each name that was written. Its producers' rows are kept: the newest of
-- each, and at offsets below 0 those carried over of producers that have written only to earlier partitions.
CREATE TABLE predecessors (
    topic TEXT NOT NULL,
    partition_index INTEGER NOT NULL,
    partition INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (topic, partition_index)
) STRICT, WITHOUT ROWID;

-- Objects. The broker that registers an object draws its number. state: 0 registered, 1 live, 2 unused, 3 deleted from
-- the store, 4 DELETE failed.
CREATE TABLE objects (
    id INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL
) STRICT;
-- For the GC: live objects are not in it.
CREATE INDEX objects_to_clean ON objects (state, changed_ms) WHERE state <> 1;

-- Id of the object store that has the objects. Written before the first object is put there.
CREATE TABLE store (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    store_id TEXT NOT NULL
) STRICT;

-- Runs: the adjacent batches of a partition in an object.
CREATE TABLE runs (
    partition INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    object INTEGER NOT NULL,
    position INTEGER NOT NULL,
    max_timestamp_so_far INTEGER NOT NULL,
    batches BLOB NOT NULL,
    PRIMARY KEY (partition, base_offset)
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_of_object ON runs (object);

-- Batches of one producer that one commit has appended. Rows never change; the GC removes those that are not needed.
CREATE TABLE producers (
    partition INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    written_ms INTEGER NOT NULL,
    batches BLOB NOT NULL,
    PRIMARY KEY (partition, base_offset)
) STRICT, WITHOUT ROWID;

-- Number of transactions that have changed this file. A note beside the file shows if the file lacks some of them.
CREATE TABLE changes (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    number INTEGER NOT NULL
) STRICT;
INSERT INTO changes VALUES (1, 0);
