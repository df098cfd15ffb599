//! Errors of object stores, in the store's own words.
//!
//! Not here: retries. [`ObjectError::is_retriable`] separates temporary errors from lasting ones.

use std::error::Error;
use std::io;

use fullbore_rules::commit::ObjectId;

/// Reason for which an object was not put, read or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// Object that is not in the store.
    #[error("the object {0:016x} is not in the store")]
    NotFound(ObjectId),
    /// Object of which the store has fewer bytes than were put.
    #[error("the object {id:016x} has at most {end} bytes in the store, fewer than were put")]
    Short {
        /// Id of the object.
        id: ObjectId,
        /// Most bytes that the store can have of the object.
        end: u32,
    },
    /// Refusal by the store.
    #[error("the object store refuses: {0}")]
    Denied(String),
    /// Store with objects of another cluster.
    #[error("it has objects of the cluster {owner}, and this is {cluster_id}")]
    OtherCluster {
        /// Cluster that owns the store.
        owner: String,
        /// This cluster.
        cluster_id: String,
    },
    /// Store other than the one whose objects the index knows.
    #[error(
        "it is not the store in which this cluster's records are; set diskless.storage back to that one, the same for all brokers \
         (nothing was deleted)"
    )]
    OtherStore,
    /// Store without an ownership marker, while the index knows objects.
    #[error(
        "it is not the store in which this cluster's records are; set diskless.storage back to that one, the same for all brokers \
         (nothing was deleted). If the records are there and only the object {key} is gone, put that object again with the text {claim}"
    )]
    ClaimGone {
        /// Key of the ownership marker.
        key: String,
        /// Text of the ownership marker.
        claim: String,
    },
    /// Store with objects that the index does not know.
    #[error(
        "it has objects of this cluster that the index does not know: the index (diskless.db, or the cluster's database) was lost, or the \
         objects belong to another data directory. Restore the index, or set diskless.storage to another directory or prefix (nothing was \
         deleted)"
    )]
    UnknownObjects,
    /// Failure of the index, without which the store cannot be verified.
    #[error("cannot use the index of diskless topics: {0}")]
    Index(String),
    /// Store that cannot be verified for the moment.
    #[error("cannot verify the object store yet: {0}")]
    Unclaimed(String),
    /// Any other failure: another attempt may succeed.
    #[error("the object store fails: {0}")]
    Unavailable(String),
}

impl ObjectError {
    /// Returns true if another attempt may succeed.
    pub fn is_retriable(&self) -> bool {
        matches!(self, ObjectError::Unavailable(_) | ObjectError::Unclaimed(_) | ObjectError::Short { .. })
    }

    /// Returns the error of a failed PUT. Not found means that the bucket or directory is missing, which is a refusal.
    pub(super) fn of_put(error: object_store::Error) -> ObjectError {
        use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
        let words = words(&error);
        match error {
            NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. } => ObjectError::Denied(words),
            _ if is_refusal(&error.to_string()) => ObjectError::Denied(words),
            _ => ObjectError::Unavailable(words),
        }
    }

    /// Returns the error of a failed read or DELETE of an object.
    pub(super) fn of_object(id: ObjectId, error: object_store::Error) -> ObjectError {
        match error {
            object_store::Error::NotFound { .. } if !words(&error).contains("NoSuchBucket") => {
                ObjectError::NotFound(id)
            }
            _ => ObjectError::of_put(error),
        }
    }

    /// Returns the error of a failed read from `start` on.
    pub(super) fn of_range(id: ObjectId, start: u32, error: object_store::Error) -> ObjectError {
        let text = error.to_string();
        match status(&text) == Some(RANGE_NOT_SATISFIABLE) || text.contains(STARTS_BEHIND) {
            true => ObjectError::Short { id, end: start },
            false => ObjectError::of_object(id, error),
        }
    }
}

/// Returns true if an answer shows that the request itself is wrong, such as a redirect to another region. Statuses of
/// temporary failures, such as 429, are no refusals.
fn is_refusal(text: &str) -> bool {
    let is_bare = text.contains("redirect without LOCATION");
    let is_final =
        |status| status == NOT_IMPLEMENTED || (300..500).contains(&status) && !matches!(status, 408 | 425 | 429);
    is_bare || status(text).is_some_and(is_final)
}

/// Status of the answer to a request for bytes past the end of an object.
const RANGE_NOT_SATISFIABLE: u16 = 416;

/// Message of the library for a read past the end of a file.
const STARTS_BEHIND: &str = "but object was only";

/// Status of the answer to a request that the store does not support.
const NOT_IMPLEMENTED: u16 = 501;

/// Reads the status of an answer from the library's message, because the library has no separate error for most
/// statuses. `None` if the message contains no status.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok())
}

/// Returns true if the store, or a setting for it, lacks the requested operation.
pub(super) fn is_not_implemented(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotImplemented { .. }) || status(&error.to_string()) == Some(NOT_IMPLEMENTED)
}

/// Returns true if the directory's disk is full.
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

/// Metadata service of Amazon's machines, the source of credentials if none are set.
const METADATA_SERVICE: &str = "http://169.254.169.254/";

/// Returns the code and the message of an S3 answer, or else the library's message.
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

/// Returns the text of the first XML element `name`; `None` if there is none.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(unescaped(inner))
}

/// Replaces XML entities by their characters. An unknown entity stays.
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

/// Returns the character of an entity with this name, such as `quot`, `#34` and `#x22`; `None` if the name is unknown.
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

/// Appends the innermost cause, which is a message of the system or of a library.
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
        let says = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>region &#34;eu-west-9&#34; is &lt;wrong&gt;, it&apos;s \
                    &#x27;a&#X27; &amp;quot; &unknown; &#1114112; &#34 &</Message></Error>";
        let shown = "region \"eu-west-9\" is <wrong>, it's 'a' &quot; &unknown; &#1114112; &#34 &";
        assert_eq!(element(says, "Message").as_deref(), Some(shown));
    }
}
