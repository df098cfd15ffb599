//! A TLS client for tests. It uses rustls directly, so that mistakes in the product's TLS code are noticed.

use crate::pki::Issued;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// The trusted authority, and the client's own certificate if it has one.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Creates a client that trusts `authority` (PEM) and presents `identity` if the server requests a certificate.
    pub fn new(authority: &str, identity: Option<&Issued>) -> Tls {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM")).expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let chain = CertificateDer::pem_slice_iter(issued.chain.as_bytes()).map(|c| c.expect("PEM")).collect();
                let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        Tls(Arc::new(config))
    }

    pub(crate) fn handshake(&self, socket: TcpStream, addr: SocketAddr) -> std::io::Result<TlsStream> {
        let session = ClientConnection::new(self.0.clone(), addr.ip().into()).expect("a session");
        let mut stream = StreamOwned::new(session, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }
}
