-- Version 3: consumer groups, what they committed, and the settings of groups and of client metrics.

-- A group as it was when it last became stable. Life: from its first member, or first setting of its type, until it is
-- deleted or its last offset has expired.
CREATE TABLE groups (
  group_id TEXT    PRIMARY KEY,
  version  INTEGER NOT NULL,                                        -- of the layout of state
  state    BLOB    NOT NULL                                         -- rules/group's snapshot of it
) STRICT, WITHOUT ROWID;

-- What a group committed. Not tied to `groups`: offsets are also committed by who is in no group. Life: until committed
-- anew, deleted, expired, or the topic is deleted.
CREATE TABLE group_offsets (
  group_id     TEXT    NOT NULL,
  topic_id     BLOB    NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  partition    INTEGER NOT NULL,
  offset       INTEGER NOT NULL,                                    -- of the record to be read next
  leader_epoch INTEGER NOT NULL,                                    -- -1: none
  metadata     TEXT    NOT NULL,
  committed_ms INTEGER NOT NULL,                                    -- since 1970
  expires_ms   INTEGER,                                             -- since 1970, where the client said so; else null
  PRIMARY KEY (group_id, topic_id, partition)
) STRICT, WITHOUT ROWID;
CREATE INDEX group_offsets_of_topic ON group_offsets (topic_id);

-- What IncrementalAlterConfigs set for other resources than topics and brokers. Life: until deleted the same way.
CREATE TABLE resource_configs (
  resource_type INTEGER NOT NULL,                                   -- Kafka's ConfigResource.Type: 16 client metrics, 32 group
  resource_name TEXT    NOT NULL,
  name          TEXT    NOT NULL,
  value         TEXT    NOT NULL,
  PRIMARY KEY (resource_type, resource_name, name)
) STRICT, WITHOUT ROWID;
