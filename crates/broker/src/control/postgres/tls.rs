//! TLS to PostgreSQL, over `crates/tls`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use fullbore_tls::{Connector, MaterialError, Settings, Tunnel};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// How connections are encrypted.
#[derive(Clone)]
pub enum Encryption {
    /// They are not.
    Off,
    /// With the authorities that these files have.
    On { settings: Settings, verifies: bool, check_host_name: bool },
}

impl Encryption {
    /// Reads the authorities, for a new connection.
    pub fn load(&self) -> Result<MakeSession, MaterialError> {
        Ok(MakeSession(match self {
            Self::Off => None,
            Self::On { settings, verifies: true, check_host_name } => {
                Some(Connector::load(settings, *check_host_name)?)
            }
            Self::On { settings, .. } => Some(Connector::unverified(settings)?),
        }))
    }
}

/// Begins sessions with a server of this name; none where TLS is off.
#[derive(Clone)]
pub struct MakeSession(Option<Connector>);

/// A session with one server.
pub struct BeginSession {
    connector: Option<Connector>,
    host: String,
}

/// An encrypted stream.
pub struct Encrypted<S>(Tunnel<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for MakeSession {
    type Stream = Encrypted<S>;
    type TlsConnect = BeginSession;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<BeginSession> {
        Ok(BeginSession { connector: self.0.clone(), host: host.to_owned() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for BeginSession {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let off = || io::Error::other("TLS is off");
            let connector = self.connector.ok_or_else(off)?;
            Ok(Encrypted(connector.tunnel(stream, &self.host).await?))
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
