//! Several brokers over a PostgreSQL, each a process: what is promised of a cluster, whatever befalls it.

mod asked;
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
mod hung_disk;
mod hunted;
mod links;
mod lost_store;
mod marks;
mod older;
mod pooled;
mod power;
mod records;
mod refused;
mod scarce;
mod secured;
mod seen;
mod topics;
mod watched;
