//! The HTTP client for a bucket. Unlike the client of the `object_store` library, it tracks how much of a request was
//! sent.
//!
//! Only HTTP/1.1 is used, because with HTTP/2 all uploads would share one connection. Each time the store's name is
//! resolved, its addresses are rotated, so that the connections use all of them.
//!
//! Answers determine the pace of later requests (see [`Pace`]). Two kinds of answers mean that there are too many
//! requests: a 429, and a 503 with a Retry-After header or with a code such as SlowDown. Other failures do not change
//! the pace. After an outage, requests are therefore sent at once.
//!
//! Requests to the bucket follow no redirect. A PUT that is redirected with the status 303 becomes a GET, and the page
//! that this GET returns would count as the result of the PUT.
//!
//! A request may have a [`BodyProgress`] in its extensions. This progress advances each time the socket accepts a chunk
//! of up to 64 KiB. Retries and time limits of requests are elsewhere.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, Result};
use reqwest::StatusCode;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;

use super::container;
use super::pace::Pace;
use super::progress::BodyProgress;

/// Time limit for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Maximum number of idle connections that are kept for later requests.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Size of the chunks in which a body is passed to the socket, in bytes.
const CHUNK: usize = 64 << 10;
/// Maximum number of bytes that are read of an error's body. The errors of S3 have less than 1 KiB.
const ERROR_MAX: usize = 64 << 10;

/// Creates the HTTP clients for a bucket and for the services that issue its credentials.
#[derive(Debug)]
pub struct Connector {
    /// Trusted certificate authorities, in addition to those of the system.
    pub authorities: Vec<reqwest::Certificate>,
    /// The pace of requests. The HTTP client updates it from the answers, and [`super::Objects`] enforces it.
    pub pace: Arc<Pace>,
    /// The token for the service that issues a container's credentials, if the environment has the token itself and not
    /// only a file with it.
    pub container_token: Option<HeaderValue>,
    /// True for services that issue credentials. Requests to them follow redirects.
    pub follows_redirects: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let (pace, container_token) = (Arc::clone(&self.pace), self.container_token.clone());
        let failed = |error: reqwest::Error| object_store::Error::Generic { store: "HTTP", source: Box::new(error) };
        let mut builder = reqwest::ClientBuilder::new()
            .user_agent(concat!("fullbore/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_only()
            .redirect(if self.follows_redirects { Policy::default() } else { Policy::none() })
            // Decompression is off: the bytes of an object must arrive exactly as they were put, with the length in the
            // header.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .dns_resolver(Arc::new(InTurn::default()))
            .tls_certs_merge(self.authorities.iter().cloned());
        // `object_store` has read this proxy from the environment (AWS_PROXY_URL).
        if let Some(proxy) = options.get_config_value(&ClientConfigKey::ProxyUrl) {
            let excluded = options.get_config_value(&ClientConfigKey::ProxyExcludes);
            let excluded = excluded.and_then(|hosts| reqwest::NoProxy::from_string(&hosts));
            builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(failed)?.no_proxy(excluded));
        }
        Ok(HttpClient::new(StoreClient { client: builder.build().map_err(failed)?, pace, container_token }))
    }
}

/// Resolves names. The system may return the addresses of a store in the same order for a while, so the list is rotated
/// by one address each time.
#[derive(Debug, Default)]
struct InTurn {
    turn: AtomicUsize,
}

impl Resolve for InTurn {
    fn resolve(&self, name: Name) -> Resolving {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            // The HTTP library later replaces port 0 by the port of the URL.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(from_turn(found, turn).into_iter()) as Addrs)
        })
    }
}

/// Returns the addresses, rotated by `turn` positions.
fn from_turn(mut addresses: Vec<SocketAddr>, turn: usize) -> Vec<SocketAddr> {
    let first = turn % addresses.len().max(1);
    addresses.rotate_left(first);
    addresses
}

#[derive(Debug)]
struct StoreClient {
    client: reqwest::Client,
    pace: Arc<Pace>,
    container_token: Option<HeaderValue>,
}

/// How an answer affects the pace of later requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paced {
    /// The request succeeded, or the store refused it for a reason other than the number of requests.
    Answered,
    /// The store refuses the request because there are too many. The duration is the store's Retry-After, if it sends
    /// one.
    TooMany(Option<Duration>),
    /// The store, or a proxy in front of it, has failed. This failure does not show which rate of requests the store
    /// accepts.
    Failed,
}

/// Texts that mean "too many requests" in the body of a 503. A proxy that cannot reach the store sends a 503 without
/// these texts.
const SLOW_DOWN_WORDS: [&str; 6] =
    ["SlowDown", "ServerBusy", "TooManyRequests", "Throttl", "LimitExceeded", "reduce your request rate"];

/// Returns true if only the body of an answer shows whether there are too many requests, because neither the status nor
/// the headers do.
fn body_decides(status: StatusCode, headers: &HeaderMap) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE && !headers.contains_key(RETRY_AFTER)
}

/// Decides how an answer affects the pace. `body` is needed only if [`body_decides`] returns true; otherwise it may be
/// empty.
fn paced(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Paced {
    let has_words = || {
        let text = String::from_utf8_lossy(body);
        SLOW_DOWN_WORDS.iter().any(|words| text.contains(words))
    };
    match status {
        StatusCode::TOO_MANY_REQUESTS => Paced::TooMany(retry_after(headers)),
        StatusCode::SERVICE_UNAVAILABLE if headers.contains_key(RETRY_AFTER) || has_words() => {
            Paced::TooMany(retry_after(headers))
        }
        StatusCode::REQUEST_TIMEOUT => Paced::Failed,
        status if status.is_server_error() => Paced::Failed,
        _ => Paced::Answered,
    }
}

/// Returns how long the store wants the client to wait. Returns `None` if there is no Retry-After header with a number
/// of seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

#[async_trait]
impl HttpService for StoreClient {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let (progress, len) = (parts.extensions.get::<BodyProgress>().cloned(), body.content_length());
        let url = parts.uri.to_string().parse().map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        container::authorize(request.headers_mut(), self.container_token.as_ref());
        *request.body_mut() = Some(match (&progress, body.as_bytes()) {
            (None, Some(bytes)) => bytes.clone().into(),
            _ => reqwest::Body::wrap(SentBody { body, chunk: Bytes::new(), progress: progress.clone() }),
        });
        let sent_to = request.url().clone();
        let answer: hyper::Response<reqwest::Body> = self.client.execute(request).await.map_err(http_error)?.into();
        let (parts, body) = answer.into_parts();
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        let left = if is_error { ERROR_MAX } else { usize::MAX };
        let body = HttpResponseBody::new(ReceivedBody { body, left });
        let (read, body) = if body_decides(parts.status, &parts.headers) {
            let read = body.bytes().await?;
            (read.clone(), HttpResponseBody::from(read))
        } else {
            (Bytes::new(), body)
        };
        match paced(parts.status, &parts.headers, &read) {
            Paced::Answered => self.pace.succeeded(),
            Paced::TooMany(pause) => self.pace.refused(pause),
            Paced::Failed => {}
        }
        if let Some(redirected) = Redirected::of(&sent_to, parts.status, &parts.headers) {
            return Err(HttpError::new(HttpErrorKind::Unknown, redirected));
        }
        let is_sent = progress.is_none_or(|progress| progress.last().1 >= len as u64);
        if parts.status.is_success() && !is_sent {
            return Err(HttpError::new(HttpErrorKind::Interrupted, AnsweredEarly));
        }
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// An error: the store returned success before the whole body was sent, so it cannot have the object.
#[derive(Debug, thiserror::Error)]
#[error("the store answered before it had received the whole body of the request")]
struct AnsweredEarly;

/// An error: the store, or a proxy in front of it, redirects the request. [`super::error`] finds the status in the
/// text.
#[derive(Debug, thiserror::Error)]
#[error(
    "the store redirects the request to the host {host} (status code: {status}), and the broker follows no redirects; \
     check the endpoint of the store"
)]
struct Redirected {
    status: u16,
    host: String,
}

impl Redirected {
    /// Returns the error for an answer, or `None` if the answer is no redirect to another place. The rest of the place
    /// is left out, because it may contain secrets.
    fn of(sent_to: &reqwest::Url, status: StatusCode, headers: &HeaderMap) -> Option<Redirected> {
        let place = headers.get(LOCATION).filter(|_| status.is_redirection())?.to_str().ok();
        let place = place.and_then(|place| sent_to.join(place).ok());
        let host = place.as_ref().and_then(reqwest::Url::host_str).unwrap_or("(not valid)").to_owned();
        Some(Redirected { status: status.as_u16(), host })
    }
}

/// The body of a request, which is sent in chunks.
struct SentBody {
    body: HttpRequestBody,
    /// The unsent rest of the current part of the body.
    chunk: Bytes,
    progress: Option<BodyProgress>,
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        while self.chunk.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => self.chunk = frame.into_data().unwrap_or_default(),
                ended => return Poll::Ready(ended),
            }
        }
        let len = self.chunk.len().min(CHUNK);
        if let Some(progress) = &self.progress {
            progress.moved(len);
        }
        Poll::Ready(Some(Ok(Frame::data(self.chunk.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.chunk.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.body.size_hint().exact() {
            Some(left) => SizeHint::with_exact(left + self.chunk.len() as u64),
            None => SizeHint::default(),
        }
    }
}

/// The body of an answer. The body of an error is cut off after [`ERROR_MAX`] bytes.
struct ReceivedBody {
    body: reqwest::Body,
    left: usize,
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context).map_err(http_error));
        if let Some(Ok(frame)) = &frame {
            self.left = self.left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The length of an error's body is unknown, because it may be cut off.
        if self.left == usize::MAX { self.body.size_hint() } else { SizeHint::default() }
    }
}

fn http_error(error: reqwest::Error) -> HttpError {
    let kind = match &error {
        error if error.is_timeout() => HttpErrorKind::Timeout,
        error if error.is_connect() => HttpErrorKind::Connect,
        error if error.is_decode() => HttpErrorKind::Decode,
        error if error.is_body() => HttpErrorKind::Interrupted,
        error if error.is_request() => HttpErrorKind::Request,
        _ => HttpErrorKind::Unknown,
    };
    // The URL is left out, because the message of `object_store` around this error already has it.
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_several_addresses_connections_begin_at_each_in_turn() {
        let addresses: Vec<SocketAddr> = (1..=3).map(|host| ([127, 0, 0, host], 0).into()).collect();
        let first = |turn| from_turn(addresses.clone(), turn)[0];
        assert_eq!([0, 1, 2, 3].map(first), [addresses[0], addresses[1], addresses[2], addresses[0]]);
        assert_eq!(from_turn(addresses.clone(), 1).len(), 3);
        assert_eq!(from_turn(Vec::new(), 7), []);
    }

    #[test]
    fn failures_other_than_too_many_requests_leave_the_pace() {
        let none = HeaderMap::new();
        let wanted = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("3"))]);
        let of = |status: u16, headers: &HeaderMap, body: &str| {
            paced(StatusCode::from_u16(status).expect("a status"), headers, body.as_bytes())
        };
        for status in [200, 206, 304, 404, 412, 416] {
            assert_eq!(of(status, &none, ""), Paced::Answered, "{status}");
        }
        for status in [408, 500, 501, 502, 503, 504] {
            assert_eq!(of(status, &none, "<html>Service Unavailable</html>"), Paced::Failed, "{status}");
        }
        for code in ["SlowDown", "SlowDownRead", "ServerBusy", "RequestLimitExceeded", "ThrottlingException"] {
            assert_eq!(of(503, &none, &format!("<Error><Code>{code}</Code></Error>")), Paced::TooMany(None), "{code}");
        }
        assert_eq!(of(429, &none, ""), Paced::TooMany(None));
        for status in [429, 503] {
            assert_eq!(of(status, &wanted, ""), Paced::TooMany(Some(Duration::from_secs(3))), "{status}");
        }
    }

    #[tokio::test]
    async fn name_of_this_machine_is_resolved() {
        let found = InTurn::default().resolve("localhost".parse().expect("a name")).await.expect("resolved");
        assert!(found.collect::<Vec<_>>().iter().all(|address| address.ip().is_loopback()));
    }
}
