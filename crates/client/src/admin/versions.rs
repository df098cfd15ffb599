//! Reads the versions of each API that a broker serves.

use crate::blocking::{BrokerAddress, Cluster, Listed};
use crate::error::ClientError;
use crate::protocol::Handshake;
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::api_versions::{ApiVersion, ApiVersionsRequest};

/// An API, with the versions that a broker serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedApi {
    /// The API's key.
    pub key: i16,
    /// Kafka's name of the API, or `None` if this program does not know the API.
    pub name: Option<&'static str>,
    /// The lowest version that the broker serves.
    pub min: i16,
    /// The highest version that the broker serves.
    pub max: i16,
    /// The newest version that broker and client have in common, or `None` if they have none.
    pub usable: Option<i16>,
}

/// Returns the APIs that each of these brokers serves, sorted by key.
pub fn api_versions(cluster: &Cluster, brokers: &[BrokerAddress]) -> Listed<(BrokerAddress, Vec<ServedApi>)> {
    cluster.at_each(brokers, |cluster, broker| Ok(vec![(broker.clone(), api_versions_of(cluster, &broker.address())?)]))
}

fn api_versions_of(cluster: &mut Cluster, address: &str) -> Result<Vec<ServedApi>, ClientError> {
    let answer = cluster.call_at::<ApiVersionsRequest>(address, &Handshake::request(), i16::MAX)?;
    if answer.error_code.is_err() {
        return Err(ClientError::kafka(format!("{address} refused ApiVersions"), answer.error_code, None));
    }
    let mut found: Vec<ServedApi> = answer.api_keys.iter().map(served).collect();
    found.sort_by_key(|api| api.key);
    Ok(found)
}

fn served(range: &ApiVersion) -> ServedApi {
    let known = ApiKey::from_code(range.api_key);
    let usable = known.and_then(|key| {
        let (least, newest) = (*key.versions().start(), *key.versions().end());
        Some(range.max_version.min(newest)).filter(|version| *version >= range.min_version.max(least))
    });
    ServedApi {
        key: range.api_key,
        name: known.map(ApiKey::name),
        min: range.min_version,
        max: range.max_version,
        usable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_usable() {
        let of = |api_key, min_version, max_version| {
            served(&ApiVersion { api_key, min_version, max_version, ..Default::default() }).usable
        };
        assert_eq!((of(3, 0, 99), of(3, 2, 5), of(0, 0, 2), of(999, 0, 1)), (Some(13), Some(5), None, None));
    }
}
