//! Tests the classic log through its public interface: acknowledged records must survive faults of the process and of
//! its files.

#[path = "log/append.rs"]
mod append;
#[path = "log/compaction.rs"]
mod compaction;
#[path = "log/directory.rs"]
mod directory;
#[path = "log/dump.rs"]
mod dump;
#[path = "log/epochs.rs"]
mod epochs;
#[path = "log/lookup.rs"]
mod lookup;
#[path = "log/misled.rs"]
mod misled;
#[path = "log/parking.rs"]
mod parking;
#[path = "log/power_cut.rs"]
mod power_cut;
#[path = "log/recreated.rs"]
mod recreated;
#[path = "log/refused.rs"]
mod refused;
#[path = "log/replicas.rs"]
mod replicas;
#[path = "log/restart.rs"]
mod restart;
#[path = "log/retention.rs"]
mod retention;
#[path = "log/storage.rs"]
mod storage;
#[path = "log/topic_id.rs"]
mod topic_id;
#[path = "log/torn.rs"]
mod torn;
