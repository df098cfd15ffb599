//! Explains why a broker cannot start with its database. The message contains the address of the failed connection, and
//! a remedy.
//!
//! A running broker does not use these messages, since it continues without its database. Invariant: a message may
//! contain names from the settings, but never the password.

use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;

use super::error::{NO_ADDRESS, QueryError};
use super::server::{PORT, Server};

const PASSWORD_FILE: &str = "control.plane.password.file";

/// Returns the message for the log, which follows the name of the database.
pub fn words_at_start(server: &Server, error: &QueryError) -> String {
    let user = server.config.get_user().map_or_else(|| "the system's user".to_owned(), |user| format!("user {user}"));
    format!("as {user}: {}; {}", what(server, error), to_do(server, error))
}

/// Returns the error text. Adds the path of the Unix socket if the system refused the connection, and the name of the
/// host if it has no address. The system's own messages lack both.
fn what(server: &Server, error: &QueryError) -> String {
    match (error.words.strip_prefix(NO_ADDRESS), sockets(server)) {
        (Some(reason), _) => format!("no address is known for the host {} ({reason})", hosts(server)),
        (None, Some(sockets)) if is_of_system(error) => format!("{sockets}: {}", error.words),
        _ => error.words.clone(),
    }
}

/// Returns the names of the hosts in the settings.
fn hosts(server: &Server) -> String {
    let name = |host: &Host| match host {
        Host::Tcp(name) => Some(name.clone()),
        Host::Unix(_) => None,
    };
    server.config.get_hosts().iter().filter_map(name).collect::<Vec<_>>().join(" or ")
}

/// Returns the paths of the Unix sockets in the settings, or `None` if any of the hosts is not a Unix socket.
fn sockets(server: &Server) -> Option<String> {
    let ports = server.config.get_ports();
    let socket = |(at, host): (usize, &Host)| match host {
        Host::Unix(directory) => {
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(PORT);
            Some(directory.join(format!(".s.PGSQL.{port}")).display().to_string())
        }
        Host::Tcp(_) => None,
    };
    let sockets: Option<Vec<String>> = server.config.get_hosts().iter().enumerate().map(socket).collect();
    sockets.map(|sockets| sockets.join(", "))
}

/// Returns true if the operating system refused the connection, rather than PostgreSQL or TLS.
fn is_of_system(error: &QueryError) -> bool {
    error.code.is_none() && error.words.contains("os error") && !is_of_password_file(error)
}

fn is_of_password_file(error: &QueryError) -> bool {
    error.words.starts_with(PASSWORD_FILE)
}

fn to_do(server: &Server, error: &QueryError) -> &'static str {
    match &error.code {
        Some(code) if *code == SqlState::INVALID_PASSWORD || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "check the user in control.plane, the password in control.plane.password.file, and pg_hba.conf of the \
             server"
        }
        Some(code) if *code == SqlState::INVALID_CATALOG_NAME => "create the database, or correct control.plane",
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => "fullbore admin check lists the missing privileges",
        Some(code) if *code == SqlState::CANNOT_CONNECT_NOW => {
            "the server is starting or stopping: start the broker again once the server accepts connections"
        }
        Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => "raise max_connections of the server",
        Some(code) if *code == SqlState::QUERY_CANCELED => {
            "check host and port in control.plane, and that no firewall blocks the connection, or raise \
             control.plane.timeout.ms"
        }
        None if is_of_password_file(error) => "the user that runs the broker must be able to read that file",
        None if error.words == "password missing" => "name a file with the password in control.plane.password.file",
        None if ["TLS", "certificate"].iter().any(|word| error.words.contains(word)) => {
            "check sslmode and sslrootcert in control.plane"
        }
        None if error.words.starts_with(NO_ADDRESS) => {
            "create the name in the name service (in Kubernetes, its Service), or correct the host in control.plane"
        }
        None if is_of_system(error) && sockets(server).is_some() => {
            "start PostgreSQL, or correct the socket's directory (unix_socket_directories of the server) and the port \
             in control.plane"
        }
        None if is_of_system(error) => "start PostgreSQL there, or correct host and port in control.plane",
        _ => "fullbore admin check gives more details",
    }
}
