//! Errors of object stores, with the messages that the stores return.
//!
//! Retries are elsewhere. [`ObjectError::is_retriable`] distinguishes temporary errors from permanent ones.

use std::error::Error;
use std::io;

use fullbore_rules::commit::ObjectId;

/// The reason why an object was not put, read or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The object is not in the store.
    #[error("the object {0:016x} is not in the store")]
    NotFound(ObjectId),
    /// The store has fewer bytes of the object than were put.
    #[error("the object {id:016x} has at most {end} bytes in the store, fewer than were put")]
    Short {
        /// The id of the object.
        id: ObjectId,
        /// The object has at most this many bytes in the store.
        end: u32,
    },
    /// The store refuses the request, and would refuse it again.
    #[error("the object store refuses: {0}")]
    Denied(String),
    /// The store has objects of another cluster.
    #[error("the store has objects of the cluster {owner}, and this broker belongs to {cluster_id}")]
    OtherCluster {
        /// The cluster that owns the store.
        owner: String,
        /// This cluster.
        cluster_id: String,
    },
    /// The objects that the index knows are in a different store.
    #[error(
        "this store does not have this cluster's records; set diskless.storage back to the store that has them, the \
         same for all brokers (nothing was deleted)"
    )]
    OtherStore,
    /// The store has no ownership marker, although it should have objects that the index knows.
    #[error(
        "this store does not have this cluster's records; set diskless.storage back to the store that has them, the \
         same for all brokers (nothing was deleted). If the records are there and only the object {key} is gone, put \
         that object again with the text {text}"
    )]
    MarkerGone {
        /// The key of the ownership marker.
        key: String,
        /// The text that the ownership marker should have.
        text: String,
    },
    /// The store has objects that the index does not know.
    #[error(
        "the store has objects of this cluster that the index does not know: the index (diskless.db, or the cluster's \
         database) was lost, or the objects belong to another data directory. Restore the index, or set \
         diskless.storage to another directory or prefix (nothing was deleted)"
    )]
    UnknownObjects,
    /// The index has failed, so the broker cannot check that the store belongs to it.
    #[error("cannot use the index of diskless topics: {0}")]
    Index(String),
    /// The store cannot be verified at the moment, for example because the index does not answer.
    #[error("cannot verify the object store yet: {0}")]
    Unverified(String),
    /// The disk of the directory is full. Objects can still be read and deleted.
    #[error("the object store fails: {0}")]
    Full(String),
    /// The request failed for any other reason. Another attempt may succeed.
    #[error("the object store fails: {0}")]
    Unavailable(String),
}

impl ObjectError {
    /// Returns true if another attempt may succeed.
    pub fn is_retriable(&self) -> bool {
        use ObjectError::{Full, Short, Unavailable, Unverified};
        matches!(self, Unavailable(_) | Unverified(_) | Full(_) | Short { .. })
    }

    /// Converts the error of a PUT. `NotFound` means here that the bucket or the directory is missing, and becomes
    /// [`ObjectError::Denied`].
    pub(super) fn of_put(error: object_store::Error) -> ObjectError {
        use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
        let (words, text) = (words(&error), error.to_string());
        match error {
            _ if is_full(&error) => ObjectError::Full(words),
            _ if has_retriable_code(&text) => ObjectError::Unavailable(words),
            NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. } => ObjectError::Denied(words),
            _ if is_refusal(&text) => ObjectError::Denied(words),
            _ => ObjectError::Unavailable(words),
        }
    }

    /// Converts the error of a read or DELETE of an object.
    pub(super) fn of_object(id: ObjectId, error: object_store::Error) -> ObjectError {
        match error {
            object_store::Error::NotFound { .. } if !words(&error).contains("NoSuchBucket") => {
                ObjectError::NotFound(id)
            }
            _ => ObjectError::of_put(error),
        }
    }

    /// Converts the error of a read that began at `start`.
    pub(super) fn of_range(id: ObjectId, start: u32, error: object_store::Error) -> ObjectError {
        let text = error.to_string();
        match status(&text) == Some(RANGE_NOT_SATISFIABLE) || text.contains(STARTS_BEHIND) {
            true => ObjectError::Short { id, end: start },
            false => ObjectError::of_object(id, error),
        }
    }
}

/// Returns true if an answer shows that the store will always refuse the request, such as a redirect to another region.
/// Returns false for temporary failures, such as status 429.
fn is_refusal(text: &str) -> bool {
    let is_bare = text.contains("redirect without LOCATION");
    let is_final =
        |status| status == NOT_IMPLEMENTED || (300..500).contains(&status) && !matches!(status, 408 | 425 | 429);
    is_bare || status(text).is_some_and(is_final)
}

/// Codes of S3 for temporary failures that have the status 400, 403 or 409. Amazon's clients retry them.
const RETRIABLE_CODES: [&str; 5] = [
    "<Code>RequestTimeout</Code>",
    "<Code>OperationAborted</Code>",
    "<Code>ConditionalRequestConflict</Code>",
    "<Code>RequestTimeTooSkewed</Code>",
    "<Code>SlowDown</Code>",
];

/// Returns true if the store refused the request for now only, because of its load or a conflicting request.
pub(super) fn is_temporary(error: &object_store::Error) -> bool {
    has_retriable_code(&error.to_string())
}

fn has_retriable_code(text: &str) -> bool {
    RETRIABLE_CODES.iter().any(|code| text.contains(code))
}

/// The HTTP status for a request of bytes past the end of an object.
const RANGE_NOT_SATISFIABLE: u16 = 416;

/// Part of the message of `object_store` for a read that begins past the end of a file.
const STARTS_BEHIND: &str = "but object was only";

/// The HTTP status for a request that the store does not support.
const NOT_IMPLEMENTED: u16 = 501;

/// Finds the HTTP status in a message of `object_store`, which has no separate error for most statuses. Returns `None`
/// if the message has no status.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok())
}

/// Returns true if the store does not support the requested operation, or if a setting of the store disables it.
pub(super) fn is_not_implemented(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotImplemented { .. }) || status(&error.to_string()) == Some(NOT_IMPLEMENTED)
}

/// Returns true if the disk of the directory is full.
pub(super) fn is_full(error: &object_store::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(at) = cause {
        if at.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            return true;
        }
        cause = at.source();
    }
    false
}

/// The metadata service of Amazon's machines, which issues credentials if none are set.
const METADATA_SERVICE: &str = "http://169.254.169.254/";

/// Returns the code and message in the body of an S3 error. If the body has none, returns the message of the library.
pub(super) fn words(error: &object_store::Error) -> String {
    let text = error.to_string();
    if text.contains(METADATA_SERVICE) {
        return format!(
            "no credentials are set, and this machine's metadata service gives none ({})",
            with_cause(text, error)
        );
    }
    match (element(&text, "Code"), element(&text, "Message")) {
        (Some(code), Some(message)) if !message.is_empty() => format!("{code}: {message}"),
        (Some(code), _) => code,
        _ => with_cause(text, error),
    }
}

/// Returns the text of the first XML element `name`, or `None` if there is none.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(unescaped(inner))
}

/// Replaces XML entities with their characters. Unknown entities are kept.
fn unescaped(mut text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    while let Some((before, entity)) = text.split_once('&') {
        plain.push_str(before);
        let known = entity.split_once(';').and_then(|(name, rest)| Some((character(name)?, rest)));
        text = match known {
            Some((character, rest)) => {
                plain.push(character);
                rest
            }
            None => {
                plain.push('&');
                entity
            }
        };
    }
    plain + text
}

/// Returns the character for an entity such as `quot`, `#34` or `#x22`, or `None` if the entity is unknown.
fn character(name: &str) -> Option<char> {
    match name {
        "quot" => Some('"'),
        "apos" => Some('\''),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)
        }
    }
}

/// Appends the innermost cause of an error, which is a message of the system or of a library.
fn with_cause(text: String, error: &object_store::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let last = cause.to_string();
    if text.contains(&last) { text } else { format!("{text}: {last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_with_entities_is_shown_with_their_characters() {
        let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>region &#34;eu-west-9&#34; is &lt;wrong&gt;, it&apos;s \
                    &#x27;a&#X27; &amp;quot; &unknown; &#1114112; &#34 &</Message></Error>";
        let shown = "region \"eu-west-9\" is <wrong>, it's 'a' &quot; &unknown; &#1114112; &#34 &";
        assert_eq!(element(body, "Message").as_deref(), Some(shown));
    }
}
