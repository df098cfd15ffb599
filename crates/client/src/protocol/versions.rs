//! Negotiates the version of each API that both sides use.
//!
//! The first request of a connection is ApiVersions in the newest version that this client knows. A broker that does
//! not know this version answers in version 0 with its own range of versions (KIP-511). The client then sends a second
//! request, in a version of that range. Invariant: the client sends at most two requests.

use super::due::decode;
use super::error::ProtocolError;
use bytes::Bytes;
use fullbore_wire::api::{ApiKey, Request};
use fullbore_wire::apis::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use fullbore_wire::{ErrorCode, Text};

/// The newest common version of each API, and the features that the cluster has finalized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    apis: Vec<(ApiKey, i16)>,
    features: Vec<(Text, i16)>,
}

impl Versions {
    /// Returns the versions that this program and a broker have in common.
    pub fn new(served: &ApiVersionsResponse) -> Self {
        let apis = ApiKey::ALL.iter().filter_map(|key| Some((*key, common(served, *key)?))).collect();
        let features = served.finalized_features.iter().map(|of| (of.name.clone(), of.max_version_level)).collect();
        Versions { apis, features }
    }

    /// Returns the finalized level of a feature (KIP-584), or 0 if the broker's response does not contain the feature.
    pub fn feature(&self, name: &str) -> i16 {
        self.features.iter().find(|(known, _)| *known == *name).map_or(0, |(_, level)| *level)
    }

    /// Returns the newest common version of `R`.
    ///
    /// # Errors
    /// Returns [`ProtocolError::Unsupported`] if there is none.
    pub fn newest<R: Request>(&self) -> Result<i16, ProtocolError> {
        let found = self.apis.iter().find(|(key, _)| *key == R::KEY);
        found.map(|(_, version)| *version).ok_or(ProtocolError::Unsupported(R::KEY.name()))
    }
}

fn common(served: &ApiVersionsResponse, key: ApiKey) -> Option<i16> {
    let theirs = served.api_keys.iter().find(|range| range.api_key == key.code())?;
    let version = theirs.max_version.min(*key.versions().end());
    (version >= theirs.min_version.max(*key.versions().start())).then_some(version)
}

/// The start of a connection. The caller sends [`Handshake::request`] in [`Handshake::version`] and passes the response
/// to [`Handshake::answered`]. The caller repeats both steps until `answered` returns versions.
#[derive(Debug)]
pub struct Handshake {
    version: i16,
    is_second: bool,
}

impl Default for Handshake {
    fn default() -> Self {
        Handshake { version: *ApiKey::ApiVersions.versions().end(), is_second: false }
    }
}

impl Handshake {
    /// Returns the ApiVersions request.
    pub fn request() -> ApiVersionsRequest {
        ApiVersionsRequest {
            client_software_name: Text::from_static("fullbore"),
            client_software_version: Text::from_static(env!("CARGO_PKG_VERSION")),
            ..Default::default()
        }
    }

    /// Returns the version in which the caller must send the request.
    pub fn version(&self) -> i16 {
        self.version
    }

    /// Reads the common versions from the broker's response. Returns `None` if the request must be sent again in
    /// another version.
    ///
    /// # Errors
    /// Returns [`ProtocolError::Refused`] if the broker refuses the request, or [`ProtocolError::Decode`] if the frame
    /// is not a response.
    pub fn answered(&mut self, frame: Bytes) -> Result<Option<Versions>, ProtocolError> {
        // The error follows the correlation id in every version. A broker that does not know the version answers in
        // version 0.
        let is_unknown = frame.get(4..6) == Some(&ErrorCode::UNSUPPORTED_VERSION.0.to_be_bytes());
        let response = decode::<ApiVersionsRequest>(frame, if is_unknown { 0 } else { self.version })?;
        if response.error_code == ErrorCode::UNSUPPORTED_VERSION && !self.is_second {
            let theirs = common(&response, ApiKey::ApiVersions).unwrap_or(0);
            (self.version, self.is_second) = (theirs.min(self.version), true);
            return Ok(None);
        }
        match response.error_code.is_err() {
            true => Err(ProtocolError::Refused(response.error_code)),
            false => Ok(Some(Versions::new(&response))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::Part;
    use fullbore_wire::api::encode_response;
    use fullbore_wire::apis::api_versions::{ApiVersion, FinalizedFeatureKey};
    use fullbore_wire::apis::fetch::FetchRequest;
    use fullbore_wire::apis::metadata::MetadataRequest;

    fn served(error_code: ErrorCode, ranges: &[(ApiKey, i16, i16)]) -> ApiVersionsResponse {
        let range = |(key, min_version, max_version): &(ApiKey, i16, i16)| ApiVersion {
            api_key: key.code(),
            min_version: *min_version,
            max_version: *max_version,
            ..Default::default()
        };
        ApiVersionsResponse { error_code, api_keys: ranges.iter().map(range).collect(), ..Default::default() }
    }

    /// Returns the frame of the response, without the length prefix.
    fn answer(version: i16, response: &ApiVersionsResponse) -> Bytes {
        let version = ApiKey::ApiVersions.version(version).unwrap();
        let frame = encode_response::<ApiVersionsRequest>(response, version, 0).unwrap();
        let bytes: Vec<u8> = frame
            .parts
            .iter()
            .flat_map(|part| match part {
                Part::Bytes(bytes) => bytes.to_vec(),
                Part::File(_) => unreachable!("memory only"),
            })
            .collect();
        Bytes::from(bytes).slice(4..)
    }

    #[test]
    fn the_newest_version_that_both_speak_is_used() {
        let newest = *ApiKey::Metadata.versions().end();
        let of = |min, max| Versions::new(&served(ErrorCode::NONE, &[(ApiKey::Metadata, min, max)]));
        assert_eq!(of(0, newest + 5).newest::<MetadataRequest>(), Ok(newest));
        assert_eq!(of(0, newest - 1).newest::<MetadataRequest>(), Ok(newest - 1));
        let none = Err(ProtocolError::Unsupported("Metadata"));
        assert_eq!(of(newest + 1, newest + 5).newest::<MetadataRequest>(), none);
        assert_eq!(of(-7, -1).newest::<MetadataRequest>(), none);
        assert_eq!(of(0, newest).newest::<FetchRequest>(), Err(ProtocolError::Unsupported("Fetch")));
    }

    #[test]
    fn an_unknown_feature_has_level_0() {
        let name = Text::from_static("transaction.version");
        let feature = FinalizedFeatureKey { name, max_version_level: 2, ..Default::default() };
        let finalized_features = vec![feature];
        let versions = Versions::new(&ApiVersionsResponse { finalized_features, ..Default::default() });
        assert_eq!((versions.feature("transaction.version"), versions.feature("group.version")), (2, 0));
    }

    #[test]
    fn a_current_broker_gets_one_request() {
        let mut handshake = Handshake::default();
        let range = [(ApiKey::Metadata, 0, 3)];
        let frame = answer(handshake.version(), &served(ErrorCode::NONE, &range));
        let versions = handshake.answered(frame).unwrap().expect("versions");
        assert_eq!(versions.newest::<MetadataRequest>(), Ok(3));
    }

    #[test]
    fn an_older_broker_gets_a_second_request_in_its_own_version() {
        for (ranges, requested) in [(&[(ApiKey::ApiVersions, 0, 2)][..], 2), (&[], 0)] {
            let mut handshake = Handshake::default();
            let refusal = answer(0, &served(ErrorCode::UNSUPPORTED_VERSION, ranges));
            assert_eq!(handshake.answered(refusal.clone()), Ok(None));
            assert_eq!(handshake.version(), requested);
            let refused = Err(ProtocolError::Refused(ErrorCode::UNSUPPORTED_VERSION));
            assert_eq!(handshake.answered(refusal), refused, "there is no third time");
        }
    }

    #[test]
    fn a_frame_that_is_no_response_is_an_error() {
        let mut handshake = Handshake::default();
        let refusal = answer(handshake.version(), &served(ErrorCode::INVALID_REQUEST, &[]));
        assert_eq!(handshake.answered(refusal), Err(ProtocolError::Refused(ErrorCode::INVALID_REQUEST)));
        for bytes in [&b""[..], &[0; 5], b"HTTP/1.1 400 Bad Request"] {
            let outcome = Handshake::default().answered(Bytes::from_static(bytes));
            assert!(matches!(outcome, Err(ProtocolError::Decode { .. } | ProtocolError::Refused(_))), "{outcome:?}");
        }
    }
}
