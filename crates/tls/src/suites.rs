//! Protocols and cipher suites of rustls, and the choice among them by the settings.

use rustls::crypto::aws_lc_rs;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

/// Returns the enabled protocols, the newest first.
pub(crate) fn versions(tls12: bool, tls13: bool) -> Vec<&'static SupportedProtocolVersion> {
    let tls13 = tls13.then_some(&version::TLS13);
    tls13.into_iter().chain(tls12.then_some(&version::TLS12)).collect()
}

/// Returns the cipher suites with these names that one of these protocols can use; without names, all of them.
pub(crate) fn suites(names: &[String], versions: &[&'static SupportedProtocolVersion]) -> Vec<SupportedCipherSuite> {
    let named = |suite: &SupportedCipherSuite| names.is_empty() || names.contains(&name(suite));
    let of_version = |suite: &SupportedCipherSuite| versions.contains(&suite.version());
    aws_lc_rs::DEFAULT_CIPHER_SUITES.iter().copied().filter(|suite| named(suite) && of_version(suite)).collect()
}

/// Returns the names of all cipher suites, as in Java.
pub(crate) fn names() -> Vec<String> {
    aws_lc_rs::DEFAULT_CIPHER_SUITES.iter().map(name).collect()
}

fn name(suite: &SupportedCipherSuite) -> String {
    // rustls marks the suites of TLS 1.3 in their names; Java does not.
    suite.suite().as_str().unwrap_or_default().replacen("TLS13_", "TLS_", 1)
}
