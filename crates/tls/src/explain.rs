//! Explains TLS errors in words: the reason, and the setting to correct if there is one.
//!
//! Invariant: every error is a single sentence without secrets.

use rustls::pki_types::CertificateDer;
use rustls::{
    AlertDescription, CertificateError, Error, InconsistentKeys, InvalidMessage, OtherError, PeerIncompatible, Side,
};

/// The first bytes of TLS records: the type of a handshake record, and that of an alert.
const RECORDS: [u8; 2] = [22, 21];

/// Returns true if a connection that begins with this byte may be TLS.
pub(crate) fn is_tls(first: Option<u8>) -> bool {
    first.is_some_and(|first| RECORDS.contains(&first))
}

/// Explains why a session failed, for the user at `side`. `first` is the first byte that the peer has sent.
pub(crate) fn error(error: &Error, side: Side, first: Option<u8>) -> String {
    let (peer, store) = match side {
        Side::Client => ("the broker", "the broker's certificate"),
        Side::Server => ("the client", "the client's certificate"),
    };
    match error {
        Error::InvalidMessage(_) if !is_tls(first) => {
            format!("{peer} does not speak TLS{}", plain_hint(side))
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            format!("TLS: {peer} sent bytes that are not a TLS record")
        }
        Error::InvalidCertificate(reason) => format!("TLS: {store} {}", certificate(reason)),
        Error::NoCertificatesPresented => {
            "TLS: the client showed no certificate, and ssl.client.auth=required".to_owned()
        }
        Error::AlertReceived(alert) => format!("TLS: {}", alert_from(*alert, side)),
        Error::PeerIncompatible(reason) => format!("TLS: {}", incompatible(reason)),
        other => format!("TLS: {other}"),
    }
}

fn plain_hint(side: Side) -> &'static str {
    match side {
        Side::Client => ": it is no SSL listener",
        Side::Server => ": a plaintext client on an SSL listener",
    }
}

/// Returns the error for a peer that closed the connection before the handshake was done.
pub(crate) fn ended(side: Side, first: Option<u8>) -> &'static str {
    match (side, first) {
        // A plaintext listener closes the connection, because the first bytes of TLS are not a valid request.
        (Side::Client, None) => "the broker closed the connection during the TLS handshake: is it an SSL listener?",
        (Side::Client, Some(_)) => "the broker closed the connection during the TLS handshake",
        (Side::Server, _) => "the client closed the connection during the TLS handshake",
    }
}

fn certificate(reason: &CertificateError) -> String {
    match reason {
        CertificateError::UnknownIssuer => {
            "was issued by an authority that is not trusted (unknown CA): see ssl.truststore.location".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            // rustls formats names as DnsName("a") or IpAddress(127.0.0.1).
            let bare = |name: &String| {
                let inner = name.split_once('(').map_or(name.as_str(), |(_, inner)| inner.trim_end_matches(')'));
                inner.trim_matches('"').to_owned()
            };
            let names: Vec<String> = presented.iter().map(bare).collect();
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            format!("is not for {}, but for {names} (host name mismatch)", expected.to_str())
        }
        CertificateError::NotValidForName => "is for another name (host name mismatch)".to_owned(),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "is not valid yet".to_owned(),
        CertificateError::BadSignature => "has a wrong signature".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for this purpose (extended key usage)".to_owned()
        }
        CertificateError::Other(other) if is_authority_as_leaf(other) => {
            "is the certificate of an authority (CA), and is not itself in the truststore".to_owned()
        }
        CertificateError::Other(other) if is_version_1(other) => format!("is {VERSION_1}"),
        other => format!("is not valid: {other}"),
    }
}

/// Error for certificates of version 1, which plain `openssl x509 -req` makes. rustls and TLS 1.3 need version 3, which
/// has extensions.
const VERSION_1: &str = "of X.509 version 1, which is refused: create a certificate of version 3, as `openssl x509 \
     -req -extfile FILE` does, with subjectAltName in FILE";

/// Returns true for webpki's error `UnsupportedCertVersion`, for which rustls has no variant.
fn is_version_1(error: &OtherError) -> bool {
    error.0.to_string() == "UnsupportedCertVersion"
}

/// Returns true for webpki's error `CaUsedAsEndEntity`, for which rustls has no variant.
fn is_authority_as_leaf(error: &OtherError) -> bool {
    error.0.to_string() == "CaUsedAsEndEntity"
}

/// Returns true if the certificate `shown` is itself in the truststore and was refused only because it is marked as an
/// authority.
///
/// `openssl req -x509` makes such certificates, and Java trusts them. If such a certificate has expired, it is refused
/// for that reason, since webpki checks the dates first.
pub(crate) fn is_trusted_itself(
    refusal: &Error,
    shown: &CertificateDer<'_>,
    trusted: &[CertificateDer<'static>],
) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = refusal else { return false };
    is_authority_as_leaf(other) && trusted.iter().any(|known| known == shown)
}

fn alert_from(alert: AlertDescription, side: Side) -> String {
    let (peer, ours) = match side {
        Side::Client => ("the broker", "this client's certificate"),
        Side::Server => ("the client", "this broker's certificate"),
    };
    match alert {
        AlertDescription::CertificateRequired => {
            format!("{peer} requires a client certificate: see ssl.keystore.location")
        }
        AlertDescription::UnknownCA => format!("{peer} does not trust the authority of {ours} (unknown CA)"),
        AlertDescription::CertificateExpired => format!("{peer} says that {ours} has expired"),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate => format!("{peer} does not accept {ours} ({alert:?})"),
        AlertDescription::ProtocolVersion => {
            format!("{peer} supports none of the TLS versions in ssl.enabled.protocols")
        }
        AlertDescription::HandshakeFailure if side == Side::Client => {
            "the broker refused the handshake: no cipher suite in common, or it requires a client certificate"
                .to_owned()
        }
        AlertDescription::HandshakeFailure => "the client refused the handshake".to_owned(),
        other => format!("{peer} ended the session ({other:?})"),
    }
}

fn incompatible(reason: &PeerIncompatible) -> String {
    match reason {
        PeerIncompatible::NoCipherSuitesInCommon => "no cipher suite in common: see ssl.cipher.suites".to_owned(),
        PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::Tls13RequiredForQuic
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig => {
            "no version of TLS in common: see ssl.enabled.protocols".to_owned()
        }
        other => format!("the peer is not compatible: {other:?}"),
    }
}

/// Explains why this process cannot use its own key and certificates.
pub(crate) fn of_own_certificate(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the private key is not that of the first certificate".to_owned()
        }
        Error::InvalidCertificate(CertificateError::Other(other)) if is_version_1(other) => {
            format!("has a certificate {VERSION_1}")
        }
        other => format!("has a key or certificate that cannot be used: {other}"),
    }
}
