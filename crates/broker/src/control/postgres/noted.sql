-- Version 6: which number a process's data folder has, by which an older copy of the folder is told.
ALTER TABLE fullbore.beats ADD COLUMN noted bigint NOT NULL DEFAULT 0;
