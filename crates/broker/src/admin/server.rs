//! A small HTTP server for few clients. Each connection serves one request, and one deadline covers all of it.
//!
//! The server is not meant for the public: it has neither TLS nor logins. At most [`CONNECTIONS_MAX`] connections are
//! open, each with at most [`HEAD_MAX`] bytes of request and [`CONNECTION_MAX`] of time. A new connection displaces the
//! oldest one that has not sent a complete request, so that idle clients do not block others. If all have sent
//! requests, further connections wait in the system's backlog.

use axum::Router;
use fullbore_host::log_rate_limit::CauseRateLimit;
use fullbore_host::task;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{SocketAddr, TcpListener as BoundListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

/// Maximum number of connections served at a time.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may take, from being accepted to the last byte of the response.
pub(super) const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// Maximum size of the request line and the headers. Above it, hyper responds with 431. Bodies are not read.
const HEAD_MAX: usize = 16 * 1024;
/// How long the server pauses after it could not accept a connection, for example because there was no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A connection younger than this is not displaced, because its request may still be in flight.
const NEW: Duration = Duration::from_millis(50);

/// Binds the first usable address of `host`.
///
/// # Errors
/// Returns the system's error if the host does not resolve, or if the port is taken or not allowed.
pub(super) async fn bind(host: &str, port: u16) -> io::Result<(BoundListener, SocketAddr)> {
    let listener = TcpListener::bind((host, port)).await?;
    let addr = listener.local_addr()?;
    Ok((listener.into_std()?, addr))
}

/// Serves connections until the future is dropped, which closes all of them. Each connection is closed after
/// `connection_max` at the latest.
pub(super) async fn run(listener: TcpListener, routes: Router, connection_max: Duration) {
    let mut open = OpenConnections::default();
    let failures = CauseRateLimit::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                open.make_room().await;
                let has_requested = Arc::<AtomicBool>::default();
                let serving = serve(stream, peer, routes.clone(), Arc::clone(&has_requested), connection_max);
                let task = open.tasks.spawn(task::boxed(serving));
                open.oldest_first.push(OpenConnection { since: Instant::now(), has_requested, task });
                // Lets the task of the new connection run before the next connection is accepted. If its request has
                // already arrived, the task reads the request. The next connection then does not displace this one as
                // idle.
                yield_now().await;
            }
            Err(error) => {
                if let Some(left_out) = failures.due(&error.to_string()) {
                    tracing::warn!(%error, left_out, "cannot accept a connection on the admin port: retrying");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The open connections, and the tasks that serve them.
#[derive(Default)]
struct OpenConnections {
    tasks: JoinSet<()>,
    oldest_first: Vec<OpenConnection>,
}

struct OpenConnection {
    since: Instant,
    /// True once the connection's request has arrived completely.
    has_requested: Arc<AtomicBool>,
    task: AbortHandle,
}

impl OpenConnections {
    /// Waits for a free slot. If all slots are taken, closes the oldest connection that has sent no request, once that
    /// connection is older than [`NEW`].
    async fn make_room(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.oldest_first.retain(|one| !one.task.is_finished());
            if self.oldest_first.len() < CONNECTIONS_MAX {
                return;
            }
            let silent = self.oldest_first.iter().find(|one| !one.has_requested.load(Relaxed));
            let is_new = silent.map(|one| NEW.saturating_sub(one.since.elapsed()));
            if let (Some(silent), Some(Duration::ZERO)) = (silent, is_new) {
                silent.task.abort();
            }
            tokio::select! {
                _ = self.tasks.join_next() => {}
                () = sleep(is_new.unwrap_or(CONNECTION_MAX)), if is_new != Some(Duration::ZERO) => {}
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Router,
    has_requested: Arc<AtomicBool>,
    connection_max: Duration,
) {
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEAD_MAX);
    let routes = TowerToHyperService::new(routes);
    let requested = service_fn(move |request| {
        has_requested.store(true, Relaxed);
        routes.call(request)
    });
    match timeout(connection_max, http.serve_connection(TokioIo::new(stream), requested)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "admin connection lost"),
        Err(_) => tracing::debug!(%peer, "admin connection too slow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use axum::extract::State;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;

    const PATIENCE: Duration = Duration::from_secs(20);
    /// A response of this size does not fit into the socket buffers of a connection.
    const BIG: usize = 64 * 1024 * 1024;

    async fn started(connection_max: Duration) -> SocketAddr {
        let (listener, addr) = bind("127.0.0.1", 0).await.expect("loopback has free ports");
        let listener = TcpListener::from_std(listener).expect("it is bound");
        let big = Bytes::from(vec![b'x'; BIG]);
        let waits = async |State(go_on): State<Arc<Notify>>| {
            go_on.notified().await;
            "late"
        };
        let routes = Router::new()
            .route("/", get(async || "here"))
            .route("/big", get(async move || big.clone()))
            .route("/waits", get(waits))
            .route("/goes-on", get(async |State(go_on): State<Arc<Notify>>| go_on.notify_one()))
            .with_state(Arc::default());
        tokio::spawn(run(listener, routes, connection_max));
        addr
    }

    /// Sends `request`, and returns everything that the server sends until it closes the connection.
    async fn answered(addr: SocketAddr, request: &[u8]) -> String {
        let requesting = async {
            let mut stream = TcpStream::connect(addr).await.expect("the server listens");
            stream.write_all(request).await.expect("the server reads");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8(answer).expect("answers are text")
        };
        timeout(PATIENCE, requesting).await.expect("the server answers or closes")
    }

    #[tokio::test]
    async fn answers_and_closes() {
        let addr = started(PATIENCE).await;
        let answer = answered(addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nhere"), "{answer}");
        let answer = answered(addr, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let answer = answered(addr, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }

    #[tokio::test]
    async fn a_head_over_the_limit_is_refused() {
        let addr = started(PATIENCE).await;
        let mut request = b"GET / HTTP/1.1\r\nHost: x\r\nX: ".to_vec();
        request.resize(HEAD_MAX, b'a');
        let answer = answered(addr, &request).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[tokio::test]
    async fn garbage_is_refused() {
        let addr = started(PATIENCE).await;
        let answer = answered(addr, b"\0\0\0\x12\0\x12\0\x04\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }

    #[tokio::test]
    async fn silent_clients_do_not_keep_others_out() {
        let addr = started(Duration::from_secs(2)).await;
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(addr).await.expect("the backlog has room"));
        }
        let answer = answered(addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("here"), "{answer}");
        for mut stream in silent {
            assert!(timeout(PATIENCE, stream.read_u8()).await.expect("cut off").is_err());
        }
    }

    /// Opens `count` connections that each send the bytes `begun` and then nothing more.
    async fn silent(addr: SocketAddr, count: usize, begun: &[u8]) -> Vec<TcpStream> {
        let mut silent = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(addr).await.expect("the backlog has room");
            stream.write_all(begun).await.expect("the system buffers it");
            silent.push(stream);
        }
        silent
    }

    #[tokio::test]
    async fn client_is_answered_while_silent_clients_have_all_slots() {
        let addr = started(10 * PATIENCE).await;
        let _silent = silent(addr, 2 * CONNECTIONS_MAX, b"").await;
        let _begun = silent(addr, 2 * CONNECTIONS_MAX, b"GET / HTTP/1.1\r\nHost: x\r\n").await;
        let answer = answered(addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("here"), "{answer}");
    }

    #[tokio::test]
    async fn client_awaiting_its_answer_is_not_displaced_by_silent_ones() {
        let addr = started(10 * PATIENCE).await;
        let mut waiting = silent(addr, 1, b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n").await.remove(0);
        let _silent = silent(addr, 3 * CONNECTIONS_MAX, b"").await;
        let answer = answered(addr, b"GET /goes-on HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let mut answer = String::new();
        timeout(PATIENCE, waiting.read_to_string(&mut answer)).await.expect("in time").expect("it is not cut off");
        assert!(answer.ends_with("late"), "{answer}");
    }

    #[tokio::test]
    async fn client_that_reads_nothing_is_cut_off() {
        let addr = started(Duration::from_secs(2)).await;
        let mut stuck = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(addr).await.expect("the server listens");
            stream.write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("the server reads");
            stuck.push(stream);
        }
        let answer = answered(addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("here"), "{answer}");
    }
}
