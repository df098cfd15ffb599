//! A bucket of S3.
//!
//! Retries, and the patience with an answer, are those of who asks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::profile;
use crate::config::S3Storage;

/// A connection that is not made after so long is given up.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Connections that stay for the next requests.
const IDLE_CONNECTIONS_MAX: usize = 64;

/// The bucket; nothing is asked of it yet.
///
/// # Errors
/// In words: what is set does not go together, or a file of credentials cannot be read.
pub fn open(storage: &S3Storage) -> Result<Arc<dyn ObjectStore>, String> {
    let options = ClientOptions::new()
        .with_allow_http(true)
        .with_connect_timeout(CONNECT_MAX)
        // Who asks gives up, and then the connection is closed.
        .with_timeout_disabled()
        .with_pool_max_idle_per_host(IDLE_CONNECTIONS_MAX);
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&storage.bucket)
        .with_client_options(options)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_disable_bulk_delete(true)
        .with_virtual_hosted_style_request(!storage.is_path_style);
    if let Some(endpoint) = &storage.endpoint {
        builder = builder.with_endpoint(match storage.is_path_style {
            true => endpoint.clone(),
            false => with_bucket(endpoint, &storage.bucket),
        });
    }
    if let Some(region) = &storage.region {
        builder = builder.with_region(region);
    }
    if let Some((id, secret)) = &storage.credentials {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret.expose());
    } else if !has_credentials(&builder)
        && let Some(credentials) = of_profile()?
    {
        builder = builder.with_access_key_id(credentials.key_id).with_secret_access_key(credentials.secret);
        if let Some(token) = credentials.token {
            builder = builder.with_token(token);
        }
    }
    let built = builder.build().map_err(|error| error.to_string())?;
    Ok(Arc::new(built))
}

/// The bucket's own host.
fn with_bucket(endpoint: &str, bucket: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) => format!("{scheme}://{bucket}.{host}"),
        None => endpoint.to_owned(),
    }
}

/// Whether the environment says where credentials are.
fn has_credentials(builder: &AmazonS3Builder) -> bool {
    use AmazonS3ConfigKey::{
        AccessKeyId, ContainerCredentialsFullUri, ContainerCredentialsRelativeUri, WebIdentityTokenFile,
    };
    [AccessKeyId, WebIdentityTokenFile, ContainerCredentialsRelativeUri, ContainerCredentialsFullUri]
        .iter()
        .any(|key| builder.get_config_value(key).is_some())
}

/// Those of the profile that AWS_PROFILE names, or of the default one, in AWS_SHARED_CREDENTIALS_FILE or else in ~/.aws/credentials.
fn of_profile() -> Result<Option<profile::Credentials>, String> {
    let named = std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
    let at_home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".aws/credentials"));
    let Some(file) = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or_else(at_home) else {
        return Ok(None);
    };
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    let name = named.as_deref().unwrap_or("default");
    match profile::find(&text, name) {
        Some(credentials) => Ok(Some(credentials)),
        None if named.is_none() => Ok(None),
        None => {
            Err(format!("{}: the profile {name} has no aws_access_key_id and aws_secret_access_key", file.display()))
        }
    }
}
