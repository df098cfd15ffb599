//! The broker's side of TLS: how the handshakes of a listener are configured.

use crate::expiry::Expiry;
use crate::explain;
use crate::pem::{self, MaterialError};
use crate::provider::provider;
use crate::session::Session;
use crate::settings::Settings;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use std::io;
use std::sync::Arc;

/// How a client must identify itself with a certificate (`ssl.client.auth`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// The broker does not request a certificate.
    #[default]
    None,
    /// A client may send a certificate. If it does, the certificate must be valid.
    Requested,
    /// A client must send a valid certificate.
    Required,
}

/// Starts the TLS sessions of a listener. All sessions use the same key and certificates.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    expiry: Option<Expiry>,
}

impl Acceptor {
    /// Reads the key and the certificates of a listener.
    ///
    /// # Errors
    /// Returns [`MaterialError`] with the name of the setting that cannot be used.
    pub fn load(settings: &Settings, client_auth: ClientAuth) -> Result<Self, MaterialError> {
        let identity = pem::identity(settings)?.ok_or_else(|| {
            MaterialError::new("ssl.keystore.location", "must be set: a listener needs a certificate")
        })?;
        let provider = provider(settings);
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&settings.versions())
            .map_err(|error| MaterialError::new("ssl.cipher.suites", error.to_string()))?;
        let builder = match client_auth {
            ClientAuth::None => builder.with_no_client_auth(),
            requested => {
                let missing = || MaterialError::new("ssl.truststore.location", "must be set: ssl.client.auth needs it");
                let (trusted, setting) = pem::trusted(settings)?.ok_or_else(missing)?;
                let roots = Arc::new(roots(trusted.clone(), &setting)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier =
                    if requested == ClientAuth::Requested { verifier.allow_unauthenticated() } else { verifier };
                let chains = verifier.build().map_err(|error| MaterialError::new(setting, error.to_string()))?;
                builder.with_client_cert_verifier(Arc::new(ClientVerifier { chains, trusted }))
            }
        };
        let expiry = Expiry::of(&identity.chain, &identity.chain_setting);
        let mut config = builder
            .with_single_cert(identity.chain, identity.key)
            .map_err(|error| MaterialError::new(identity.setting, explain::of_own_certificate(&error)))?;
        if client_auth != ClientAuth::None {
            // Turn off session resumption. A client that resumes a session sends no certificate, so the broker would
            // accept it even after its certificate has expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Acceptor { config: Arc::new(config), expiry })
    }

    /// Returns the certificate of the broker's own chain that expires first; None if no expiry in the chain is
    /// readable.
    pub fn expiry(&self) -> Option<&Expiry> {
        self.expiry.as_ref()
    }

    pub(crate) fn session(&self) -> io::Result<Session> {
        let connection = ServerConnection::new(self.config.clone()).map_err(io::Error::other)?;
        Ok(Session::new(connection.into()))
    }
}

/// Verifies the certificates of clients with the rules of rustls and one rule of Java. A certificate that is itself in
/// the truststore is trusted even if it is marked as an authority.
#[derive(Debug)]
struct ClientVerifier {
    chains: Arc<dyn ClientCertVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chains.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chains.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.chains.verify_client_cert(end_entity, intermediates, now) {
            Err(refusal) if explain::is_trusted_itself(&refusal, end_entity, &self.trusted) => {
                Ok(ClientCertVerified::assertion())
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

/// Returns a store with these authorities. Fails if a certificate cannot be used as an authority.
pub(crate) fn roots(certificates: Vec<CertificateDer<'static>>, setting: &str) -> Result<RootCertStore, MaterialError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| MaterialError::new(setting, format!("has a certificate that is not usable: {error}")))?;
    }
    Ok(roots)
}
