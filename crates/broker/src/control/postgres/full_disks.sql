-- Version 5: which brokers have a full disk.
ALTER TABLE fullbore.brokers ADD COLUMN disk_full boolean NOT NULL DEFAULT false;
