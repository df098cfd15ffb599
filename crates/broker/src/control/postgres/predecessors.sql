-- Version 3: deleted partitions of diskless topics are remembered by their names, so that producers go on where a topic is made again.

-- The topic's name; missing of one that was deleted when the schema was upgraded.
ALTER TABLE fullbore.diskless_partitions ADD COLUMN topic text;
UPDATE fullbore.diskless_partitions AS p SET topic = t.name FROM fullbore.topics AS t WHERE t.id = p.topic_id;
CREATE INDEX diskless_partitions_by_name ON fullbore.diskless_partitions (topic, partition_index);

-- Of each name the last deleted partition that was written, whose producers' rows are kept: the newest of each. Life: until the next one is
-- deleted, or its producers have expired.
CREATE TABLE fullbore.diskless_predecessors (
  topic           text    NOT NULL,
  partition_index integer NOT NULL,
  partition       bigint  NOT NULL UNIQUE,
  PRIMARY KEY (topic, partition_index)
);
