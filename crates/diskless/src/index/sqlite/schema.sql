-- Index of diskless partitions. AUTOINCREMENT: the id of a deleted partition is never used again.
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

-- Partitions, existing or deleted, with records that must not be read any more: those before the offset `before`.
CREATE TABLE cleared (
    partition INTEGER PRIMARY KEY,
    before INTEGER NOT NULL
) STRICT;

-- Predecessors: for each name and number, the last deleted partition that had records. The newest row of each of its
-- producers is kept. Rows at offsets below 0 were copied from an earlier partition, for producers that wrote only to
-- earlier ones.
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
-- For the GC, which does not read live objects.
CREATE INDEX objects_to_clean ON objects (state, changed_ms) WHERE state <> 1;

-- Id of the object store that contains the objects. Written before the first object is put there.
CREATE TABLE store (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    store_id TEXT NOT NULL
) STRICT;

-- Extents: the adjacent batches of a partition in an object.
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

-- Number of transactions that have changed this file. A note beside the file contains the same number, and shows if the
-- file lacks some of them.
CREATE TABLE changes (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    number INTEGER NOT NULL
) STRICT;
INSERT INTO changes VALUES (1, 0);
