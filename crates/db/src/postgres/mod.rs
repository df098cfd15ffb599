//! PostgreSQL: sessions with one request at a time, and the schema of a cluster.
//!
//! - `server`: parameters of a connection, from a URL; `url`, `tls`.
//! - `settings`: settings of every session, also behind a pooler. `session`: a session for a task. `connection`: a
//!   session for a thread that blocks; reopened when the session has ended.
//! - `statements`: values as literals; `rows`: answers; `error`: the meaning of failures; `refused`: why a start cannot
//!   use its database.
//! - `schema`: creates, checks and upgrades the tables. Not here: statements on these tables.

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
