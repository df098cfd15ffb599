//! Tests with several brokers in one process. They share a control plane in memory and use real sockets.

mod cluster;
mod failing;
mod following;
mod measure;
mod regressions;
mod stand_down;

use cluster::*;
