//! Opens an S3 bucket with the settings, the environment and the credentials.
//!
//! Retries and time limits are left to the callers.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::container;
use super::credentials::KeptCredentials;
use super::http::Connector;
use super::pace::Pace;
use super::profile::ProfileCredentials;
use fullbore_config::{S3_ENDPOINT as ENDPOINT, S3_TRUSTSTORE as TRUSTSTORE, S3Storage};
use fullbore_host::files::SETTINGS_FILE_MAX;

/// A bucket that has not received any request yet.
pub struct Bucket {
    pub store: Arc<dyn ObjectStore>,
    /// The pace of requests to the bucket.
    pub pace: Arc<Pace>,
    /// True if no credentials are set. The first request then gets them from Amazon's metadata service.
    pub requests_metadata: bool,
}

impl Bucket {
    /// Creates a bucket from any store, with an unlimited pace.
    pub fn over(store: Arc<dyn ObjectStore>) -> Bucket {
        Bucket { store, pace: Arc::default(), requests_metadata: false }
    }
}

/// Opens the bucket.
///
/// # Errors
/// Returns a message if settings contradict each other, or if a file with credentials or certificates cannot be read.
pub fn open(storage: &S3Storage) -> Result<Bucket, String> {
    let options = ClientOptions::new()
        .with_allow_http(true)
        // Requests have no time limit here. A caller that gives up drops the request, which closes its connection.
        .with_timeout_disabled();
    let pace = Arc::<Pace>::default();
    let (authorities, container_token) = (authorities(storage)?, container::token()?);
    let connector = |follows_redirects| Connector {
        authorities: authorities.clone(),
        pace: Arc::clone(&pace),
        container_token: container_token.clone(),
        follows_redirects,
    };
    let mut builder = trimmed(AmazonS3Builder::from_env())?
        .with_bucket_name(&storage.bucket)
        .with_client_options(options)
        .with_http_connector(connector(false))
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_disable_bulk_delete(true)
        .with_virtual_hosted_style_request(!storage.is_path_style);
    if let Some(endpoint) = &storage.endpoint {
        builder = builder.with_endpoint(address(endpoint, &storage.bucket, storage.is_path_style)?);
    }
    if let Some(region) = &storage.region {
        builder = builder.with_region(region);
    }
    if !storage.has_conditional_put {
        builder = builder.with_conditional_put(S3ConditionalPut::Disabled);
    }
    let mut requests_metadata = false;
    if let Some((id, secret)) = &storage.credentials {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret.expose());
    } else if !has_credentials(&builder) {
        match of_profile()? {
            Some(credentials) => builder = builder.with_credentials(Arc::new(credentials)),
            None => requests_metadata = true,
        }
    } else if is_given_by_service(&builder) {
        builder = container::without_token_file(builder)?;
    }
    if requests_metadata || is_given_by_service(&builder) {
        let service = builder.clone().with_http_connector(connector(true)).build();
        let service = service.map_err(|error| error.to_string())?;
        builder = builder.with_credentials(Arc::new(KeptCredentials::of(service.credentials().clone())));
    }
    let built = builder.build().map_err(|error| error.to_string())?;
    Ok(Bucket { store: Arc::new(built), pace, requests_metadata })
}

/// Returns the certificates of the authorities that are trusted in addition to those of the system.
fn authorities(storage: &S3Storage) -> Result<Vec<reqwest::Certificate>, String> {
    let Some(file) = &storage.truststore else { return Ok(Vec::new()) };
    let failed = |why: &dyn std::fmt::Display| format!("{TRUSTSTORE}={}: {why}", file.display());
    let pem = fullbore_host::files::read(file, SETTINGS_FILE_MAX).map_err(|error| failed(&error))?;
    let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| failed(&error))?;
    match certificates.is_empty() {
        true => Err(failed(&"it has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----")),
        false => Ok(certificates),
    }
}

/// Removes white space around values from the environment. A secret that was copied from a file often ends with a line
/// break.
fn trimmed(mut builder: AmazonS3Builder) -> Result<AmazonS3Builder, String> {
    use AmazonS3ConfigKey::{AccessKeyId, DefaultRegion, Region, SecretAccessKey, Token};
    for key in [AccessKeyId, SecretAccessKey, Token, Region, DefaultRegion] {
        let Some(value) = builder.get_config_value(&key) else { continue };
        if value.trim().chars().any(char::is_control) {
            return Err(format!("{} of the environment has a control character", key.as_ref().to_uppercase()));
        }
        builder = builder.with_config(key, value.trim());
    }
    Ok(builder)
}

/// Returns the URL of the bucket.
fn address(endpoint: &str, bucket: &str, is_path_style: bool) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{ENDPOINT}={endpoint}: {why}");
    let url = reqwest::Url::parse(endpoint).map_err(|error| failed(&error))?;
    if is_path_style {
        return Ok(endpoint.to_owned());
    }
    match url.domain() {
        Some(_) => Ok(with_bucket(endpoint, bucket)),
        None => Err(failed(
            &"an IP address cannot have a host name for each bucket; set \
                 diskless.storage.s3.path.style.access.enabled=true",
        )),
    }
}

/// Returns the URL with the bucket as a part of the host name.
fn with_bucket(endpoint: &str, bucket: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) => format!("{scheme}://{bucket}.{host}"),
        None => endpoint.to_owned(),
    }
}

/// Returns true if the environment has credentials or names a service that issues them.
fn has_credentials(builder: &AmazonS3Builder) -> bool {
    builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some() || is_given_by_service(builder)
}

/// Returns true if the environment names a service that issues the credentials.
fn is_given_by_service(builder: &AmazonS3Builder) -> bool {
    use AmazonS3ConfigKey::{
        AccessKeyId, ContainerCredentialsFullUri, ContainerCredentialsRelativeUri, WebIdentityTokenFile,
    };
    let is_set = |key: &AmazonS3ConfigKey| builder.get_config_value(key).is_some();
    let services = [WebIdentityTokenFile, ContainerCredentialsRelativeUri, ContainerCredentialsFullUri];
    !is_set(&AccessKeyId) && services.iter().any(is_set)
}

/// Reads the credentials of the profile AWS_PROFILE, or of the profile `default` if AWS_PROFILE is not set. They are in
/// the file AWS_SHARED_CREDENTIALS_FILE, or in ~/.aws/credentials if this is not set.
///
/// Returns `None` if neither AWS_SHARED_CREDENTIALS_FILE nor HOME is set. Also returns `None` if AWS_PROFILE is not set
/// and the file or its default profile does not exist.
fn of_profile() -> Result<Option<ProfileCredentials>, String> {
    let named = std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
    let at_home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".aws/credentials"));
    let Some(file) = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or_else(at_home) else {
        return Ok(None);
    };
    let name = named.as_deref().unwrap_or("default");
    match ProfileCredentials::open(file.clone(), name) {
        Ok(Some(credentials)) => Ok(Some(credentials)),
        Ok(None) if named.is_none() => Ok(None),
        Ok(None) => {
            Err(format!("{}: the profile {name} has no aws_access_key_id and aws_secret_access_key", file.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => Ok(None),
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_an_address_it_has_no_host_for_a_bucket() {
        let of = |endpoint, is_path_style| address(endpoint, "bucket", is_path_style);
        assert_eq!(of("http://store:9000", false), Ok("http://bucket.store:9000".into()));
        assert_eq!(of("http://127.0.0.1:9000", true), Ok("http://127.0.0.1:9000".into()));
        for endpoint in ["http://127.0.0.1:9000", "http://[::1]:9000"] {
            assert!(of(endpoint, false).expect_err("no host").contains("path.style"), "{endpoint}");
        }
        assert!(of("http://256.1.1.1:9000", true).expect_err("no address").contains("256.1.1.1"));
    }

    #[test]
    fn credentials_end_in_a_new_line_it_is_left_out() {
        let with = |value| AmazonS3Builder::new().with_config(AmazonS3ConfigKey::Token, value);
        let trimmed_token = trimmed(with("token\n")).map(|builder| builder.get_config_value(&AmazonS3ConfigKey::Token));
        assert_eq!(trimmed_token, Ok(Some("token".into())));
        assert!(trimmed(with("to\nken")).is_err());
    }
}
