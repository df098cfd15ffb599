//! The service from which a process in a container gets its credentials. The environment names this service.
//!
//! The `object_store` library uses AWS_CONTAINER_CREDENTIALS_FULL_URI only if the environment also names a file with
//! the token. Otherwise, the library would request the credentials of the machine. This module therefore names an empty
//! token file, so that the library sends an empty authorization header. The HTTP client replaces the empty header by
//! the token, or removes it. Invariant: without a token file, unencrypted requests only go to this host, or to the
//! fixed addresses of Amazon's services, as in Amazon's own clients.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const TOKEN: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
/// A token file that is empty.
const EMPTY_FILE: &str = "/dev/null";
/// The addresses at which ECS and EKS issue credentials.
const SERVICES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
];

/// Returns the token from the environment. Returns `None` if the token is in a file, or if the service needs no token.
///
/// # Errors
/// Returns a message if the token cannot be sent in an HTTP header.
pub fn token() -> Result<Option<HeaderValue>, String> {
    let Some(token) = std::env::var(TOKEN).ok().filter(|token| !token.trim().is_empty()) else { return Ok(None) };
    let mut header = HeaderValue::from_str(token.trim())
        .map_err(|_| format!("{TOKEN} has a character that is not allowed in an HTTP header"))?;
    header.set_sensitive(true);
    Ok(Some(header))
}

/// Sets options with which the library uses the container's service even if no file has the token.
///
/// Returns a message if the service would be reached without encryption at an address that is neither on this host nor
/// Amazon's.
pub fn without_token_file(builder: AmazonS3Builder) -> Result<AmazonS3Builder, String> {
    use AmazonS3ConfigKey::{
        ContainerAuthorizationTokenFile as File, ContainerCredentialsFullUri, ContainerCredentialsRelativeUri,
    };
    let is_set = |key: AmazonS3ConfigKey| builder.get_config_value(&key).is_some();
    match builder.get_config_value(&ContainerCredentialsFullUri) {
        Some(uri) if !is_set(ContainerCredentialsRelativeUri) && !is_set(File) => match may_be_requested(&uri) {
            true => Ok(builder.with_config(File, EMPTY_FILE)),
            false => Err(format!(
                "{URI}={uri}: must begin with https://, or have an address of this host or of the services of ECS and \
                 EKS; to use another address, name the token's file with AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
            )),
        },
        _ => Ok(builder),
    }
}

fn may_be_requested(uri: &str) -> bool {
    let Ok(url) = Url::parse(uri) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_near = || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback() || SERVICES.contains(&address));
    url.scheme() == "https" || (url.scheme() == "http" && (host == "localhost" || is_near()))
}

/// Replaces the empty token of [`EMPTY_FILE`] by `token`. Without a token, removes the header.
pub fn authorize(headers: &mut HeaderMap, token: Option<&HeaderValue>) {
    if headers.get(AUTHORIZATION).is_some_and(HeaderValue::is_empty) {
        match token {
            Some(token) => drop(headers.insert(AUTHORIZATION, token.clone())),
            None => drop(headers.remove(AUTHORIZATION)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: AmazonS3ConfigKey = AmazonS3ConfigKey::ContainerAuthorizationTokenFile;

    fn of(uri: &str) -> AmazonS3Builder {
        AmazonS3Builder::new().with_config(AmazonS3ConfigKey::ContainerCredentialsFullUri, uri)
    }

    #[test]
    fn service_has_no_token_file_it_is_used_if_it_is_near_or_encrypted() {
        let near = ["127.0.0.1:99", "localhost", "[::1]:9", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];
        let near = near.map(|host| format!("http://{host}/get"));
        for uri in near.iter().map(String::as_str).chain(["https://vault.example/get"]) {
            let file = without_token_file(of(uri)).map(|builder| builder.get_config_value(&FILE));
            assert_eq!(file, Ok(Some(EMPTY_FILE.to_owned())), "{uri}");
        }
        for uri in ["http://vault.example/get", "http://169.254.169.254/get", "ftp://127.0.0.1/", "get", "http://"] {
            let refusal = without_token_file(of(uri)).expect_err(uri);
            assert!(refusal.starts_with(&format!("{URI}={uri}: must begin with https://")), "{refusal}");
        }
    }

    #[test]
    fn service_has_a_token_file_its_settings_are_unchanged() {
        let with_file = of("http://vault.example/get").with_config(FILE, "/token");
        let file = without_token_file(with_file).map(|builder| builder.get_config_value(&FILE));
        assert_eq!(file, Ok(Some("/token".to_owned())));
        let none = without_token_file(AmazonS3Builder::new()).map(|builder| builder.get_config_value(&FILE));
        assert_eq!(none, Ok(None));
    }

    #[test]
    fn empty_token_is_replaced_or_removed() {
        let token = HeaderValue::from_static("token");
        for (sent, token, left) in
            [("", None, None), ("", Some(&token), Some("token")), ("AWS4 x", Some(&token), Some("AWS4 x"))]
        {
            let mut headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(sent))]);
            authorize(&mut headers, token);
            assert_eq!(headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()), left);
        }
    }
}
