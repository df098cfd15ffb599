//! PostgreSQL: sessions, one question at a time, and the schema of a cluster.
//!
//! - `server`: from a URL to what a connection needs; `url`, `tls`.
//! - `settings`: what every session is set to, also behind a pooler; `session`: a connection; `connection`: the same
//!   for a thread that blocks, had again where it has ended.
//! - `statements`: values as literals; `rows`: what comes back; `error`: what failures mean; `refused`: why a start
//!   does not get its database.
//! - `schema`: made, looked at, upgraded. What is done with its tables is not here.

mod connection;
mod error;
mod refused;
pub mod rows;
pub mod schema;
mod server;
mod session;
mod settings;
pub mod statements;
mod tls;
mod url;

pub use connection::DatabaseConnection;
pub use error::{AskError, damaged};
pub use refused::words_at_start;
pub use server::Server;
pub use session::PostgresSession;
pub use statements::literal;
pub use tokio_postgres::error::SqlState;
pub use url::BadServer;
