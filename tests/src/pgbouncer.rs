//! Runs the installed PgBouncer in transaction mode in front of a PostgreSQL.
//!
//! Invariant: PgBouncer ends with the test program, even if that is killed.

use crate::{stable_ports_in_a_row, wait_until};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(30);

/// A running PgBouncer. Every user has the rights of a superuser.
pub struct PgBouncer {
    child: Child,
    port: u16,
    _directory: TempDir,
}

impl PgBouncer {
    /// Starts a PgBouncer in front of `server`. A client may send settings when it opens a connection. If
    /// `ignores_settings` is true, PgBouncer ignores the settings. Otherwise it refuses such a connection.
    pub fn start(server: SocketAddr, ignores_settings: bool) -> PgBouncer {
        let directory = TempDir::with_prefix("fullbore-pgbouncer-").expect("a directory");
        let port = stable_ports_in_a_row(1);
        let ignored = if ignores_settings { "ignore_startup_parameters = options\n" } else { "" };
        let file = directory.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\n{ignored}",
            server.ip(),
            server.port()
        );
        std::fs::write(&file, text).expect("written");
        // PgBouncer refuses to run as root.
        let script = "dir=$1 file=$2; as=; if [ \"$(id -u)\" = 0 ]; then chmod 755 \"$dir\"; as='--reuid=65534 --regid=65534 --clear-groups'; fi
            exec setpriv --pdeathsig KILL $as -- \"$(command -v pgbouncer || echo /usr/sbin/pgbouncer)\" \"$file\"";
        let child = Command::new("bash")
            .args(["-c", script, "pgbouncer"])
            .args([directory.path(), &file])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn()
            .expect("bash");
        let mut pooler = PgBouncer { child, port, _directory: directory };
        wait_until("PgBouncer listens: apt install pgbouncer, or tests/clients/install", SOON, || {
            assert!(pooler.child.try_wait().expect("a child").is_none(), "PgBouncer has ended: is it installed?");
            TcpStream::connect(pooler.address()).is_ok()
        });
        pooler
    }

    /// Returns the address on which PgBouncer listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
