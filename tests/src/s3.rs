//! An object store that speaks S3 with signatures. It is s3s-fs on a directory, behind a server that injects faults.

use std::collections::HashMap;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use crate::pki::Issued;

type Failure = Box<dyn Error + Send + Sync>;

/// A fault of a request.
#[derive(Clone, Copy, Debug)]
pub enum S3Fault {
    /// The response has this status and this error code.
    Status(u16, &'static str),
    /// The connection breaks halfway through the body: that of the request for PUT, and that of the response for GET.
    Reset,
    /// The request is carried out, but the connection breaks before the response.
    AnswerLost,
    /// No response is sent.
    Hang,
    /// Half of the response is sent. The connection stays open.
    Stall,
    /// A byte of the response is wrong.
    Flip,
    /// The response is delayed by this time.
    Delay(Duration),
    /// A request with a condition (such as `If-None-Match`) gets status 501.
    NoConditions,
    /// The response has the whole object although only a range was requested.
    NoRanges,
    /// The response has this status and a chunked body of 256 MiB.
    Flood(u16),
    /// The response reports success although the store has not read the request's body and does not carry the request
    /// out.
    Early,
    /// The response is a redirect with this status to another path of the store, which has a page with status 200.
    Redirect(u16),
    /// The response has half of the body, with a Content-Length that fits, although the Content-Range is the whole one.
    Cut,
}

#[derive(Default)]
struct Faults {
    /// The faults of the next requests of each method.
    next: HashMap<&'static str, Vec<S3Fault>>,
    every: HashMap<&'static str, S3Fault>,
    requests: HashMap<String, usize>,
    /// How many bytes [`S3Fault::Flood`] has sent.
    flooded: Arc<AtomicUsize>,
}

/// The path of the page to which [`S3Fault::Redirect`] redirects.
const SIGN_IN: &str = "/sign-in";

/// The size of one flood.
const FLOOD: usize = 256 << 20;

/// A store with one bucket. It runs until it is dropped.
pub struct S3 {
    address: SocketAddr,
    is_tls: bool,
    directory: TempDir,
    faults: Arc<Mutex<Faults>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl S3 {
    /// The name of the bucket.
    pub const BUCKET: &'static str = "objects";
    /// The access key id that the store accepts.
    pub const KEY_ID: &'static str = "AKIDFULLBORE";
    /// The secret access key that belongs to [`S3::KEY_ID`].
    pub const SECRET: &'static str = "hush+hush/hush";

    /// Starts a store.
    pub fn start() -> S3 {
        S3::start_at(0)
    }

    /// Starts a store at the given port.
    pub fn start_at(port: u16) -> S3 {
        S3::start_with(port, None)
    }

    /// Starts a store that serves https at localhost with the given certificate.
    pub fn start_tls(identity: &Issued) -> S3 {
        S3::start_with(0, Some(identity))
    }

    fn start_with(port: u16, identity: Option<&Issued>) -> S3 {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join(S3::BUCKET)).expect("the bucket");
        let faults = Arc::<Mutex<Faults>>::default();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(directory.path()).expect("a directory"));
        builder.set_auth(SimpleAuth::from_single(S3::KEY_ID, S3::SECRET));
        let service = builder.build();
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        let tls = identity.map(acceptor);
        let is_tls = tls.is_some();
        runtime.spawn(accept(listener, tls, service, Arc::clone(&faults)));
        S3 { address, is_tls, directory, faults, runtime: Some(runtime) }
    }

    /// Returns the store's URL.
    pub fn endpoint(&self) -> String {
        match self.is_tls {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// Returns the settings of a broker that stores its objects here.
    pub fn sets(&self) -> Vec<String> {
        vec![
            format!("diskless.storage=s3://{}/prefix", S3::BUCKET),
            format!("diskless.storage.s3.endpoint.url={}", self.endpoint()),
            format!("diskless.storage.aws.access.key.id={}", S3::KEY_ID),
            format!("diskless.storage.aws.secret.access.key={}", S3::SECRET),
        ]
    }

    /// Returns the directory in which each object is a file.
    pub fn directory(&self) -> std::path::PathBuf {
        self.directory.path().join(S3::BUCKET)
    }

    /// Plans a fault for the next request of `method`. Several calls plan faults for successive requests.
    pub fn next(&self, method: &'static str, fault: S3Fault) {
        self.faults().next.entry(method).or_default().push(fault);
    }

    /// Injects a fault into every request of `method` from now on.
    pub fn every(&self, method: &'static str, fault: S3Fault) {
        self.faults().every.insert(method, fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        let mut faults = self.faults();
        faults.next.clear();
        faults.every.clear();
    }

    /// Returns how many requests of `method` have arrived.
    pub fn requests(&self, method: &str) -> usize {
        self.faults().requests.get(method).copied().unwrap_or_default()
    }

    /// Returns how many bytes of [`S3Fault::Flood`] were sent.
    pub fn flooded(&self) -> usize {
        self.faults().flooded.load(Ordering::Relaxed)
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.faults.lock().expect("not poisoned")
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn acceptor(identity: &Issued) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(identity.chain.as_bytes()).map(|one| one.expect("PEM")).collect();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
    let builder = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them");
    TlsAcceptor::from(Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).expect("a pair")))
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, service: S3Service, faults: Arc<Mutex<Faults>>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, service, faults) = (tls.clone(), service.clone(), Arc::clone(&faults));
        tokio::spawn(async move {
            match tls {
                None => serve(socket, &service, &faults).await,
                // A client that does not trust the certificate closes the connection.
                Some(tls) => {
                    if let Ok(socket) = tls.accept(socket).await {
                        serve(socket, &service, &faults).await;
                    }
                }
            }
        });
    }
}

async fn serve(socket: impl AsyncRead + AsyncWrite + Unpin, service: &S3Service, faults: &Mutex<Faults>) {
    let answer = service_fn(|request| answer(service, faults, request));
    // Errors are expected here, because a client may disconnect and a fault breaks the connection.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
}

async fn answer(
    service: &S3Service,
    faults: &Mutex<Faults>,
    request: Request<Incoming>,
) -> Result<Response<s3s::Body>, Failure> {
    if request.uri().path() == SIGN_IN {
        return Ok(Response::builder().header("etag", "\"0\"").body(s3s::Body::from(Bytes::from("<html>")))?);
    }
    let method = request.method().as_str().to_owned();
    let fault = {
        let mut faults = faults.lock().expect("not poisoned");
        *faults.requests.entry(method.clone()).or_default() += 1;
        let next = faults.next.get_mut(method.as_str()).filter(|next| !next.is_empty()).map(|next| next.remove(0));
        next.or_else(|| faults.every.get(method.as_str()).copied())
    };
    let request = request.map(s3s::Body::from);
    match fault {
        None => call(service, request).await,
        Some(S3Fault::Status(status, code)) => {
            let text = format!("<Error><Code>{code}</Code><Message>It is a test.</Message></Error>");
            // The whole request is read first. Otherwise a client that is still sending would get a reset instead of
            // this response.
            drain(request).await?;
            Ok(Response::builder().status(status).body(s3s::Body::from(Bytes::from(text)))?)
        }
        Some(S3Fault::Reset) if method == "PUT" => Err("in the midst".into()),
        Some(S3Fault::Reset) => half(call(service, request).await?, Behind::Failure).await,
        Some(S3Fault::AnswerLost) => {
            call(service, request).await?;
            Err("done".into())
        }
        Some(S3Fault::Hang) => std::future::pending().await,
        Some(S3Fault::Stall) => half(call(service, request).await?, Behind::Silence).await,
        Some(S3Fault::Cut) => {
            let (mut head, body) = call(service, request).await?.into_parts();
            let whole = collect(body).await?;
            head.headers.remove("content-length");
            Ok(Response::from_parts(head, s3s::Body::from(whole.slice(..whole.len() / 2))))
        }
        Some(S3Fault::Redirect(status)) => redirect(request, status).await,
        Some(S3Fault::Flip) => {
            let (head, body) = call(service, request).await?.into_parts();
            let mut whole = collect(body).await?.to_vec();
            let middle = whole.len() / 2;
            if let Some(byte) = whole.get_mut(middle) {
                *byte ^= 1;
            }
            Ok(Response::from_parts(head, s3s::Body::from(Bytes::from(whole))))
        }
        Some(S3Fault::NoConditions) if request.headers().contains_key("if-none-match") => {
            drain(request).await?;
            let text = "<Error><Code>NotImplemented</Code><Message>A header is not known.</Message></Error>";
            Ok(Response::builder().status(501).body(s3s::Body::from(Bytes::from(text)))?)
        }
        Some(S3Fault::NoConditions) => call(service, request).await,
        Some(S3Fault::NoRanges) => {
            let mut answer = call(service, request).await?;
            answer.headers_mut().remove("content-range");
            if answer.status() == 206 {
                *answer.status_mut() = 200.try_into()?;
            }
            Ok(answer)
        }
        Some(S3Fault::Delay(by)) => {
            tokio::time::sleep(by).await;
            call(service, request).await
        }
        Some(S3Fault::Early) => Ok(Response::builder().header("etag", "\"0\"").body(s3s::Body::empty())?),
        Some(S3Fault::Flood(status)) => {
            let sent = Arc::clone(&faults.lock().expect("not poisoned").flooded);
            let mut answer = call(service, request).await?;
            *answer.status_mut() = status.try_into()?;
            answer.headers_mut().remove("content-length");
            Ok(answer.map(|_| s3s::Body::http_body(Flood { sent, left: FLOOD })))
        }
    }
}

/// Reads a request, and redirects it to [`SIGN_IN`].
async fn redirect(request: Request<s3s::Body>, status: u16) -> Result<Response<s3s::Body>, Failure> {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let place = format!("http://user:{}@{host}{SIGN_IN}?token={}", S3::SECRET.replace('/', "%2F"), S3::SECRET);
    drain(request).await?;
    Ok(Response::builder().status(status).header("location", place).body(s3s::Body::empty())?)
}

/// Sends half of the body of `answer`, and then does what `behind` determines.
async fn half(answer: Response<s3s::Body>, behind: Behind) -> Result<Response<s3s::Body>, Failure> {
    let (head, body) = answer.into_parts();
    let whole = collect(body).await?;
    let half = Half(Some(whole.slice(..whole.len() / 2)), behind);
    Ok(Response::from_parts(head, s3s::Body::http_body(half)))
}

/// Behaviour of a response after half of its body: the connection breaks, or hangs without further bytes.
#[derive(Clone, Copy)]
enum Behind {
    Failure,
    Silence,
}

/// A response body that sends its bytes, and then breaks or hangs, which its [`Behind`] determines.
struct Half(Option<Bytes>, Behind);

impl Body for Half {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match (self.0.take(), self.1) {
            (Some(bytes), _) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            (None, Behind::Failure) => Poll::Ready(Some(Err("in the midst".into()))),
            // No waker is stored, so the task never continues and the response hangs.
            (None, Behind::Silence) => Poll::Pending,
        }
    }
}

/// A body of zeros that counts how many were sent.
struct Flood {
    sent: Arc<AtomicUsize>,
    left: usize,
}

impl Body for Flood {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let chunk = Bytes::from_static(&[0; 64 << 10]);
        if self.left < chunk.len() {
            return Poll::Ready(None);
        }
        self.left -= chunk.len();
        self.sent.fetch_add(chunk.len(), Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }
}

async fn call(service: &S3Service, request: Request<s3s::Body>) -> Result<Response<s3s::Body>, Failure> {
    service.call(request).await.map_err(|error| format!("{error:?}").into())
}

async fn drain(request: Request<s3s::Body>) -> Result<(), Failure> {
    collect(request.into_body()).await.map(drop)
}

async fn collect(mut body: s3s::Body) -> Result<Bytes, Failure> {
    body.store_all_limited(64 << 20).await
}
