-- First offset of the oldest open transaction; null if none is open.
ALTER TABLE partitions ADD COLUMN first_unstable INTEGER;
-- Offset of the newest marker that aborted a transaction; -1 if there was none.
ALTER TABLE partitions ADD COLUMN aborted_to INTEGER NOT NULL DEFAULT -1;

-- Aborted transactions. The marker is at last_offset; the row is removed once the log start is past the marker. In the
-- order of last_offset, last_stable_offset never falls.
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

-- For the search of transactions open at an offset: it reads few rows for each value of length_bits.
CREATE INDEX aborted_by_length ON aborted (partition, length_bits, first_offset);
