//! Errors of object stores, in the store's own words.

use std::error::Error;
use std::io;

use fullbore_rules::commit::ObjectId;

/// Why an object was not put, read or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// There is none of this number.
    #[error("the object {0:016x} is not in the store")]
    NotFound(ObjectId),
    /// There is less of it than was put.
    #[error("the object {id:016x} ends at byte {end} in the store, and is longer")]
    Short {
        /// Its number.
        id: ObjectId,
        /// Bytes of it that there are, at most.
        end: u32,
    },
    /// The store does not let this broker.
    #[error("the object store refuses: {0}")]
    Denied(String),
    /// Another cluster has its objects there.
    #[error("it has objects of the cluster {owner}, and this is {cluster_id}")]
    OtherCluster {
        /// Cluster that has the store.
        owner: String,
        /// Cluster that tries to claim it.
        cluster_id: String,
    },
    /// The index knows objects that are in another one.
    #[error(
        "it is not the store in which this cluster's records are; set diskless.storage back to that one, the same for all brokers of a cluster \
         (nothing was deleted)"
    )]
    OtherStore,
    /// The index knows objects, and there is no claim.
    #[error(
        "it is not the store in which this cluster's records are; set diskless.storage back to that one, the same for all brokers of a cluster \
         (nothing was deleted); if they are there and only the object {key} is gone, put it there again with the text {claim}"
    )]
    ClaimGone {
        /// Key of the claim.
        key: String,
        /// Its text.
        claim: String,
    },
    /// Its objects are those of another index.
    #[error(
        "it has objects of this cluster of which the index knows nothing: diskless.db, or the cluster's database, was lost, or another data \
         folder uses them; restore it, or set diskless.storage to another folder or prefix (nothing was deleted)"
    )]
    UnknownObjects,
    /// The owner cannot be looked up, since the index fails.
    #[error("the index of diskless topics: {0}")]
    Index(String),
    /// The claim has failed for the moment.
    #[error("the object store is not claimed yet: {0}")]
    Unclaimed(String),
    /// Anything else: it may be tried again.
    #[error("the object store fails: {0}")]
    Unavailable(String),
}

impl ObjectError {
    /// Returns true if another attempt may succeed.
    pub fn is_retriable(&self) -> bool {
        matches!(self, ObjectError::Unavailable(_) | ObjectError::Unclaimed(_) | ObjectError::Short { .. })
    }

    /// Why nothing was put: where it should go is not there, if nothing else.
    pub(super) fn of_put(error: object_store::Error) -> ObjectError {
        use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
        let words = words(&error);
        match error {
            NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. } => ObjectError::Denied(words),
            _ if is_refusal(&error.to_string()) => ObjectError::Denied(words),
            _ => ObjectError::Unavailable(words),
        }
    }

    /// Why nothing of this object was read or deleted.
    pub(super) fn of_object(id: ObjectId, error: object_store::Error) -> ObjectError {
        match error {
            object_store::Error::NotFound { .. } if !words(&error).contains("NoSuchBucket") => {
                ObjectError::NotFound(id)
            }
            _ => ObjectError::of_put(error),
        }
    }

    /// Returns why no bytes from `start` on were read.
    pub(super) fn of_range(id: ObjectId, start: u32, error: object_store::Error) -> ObjectError {
        let text = error.to_string();
        match status(&text) == Some(RANGE_NOT_SATISFIABLE) || text.contains(STARTS_BEHIND) {
            true => ObjectError::Short { id, end: start },
            false => ObjectError::of_object(id, error),
        }
    }
}

/// Returns true if an answer says that the request itself is wrong, such as a redirect to another region. An answer
/// that a later attempt may not get is none.
fn is_refusal(text: &str) -> bool {
    let is_bare = text.contains("redirect without LOCATION");
    let is_final =
        |status| status == NOT_IMPLEMENTED || (300..500).contains(&status) && !matches!(status, 408 | 425 | 429);
    is_bare || status(text).is_some_and(is_final)
}

/// The answer to a request of bytes behind the end of an object.
const RANGE_NOT_SATISFIABLE: u16 = 416;

/// The library's words for the same of an object in a folder.
const STARTS_BEHIND: &str = "but object was only";

/// The answer to a request that the store does not know.
const NOT_IMPLEMENTED: u16 = 501;

/// The status of an answer, by the words of the library, which has no error of its own for most of them.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse().ok())
}

/// Returns true if the store, or a setting for it, does not have the operation that was requested.
pub(super) fn is_not_implemented(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotImplemented { .. }) || status(&error.to_string()) == Some(NOT_IMPLEMENTED)
}

/// Returns true if the directory's disk has no room.
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

/// The code and the message of an S3 answer, or what there is.
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

/// The text of an element of XML.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(unescaped(inner))
}

/// Replaces XML's entities by their characters. One that is not known stays as it is.
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

/// Returns the character of an entity with this name, such as `quot`, `#34` and `#x22`.
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

/// With the last cause, which is the system's or a library's.
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
