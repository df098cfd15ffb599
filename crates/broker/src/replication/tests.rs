//! Three brokers in this process, over one control plane in memory and real sockets.

mod cluster;
mod failing;
mod following;
mod measure;
mod regressions;

use cluster::*;
