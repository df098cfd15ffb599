//! Authorities and certificates for tests. They are created in each run. The keys are ECDSA, because these are quick to
//! create.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// An authority that signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A private key and its certificate, both in PEM.
#[derive(Clone)]
pub struct Issued {
    pub key: String,
    pub chain: String,
}

impl Issued {
    /// Returns the key and the certificate in one text, as Kafka's `ssl.keystore.location` expects them.
    pub fn both(&self) -> String {
        format!("{}{}", self.key, self.chain)
    }

    /// Writes [`Issued::both`] to the file `name`.
    pub fn write(&self, directory: &Path, name: &str) -> PathBuf {
        write(directory, name, &self.both())
    }
}

/// Replaces a file atomically, so that a reader gets either the former text or the new one.
pub fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    std::fs::write(&new, text).expect("the directory is writable");
    std::fs::rename(&new, &path).expect("the directory is writable");
    path
}

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names and addresses");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn issued(params: &CertificateParams, by: Option<&Authority>) -> Issued {
    let key = KeyPair::generate().expect("a key");
    let certificate = match by {
        Some(authority) => params.signed_by(&key, &authority.issuer),
        None => params.self_signed(&key),
    };
    Issued { key: key.serialize_pem(), chain: certificate.expect("a certificate").pem() }
}

impl Authority {
    /// Creates an authority.
    pub fn new(name: &str) -> Authority {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    /// Returns the authority's certificate in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a broker's certificate for the given names and addresses.
    pub fn broker(&self, names: &[&str]) -> Issued {
        let mut params = params("broker", names);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        issued(&params, Some(self))
    }

    /// Issues a broker's certificate that expired long ago.
    pub fn expired_broker(&self, names: &[&str]) -> Issued {
        let mut params = params("broker", names);
        params.not_after = date_time_ymd(2001, 1, 1);
        issued(&params, Some(self))
    }

    /// Issues a broker's certificate that expires after the time `left`.
    pub fn broker_for(&self, names: &[&str], left: Duration) -> Issued {
        let mut params = params("broker", names);
        params.not_after = (SystemTime::now() + left).into();
        issued(&params, Some(self))
    }

    /// Issues a certificate of a client.
    pub fn client(&self, name: &str) -> Issued {
        let mut params = params(name, &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        issued(&params, Some(self))
    }
}

/// Creates a self-signed certificate that claims to be an authority, as `openssl req -x509` does.
pub fn self_signed(names: &[&str], is_expired: bool) -> Issued {
    let mut params = params("self-signed", names);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    if is_expired {
        params.not_after = date_time_ymd(2001, 1, 1);
    }
    issued(&params, None)
}
