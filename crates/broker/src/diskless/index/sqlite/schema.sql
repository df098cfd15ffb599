-- The index of diskless partitions. Numbers of partitions are given once: of a table with AUTOINCREMENT none comes back.
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

-- What of partitions, there or deleted, nobody may read any more: what is before this offset.
CREATE TABLE cleared (
    partition INTEGER PRIMARY KEY,
    before INTEGER NOT NULL
) STRICT;

-- Of each name the last deleted partition that was written, whose producers' rows are kept: the newest of each, and at offsets below 0 what is
-- carried over of producers that had written only to those before it.
CREATE TABLE predecessors (
    topic TEXT NOT NULL,
    partition_index INTEGER NOT NULL,
    partition INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (topic, partition_index)
) STRICT, WITHOUT ROWID;

-- Numbers are drawn by who registers an object. state: 0 registered, 1 live, 2 unused, 3 deleted from the store.
CREATE TABLE objects (
    id INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL
) STRICT;
-- For who cleans: what is used is not in it.
CREATE INDEX objects_to_clean ON objects (state, changed_ms) WHERE state <> 1;

-- The number of the object store in which the objects are. Life: from before the first one is put there.
CREATE TABLE store (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    store_id TEXT NOT NULL
) STRICT;

-- The adjacent batches of a partition in an object.
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

-- What one commit has appended of one producer: never changed, and removed once it is of no interest.
CREATE TABLE producers (
    partition INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    written_ms INTEGER NOT NULL,
    batches BLOB NOT NULL,
    PRIMARY KEY (partition, base_offset)
) STRICT, WITHOUT ROWID;

-- Transactions that have changed this file. Each adds one, so that a file which lacks some of them is known by a note beside it.
CREATE TABLE changes (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    number INTEGER NOT NULL
) STRICT;
INSERT INTO changes VALUES (1, 0);
