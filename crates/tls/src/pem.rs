//! Reads keys and certificates in PEM, from a file or from the text of a setting.
//!
//! Other formats are recognized only to explain the error. Invariant: an error names the setting and never quotes its
//! value.

use crate::settings::Settings;
use pkcs8::EncryptedPrivateKeyInfo;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::io::Read;

/// Maximum size of a file with keys or certificates, in bytes.
const FILE_MAX: u64 = 4 << 20;

/// A setting whose keys or certificates cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {reason}")]
pub struct MaterialError {
    /// The name of the setting, followed by `=FILE` if its value is a file.
    pub setting: String,
    /// The reason why the setting cannot be used.
    pub reason: String,
}

impl MaterialError {
    pub(crate) fn new(setting: impl Into<String>, reason: impl Into<String>) -> Self {
        MaterialError { setting: setting.into(), reason: reason.into() }
    }
}

/// The private key of this process and its certificates, the leaf first.
pub(crate) struct KeyAndChain {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    /// The setting that the key comes from.
    pub setting: String,
    /// The setting that the chain comes from.
    pub chain_setting: String,
}

/// Reads the key and the certificates of `ssl.keystore.*`. Returns None if no such setting is set.
pub(crate) fn identity(settings: &Settings) -> Result<Option<KeyAndChain>, MaterialError> {
    let (key_pem, key_setting, chain_pem, chain_setting) =
        match (&settings.keystore_location, &settings.keystore_key, &settings.keystore_chain) {
            (Some(path), _, _) => {
                let (pem, setting) = read("ssl.keystore.location", path)?;
                (pem.clone(), setting.clone(), pem, setting)
            }
            (None, Some(key), Some(chain)) => (
                key.expose().as_bytes().to_vec(),
                "ssl.keystore.key".to_owned(),
                chain.expose().as_bytes().to_vec(),
                "ssl.keystore.certificate.chain".to_owned(),
            ),
            _ => return Ok(None),
        };
    let key = private_key(&key_pem, settings.key_password.as_ref().map(|password| password.expose()))
        .map_err(|reason| MaterialError::new(&key_setting, reason))?;
    let chain = certificates(&chain_pem).map_err(|reason| MaterialError::new(&chain_setting, reason))?;
    Ok(Some(KeyAndChain { chain, key, setting: key_setting, chain_setting }))
}

/// Reads the certificates of `ssl.truststore.*`, and returns them with the name of the setting. Returns None if no such
/// setting is set.
pub(crate) fn trusted(settings: &Settings) -> Result<Option<(Vec<CertificateDer<'static>>, String)>, MaterialError> {
    let (pem, setting) = match (&settings.truststore_location, &settings.truststore_certificates) {
        (Some(path), _) => read("ssl.truststore.location", path)?,
        (None, Some(text)) => (text.expose().as_bytes().to_vec(), "ssl.truststore.certificates".to_owned()),
        (None, None) => return Ok(None),
    };
    let certificates = certificates(&pem).map_err(|reason| MaterialError::new(&setting, reason))?;
    Ok(Some((certificates, setting)))
}

fn read(key: &str, path: &str) -> Result<(Vec<u8>, String), MaterialError> {
    let setting = format!("{key}={path}");
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes));
    let reason = match (read, &bytes[..]) {
        (Err(error), _) => error.to_string(),
        (Ok(_), [0xfe, 0xed, 0xfe, 0xed, ..] | [0xce, 0xce, 0xce, 0xce, ..]) => {
            "is a Java key store (JKS), but must be PEM; keytool and openssl pkcs12 convert it".to_owned()
        }
        (Ok(_), [0x30, 0x80..=0x84, ..]) => {
            "is binary (PKCS12 or DER), but must be PEM; openssl pkcs12 converts it".to_owned()
        }
        (Ok(_), bytes) if bytes.len() as u64 > FILE_MAX => format!("is larger than {FILE_MAX} bytes"),
        (Ok(_), _) => return Ok((bytes, setting)),
    };
    Err(MaterialError::new(setting, reason))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if certificates.is_empty() => Err("has no certificate (BEGIN CERTIFICATE)".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(_) => Err("has a certificate that is not PEM".to_owned()),
    }
}

const ENCRYPTED: (&str, &str) = ("-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----END ENCRYPTED PRIVATE KEY-----");

fn private_key(pem: &[u8], password: Option<&str>) -> Result<PrivateKeyDer<'static>, String> {
    let text = String::from_utf8_lossy(pem);
    if let Some(start) = text.find(ENCRYPTED.0) {
        let end = text[start..].find(ENCRYPTED.1).ok_or("has an encrypted private key that does not end")?;
        return decrypt(&text[start..start + end + ENCRYPTED.1.len()], password);
    }
    if text.contains("Proc-Type:") && text.contains("ENCRYPTED") {
        return Err(
            "has a private key in the old encrypted format; `openssl pkcs8 -topk8` converts it to PKCS#8".to_owned()
        );
    }
    match PrivateKeyDer::from_pem_slice(pem) {
        // If `ssl.key.password` is set although the key is not encrypted, the password is ignored, as in Kafka.
        Ok(key) => Ok(key),
        Err(PemError::NoItemsFound) => Err("has no private key (BEGIN PRIVATE KEY)".to_owned()),
        Err(_) => Err("has a private key that is not PEM".to_owned()),
    }
}

fn decrypt(pem: &str, password: Option<&str>) -> Result<PrivateKeyDer<'static>, String> {
    let password = password.ok_or("has an encrypted private key: ssl.key.password must be set")?;
    let (_, document) =
        pkcs8::SecretDocument::from_pem(pem).map_err(|_| "has an encrypted private key that is not PEM")?;
    let encrypted = EncryptedPrivateKeyInfo::try_from(document.as_bytes())
        .map_err(|_| "has a private key with an unsupported encryption (PBES2 with AES or scrypt is supported)")?;
    let key = encrypted.decrypt(password).map_err(|_| {
        "has an encrypted private key, and ssl.key.password is wrong or the encryption is not supported (PBES2 with \
         AES is)"
    })?;
    Ok(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec())))
}
