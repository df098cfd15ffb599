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
  broker_id       integer PRIMARY KEY,                             -- node.id
  epoch           bigint  NOT NULL,                                -- the version with which it registered
  folder          text    NOT NULL CHECK (length(folder) = 22),    -- the id of its data folder
  process         text    NOT NULL CHECK (length(process) = 22),   -- drawn at each start
  fenced          boolean NOT NULL,                                -- held for dead
  shutting_down   boolean NOT NULL,                                -- about to stop
  rack            text,                                            -- null: it has none
  serves_diskless boolean NOT NULL DEFAULT true,                   -- diskless topics, that is
  disk_full       boolean NOT NULL DEFAULT false                   -- its data folder's disk
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

-- A deleted topic whose producers may go on in the next topic of its name. Life: until a later topic of the name that had as many partitions is deleted, or until
-- 10,000 other names that no topic has were deleted later.
CREATE TABLE fullbore.past_topics (
  name               text    NOT NULL,
  deleted_at         bigint  NOT NULL CHECK (deleted_at >= 1),      -- the version that deleted it
  id                 text    NOT NULL CHECK (length(id) = 22),
  partitions         integer NOT NULL CHECK (partitions >= 1),
  diskless           boolean NOT NULL,
  producer_ids_below bigint  NOT NULL,                              -- ids of its producers are less
  PRIMARY KEY (name, deleted_at)
);

-- A process of a broker that says twice a second that it lives. Life: until ten minutes after its last beat, when another process of the
-- broker connects. Not indexed but by its key, with room for another version of each row, so that a beat writes one page.
CREATE TABLE fullbore.beats (
  broker_id integer     NOT NULL,
  process   text        NOT NULL CHECK (length(process) = 22),
  number    bigint      NOT NULL,                                  -- of the beat, from 1 on
  version   bigint      NOT NULL,                                  -- of the metadata that it shows
  at        timestamptz NOT NULL,                                  -- by the database's clock
  noted     bigint      NOT NULL DEFAULT 0,                        -- number of its data folder, by which an older copy of the folder is known
  PRIMARY KEY (broker_id, process)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The index of diskless topics, from here on. A commit locks partitions by id, then objects by id, then its broker's row, and never that of cluster.

-- A partition of a diskless topic. Life: from when its topic is in the metadata until a broker has heard that it is deleted.
CREATE TABLE fullbore.diskless_partitions (
  id               bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,    -- given once
  topic_id         text    NOT NULL CHECK (length(topic_id) = 22),
  partition_index  integer NOT NULL,
  log_start        bigint  NOT NULL,
  next_offset      bigint  NOT NULL,
  bytes            bigint  NOT NULL,
  max_timestamp    bigint  NOT NULL,                               -- in ms; -1 before the first batch
  has_forgotten    boolean NOT NULL,                               -- producers, for want of room
  batches_retained integer NOT NULL,                               -- of each producer: the most that a broker has asked for
  expired_to       bigint  NOT NULL,                               -- the largest id of a producer that was removed for its silence, or -1
  changed_by       integer,                                        -- the broker whose transaction changed it last
  changed_at       bigint,                                         -- which of its transactions that was
  topic            text,                                           -- the topic's name
  UNIQUE (topic_id, partition_index)
) WITH (fillfactor = 50);
CREATE INDEX diskless_changes ON fullbore.diskless_partitions (changed_by, changed_at);
CREATE INDEX diskless_partitions_by_name ON fullbore.diskless_partitions (topic, partition_index);

-- Of each name the last deleted partition that was written, whose producers' rows are kept: the newest of each. Producers go on where a topic
-- is made again. Life: until the next one is deleted, or its producers have expired.
CREATE TABLE fullbore.diskless_predecessors (
  topic           text    NOT NULL,
  partition_index integer NOT NULL,
  partition       bigint  NOT NULL UNIQUE,
  PRIMARY KEY (topic, partition_index)
);

-- The number of the object store: of the first that a broker has used, and no broker uses another one.
CREATE TABLE fullbore.diskless_store (
  singleton integer PRIMARY KEY CHECK (singleton = 1),
  store_id  text    NOT NULL
);

-- A broker, with how many of its transactions have changed partitions: one after the other, without gaps. Life: from the first one on.
CREATE TABLE fullbore.diskless_brokers (
  broker_id integer PRIMARY KEY,
  counter   bigint  NOT NULL
) WITH (fillfactor = 10);

-- What of partitions, there or deleted, nobody may read any more: what is before this offset. Life: until its runs are removed.
CREATE TABLE fullbore.diskless_cleared (
  partition bigint PRIMARY KEY,
  before    bigint NOT NULL
);

-- An object in the store. Life: from before it is uploaded until a day after it was deleted.
CREATE TABLE fullbore.diskless_objects (
  id         bigint      PRIMARY KEY,                              -- drawn by the broker that registers it, so that none is given twice
  state      integer     NOT NULL,                                 -- 0 registered, 1 live, 2 unused, 3 deleted from the store, 4 DELETE failed
  live_bytes bigint      NOT NULL,
  changed_at timestamptz NOT NULL                                  -- by the database's clock
);
-- For who cleans: what is used is not in it.
CREATE INDEX diskless_objects_to_clean ON fullbore.diskless_objects (state, changed_at) WHERE state <> 1;

-- The adjacent batches of a partition in an object. Life: until its partition's log start is past it.
CREATE TABLE fullbore.diskless_runs (
  partition            bigint NOT NULL,
  base_offset          bigint NOT NULL,
  object               bigint NOT NULL,
  position             bigint NOT NULL,
  max_timestamp_so_far bigint NOT NULL,
  batches              bytea  NOT NULL,
  PRIMARY KEY (partition, base_offset)
);
CREATE INDEX diskless_runs_of_object ON fullbore.diskless_runs (object);

-- What one commit has appended of one producer. Life: never changed, and removed once it is of no interest.
CREATE TABLE fullbore.diskless_producers (
  partition   bigint NOT NULL,
  base_offset bigint NOT NULL,
  producer_id bigint NOT NULL,
  written_ms  bigint NOT NULL,
  batches     bytea  NOT NULL,
  PRIMARY KEY (partition, base_offset)
);
