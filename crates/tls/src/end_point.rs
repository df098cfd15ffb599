//! The channel binding `tls-server-end-point` (RFC 5929). This is a hash of the server's certificate, made with the
//! hash algorithm of the certificate's signature.
//!
//! Only the signature algorithm of the certificate is parsed. Bytes that are not a certificate have no binding and
//! cause no panic.

use aws_lc_rs::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use pkcs8::ObjectIdentifier;
use pkcs8::der::asn1::AnyRef;
use pkcs8::der::{Reader, Result, SliceReader};

use crate::client::Tunnel;

/// Returns the binding of a session. Returns None if the certificate's signature algorithm names no hash algorithm, as
/// with Ed25519 and RSASSA-PSS.
pub fn server_end_point<S>(tunnel: &Tunnel<S>) -> Option<Vec<u8>> {
    let (_, session) = tunnel.get_ref();
    of_certificate(session.peer_certificates()?.first()?)
}

fn of_certificate(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = hash_of(&signature_algorithm(certificate).ok()?.to_string())?;
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

/// Returns the algorithm that a certificate is signed with (RFC 5280, 4.1.1.2).
fn signature_algorithm(certificate: &[u8]) -> Result<ObjectIdentifier> {
    let certificate = SliceReader::new(certificate)?.decode::<AnyRef<'_>>()?;
    let mut parts = SliceReader::new(certificate.value())?;
    // Skips the signed part of the certificate, which comes first.
    parts.decode::<AnyRef<'_>>()?;
    let algorithm = parts.decode::<AnyRef<'_>>()?;
    SliceReader::new(algorithm.value())?.decode::<ObjectIdentifier>()
}

/// Returns the hash algorithm for a signature algorithm; None if the signature algorithm is unknown. MD5 and SHA-1 are
/// replaced by SHA-256 (RFC 5929, 4.1).
fn hash_of(signature: &str) -> Option<&'static Algorithm> {
    match signature {
        // RSA with MD5, SHA-1 and SHA-256; ECDSA with SHA-1 and SHA-256.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.113549.1.1.11" => Some(&SHA256),
        "1.2.840.10045.4.1" | "1.2.840.10045.4.3.2" => Some(&SHA256),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Some(&SHA384),
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Some(&SHA512),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_tests::pki::Authority;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn damaged_certificates_have_some_binding_or_none() {
        let pem = Authority::new("ca").pem();
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        // rcgen signs with ECDSA and SHA-256.
        assert_eq!(of_certificate(&der), Some(digest(&SHA256, &der).as_ref().to_vec()));
        for at in 0..der.len() {
            let _ = of_certificate(&der[..at]);
            for byte in 0..=255 {
                let mut damaged = der.to_vec();
                damaged[at] = byte;
                let _ = of_certificate(&damaged);
            }
        }
    }
}
