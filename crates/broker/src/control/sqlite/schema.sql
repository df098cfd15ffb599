-- The control plane's tables on one machine (control.db). Kafka's names; ids are 16 bytes, big endian.
-- The version of this schema is SQLite's user_version; application_id marks the file as ours.

-- What the whole cluster shares. Life: from the first start on, one row.
CREATE TABLE cluster (
  one              INTEGER PRIMARY KEY CHECK (one = 1),
  cluster_id       TEXT    NOT NULL,                                -- 22 characters, as clients see it
  node_id          INTEGER NOT NULL,                                -- the broker this folder belongs to
  version          INTEGER NOT NULL,                                -- bumped by each transaction that changes topics
  broker_epoch     INTEGER NOT NULL,                                -- bumped by each start
  next_producer_id INTEGER NOT NULL                                 -- first id of no block handed out yet
) STRICT;

-- A topic. Life: from CreateTopics to DeleteTopics; a topic created again has a new id.
CREATE TABLE topics (
  id                 BLOB    PRIMARY KEY CHECK (length(id) = 16),
  name               TEXT    NOT NULL UNIQUE,
  partitions         INTEGER NOT NULL CHECK (partitions >= 1),      -- numbered from 0
  replication_factor INTEGER NOT NULL CHECK (replication_factor >= 1)
) STRICT;

-- What a topic sets itself; everything else it has from the broker. Life: that of its topic.
CREATE TABLE topic_configs (
  topic_id BLOB NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  name     TEXT NOT NULL,
  value    TEXT NOT NULL,
  PRIMARY KEY (topic_id, name)
) STRICT, WITHOUT ROWID;
