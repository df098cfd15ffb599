//! Finds out when a certificate chain expires, and warns before it does.
//!
//! Only the validity of a certificate is parsed. rustls checks all other parts. Bytes that are not a certificate have
//! no expiry and cause no panic.

use pkcs8::der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use pkcs8::der::{DateTime, Reader, Result, SliceReader, Tag, TagNumber};
use rustls::pki_types::CertificateDer;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// The certificate of a chain that expires first, and when it does.
#[derive(Clone, Debug)]
pub struct Expiry {
    setting: String,
    /// Position of the certificate in its chain, where the leaf is 1.
    place: usize,
    of: usize,
    not_after: DateTime,
}

impl Expiry {
    pub(crate) fn of(chain: &[CertificateDer<'_>], setting: &str) -> Option<Expiry> {
        let ends = chain.iter().zip(1..).filter_map(|(der, place)| Some((not_after(der).ok()?, place)));
        let (not_after, place) = ends.min()?;
        Some(Expiry { setting: setting.to_owned(), place, of: chain.len(), not_after })
    }

    /// Returns a warning if the certificate has expired or expires within `ahead`.
    pub fn warning(&self, now: SystemTime, ahead: Duration) -> Option<String> {
        let Expiry { setting, place, of, not_after } = self;
        // If an authority above the leaf has expired, a client may have a newer certificate of this authority. Such a
        // client still accepts the chain.
        let refusal = if *place == 1 { "clients refuse it" } else { "clients may refuse the chain" };
        let when = match (UNIX_EPOCH + not_after.unix_duration()).duration_since(now) {
            Ok(left) if left > ahead => return None,
            Ok(left) => {
                let days = left.as_secs() / DAY_SECONDS;
                let days = if days == 1 { "1 day".to_owned() } else { format!("{days} days") };
                format!("expires at {not_after}, in {days}: {refusal} from then on")
            }
            Err(_) => format!("expired at {not_after}: {refusal}"),
        };
        Some(format!("{setting}: certificate {place} of {of} {when}"))
    }
}

/// Returns the time until which a certificate is valid (RFC 5280, 4.1).
fn not_after(certificate: &[u8]) -> Result<DateTime> {
    let certificate = SliceReader::new(certificate)?.decode::<AnyRef<'_>>()?;
    let signed = SliceReader::new(certificate.value())?.decode::<AnyRef<'_>>()?;
    let mut fields = SliceReader::new(signed.value())?;
    let version = Tag::ContextSpecific { constructed: true, number: TagNumber::N0 };
    // The fields before the validity are the version (optional), the serial number, the signature algorithm and the
    // issuer.
    let before = if fields.peek_tag()? == version { 4 } else { 3 };
    for _ in 0..before {
        fields.decode::<AnyRef<'_>>()?;
    }
    let validity = fields.decode::<AnyRef<'_>>()?;
    let mut validity = SliceReader::new(validity.value())?;
    validity.decode::<AnyRef<'_>>()?;
    match validity.peek_tag()? {
        Tag::UtcTime => Ok(validity.decode::<UtcTime>()?.to_date_time()),
        _ => Ok(validity.decode::<GeneralizedTime>()?.to_date_time()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_tests::pki::Authority;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn damaged_certificates_have_some_end_or_none() {
        for pem in [Authority::new("ca").pem(), Authority::new("ca").expired_broker(&["h"]).chain] {
            let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
            not_after(&der).expect("as it was made");
            for at in 0..der.len() {
                let _ = not_after(&der[..at]);
                for byte in 0..=255 {
                    let mut damaged = der.to_vec();
                    damaged[at] = byte;
                    let _ = not_after(&damaged);
                }
            }
        }
    }
}
