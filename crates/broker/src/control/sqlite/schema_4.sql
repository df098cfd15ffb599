-- Version 4: what a crash may leave of deleted topics.

-- A topic that was deleted, and of which there may still be folders under its name. Life: from DeleteTopics until nothing is
-- left of it, which a start sees to if need be. A name may have been deleted several times.
CREATE TABLE deleted_topics (
  id         BLOB    PRIMARY KEY CHECK (length(id) = 16),
  name       TEXT    NOT NULL,
  partitions INTEGER NOT NULL CHECK (partitions >= 1)
) STRICT;
