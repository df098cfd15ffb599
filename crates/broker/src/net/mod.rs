//! From sockets to requests and back: listener, connection, the bytes in and the bytes out.

mod connection;
mod idleness;
mod input;
mod listener;
mod output;

pub use connection::Limits;
pub use listener::{Bound, bind, run};
