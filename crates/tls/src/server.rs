//! The broker's side: the configuration of a listener's handshakes.

use crate::expiry::Expiry;
use crate::pem::{self, MaterialError};
use crate::provider::provider;
use crate::session::Session;
use crate::settings::Settings;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io;
use std::sync::Arc;

/// Whether clients must show a certificate (`ssl.client.auth`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    #[default]
    None,
    /// Clients may show a certificate; one that is shown must be valid.
    Requested,
    /// Clients must show a certificate.
    Required,
}

/// Begins the sessions of a listener, all with the same key and certificates.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    expiry: Option<Expiry>,
}

impl Acceptor {
    /// Reads the keys and certificates.
    ///
    /// # Errors
    /// The setting at fault.
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
            asked => {
                let (roots, setting) = client_roots(settings)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = if asked == ClientAuth::Requested { verifier.allow_unauthenticated() } else { verifier };
                let built = verifier.build().map_err(|error| MaterialError::new(setting, error.to_string()))?;
                builder.with_client_cert_verifier(built)
            }
        };
        let expiry = Expiry::of(&identity.chain, &identity.chain_setting);
        let mut config = builder
            .with_single_cert(identity.chain, identity.key)
            .map_err(|error| MaterialError::new(identity.setting, crate::explain::of_own_certificate(&error)))?;
        if client_auth != ClientAuth::None {
            // A session taken up again would not show its certificate again, however long it has expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Acceptor { config: Arc::new(config), expiry })
    }

    /// When the chain that clients are shown ends; `None` where its certificates do not say.
    pub fn expiry(&self) -> Option<&Expiry> {
        self.expiry.as_ref()
    }

    pub(crate) fn session(&self) -> io::Result<Session> {
        let connection = ServerConnection::new(self.config.clone()).map_err(io::Error::other)?;
        Ok(Session::new(connection.into()))
    }
}

fn client_roots(settings: &Settings) -> Result<(RootCertStore, String), MaterialError> {
    let missing = || MaterialError::new("ssl.truststore.location", "must be set: ssl.client.auth needs it");
    let (certificates, setting) = pem::trusted(settings)?.ok_or_else(missing)?;
    Ok((roots(certificates, &setting)?, setting))
}

/// A store of authorities; every one of them must be readable.
pub(crate) fn roots(
    certificates: Vec<rustls::pki_types::CertificateDer<'static>>,
    setting: &str,
) -> Result<RootCertStore, MaterialError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| MaterialError::new(setting, format!("has a certificate that is not usable: {error}")))?;
    }
    Ok(roots)
}
