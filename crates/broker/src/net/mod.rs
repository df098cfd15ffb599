//! The path from sockets to requests and back: listener, TLS, connection, input and output.

mod admitted;
mod clients;
mod connection;
mod idleness;
mod input;
mod listener;
mod output;
mod reading;
mod stream;
mod tls;
mod writing;

pub use clients::Clients;
pub use listener::{Bound, bind, run};
pub use tls::Certificates;
