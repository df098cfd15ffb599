-- Tables of a standalone broker's control plane (control.db). Names of columns are Kafka's; ids are 16 bytes, big endian.
-- The version of this schema is SQLite's user_version; application_id marks the file as ours.

-- State of the whole cluster. Lifetime: from the first start on, one row.
CREATE TABLE cluster (
  one              INTEGER PRIMARY KEY CHECK (one = 1),
  cluster_id       TEXT    NOT NULL,                                -- 22 characters, as clients see it
  node_id          INTEGER NOT NULL,                                -- broker that this directory belongs to
  version          INTEGER NOT NULL,                                -- bumped by each commit
  next_producer_id INTEGER NOT NULL                                 -- first id that no broker has reserved
) STRICT;

-- A commit. Lifetime: until there are 100,000 newer ones.
CREATE TABLE versions (
  version INTEGER PRIMARY KEY,                                      -- the newest is that of cluster
  mark    INTEGER NOT NULL                                          -- nonce of this commit
) STRICT;

-- A broker. Lifetime: from its first start on.
CREATE TABLE brokers (
  broker_id     INTEGER PRIMARY KEY,                                -- node.id
  epoch         INTEGER NOT NULL,                                   -- version with which it registered; grows with each start
  folder        BLOB    NOT NULL CHECK (length(folder) = 16),       -- id of its data directory
  process       BLOB    NOT NULL CHECK (length(process) = 16),      -- drawn at each start
  fenced        INTEGER NOT NULL CHECK (fenced IN (0, 1)),          -- failed or stopped
  shutting_down INTEGER NOT NULL CHECK (shutting_down IN (0, 1)),   -- in controlled shutdown
  rack          TEXT                                                -- null: none
) STRICT;

-- Address of a broker for clients. Lifetime: until the broker's next start.
CREATE TABLE broker_endpoints (
  broker_id INTEGER NOT NULL REFERENCES brokers (broker_id) ON DELETE CASCADE,
  listener  TEXT    NOT NULL,
  host      TEXT    NOT NULL,
  port      INTEGER NOT NULL,
  PRIMARY KEY (broker_id, listener)
) STRICT, WITHOUT ROWID;

-- A topic. Lifetime: from CreateTopics to DeleteTopics; a recreated topic has a new id.
CREATE TABLE topics (
  id   BLOB PRIMARY KEY CHECK (length(id) = 16),
  name TEXT NOT NULL UNIQUE
) STRICT;

-- Adjacent partitions of a topic with equal registrations, as one row. Lifetime: from the creation of the partitions to the deletion of
-- the topic. Lists are broker ids, separated by commas.
CREATE TABLE partitions (
  topic_id        BLOB    NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  first           INTEGER NOT NULL CHECK (first >= 0),              -- number of the first; without gaps
  count           INTEGER NOT NULL CHECK (count >= 1),              -- number of partitions
  replicas        TEXT    NOT NULL,                                 -- preferred leader first
  isr             TEXT    NOT NULL,                                 -- in-sync replicas
  elr             TEXT    NOT NULL,                                 -- replicas that left the ISR below min.insync.replicas (KIP-966)
  leader          INTEGER,                                          -- null: no leader
  leader_epoch    INTEGER NOT NULL,                                 -- bumped by each election
  partition_epoch INTEGER NOT NULL,                                 -- bumped by each change of the partition
  lost            TEXT    NOT NULL DEFAULT '',                      -- replicas that left ISR or ELR because their logs were truncated
  PRIMARY KEY (topic_id, first)
) STRICT, WITHOUT ROWID;

-- End of a replica's log that an unclean shutdown truncated. Lifetime: until the partition has a leader.
CREATE TABLE log_ends (
  topic_id     BLOB    NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  partition    INTEGER NOT NULL,
  broker_id    INTEGER NOT NULL,
  broker_epoch INTEGER NOT NULL,                                    -- epoch of the process that reported it
  last_epoch   INTEGER,                                             -- leader epoch of the last record; null: no record
  end_offset   INTEGER NOT NULL,
  PRIMARY KEY (topic_id, partition, broker_id)
) STRICT, WITHOUT ROWID;

-- Override of a topic; other settings are the broker's. Lifetime: that of its topic.
CREATE TABLE topic_configs (
  topic_id BLOB NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  name     TEXT NOT NULL,
  value    TEXT NOT NULL,
  PRIMARY KEY (topic_id, name)
) STRICT, WITHOUT ROWID;

-- Dynamic setting of brokers, set by IncrementalAlterConfigs. Lifetime: until it is deleted the same way.
CREATE TABLE broker_configs (
  every_broker INTEGER NOT NULL CHECK (every_broker IN (0, 1)),     -- 0: this broker alone, which takes precedence
  name         TEXT    NOT NULL,
  value        TEXT    NOT NULL,
  PRIMARY KEY (every_broker, name)
) STRICT, WITHOUT ROWID;

-- Setting of a group or client metrics subscription, set by IncrementalAlterConfigs. Lifetime: until it is deleted the same way.
CREATE TABLE resource_configs (
  resource_type INTEGER NOT NULL,                                   -- Kafka's ConfigResource.Type: 16 client metrics, 32 group
  resource_name TEXT    NOT NULL,
  name          TEXT    NOT NULL,
  value         TEXT    NOT NULL,
  PRIMARY KEY (resource_type, resource_name, name)
) STRICT, WITHOUT ROWID;

-- A deleted topic whose files may still exist. Lifetime: from DeleteTopics until the files are removed, at the latest by the next start.
-- Several deleted topics may have the same name.
CREATE TABLE deleted_topics (
  id         BLOB    PRIMARY KEY CHECK (length(id) = 16),
  name       TEXT    NOT NULL,
  partitions INTEGER NOT NULL CHECK (partitions >= 1)
) STRICT;

-- A deleted topic whose producers may continue in the next topic of its name. Lifetime: until a later topic of the name with at least
-- as many partitions is deleted, or until 10,000 other names without a topic were deleted later.
CREATE TABLE past_topics (
  name               TEXT    NOT NULL,
  deleted_at         INTEGER NOT NULL CHECK (deleted_at >= 1),      -- version that deleted it
  id                 BLOB    NOT NULL CHECK (length(id) = 16),
  partitions         INTEGER NOT NULL CHECK (partitions >= 1),
  diskless           INTEGER NOT NULL CHECK (diskless IN (0, 1)),
  producer_ids_below INTEGER NOT NULL,                              -- its producers have smaller ids
  PRIMARY KEY (name, deleted_at)
) STRICT, WITHOUT ROWID;
