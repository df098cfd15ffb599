//! `diskless.storage`: where the objects of diskless topics are stored.
//!
//! No connection to the store is made here. Invariant: the secret key of a store is never shown.

use std::fmt;
use std::path::{Path, PathBuf};

use fullbore_tls::Secret;

use super::error::{ConfigError, Mistakes};
use super::reader::ConfigReader;

/// Key that names the store.
pub(super) const STORAGE: &str = "diskless.storage";
/// Key of [`S3Storage::endpoint`].
pub const ENDPOINT: &str = "diskless.storage.s3.endpoint.url";
const REGION: &str = "diskless.storage.s3.region";
const PATH_STYLE: &str = "diskless.storage.s3.path.style.access.enabled";
const KEY_ID: &str = "diskless.storage.aws.access.key.id";
const SECRET: &str = "diskless.storage.aws.secret.access.key";
/// Key of [`S3Storage::truststore`].
pub const TRUSTSTORE: &str = "diskless.storage.s3.ssl.truststore.location";
const CONDITIONAL_PUT: &str = "diskless.storage.s3.conditional.put.enabled";
/// Name of the directory below log.dirs that stores the objects if `diskless.storage` is not set.
const DEFAULT_DIRECTORY: &str = "diskless";
const FORMS: &str = "must be a directory, as a path or file:///path, or a bucket of S3, as s3://bucket/prefix";
const S3_FORM: &str = "must have the form s3://bucket/prefix, with at least 3 characters in the bucket's name; an \
     endpoint, a region and credentials have settings of their own";

/// The place where objects are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisklessStorage {
    /// A local directory, which may not exist yet.
    Directory(PathBuf),
    /// A bucket in S3, or in a store with the same API.
    S3(S3Storage),
}

/// A bucket in S3, with the address and credentials to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Storage {
    /// Name of the bucket.
    pub bucket: String,
    /// The prefix of all object keys, as names separated by slashes. Empty if there is no prefix.
    pub prefix: String,
    /// The endpoint of a store that is not Amazon's, as `http` or `https` with host and port.
    pub endpoint: Option<String>,
    /// The region. With `None`, the region comes from the environment, or is `us-east-1`.
    pub region: Option<String>,
    /// True if URLs have the bucket's name in the path instead of the host name.
    pub is_path_style: bool,
    /// The access key id and the secret key. With `None`, they come from the usual sources of Amazon's tools:
    /// environment variables, a profile or the metadata service.
    pub credentials: Option<(String, Secret)>,
    /// A PEM file with certificate authorities to trust in addition to the system's.
    pub truststore: Option<PathBuf>,
    /// True if a PUT that must not replace an object is sent with `If-None-Match: *`. False for a store that does not
    /// support this header.
    pub has_conditional_put: bool,
}

impl fmt::Display for DisklessStorage {
    /// Formats the store as clients see it in DescribeConfigs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisklessStorage::Directory(directory) => {
                let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
                write!(formatter, "{}", absolute.display())
            }
            DisklessStorage::S3(S3Storage { bucket, prefix, .. }) if prefix.is_empty() => {
                write!(formatter, "s3://{bucket}")
            }
            DisklessStorage::S3(S3Storage { bucket, prefix, .. }) => write!(formatter, "s3://{bucket}/{prefix}"),
        }
    }
}

impl DisklessStorage {
    /// Reads `diskless.storage` and the settings of S3.
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::default();
        let log_dirs = values.text("log.dirs").unwrap_or_default();
        let s3 = s3_settings(values, &mut mistakes);
        let storage = match values.text(STORAGE) {
            None => Ok(DisklessStorage::Directory(Path::new(&log_dirs).join(DEFAULT_DIRECTORY))),
            Some(typed) => storage(&typed, s3.clone()),
        };
        if let (Ok(DisklessStorage::Directory(directory)), Some(typed)) = (&storage, values.text(STORAGE))
            && directory == Path::new(&log_dirs)
        {
            let message = "must not be log.dirs itself, where the partitions of other topics are";
            mistakes.keep(Err::<(), _>(ConfigError::of_value(STORAGE, &typed, message)));
        }
        if let Ok(DisklessStorage::Directory(_)) = storage {
            for name in [ENDPOINT, REGION, PATH_STYLE, KEY_ID, SECRET, TRUSTSTORE, CONDITIONAL_PUT] {
                if text(values, name).is_some() {
                    mistakes.keep(Err::<(), _>(ConfigError::of_key(name, "needs diskless.storage=s3://...")));
                }
            }
        }
        match mistakes.keep(storage) {
            Some(storage) if mistakes.is_empty() => Ok(storage),
            _ => Err(mistakes),
        }
    }
}

fn text<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>, name: &'static str) -> Option<String> {
    values.text(name).filter(|value| !value.is_empty())
}

/// Reads the settings of S3, except the bucket.
fn s3_settings<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>, mistakes: &mut Mistakes) -> S3Storage {
    let endpoint = text(values, ENDPOINT).and_then(|typed| mistakes.keep(endpoint(&typed)));
    let is_path_style = match text(values, PATH_STYLE) {
        Some(value) => value == "true",
        None => endpoint.is_some(),
    };
    let credentials = match (text(values, KEY_ID), text(values, SECRET)) {
        (Some(id), Some(secret)) => Some((id, Secret::from(secret))),
        (None, None) => None,
        (id, _) => {
            let (there, missing) = if id.is_some() { (KEY_ID, SECRET) } else { (SECRET, KEY_ID) };
            mistakes.keep(Err::<(), _>(ConfigError::of_key(
                missing,
                format!("must be set as well, because {there} is set"),
            )));
            None
        }
    };
    let (bucket, prefix) = (String::new(), String::new());
    S3Storage {
        bucket,
        prefix,
        endpoint,
        region: text(values, REGION),
        is_path_style,
        credentials,
        truststore: text(values, TRUSTSTORE).map(PathBuf::from),
        has_conditional_put: text(values, CONDITIONAL_PUT).is_none_or(|value| value == "true"),
    }
}

/// Checks an endpoint, which must have no path, and returns its URL. The error never quotes the URL, which may contain
/// a password.
fn endpoint(typed: &str) -> Result<String, ConfigError> {
    let refused = || ConfigError::of_key(ENDPOINT, "must have the form http://host:port or https://host:port");
    let (scheme, rest) = typed.split_once("://").ok_or_else(refused)?;
    let host = rest.strip_suffix('/').unwrap_or(rest);
    let is_scheme = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let is_host = !host.is_empty() && !host.contains(['/', '@', '?', '#', '\\']) && !host.contains(char::is_whitespace);
    match is_scheme && is_host {
        true => Ok(format!("{}://{host}", scheme.to_ascii_lowercase())),
        false => Err(refused()),
    }
}

/// Parses a path or a URL of a store. The error does not quote a URL of an unknown kind, which may contain a password.
fn storage(typed: &str, s3: S3Storage) -> Result<DisklessStorage, ConfigError> {
    let refused = |message: &str| Err(ConfigError::of_value(STORAGE, typed, message));
    let (scheme, rest) = typed.split_once(':').unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "file" => match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') && !path.contains(['%', '?', '#']) => {
                Ok(DisklessStorage::Directory(PathBuf::from(path)))
            }
            Some(path) if path.starts_with('/') => {
                refused("must not contain %, ? or # if it is a URL; give a path instead")
            }
            _ => refused("must have the form file:///path, with three slashes"),
        },
        "s3" => match rest.strip_prefix("//").and_then(bucket_and_prefix) {
            Some((bucket, prefix)) => Ok(DisklessStorage::S3(S3Storage { bucket, prefix, ..s3 })),
            None => Err(ConfigError::of_key(STORAGE, S3_FORM)),
        },
        "s3a" | "s3n" => Err(ConfigError::of_key(STORAGE, S3_FORM)),
        _ if rest.starts_with("//") => Err(ConfigError::of_key(STORAGE, FORMS)),
        _ if typed.is_empty() => refused(FORMS),
        _ => Ok(DisklessStorage::Directory(PathBuf::from(typed))),
    }
}

/// Splits the text after `s3://` into bucket and prefix. Returns None if one of them is invalid. Bucket and prefix may
/// only have characters that are safe in a URL.
fn bucket_and_prefix(rest: &str) -> Option<(String, String)> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let is_bucket = (3..=63).contains(&bucket.len()) && bucket.chars().all(is_letter);
    let is_name = |name: &str| !name.is_empty() && name != "." && name != ".." && name.chars().all(is_letter);
    let is_prefix = prefix.is_empty() || prefix.len() <= 512 && prefix.split('/').all(is_name);
    (is_bucket && is_prefix).then(|| (bucket.to_owned(), prefix.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::describe::describe_broker;
    use super::super::dynamic::NOTHING;
    use super::super::properties::Properties;
    use super::*;

    fn parse(text: &str) -> Result<BrokerConfig, String> {
        let typed = Properties::parse(text).expect("properties");
        BrokerConfig::from_properties(&typed).map(|(config, _)| config).map_err(|mistakes| mistakes.to_string())
    }

    fn of(text: &str) -> DisklessStorage {
        parse(text).expect(text).diskless.storage
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text)
    }

    fn s3(text: &str) -> S3Storage {
        match of(text) {
            DisklessStorage::S3(storage) => storage,
            DisklessStorage::Directory(directory) => panic!("{text}: {}", directory.display()),
        }
    }

    #[test]
    fn default_store_is_a_directory_beside_the_logs() {
        assert_eq!(of(""), DisklessStorage::Directory("fullbore-data/diskless".into()));
        assert_eq!(of("log.dirs=/data"), DisklessStorage::Directory("/data/diskless".into()));
    }

    #[test]
    fn a_store_is_a_directory_as_a_path_or_a_url() {
        for (typed, path) in [
            ("objects", "objects"),
            ("/a b/c%20", "/a b/c%20"),
            ("file:///objects/x", "/objects/x"),
            ("FILE:///objects", "/objects"),
            ("c:objects", "c:objects"),
        ] {
            let directory = DisklessStorage::Directory(path.into());
            assert_eq!(of(&format!("diskless.storage={typed}")), directory, "{typed}");
        }
        for (typed, expected) in [
            ("", format!("diskless.storage=: {FORMS}")),
            (
                "file:/objects",
                "diskless.storage=file:/objects: must have the form file:///path, with three slashes".into(),
            ),
            (
                "file://host/x",
                "diskless.storage=file://host/x: must have the form file:///path, with three slashes".into(),
            ),
            (
                "file:///a%20b",
                "diskless.storage=file:///a%20b: must not contain %, ? or # if it is a URL; give a path instead".into(),
            ),
            (
                "file:///data/",
                "diskless.storage=file:///data/: must not be log.dirs itself, where the partitions of other topics are"
                    .into(),
            ),
        ] {
            assert_eq!(refusal(&format!("log.dirs=/data\ndiskless.storage={typed}")), expected);
        }
    }

    #[test]
    fn a_bucket_of_s3_has_a_prefix_or_none() {
        for (typed, bucket, prefix) in [
            ("s3://bucket", "bucket", ""),
            ("S3://bucket/", "bucket", ""),
            ("s3://my.bucket-1/a/b_c/", "my.bucket-1", "a/b_c"),
        ] {
            let storage = s3(&format!("diskless.storage={typed}"));
            assert_eq!((storage.bucket.as_str(), storage.prefix.as_str()), (bucket, prefix), "{typed}");
            assert_eq!((storage.endpoint, storage.region, storage.credentials), (None, None, None));
            assert!(!storage.is_path_style);
        }
        assert_eq!(of("diskless.storage=s3://bucket/a/").to_string(), "s3://bucket/a");
    }

    #[test]
    fn another_service_has_an_endpoint() {
        let set = "diskless.storage=s3://bucket/p\ndiskless.storage.s3.endpoint.url=HTTP://127.0.0.1:9000/\n\
                   diskless.storage.s3.region=eu-1\ndiskless.storage.aws.access.key.id=me\n\
                   diskless.storage.aws.secret.access.key=TOPSECRET";
        let storage = s3(set);
        assert_eq!(storage.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(storage.region.as_deref(), Some("eu-1"));
        assert!(storage.is_path_style, "where nothing is said");
        assert_eq!(storage.credentials, Some(("me".into(), Secret::from("TOPSECRET".to_owned()))));
        assert!(!s3(&format!("{set}\ndiskless.storage.s3.path.style.access.enabled=false")).is_path_style);
        let config = parse(set).expect("valid");
        assert!(!format!("{config:?}").contains("TOPSECRET"));
        let shown = describe_broker(&config, &NOTHING);
        let shown = shown.iter().find(|entry| entry.name == SECRET).expect("there");
        assert!(shown.sensitive);
    }

    #[test]
    fn an_unreachable_store_is_refused_without_its_secret() {
        for typed in
            ["s3://key:secret@bucket/p", "s3:bucket", "s3://", "s3://ab/x", "s3://bucket//x", "s3://bucket/../x"]
        {
            assert_eq!(
                refusal(&format!("diskless.storage={typed}")),
                format!("diskless.storage: {S3_FORM}"),
                "{typed}"
            );
        }
        assert_eq!(refusal("diskless.storage=s3a://bucket"), format!("diskless.storage: {S3_FORM}"));
        assert_eq!(refusal("diskless.storage=gs://key:secret@bucket"), format!("diskless.storage: {FORMS}"));
        for typed in ["host:9000", "ftp://host", "http://me:secret@host", "http://host/path", "https://"] {
            let refused = refusal(&format!("diskless.storage=s3://bucket\n{ENDPOINT}={typed}"));
            assert_eq!(
                refused,
                format!("{ENDPOINT}: must have the form http://host:port or https://host:port"),
                "{typed}"
            );
        }
    }

    #[test]
    fn settings_of_s3_belong_to_it_and_together() {
        for name in [ENDPOINT, REGION, PATH_STYLE, KEY_ID, SECRET, TRUSTSTORE, CONDITIONAL_PUT] {
            let value = if [PATH_STYLE, CONDITIONAL_PUT].contains(&name) { "true" } else { "http://x" };
            let refused = refusal(&format!("{name}={value}"));
            assert!(
                refused.lines().any(|line| line == format!("{name}: needs diskless.storage=s3://...")),
                "{refused}"
            );
        }
        for (there, missing) in [(KEY_ID, SECRET), (SECRET, KEY_ID)] {
            let refused = refusal(&format!("diskless.storage=s3://bucket\n{there}=x"));
            assert_eq!(refused, format!("{missing}: must be set as well, because {there} is set"));
        }
    }
}
