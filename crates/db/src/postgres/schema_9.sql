-- First offset of the oldest open transaction; null: none is open.
ALTER TABLE fullbore.diskless_partitions ADD COLUMN first_unstable bigint;
-- Offset of the newest marker that aborted a transaction; -1: there was none.
ALTER TABLE fullbore.diskless_partitions ADD COLUMN aborted_to bigint NOT NULL DEFAULT -1;

-- An aborted transaction of a diskless partition, whose marker is at last_offset. Lifetime: until the log start is past that.
-- last_stable_offset never decreases in the order of last_offset.
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
-- Finds transactions that were open at an offset: for each length, few candidates.
CREATE INDEX diskless_aborted_by_length ON fullbore.diskless_aborted (partition, length_bits, first_offset)
