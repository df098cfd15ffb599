-- Version 2: what IncrementalAlterConfigs set for brokers. Life: until it is deleted the same way.
CREATE TABLE broker_configs (
  every_broker INTEGER NOT NULL CHECK (every_broker IN (0, 1)),     -- 0: this broker alone, which goes first
  name         TEXT    NOT NULL,
  value        TEXT    NOT NULL,
  PRIMARY KEY (every_broker, name)
) STRICT, WITHOUT ROWID;
