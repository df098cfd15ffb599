-- The first offset of the eldest open transaction; null: none is open.
ALTER TABLE fullbore.diskless_partitions ADD COLUMN first_unstable bigint;
-- The offset of the newest marker that aborted a transaction; -1: there was none.
ALTER TABLE fullbore.diskless_partitions ADD COLUMN aborted_to bigint NOT NULL DEFAULT -1;

-- An aborted transaction of a diskless partition, whose marker is at last_offset. Life: until the log start is past that.
-- In the order of last_offset, last_stable_offset never falls.
CREATE TABLE fullbore.diskless_aborted (
  partition          bigint NOT NULL,
  last_offset        bigint NOT NULL,
  first_offset       bigint NOT NULL,
  last_stable_offset bigint NOT NULL,
  producer_id        bigint NOT NULL,
  -- Bits of last_offset - first_offset, at most 62.
  length_bits        smallint NOT NULL,
  PRIMARY KEY (partition, last_offset)
);
-- Finds those that were open at an offset, of each length among few.
CREATE INDEX diskless_aborted_by_length ON fullbore.diskless_aborted (partition, length_bits, first_offset)
