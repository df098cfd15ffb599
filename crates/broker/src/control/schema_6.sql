-- Version 6: who has each partition, and who leads it.

-- A partition. Life: from its creation to the deletion of its topic. Lists are broker ids with commas between them.
CREATE TABLE partitions (
  topic_id        BLOB    NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
  partition       INTEGER NOT NULL CHECK (partition >= 0),          -- numbered from 0 without gaps
  replicas        TEXT    NOT NULL,                                 -- the preferred leader first
  isr             TEXT    NOT NULL,                                 -- those in sync
  elr             TEXT    NOT NULL,                                 -- those that left the ISR below the least one (KIP-966)
  leader          INTEGER,                                          -- null: nobody leads
  leader_epoch    INTEGER NOT NULL,                                 -- bumped by each election
  partition_epoch INTEGER NOT NULL,                                 -- bumped by each change of the row
  PRIMARY KEY (topic_id, partition)
) STRICT, WITHOUT ROWID;

WITH RECURSIVE numbered (id, partition, count, node) AS (
  SELECT id, 0, partitions, (SELECT node_id FROM cluster) FROM topics
  UNION ALL SELECT id, partition + 1, count, node FROM numbered WHERE partition + 1 < count
)
INSERT INTO partitions SELECT id, partition, node, node, '', node, 0, 0 FROM numbered;

-- They are counted from now on.
ALTER TABLE topics DROP COLUMN partitions;
ALTER TABLE topics DROP COLUMN replication_factor;
