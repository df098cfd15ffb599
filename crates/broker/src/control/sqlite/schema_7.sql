-- Version 7: each version of the metadata has a mark.

-- A commit. Life: until there are 100,000 newer ones.
CREATE TABLE versions (
  version INTEGER PRIMARY KEY,                                      -- that of cluster is the newest
  mark    INTEGER NOT NULL                                          -- drawn for this commit
) STRICT;

INSERT INTO versions SELECT version, random() FROM cluster;
