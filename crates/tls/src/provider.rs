//! The one provider of cryptography, and what the settings leave of its protocols and cipher suites.

use crate::settings::Settings;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};
use std::sync::Arc;

/// The provider with the cipher suites of the settings.
pub(crate) fn provider(settings: &Settings) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: suites(settings), ..aws_lc_rs::default_provider() })
}

/// The protocols of the settings, the newest first.
pub(crate) fn versions(settings: &Settings) -> Vec<&'static SupportedProtocolVersion> {
    let tls13 = (settings.tls13 && !settings.at_most_tls12).then_some(&version::TLS13);
    tls13.into_iter().chain(settings.tls12.then_some(&version::TLS12)).collect()
}

/// The cipher suites of the settings that a protocol of the settings can use.
pub(crate) fn suites(settings: &Settings) -> Vec<SupportedCipherSuite> {
    let versions = versions(settings);
    let named = |suite: &SupportedCipherSuite| {
        settings.cipher_suites.is_empty() || settings.cipher_suites.contains(&name(suite))
    };
    let of_version = |suite: &SupportedCipherSuite| versions.contains(&suite.version());
    aws_lc_rs::DEFAULT_CIPHER_SUITES.iter().copied().filter(|suite| named(suite) && of_version(suite)).collect()
}

/// The names of all suites, as Java has them.
pub(crate) fn suite_names() -> Vec<String> {
    aws_lc_rs::DEFAULT_CIPHER_SUITES.iter().map(name).collect()
}

fn name(suite: &SupportedCipherSuite) -> String {
    // rustls says which of the suites are TLS 1.3's.
    suite.suite().as_str().unwrap_or_default().replacen("TLS13_", "TLS_", 1)
}
