-- The first offset of the eldest open transaction; null if none is open.
ALTER TABLE partitions ADD COLUMN first_unstable INTEGER;
-- The offset of the newest marker that aborted a transaction; -1 if there was none.
ALTER TABLE partitions ADD COLUMN aborted_to INTEGER NOT NULL DEFAULT -1;

-- An aborted transaction, whose marker is at last_offset. Life: until the log start is past that.
-- In the order of last_offset, last_stable_offset never falls.
CREATE TABLE aborted (
    partition INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_stable_offset INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    -- Bits of last_offset - first_offset, at most 62.
    length_bits INTEGER NOT NULL,
    PRIMARY KEY (partition, last_offset)
) STRICT, WITHOUT ROWID;

-- Finds those that were open at an offset, of each length among few.
CREATE INDEX aborted_by_length ON aborted (partition, length_bits, first_offset);
