//! The path from sockets to requests and back: listener, TLS, connection, input and output.

mod admitted;
mod clients;
mod connection;
mod idleness;
mod input;
mod listener;
mod output;
mod stream;
mod tls;

pub use clients::Clients;
pub use listener::{Bound, Listening, bind, run};
pub use tls::Certificates;
