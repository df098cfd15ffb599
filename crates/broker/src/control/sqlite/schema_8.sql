-- Version 8: which replicas have lost their logs' ends.

-- Those that left ISR or ELR for it; broker ids with commas between them.
ALTER TABLE partitions ADD COLUMN lost TEXT NOT NULL DEFAULT '';
