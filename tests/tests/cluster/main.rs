//! Several brokers over a PostgreSQL, each a process: what is promised of a cluster, whatever befalls it.

mod any_broker;
mod chaos;
mod checked;
mod command;
mod database;
mod diskless;
mod diskless_older;
mod diskless_zones;
mod faults;
mod frozen;
mod full_disk;
mod health;
mod history_check;
mod hung_disk;
mod links;
mod lost_store;
mod offsets;
mod older;
mod pooled;
mod power;
mod refused;
mod regressions;
mod scarce;
mod secured;
mod topics;
mod workload;
