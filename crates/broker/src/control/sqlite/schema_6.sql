-- Version 6: who has each partition, and who leads it.

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
  PRIMARY KEY (topic_id, first)
) STRICT, WITHOUT ROWID;

INSERT INTO partitions SELECT topics.id, 0, partitions, node_id, node_id, '', node_id, 0, 0 FROM topics, cluster;

-- They are counted from now on.
ALTER TABLE topics DROP COLUMN partitions;
ALTER TABLE topics DROP COLUMN replication_factor;
