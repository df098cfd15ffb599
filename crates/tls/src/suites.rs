//! The protocol versions and cipher suites of rustls, and how the settings choose among them.

use rustls::crypto::aws_lc_rs;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

/// Returns the enabled versions of TLS, the newest first.
pub(crate) fn versions(tls12: bool, tls13: bool) -> Vec<&'static SupportedProtocolVersion> {
    let tls13 = tls13.then_some(&version::TLS13);
    tls13.into_iter().chain(tls12.then_some(&version::TLS12)).collect()
}

/// Returns the cipher suites with these names that can be used with one of these versions. Without names, returns all
/// that can be used.
pub(crate) fn suites(names: &[String], versions: &[&'static SupportedProtocolVersion]) -> Vec<SupportedCipherSuite> {
    let named = |suite: &SupportedCipherSuite| names.is_empty() || names.contains(&name(suite));
    let of_version = |suite: &SupportedCipherSuite| versions.contains(&suite.version());
    aws_lc_rs::DEFAULT_CIPHER_SUITES.iter().copied().filter(|suite| named(suite) && of_version(suite)).collect()
}

/// Returns the names of all cipher suites, as Java writes them.
pub(crate) fn names() -> Vec<String> {
    aws_lc_rs::DEFAULT_CIPHER_SUITES.iter().map(name).collect()
}

fn name(suite: &SupportedCipherSuite) -> String {
    // rustls prefixes the names of TLS 1.3 suites with `TLS13_`. Java prefixes all names with `TLS_`.
    suite.suite().as_str().unwrap_or_default().replacen("TLS13_", "TLS_", 1)
}
