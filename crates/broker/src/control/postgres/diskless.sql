-- Version 2: the index of diskless topics. A commit locks partitions by id, then objects by id, then its broker's row, and never that of cluster.

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
  UNIQUE (topic_id, partition_index)
) WITH (fillfactor = 50);
CREATE INDEX diskless_changes ON fullbore.diskless_partitions (changed_by, changed_at);

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
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- given once
  state      integer     NOT NULL,                                 -- 0 registered, 1 live, 2 unused, 3 deleted from the store
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
