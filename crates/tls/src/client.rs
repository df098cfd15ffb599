//! The client's side of TLS: the authorities that it trusts, its own certificate, and the check of the broker's host
//! name.

use crate::explain;
use crate::pem::{self, MaterialError};
use crate::provider::provider;
use crate::server::roots;
use crate::session::Session;
use crate::settings::Settings;
use fullbore_wire::split_host_port;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// A TLS stream over another stream, which a single task reads and writes.
pub type Tunnel<S> = tokio_rustls::client::TlsStream<S>;

/// Starts TLS sessions with brokers. All sessions use the same keys and certificates.
#[derive(Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Reads the keys and certificates of the settings. Without a truststore, the client trusts the system's
    /// authorities.
    ///
    /// # Errors
    /// Returns [`MaterialError`] with the name of the setting that cannot be used.
    pub fn load(settings: &Settings, check_host_name: bool) -> Result<Self, MaterialError> {
        let (trusted, setting) = match pem::trusted(settings)? {
            Some(trusted) => trusted,
            None => (system_authorities()?, "ssl.truststore.location".to_owned()),
        };
        let provider = provider(settings);
        let authorities = Arc::new(roots(trusted.clone(), &setting)?);
        let chains = WebPkiServerVerifier::builder_with_provider(authorities, provider.clone())
            .build()
            .map_err(|error| MaterialError::new(&setting, error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&settings.versions())
            .map_err(|error| MaterialError::new("ssl.cipher.suites", error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { chains, trusted, check_host_name }));
        Self::showing(builder, settings)
    }

    /// Reads the keys and certificates for sessions that do not check the server's certificate. Such sessions protect
    /// only from passive eavesdroppers.
    ///
    /// # Errors
    /// Returns [`MaterialError`] with the name of the setting that cannot be used.
    pub fn unverified(settings: &Settings) -> Result<Self, MaterialError> {
        let provider = provider(settings);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&settings.versions())
            .map_err(|error| MaterialError::new("ssl.cipher.suites", error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)));
        Self::showing(builder, settings)
    }

    /// Adds the client's own certificate if the settings have one.
    fn showing(
        builder: ConfigBuilder<ClientConfig, WantsClientCert>,
        settings: &Settings,
    ) -> Result<Self, MaterialError> {
        let config = match pem::identity(settings)? {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain, identity.key)
                .map_err(|error| MaterialError::new(identity.setting, explain::of_own_certificate(&error)))?,
        };
        Ok(Connector { config: Arc::new(config) })
    }

    /// Does the handshake with `host` over any stream, for protocols that start without TLS. The caller sets the time
    /// limit.
    ///
    /// # Errors
    /// Returns an error whose text explains why the handshake failed.
    pub async fn tunnel<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, host: &str) -> io::Result<Tunnel<S>> {
        let connector = tokio_rustls::TlsConnector::from(self.config.clone());
        connector.connect(server_name(host)?, stream).await
    }

    /// Starts a session with the broker at `address` (`host:port`).
    pub(crate) fn session(&self, address: &str) -> io::Result<Session> {
        let host = split_host_port(address).map_or(address, |(host, _)| host);
        let connection = ClientConnection::new(self.config.clone(), server_name(host)?).map_err(io::Error::other)?;
        Ok(Session::new(connection.into()))
    }
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    // Removes the zone of an IPv6 address. The zone names a network interface and is not part of the address.
    let host = host.split('%').next().unwrap_or(host);
    ServerName::try_from(host.to_owned()).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("TLS: {host} is not a name that a certificate can have"))
    })
}

/// A verifier that accepts any certificate if the server has its private key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn system_authorities() -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let found = rustls_native_certs::load_native_certs();
    // Skip authorities that rustls refuses. Most systems have at least one of these, and it must not prevent a
    // connection.
    let usable = |certificate: &CertificateDer<'static>| RootCertStore::empty().add(certificate.clone()).is_ok();
    let usable: Vec<_> = found.certs.into_iter().filter(usable).collect();
    if usable.is_empty() {
        let reason = "must be set: the system has no certificate authorities (ca-certificates)";
        return Err(MaterialError::new("ssl.truststore.location", reason));
    }
    Ok(usable)
}

/// Verifies the certificates of servers as rustls does, with two exceptions as in Java. The check of the host name can
/// be turned off. A certificate that is itself in the truststore is trusted even if it is marked as an authority, like
/// the certificates that `openssl req -x509` makes.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
    check_host_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            // rustls checks the host name last. If only this check failed, the chain and its dates are valid.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.check_host_name => Ok(ServerCertVerified::assertion()),
            Err(refusal) if explain::is_trusted_itself(&refusal, end_entity, &self.trusted) => {
                if self.check_host_name {
                    rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}
