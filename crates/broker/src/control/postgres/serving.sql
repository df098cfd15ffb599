-- Version 4: which brokers serve diskless topics. One that has not started since then says that it does.
ALTER TABLE fullbore.brokers ADD COLUMN serves_diskless boolean NOT NULL DEFAULT true;
