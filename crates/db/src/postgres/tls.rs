//! TLS for connections to PostgreSQL, based on `crates/tls`.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use fullbore_host::files::{SETTINGS_FILE_MAX, read_text};
use fullbore_tls::{Connector, MaterialError, Settings, Tunnel};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// The encryption of connections to the database.
#[derive(Clone)]
pub enum Encryption {
    /// Connections are not encrypted.
    Off,
    /// Connections use TLS, with the authorities in `settings` and the client certificate `own`. The files are read
    /// again for each connection.
    On { settings: Box<Settings>, own: Option<OwnCertificate>, verifies: bool, check_host_name: bool },
}

/// The files of a client certificate.
#[derive(Clone)]
pub struct OwnCertificate {
    /// The PEM file with the certificate and its chain.
    pub certificate: PathBuf,
    /// The PEM file with the private key.
    pub key: PathBuf,
}

impl Encryption {
    /// Reads the files of the authorities and the certificate, for a new connection.
    pub fn load(&self) -> Result<MakeSession, MaterialError> {
        let Self::On { settings, own, verifies, check_host_name } = self else { return Ok(MakeSession(None)) };
        let mut settings = settings.clone();
        if let Some(own) = own {
            for (name, key, file) in [
                ("sslcert", "ssl.keystore.certificate.chain", &own.certificate),
                ("sslkey", "ssl.keystore.key", &own.key),
            ] {
                let unusable = |reason: String| MaterialError { setting: format!("{name}={}", file.display()), reason };
                let pem = read_text(file, SETTINGS_FILE_MAX).map_err(|error| unusable(error.to_string()))?;
                settings.set(key, &pem).map_err(unusable)?;
            }
        }
        let connector =
            if *verifies { Connector::load(&settings, *check_host_name) } else { Connector::unverified(&settings) };
        let in_words = |error: MaterialError| MaterialError {
            setting: in_words_of_url(error.setting),
            reason: in_words_of_url(error.reason),
        };
        connector.map(|connector| MakeSession(Some(connector))).map_err(in_words)
    }
}

/// Replaces the names of `ssl.*` settings in an error text by the names of the URL's parameters.
fn in_words_of_url(text: String) -> String {
    let names = [
        ("ssl.truststore.location", "sslrootcert"),
        ("ssl.keystore.certificate.chain", "sslcert"),
        ("ssl.keystore.key", "sslkey"),
        ("ssl.key.password", "sslpassword"),
    ];
    names.iter().fold(text, |text, (setting, name)| text.replace(setting, name))
}

/// Creates TLS sessions. Contains no connector if TLS is off.
#[derive(Clone)]
pub struct MakeSession(Option<Connector>);

/// A TLS session before the handshake.
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
        fullbore_tls::server_end_point(&self.0).map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
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
