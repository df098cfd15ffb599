-- The control plane's tables for a cluster, in a schema of their own. Kafka's names; ids are as clients see them, 22 characters.
-- What was typed by clients (names and values of settings) has a backslash before each backslash, and \0 for the character 0.

-- Which version of this schema it is. One row. Every version of Fullbore can read this.
CREATE TABLE fullbore.schema_version (
  one     integer PRIMARY KEY CHECK (one = 1),
  version integer NOT NULL
);

-- What the whole cluster shares. Life: from the first start on, one row. Who changes the metadata has a lock on it.
CREATE TABLE fullbore.cluster (
  one              integer PRIMARY KEY CHECK (one = 1),
  cluster_id       text    NOT NULL CHECK (length(cluster_id) = 22),
  version          bigint  NOT NULL,                               -- bumped by each transaction that changes the metadata
  next_producer_id bigint  NOT NULL                                -- first id of no block handed out yet
) WITH (fillfactor = 10);

-- A commit. Life: until there are 100,000 newer ones.
CREATE TABLE fullbore.versions (
  version bigint      PRIMARY KEY,                                 -- that of cluster is the newest
  mark    bigint      NOT NULL,                                    -- drawn for this commit
  at      timestamptz NOT NULL,
  changes text                                                     -- JSON; null: forgotten, and read from the other tables
);

-- A broker. Life: from its first start on.
CREATE TABLE fullbore.brokers (
  broker_id     integer PRIMARY KEY,                               -- node.id
  epoch         bigint  NOT NULL,                                  -- the version with which it registered
  folder        text    NOT NULL CHECK (length(folder) = 22),      -- the id of its data folder
  process       text    NOT NULL CHECK (length(process) = 22),     -- drawn at each start
  fenced        boolean NOT NULL,                                  -- held for dead
  shutting_down boolean NOT NULL,                                  -- about to stop
  rack          text                                               -- null: it has none
);

-- Where its clients reach a broker. Life: until it starts anew.
CREATE TABLE fullbore.broker_endpoints (
  broker_id integer NOT NULL REFERENCES fullbore.brokers (broker_id) ON DELETE CASCADE,
  listener  text    NOT NULL,
  host      text    NOT NULL,
  port      integer NOT NULL,
  PRIMARY KEY (broker_id, listener)
);

-- A topic. Life: from CreateTopics to DeleteTopics; a topic created again has a new id.
CREATE TABLE fullbore.topics (
  id   text PRIMARY KEY CHECK (length(id) = 22),
  name text NOT NULL UNIQUE
);

-- Neighbouring partitions of a topic that are registered alike. Life: from their creation to the deletion of the topic. With room for
-- another version of each row: a failover changes most of them.
CREATE TABLE fullbore.partitions (
  topic_id        text      NOT NULL REFERENCES fullbore.topics (id) ON DELETE CASCADE,
  first           integer   NOT NULL CHECK (first >= 0),           -- the number of the first; they go on without gaps
  count           integer   NOT NULL CHECK (count >= 1),           -- how many they are
  replicas        integer[] NOT NULL,                              -- the preferred leader first
  isr             integer[] NOT NULL,                              -- those in sync
  elr             integer[] NOT NULL,                              -- those that left the ISR below the least one (KIP-966)
  lost            integer[] NOT NULL,                              -- those that left ISR or ELR, as they have lost their logs' ends
  leader          integer,                                         -- null: nobody leads
  leader_epoch    integer   NOT NULL,                              -- bumped by each election
  partition_epoch integer   NOT NULL,                              -- bumped by each change of the partition
  PRIMARY KEY (topic_id, first)
) WITH (fillfactor = 50);

-- Where the log of a replica ends that has lost its end. Life: until somebody leads the partition.
CREATE TABLE fullbore.log_ends (
  topic_id     text    NOT NULL REFERENCES fullbore.topics (id) ON DELETE CASCADE,
  partition    integer NOT NULL,
  broker_id    integer NOT NULL,
  broker_epoch bigint  NOT NULL,                                   -- that of the process that told it
  last_epoch   integer,                                            -- leader epoch of the last record; null: there is none
  end_offset   bigint  NOT NULL,
  PRIMARY KEY (topic_id, partition, broker_id)
);

-- What a topic sets itself; everything else it has from the broker. Life: that of its topic.
CREATE TABLE fullbore.topic_configs (
  topic_id text NOT NULL REFERENCES fullbore.topics (id) ON DELETE CASCADE,
  name     text NOT NULL,
  value    text NOT NULL,
  PRIMARY KEY (topic_id, name)
);

-- What IncrementalAlterConfigs set for brokers. Life: until it is deleted the same way.
CREATE TABLE fullbore.broker_configs (
  broker_id integer NOT NULL,                                      -- -1: every broker that sets nothing else
  name      text    NOT NULL,
  value     text    NOT NULL,
  PRIMARY KEY (broker_id, name)
);

-- What it set for groups and clients' metrics. Life: until it is deleted the same way.
CREATE TABLE fullbore.resource_configs (
  resource_type integer NOT NULL,                                  -- Kafka's ConfigResource.Type: 16 client metrics, 32 group
  resource_name text    NOT NULL,
  name          text    NOT NULL,
  value         text    NOT NULL,
  PRIMARY KEY (resource_type, resource_name, name)
);

-- A topic that was deleted, and of which there may still be folders under its name. Life: from DeleteTopics until nothing is
-- left of it. A name may have been deleted several times.
CREATE TABLE fullbore.deleted_topics (
  id         text    PRIMARY KEY CHECK (length(id) = 22),
  name       text    NOT NULL,
  partitions integer NOT NULL CHECK (partitions >= 1)
);

-- A process of a broker that says twice a second that it lives. Life: until ten minutes after its last beat, when another process of the
-- broker connects. Not indexed but by its key, with room for another version of each row, so that a beat writes one page.
CREATE TABLE fullbore.beats (
  broker_id integer     NOT NULL,
  process   text        NOT NULL CHECK (length(process) = 22),
  number    bigint      NOT NULL,                                  -- of the beat, from 1 on
  version   bigint      NOT NULL,                                  -- of the metadata that it shows
  at        timestamptz NOT NULL,                                  -- by the database's clock
  PRIMARY KEY (broker_id, process)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
