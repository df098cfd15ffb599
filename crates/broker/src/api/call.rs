//! The request that an API is handling: its contents, its client, and its response.

use super::client::Client;
use fullbore_control::{Control, Refusal, shown};
use fullbore_host::unread_responses::ResponseRoom;
use fullbore_wire::api::{ApiKey, Request, RequestHeader, decode_request, encode_response, encode_response_with};
use fullbore_wire::{DecodeError, EncodeError, ErrorCode, Frame, Reader, Text, Version, Writer};
use std::borrow::Cow;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::pin::Pin;
use std::sync::Arc;

/// Maximum number of bytes of a refusal's message. A longer message is cut.
const WORDS_BYTES_MAX: usize = 1_000;

/// The reason why a request gets no response and its connection is closed instead.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The request header is malformed.
    #[error("malformed request header: {0}")]
    Header(DecodeError),
    /// The broker does not serve this API.
    #[error("API key {0} is not served")]
    Api(i16),
    /// The version is outside the advertised range.
    #[error("{} version {version} is not served", api.name())]
    Version {
        /// API of the request.
        api: ApiKey,
        /// Version of the request.
        version: i16,
    },
    /// The request body is malformed.
    #[error("malformed {} request: {error}", api.name())]
    Body {
        /// API of the request.
        api: ApiKey,
        /// The reason why the body could not be decoded.
        error: DecodeError,
    },
    /// The response cannot be expressed in the requested version.
    #[error("cannot encode the response to {}: {error}", api.name())]
    Answer {
        /// API of the request.
        api: ApiKey,
        /// The reason why the response could not be encoded.
        error: EncodeError,
    },
    /// A produce request with acks=0 failed. Such a request has no response, so closing the connection is the only way
    /// to report it.
    #[error("produce with acks=0 failed: {0}")]
    Unacknowledged(fullbore_wire::ErrorCode),
    /// There was no memory for a large response, because other clients have not read their responses in time.
    #[error("there was no memory for a large response, because other clients were still reading theirs")]
    NoRoom,
}

/// The future of a response.
pub type Answer = Pin<Box<dyn Future<Output = Result<Frame, Fault>> + Send>>;

/// The response of an admitted request, which may not be known yet.
pub enum Completion {
    /// The response is already known.
    Ready(Frame),
    /// The response is known once the future has completed. The future makes no progress unless it is awaited.
    Later(Answer),
    /// Like `Later`, with the number of bytes of memory that are used until the response is sent. `Later` uses as many
    /// bytes as the request has.
    Holding(Answer, usize),
}

impl Completion {
    /// Returns a completion that ends like this one, but with an empty response.
    pub fn muted(self) -> Completion {
        let muted = |answer: Answer| -> Answer { Box::pin(async move { answer.await.map(|_| Frame::default()) }) };
        match self {
            Completion::Ready(_) => Completion::Ready(Frame::default()),
            Completion::Later(answer) => Completion::Later(muted(answer)),
            Completion::Holding(answer, held) => Completion::Holding(muted(answer), held),
        }
    }

    /// Returns how many bytes of memory are used until the response is sent. `request_len` is the size of the request.
    pub fn bytes_held(&self, request_len: usize) -> usize {
        match self {
            Completion::Ready(frame) => frame.bytes_in_memory(),
            Completion::Later(_) => request_len,
            Completion::Holding(_, held) => *held,
        }
    }
}

/// An admitted request that gets a response.
pub struct Admission {
    /// API of the request.
    pub api: ApiKey,
    /// The response, or the future of it.
    pub completion: Completion,
    /// The memory reservation of the response, if the request is wide or the response was expected to be large.
    pub room: Option<Arc<ResponseRoom>>,
}

/// A request that is being admitted.
pub struct Call<'a> {
    /// The client that sent the request.
    pub client: &'a mut Client,
    /// Index of the listener that the client connected to. Responses contain the brokers' addresses on this listener.
    pub listener: usize,
    /// The header of the request.
    pub header: RequestHeader,
    /// The reader, positioned at the start of the body.
    pub reader: Reader,
}

/// The parts of a request that are needed to encode its response.
#[derive(Clone, Copy)]
pub struct Reply {
    pub(super) version: Version,
    pub(super) correlation_id: i32,
    /// Index of the listener that the client connected to. Responses contain the brokers' addresses on this listener.
    pub(super) listener: usize,
}

impl Reply {
    /// Encodes a response.
    ///
    /// # Errors
    /// Returns [`Fault::Answer`] if the version cannot express the response.
    pub fn frame<R: Request>(self, response: &R::Response) -> Result<Frame, Fault> {
        encode_response::<R>(response, self.version, self.correlation_id)
            .map_err(|error| Fault::Answer { api: R::KEY, error })
    }

    /// Encodes a response whose body is written by `put`.
    ///
    /// # Errors
    /// Returns [`Fault::Answer`] if the version cannot express the response.
    pub fn frame_with<R: Request>(
        self,
        put: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Result<Frame, Fault> {
        encode_response_with::<R>(self.version, self.correlation_id, put)
            .map_err(|error| Fault::Answer { api: R::KEY, error })
    }
}

impl Call<'_> {
    /// Returns `control` with this client's name, so that log lines of a change name the client that requested the
    /// change.
    pub(super) fn control(&self, control: &Control) -> Control {
        let by = match self.header.client_id.as_deref() {
            Some(id) if !id.is_empty() => format!("{} ({})", self.client.peer, shown(id)),
            _ => self.client.peer.to_string(),
        };
        control.requested_by(&by)
    }

    /// Decodes the request's body.
    pub(super) fn body<R: Request>(&mut self, version: Version) -> Result<R, Fault> {
        decode_request(&mut self.reader, version).map_err(|error| Fault::Body { api: R::KEY, error })
    }
}

/// Removes repeated elements. Of the elements with the same key, only the first stays, in its position. Otherwise a
/// request could enlarge its response by repeating an element.
pub(super) fn once<T, K: Hash + Eq>(elements: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    joined(elements, key, |_, _| {})
}

/// Joins elements that have the same key, such as a topic that a request names twice. Returns the first element with
/// each key, in order, with all later elements of that key joined to it.
///
/// Joining takes 16 bytes of memory for each element and 16 more for each repeated one, however long the keys are.
pub(super) fn joined<T, K: Hash + Eq>(
    elements: Vec<T>,
    key: impl Fn(&T) -> K,
    mut join: impl FnMut(&mut T, T),
) -> Vec<T> {
    let repeated = repeated(&elements, key);
    let mut due = repeated.iter().peekable();
    let mut firsts: Vec<T> = Vec::with_capacity(elements.len() - repeated.len());
    for (at, element) in elements.into_iter().enumerate() {
        match due.next_if(|(repeated, _)| *repeated == at) {
            None => firsts.push(element),
            Some((_, first)) => {
                let before = repeated.partition_point(|(at, _)| at < first);
                join(&mut firsts[first - before], element);
            }
        }
    }
    firsts
}

/// Returns two positions for each repeated element, in order: its own position, and that of the first element with the
/// same key.
fn repeated<T, K: Hash + Eq>(elements: &[T], key: impl Fn(&T) -> K) -> Vec<(usize, usize)> {
    let hashes = RandomState::new();
    let mut order: Vec<(u64, usize)> =
        elements.iter().enumerate().map(|(at, element)| (hashes.hash_one(key(element)), at)).collect();
    order.sort_unstable();
    let mut repeated = Vec::new();
    for same in order.chunk_by(|(one, _), (next, _)| one == next).filter(|same| same.len() > 1) {
        // Elements with the same hash. They have different keys only if the hashes collide.
        let mut known: Vec<(K, usize)> = Vec::new();
        for (_, at) in same {
            let key = key(&elements[*at]);
            match known.iter().find(|(of, _)| *of == key) {
                Some((_, first)) => repeated.push((*at, *first)),
                None => known.push((key, *at)),
            }
        }
    }
    repeated.sort_unstable();
    repeated
}

/// Returns an outcome as the error code and message of a response.
pub(super) fn code_and_message(outcome: Result<(), Refusal>) -> (ErrorCode, Option<Text>) {
    match outcome {
        Ok(()) => (ErrorCode::NONE, None),
        Err(refusal) => (refusal.code, Some(words(refusal.message))),
    }
}

/// Returns an error message for a response. A message that is not a constant is cut after [`WORDS_BYTES_MAX`] bytes.
/// Such a message may contain long names from a request, and a string in a response has at most 32,767 bytes.
pub(super) fn words(message: impl Into<Cow<'static, str>>) -> Text {
    match message.into() {
        Cow::Borrowed(message) => Text::from_static(message),
        Cow::Owned(mut message) => {
            if message.len() > WORDS_BYTES_MAX {
                message.truncate(message.floor_char_boundary(WORDS_BYTES_MAX));
                message.push_str("...");
            }
            Text::from(message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_elements_leave_the_first_of_each_in_order() {
        assert_eq!(once(vec!["b", "a", "b", "c", "a", "b"], |element| *element), ["b", "a", "c"]);
        assert_eq!(once(Vec::<i32>::new(), |element| *element), [0; 0]);
        assert_eq!(
            once((0..10_000).map(|number| number % 7_000).collect(), |number| *number),
            (0..7_000).collect::<Vec<_>>()
        );
    }

    #[test]
    fn repeated_elements_are_joined_to_the_first_of_each() {
        let requested =
            vec![("b", vec![1]), ("a", vec![2]), ("b", vec![3]), ("c", vec![4]), ("a", vec![5]), ("b", vec![6])];
        let joined = joined(requested, |(name, _)| *name, |(_, first), (_, later)| first.extend(later));
        assert_eq!(joined, [("b", vec![1, 3, 6]), ("a", vec![2, 5]), ("c", vec![4])]);
    }
}
