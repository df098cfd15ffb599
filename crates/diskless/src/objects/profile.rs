//! Reads the credentials file that Amazon's tools share. It has named sections with lines of the form `name = value`.
//!
//! After a change, the file is read again, because tools that rotate keys replace the file. Invariant: if the file
//! cannot be read or lacks one of the two keys, the last credentials stay in use.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;

/// How often the file is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of the file in bytes. Requests wait while the file is read.
const FILE_MAX: u64 = 1 << 20;

/// The credentials of one profile, as they currently are in the file.
pub struct ProfileCredentials {
    file: PathBuf,
    profile: String,
    read: Mutex<ReadCredentials>,
}

struct ReadCredentials {
    credentials: Arc<AwsCredential>,
    version: FileVersion,
    checked_at: Instant,
}

/// Identifies the contents of a file by its inode, its size in bytes, and the seconds and nanoseconds of its last
/// write.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileVersion(u64, u64, i64, i64);

impl FileVersion {
    fn of(metadata: &Metadata) -> FileVersion {
        FileVersion(metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
    }
}

impl fmt::Debug for ProfileCredentials {
    /// Formats the path of the file, without any secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ProfileCredentials").field("file", &self.file).finish_non_exhaustive()
    }
}

impl ProfileCredentials {
    /// Reads the credentials of a profile. Returns `None` if the file has no such profile with both keys.
    ///
    /// # Errors
    /// Returns an [`io::Error`] if the file cannot be read or is larger than 1 MiB.
    pub fn open(file: PathBuf, profile: &str) -> io::Result<Option<ProfileCredentials>> {
        // The version is read before the contents. If the file changes in between, the next check finds another
        // version.
        let version = FileVersion::of(&std::fs::metadata(&file)?);
        let found = find(&read_to_string(&file)?, profile);
        Ok(found.map(|credentials| {
            let read = ReadCredentials { credentials: Arc::new(credentials), version, checked_at: Instant::now() };
            ProfileCredentials { file, profile: profile.to_owned(), read: Mutex::new(read) }
        }))
    }

    /// Returns the current credentials. The file is checked at most once a second.
    fn current(&self) -> Arc<AwsCredential> {
        let mut read = self.read.lock();
        if read.checked_at.elapsed() >= CHECK_INTERVAL {
            read.checked_at = Instant::now();
            self.read_again(&mut read);
        }
        Arc::clone(&read.credentials)
    }

    fn read_again(&self, read: &mut ReadCredentials) {
        // If the file is missing, a tool is probably replacing it. A later check reads the new file.
        let Ok(metadata) = std::fs::metadata(&self.file) else { return };
        let version = FileVersion::of(&metadata);
        if version == read.version {
            return;
        }
        read.version = version;
        let (file, profile) = (self.file.display(), &self.profile);
        match read_to_string(&self.file).map(|text| find(&text, profile)) {
            Ok(Some(credentials)) => {
                read.credentials = Arc::new(credentials);
                tracing::info!(%file, profile, "credentials of the object store were read again");
            }
            Ok(None) => tracing::warn!(
                %file,
                profile,
                "cannot find the keys of a profile: the last credentials stay in use; write aws_access_key_id and \
                 aws_secret_access_key into the profile's section of the file"
            ),
            Err(error) => tracing::warn!(
                %file,
                %error,
                "cannot read the credentials file: the last credentials stay in use; give the broker's user \
                 permission to read the file"
            ),
        }
    }
}

/// Reads a regular file of at most [`FILE_MAX`] bytes. Fails at once for anything else, such as a pipe, from which a
/// read could hang.
fn read_to_string(path: &Path) -> io::Result<String> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > FILE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file of at most 1 MiB"));
    }
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        Ok(self.current())
    }
}

/// Returns the credentials in the section `profile`. Returns `None` if one of the two keys is missing, or if a value
/// has control characters.
fn find(text: &str, profile: &str) -> Option<AwsCredential> {
    let mut is_inside = false;
    let (mut key_id, mut secret, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_inside = name.trim() == profile;
        } else if is_inside && let Some((name, value)) = line.split_once('=') {
            let value = Some(value.trim().to_owned());
            match name.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => key_id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    // Control characters cannot be sent in a header.
    let is_sendable =
        [&key_id, &secret, &token].into_iter().flatten().all(|value| !value.chars().any(char::is_control));
    Some(AwsCredential { key_id: key_id?, secret_key: secret?, token }).filter(|_| is_sendable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_several_profiles_each_has_its_own_lines() {
        let text = "# of two\n[default]\naws_access_key_id = A\naws_secret_access_key=b=c\n\n[ other ]\naws_access_key_id=X\n\
                    aws_secret_access_key = y\naws_session_token = z\nregion = eu-1\n[half]\naws_access_key_id = X\n";
        let of = |name: &str| find(text, name).map(|found| (found.key_id, found.secret_key, found.token));
        assert_eq!(of("default"), Some(("A".into(), "b=c".into(), None)));
        assert_eq!(of("other"), Some(("X".into(), "y".into(), Some("z".into()))));
        assert_eq!((of("half"), of("none")), (None, None));
    }
}
