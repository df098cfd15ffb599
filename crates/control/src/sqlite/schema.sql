-- The control plane's tables on one machine (control.db). Kafka's names; ids are 16 bytes, big endian.
-- The version of this schema is SQLite's user_version; application_id marks the file as ours.

-- What the whole cluster shares. Life: from the first start on, one row.
CREATE TABLE cluster (
  one              INTEGER PRIMARY KEY CHECK (one = 1),
  cluster_id       TEXT    NOT NULL,                                -- 22 characters, as clients see it
  node_id          INTEGER NOT NULL,                                -- the broker this folder belongs to
  version          INTEGER NOT NULL,                                -- bumped by each transaction that changes topics
  next_producer_id INTEGER NOT NULL                                 -- first id of no block handed out yet
) STRICT;

-- A commit. Life: until there are 100,000 newer ones.
CREATE TABLE versions (
  version INTEGER PRIMARY KEY,                                      -- that of cluster is the newest
  mark    INTEGER NOT NULL                                          -- drawn for this commit
) STRICT;

-- A broker. Life: from its first start on.
CREATE TABLE brokers (
  broker_id     INTEGER PRIMARY KEY,                                -- node.id
  epoch         INTEGER NOT NULL,                                   -- the version with which it registered; larger with each start
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

-- A topic. Life: from CreateTopics to DeleteTopics; a topic created again has a new id.
CREATE TABLE topics (
  id   BLOB PRIMARY KEY CHECK (length(id) = 16),
  name TEXT NOT NULL UNIQUE
) STRICT;

-- Neighbouring partitions of a topic that are registered alike: on one machine, all of them. Life: from their creation to
-- the deletion of the topic. Lists are broker ids with commas between them.
CREATE TABLE partitions (
  topic_id        BLOB    NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  first           INTEGER NOT NULL CHECK (first >= 0),              -- the number of the first; they go on without gaps
  count           INTEGER NOT NULL CHECK (count >= 1),              -- how many they are
  replicas        TEXT    NOT NULL,                                 -- the preferred leader first
  isr             TEXT    NOT NULL,                                 -- those in sync
  elr             TEXT    NOT NULL,                                 -- those that left the ISR below the least one (KIP-966)
  leader          INTEGER,                                          -- null: nobody leads
  leader_epoch    INTEGER NOT NULL,                                 -- bumped by each election
  partition_epoch INTEGER NOT NULL,                                 -- bumped by each change of the partition
  lost            TEXT    NOT NULL DEFAULT '',                      -- those that left ISR or ELR, as they have lost their logs' ends
  PRIMARY KEY (topic_id, first)
) STRICT, WITHOUT ROWID;

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

-- What a topic sets itself; everything else it has from the broker. Life: that of its topic.
CREATE TABLE topic_configs (
  topic_id BLOB NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  name     TEXT NOT NULL,
  value    TEXT NOT NULL,
  PRIMARY KEY (topic_id, name)
) STRICT, WITHOUT ROWID;

-- What IncrementalAlterConfigs set for brokers. Life: until it is deleted the same way.
CREATE TABLE broker_configs (
  every_broker INTEGER NOT NULL CHECK (every_broker IN (0, 1)),     -- 0: this broker alone, which goes first
  name         TEXT    NOT NULL,
  value        TEXT    NOT NULL,
  PRIMARY KEY (every_broker, name)
) STRICT, WITHOUT ROWID;

-- What IncrementalAlterConfigs set for other resources than topics and brokers. Life: until deleted the same way.
CREATE TABLE resource_configs (
  resource_type INTEGER NOT NULL,                                   -- Kafka's ConfigResource.Type: 16 client metrics, 32 group
  resource_name TEXT    NOT NULL,
  name          TEXT    NOT NULL,
  value         TEXT    NOT NULL,
  PRIMARY KEY (resource_type, resource_name, name)
) STRICT, WITHOUT ROWID;

-- A topic that was deleted, and of which there may still be folders under its name. Life: from DeleteTopics until nothing is
-- left of it, which a start sees to if need be. A name may have been deleted several times.
CREATE TABLE deleted_topics (
  id         BLOB    PRIMARY KEY CHECK (length(id) = 16),
  name       TEXT    NOT NULL,
  partitions INTEGER NOT NULL CHECK (partitions >= 1)
) STRICT;

-- A deleted topic whose producers may go on in the next topic of its name. Life: until a later topic of the name that had as many partitions is deleted, or until
-- 10,000 other names that no topic has were deleted later.
CREATE TABLE past_topics (
  name               TEXT    NOT NULL,
  deleted_at         INTEGER NOT NULL CHECK (deleted_at >= 1),      -- the version that deleted it
  id                 BLOB    NOT NULL CHECK (length(id) = 16),
  partitions         INTEGER NOT NULL CHECK (partitions >= 1),
  diskless           INTEGER NOT NULL CHECK (diskless IN (0, 1)),
  producer_ids_below INTEGER NOT NULL,                              -- ids of its producers are less
  PRIMARY KEY (name, deleted_at)
) STRICT, WITHOUT ROWID;
