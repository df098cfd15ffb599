//! PostgreSQL: sessions with one request at a time, and the schema of a cluster's database.
//!
//! - `server` has the connection's parameters, which `url` and `tls` read from a URL. `hosts` has the order in which a
//!   connection tries the hosts of the URL.
//! - `settings` has the settings of every session, and makes them work behind a pooler, too. `session` is a session
//!   that asynchronous tasks use. `connection` is for threads that block, and opens a new session if the last one has
//!   ended.
//! - `statements` writes values as literals, and `rows` reads answers. `error` interprets failures, and `refused`
//!   explains why a broker cannot start with its database.
//! - `known_changes` detects an older copy of the database by the numbers of committed changes to diskless topics.
//! - `schema` creates, checks and upgrades the tables. The statements that use these tables are in other crates.

mod connection;
mod error;
mod hosts;
pub mod known_changes;
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
pub use error::{QueryError, damaged};
pub use refused::words_at_start;
pub use server::Server;
pub use session::PostgresSession;
pub use statements::literal;
pub use tokio_postgres::error::SqlState;
pub use url::BadServer;
