//! A small HTTP server for a few patient callers: one request per connection, one deadline for all of it.
//!
//! Not for the public: no TLS, no login. Invariant: at most [`CONNECTIONS_MAX`] connections, each of at most
//! [`HEAD_MAX`] bytes of request and [`CONNECTION_MAX`] of time; further ones wait in the system's backlog.

use crate::task;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 16;
/// From accept to the last byte of the answer.
pub(super) const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// Bytes of a request's line and headers; hyper answers 431 above it. Bodies are not read.
const HEAD_MAX: usize = 16 * 1024;
/// How long to wait after accept fails for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the first address of `host` that can be had.
///
/// # Errors
/// The host does not resolve, the port is taken or not allowed.
pub(super) async fn bind(host: &str, port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((host, port)).await?;
    let addr = listener.local_addr()?;
    Ok((listener, addr))
}

/// Serves until dropped; connections then open are cut, as are those older than `connection_max`.
pub(super) async fn run(listener: TcpListener, routes: Router, connection_max: Duration) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if open.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, peer)) => {
                    open.spawn(task::boxed(serve(stream, peer, routes.clone(), connection_max)));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed on the admin port");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = open.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, routes: Router, connection_max: Duration) {
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEAD_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    match timeout(connection_max, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "admin connection lost"),
        Err(_) => tracing::debug!(%peer, "admin connection too slow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PATIENCE: Duration = Duration::from_secs(20);
    /// More than the system buffers between the two ends of a connection.
    const BIG: usize = 64 * 1024 * 1024;

    async fn started(connection_max: Duration) -> SocketAddr {
        let (listener, addr) = bind("127.0.0.1", 0).await.expect("loopback has free ports");
        let big = Bytes::from(vec![b'x'; BIG]);
        let routes = Router::new().route("/", get(async || "here")).route("/big", get(async move || big.clone()));
        tokio::spawn(run(listener, routes, connection_max));
        addr
    }

    /// What the server says to `request` until it closes or cuts the connection.
    async fn ask(addr: SocketAddr, request: &[u8]) -> String {
        let asking = async {
            let mut stream = TcpStream::connect(addr).await.expect("the server listens");
            stream.write_all(request).await.expect("the server reads");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8(answer).expect("answers are text")
        };
        timeout(PATIENCE, asking).await.expect("the server answers or closes")
    }

    #[tokio::test]
    async fn answers_and_closes() {
        let addr = started(PATIENCE).await;
        let answer = ask(addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nhere"), "{answer}");
        let answer = ask(addr, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let answer = ask(addr, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }

    #[tokio::test]
    async fn a_head_over_the_limit_is_refused() {
        let addr = started(PATIENCE).await;
        let mut request = b"GET / HTTP/1.1\r\nHost: x\r\nX: ".to_vec();
        request.resize(HEAD_MAX, b'a');
        let answer = ask(addr, &request).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[tokio::test]
    async fn garbage_is_refused() {
        let addr = started(PATIENCE).await;
        let answer = ask(addr, b"\0\0\0\x12\0\x12\0\x04\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }

    #[tokio::test]
    async fn clients_that_say_nothing_do_not_keep_others_out() {
        let addr = started(Duration::from_secs(2)).await;
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(addr).await.expect("the backlog has room"));
        }
        let answer = ask(addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("here"), "{answer}");
        for mut stream in silent {
            assert!(timeout(PATIENCE, stream.read_u8()).await.expect("cut off").is_err());
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_cut_off() {
        let addr = started(Duration::from_secs(2)).await;
        let mut stuck = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(addr).await.expect("the server listens");
            stream.write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("the server reads");
            stuck.push(stream);
        }
        let answer = ask(addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.ends_with("here"), "{answer}");
    }
}
