-- Version 9: the brokers, and where they are reached.

-- A broker. Life: from its first start on.
CREATE TABLE brokers (
  broker_id     INTEGER PRIMARY KEY,                                -- node.id
  epoch         INTEGER NOT NULL,                                   -- larger with each start
  folder        BLOB    NOT NULL CHECK (length(folder) = 16),       -- the id of its data folder
  process       BLOB    NOT NULL CHECK (length(process) = 16),      -- drawn at each start
  fenced        INTEGER NOT NULL CHECK (fenced IN (0, 1)),          -- held for dead
  shutting_down INTEGER NOT NULL CHECK (shutting_down IN (0, 1)),   -- about to stop
  rack          TEXT                                                -- null: it has none
) STRICT;

-- Where its clients reach a broker. Life: until it starts anew.
CREATE TABLE broker_endpoints (
  broker_id INTEGER NOT NULL REFERENCES brokers (broker_id) ON DELETE CASCADE,
  listener  TEXT    NOT NULL,
  host      TEXT    NOT NULL,
  port      INTEGER NOT NULL,
  PRIMARY KEY (broker_id, listener)
) STRICT, WITHOUT ROWID;

-- A broker's epoch is that of the version with which it registered.
ALTER TABLE cluster DROP COLUMN broker_epoch;

-- Where the log of a replica ends that has lost its end. Life: until somebody leads the partition.
CREATE TABLE log_ends (
  topic_id     BLOB    NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  partition    INTEGER NOT NULL,
  broker_id    INTEGER NOT NULL,
  broker_epoch INTEGER NOT NULL,                                    -- that of the process that told it
  last_epoch   INTEGER,                                             -- leader epoch of the last record; null: there is none
  end_offset   INTEGER NOT NULL,
  PRIMARY KEY (topic_id, partition, broker_id)
) STRICT, WITHOUT ROWID;
