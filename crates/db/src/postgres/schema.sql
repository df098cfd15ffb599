-- Tables of a cluster's control plane, in their own schema. Names of columns are Kafka's; ids are texts of 22 characters, as clients see them.
-- Text from clients (names and values of settings) has a backslash before each backslash, and \0 for the character 0.

-- Version of this schema. One row, which every version of Fullbore can read.
CREATE TABLE fullbore.schema_version (
  one     integer PRIMARY KEY CHECK (one = 1),
  version integer NOT NULL
);

-- State of the whole cluster. Lifetime: from the first start on, one row. A change of the metadata holds a lock on it.
CREATE TABLE fullbore.cluster (
  one              integer PRIMARY KEY CHECK (one = 1),
  cluster_id       text    NOT NULL CHECK (length(cluster_id) = 22),
  version          bigint  NOT NULL,                               -- bumped by each transaction that changes the metadata
  next_producer_id bigint  NOT NULL                                -- first id that no broker has reserved
) WITH (fillfactor = 10);

-- A commit. Lifetime: until there are 100,000 newer ones.
CREATE TABLE fullbore.versions (
  version bigint      PRIMARY KEY,                                 -- the newest is that of cluster
  mark    bigint      NOT NULL,                                    -- nonce of this commit
  at      timestamptz NOT NULL,
  changes text                                                     -- JSON; null: no longer stored, and read from the other tables
);

-- A broker. Lifetime: from its first start on.
CREATE TABLE fullbore.brokers (
  broker_id       integer PRIMARY KEY,                             -- node.id
  epoch           bigint  NOT NULL,                                -- version with which it registered
  folder          text    NOT NULL CHECK (length(folder) = 22),    -- id of its data directory
  process         text    NOT NULL CHECK (length(process) = 22),   -- drawn at each start
  fenced          boolean NOT NULL,                                -- failed or stopped
  shutting_down   boolean NOT NULL,                                -- in controlled shutdown
  rack            text,                                            -- null: none
  serves_diskless boolean NOT NULL DEFAULT true,                   -- true if it serves diskless topics
  disk_full       boolean NOT NULL DEFAULT false                   -- of the data directory
);

-- Address of a broker for clients. Lifetime: until the broker's next start.
CREATE TABLE fullbore.broker_endpoints (
  broker_id integer NOT NULL REFERENCES fullbore.brokers (broker_id) ON DELETE CASCADE,
  listener  text    NOT NULL,
  host      text    NOT NULL,
  port      integer NOT NULL,
  PRIMARY KEY (broker_id, listener)
);

-- A topic. Lifetime: from CreateTopics to DeleteTopics; a recreated topic has a new id.
CREATE TABLE fullbore.topics (
  id   text PRIMARY KEY CHECK (length(id) = 22),
  name text NOT NULL UNIQUE
);

-- Adjacent partitions of a topic with equal registrations. Lifetime: from their creation to the deletion of the topic. Pages have
-- space for another version of each row, since a failover changes most of them.
CREATE TABLE fullbore.partitions (
  topic_id        text      NOT NULL REFERENCES fullbore.topics (id) ON DELETE CASCADE,
  first           integer   NOT NULL CHECK (first >= 0),           -- number of the first; without gaps
  count           integer   NOT NULL CHECK (count >= 1),           -- number of partitions
  replicas        integer[] NOT NULL,                              -- preferred leader first
  isr             integer[] NOT NULL,                              -- in-sync replicas
  elr             integer[] NOT NULL,                              -- replicas that left the ISR below min.insync.replicas (KIP-966)
  lost            integer[] NOT NULL,                              -- replicas that left ISR or ELR because their logs were truncated
  leader          integer,                                         -- null: no leader
  leader_epoch    integer   NOT NULL,                              -- bumped by each election
  partition_epoch integer   NOT NULL,                              -- bumped by each change of the partition
  PRIMARY KEY (topic_id, first)
) WITH (fillfactor = 50);

-- End of a replica's log that an unclean shutdown truncated. Lifetime: until the partition has a leader.
CREATE TABLE fullbore.log_ends (
  topic_id     text    NOT NULL REFERENCES fullbore.topics (id) ON DELETE CASCADE,
  partition    integer NOT NULL,
  broker_id    integer NOT NULL,
  broker_epoch bigint  NOT NULL,                                   -- epoch of the process that reported it
  last_epoch   integer,                                            -- leader epoch of the last record; null: no record
  end_offset   bigint  NOT NULL,
  PRIMARY KEY (topic_id, partition, broker_id)
);

-- Override of a topic; other settings are the broker's. Lifetime: that of its topic.
CREATE TABLE fullbore.topic_configs (
  topic_id text NOT NULL REFERENCES fullbore.topics (id) ON DELETE CASCADE,
  name     text NOT NULL,
  value    text NOT NULL,
  PRIMARY KEY (topic_id, name)
);

-- Dynamic setting of brokers, set by IncrementalAlterConfigs. Lifetime: until it is deleted the same way.
CREATE TABLE fullbore.broker_configs (
  broker_id integer NOT NULL,                                      -- -1: every broker without a value of its own
  name      text    NOT NULL,
  value     text    NOT NULL,
  PRIMARY KEY (broker_id, name)
);

-- Setting of a group or client metrics subscription, set by IncrementalAlterConfigs. Lifetime: until it is deleted the same way.
CREATE TABLE fullbore.resource_configs (
  resource_type integer NOT NULL,                                  -- Kafka's ConfigResource.Type: 16 client metrics, 32 group
  resource_name text    NOT NULL,
  name          text    NOT NULL,
  value         text    NOT NULL,
  PRIMARY KEY (resource_type, resource_name, name)
);

-- A deleted topic whose files or rows may still exist. Lifetime: from DeleteTopics until these are removed. Several deleted topics
-- may have the same name.
CREATE TABLE fullbore.deleted_topics (
  id         text    PRIMARY KEY CHECK (length(id) = 22),
  name       text    NOT NULL,
  partitions integer NOT NULL CHECK (partitions >= 1)
);

-- A deleted topic whose producers may continue in the next topic of its name. Lifetime: until a later topic of the name with at least
-- as many partitions is deleted, or until 10,000 other names without a topic were deleted later.
CREATE TABLE fullbore.past_topics (
  name               text    NOT NULL,
  deleted_at         bigint  NOT NULL CHECK (deleted_at >= 1),      -- version that deleted it
  id                 text    NOT NULL CHECK (length(id) = 22),
  partitions         integer NOT NULL CHECK (partitions >= 1),
  diskless           boolean NOT NULL,
  producer_ids_below bigint  NOT NULL,                              -- its producers have smaller ids
  PRIMARY KEY (name, deleted_at)
);

-- Last heartbeat of a broker's process. Lifetime: until ten minutes later, when another process of the broker connects. It has no other
-- index than its key, and pages have space for another version of each row, so that a heartbeat writes one page.
CREATE TABLE fullbore.beats (
  broker_id integer     NOT NULL,
  process   text        NOT NULL CHECK (length(process) = 22),
  number    bigint      NOT NULL,                                  -- of the heartbeat, from 1
  version   bigint      NOT NULL,                                  -- of the metadata that it had published
  at        timestamptz NOT NULL,                                  -- by the database's clock
  noted     bigint      NOT NULL DEFAULT 0,                        -- newest number in its data directory, which an older copy lacks
  PRIMARY KEY (broker_id, process)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- From here on, the index of diskless topics. A commit locks partitions by id, then objects by id, then the row of its broker, but never the row of cluster.

-- A partition of a diskless topic. Lifetime: from its topic's appearance in the metadata until a broker learns of the deletion.
CREATE TABLE fullbore.diskless_partitions (
  id               bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,    -- never reused
  topic_id         text    NOT NULL CHECK (length(topic_id) = 22),
  partition_index  integer NOT NULL,
  log_start        bigint  NOT NULL,
  next_offset      bigint  NOT NULL,
  bytes            bigint  NOT NULL,
  max_timestamp    bigint  NOT NULL,                               -- in ms; -1 before the first batch
  has_forgotten    boolean NOT NULL,                               -- true if it dropped producers for lack of space
  batches_retained integer NOT NULL,                               -- of each producer: the largest number that a broker has requested
  expired_to       bigint  NOT NULL,                               -- largest id of an expired producer, or -1
  changed_by       integer,                                        -- broker whose transaction changed it last
  changed_at       bigint,                                         -- number of that transaction
  topic            text,                                           -- name of the topic
  UNIQUE (topic_id, partition_index)
) WITH (fillfactor = 50);
CREATE INDEX diskless_changes ON fullbore.diskless_partitions (changed_by, changed_at);
CREATE INDEX diskless_partitions_by_name ON fullbore.diskless_partitions (topic, partition_index);

-- For each topic name and partition number, the last deleted partition that had records. The newest row of each of its producers is kept, since producers continue in a
-- recreated topic. Lifetime: until the next such partition is deleted, or all of its producers have expired.
CREATE TABLE fullbore.diskless_predecessors (
  topic           text    NOT NULL,
  partition_index integer NOT NULL,
  partition       bigint  NOT NULL UNIQUE,
  PRIMARY KEY (topic, partition_index)
);

-- Id of the first object store that a broker has used. No broker uses another store.
CREATE TABLE fullbore.diskless_store (
  singleton integer PRIMARY KEY CHECK (singleton = 1),
  store_id  text    NOT NULL
);

-- Number of a broker's transactions that have changed partitions, counted without gaps. Lifetime: from the first transaction on.
CREATE TABLE fullbore.diskless_brokers (
  broker_id integer PRIMARY KEY,
  counter   bigint  NOT NULL
) WITH (fillfactor = 10);

-- Offset below which records of a partition, existing or deleted, can no longer be read. Lifetime: until the runs of the partition below it are removed.
CREATE TABLE fullbore.diskless_cleared (
  partition bigint PRIMARY KEY,
  before    bigint NOT NULL
);

-- An object in the store. Lifetime: from before its upload until a day after its deletion.
CREATE TABLE fullbore.diskless_objects (
  id         bigint      PRIMARY KEY,                              -- drawn by the broker that registers it, and never reused
  state      integer     NOT NULL,                                 -- 0 registered, 1 live, 2 unused, 3 deleted from the store, 4 DELETE failed
  live_bytes bigint      NOT NULL,
  changed_at timestamptz NOT NULL                                  -- by the database's clock
);
-- For garbage collection, which does not read live objects.
CREATE INDEX diskless_objects_to_clean ON fullbore.diskless_objects (state, changed_at) WHERE state <> 1;

-- Adjacent batches of a partition in an object. Lifetime: until the partition's log start is past them.
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

-- Batches of one producer in one commit. Lifetime: never changed, and removed once they are no longer needed.
CREATE TABLE fullbore.diskless_producers (
  partition   bigint NOT NULL,
  base_offset bigint NOT NULL,
  producer_id bigint NOT NULL,
  written_ms  bigint NOT NULL,
  batches     bytea  NOT NULL,
  PRIMARY KEY (partition, base_offset)
);
