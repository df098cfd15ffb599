//! The provider of cryptography, limited to the cipher suites of the settings.

use crate::settings::Settings;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use std::sync::Arc;

/// Returns a provider that offers only the cipher suites of the settings.
pub(crate) fn provider(settings: &Settings) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: settings.suites(), ..aws_lc_rs::default_provider() })
}
