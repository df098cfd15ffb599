//! `fullbore api-versions` prints the lines of kafka-broker-api-versions.sh, or one JSON document.

use crate::client::Where;
use crate::client_id;
use crate::failure::{Failure, completeness};
use crate::output::{Format, line};
use clap::Args;
use fullbore_bench::report::json::{array, object, plain, string, text};
use fullbore_client::admin::{ServedApi, api_versions};
use fullbore_client::blocking::BrokerAddress;

/// Print the versions of each API that every broker serves.
///
/// --json prints {"brokers": [{"id", "host", "port", "apis": [{"key", "name", "min", "max", "usable"}]}]}; usable is
/// the newest version that this program has, too.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore api-versions
  fullbore api-versions --json")]
pub struct ApiVersionsArgs {
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Prints the versions.
pub fn run(versions: &ApiVersionsArgs) -> Result<(), Failure> {
    versions.format.choose();
    let mut cluster = versions.at.cluster(client_id::API_VERSIONS)?;
    let brokers = cluster.brokers()?;
    let (found, failed) = api_versions(&cluster, &brokers).parts()?;
    if versions.format.json {
        line(&object([("brokers", array(found.iter().map(|(broker, apis)| document(broker, apis))))]));
    } else {
        found.iter().flat_map(|(broker, apis)| lines(broker, apis)).for_each(|text| line(&text));
    }
    completeness(failed)
}

fn lines(broker: &BrokerAddress, apis: &[ServedApi]) -> Vec<String> {
    let mut lines = vec![format!("{} (id: {} rack: null isFenced: false) -> (", broker.address(), broker.id)];
    lines.extend(apis.iter().enumerate().map(|(at, api)| {
        let name = api.name.map_or_else(|| format!("UNKNOWN({})", api.key), |name| format!("{name}({})", api.key));
        let range = if api.min == api.max { api.min.to_string() } else { format!("{} to {}", api.min, api.max) };
        let usable = api.usable.map_or_else(|| "UNSUPPORTED".to_owned(), |version| version.to_string());
        let comma = if at + 1 < apis.len() { "," } else { "" };
        format!("\t{name}: {range} [usable: {usable}]{comma}")
    }));
    lines.push(")".to_owned());
    lines
}

fn document(broker: &BrokerAddress, apis: &[ServedApi]) -> String {
    let api = |api: &ServedApi| {
        object([
            ("key", api.key.to_string()),
            ("name", text(api.name)),
            ("min", api.min.to_string()),
            ("max", api.max.to_string()),
            ("usable", plain(api.usable)),
        ])
    };
    object([
        ("id", broker.id.to_string()),
        ("host", string(&broker.host)),
        ("port", broker.port.to_string()),
        ("apis", array(apis.iter().map(api))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kafkas() {
        let broker = BrokerAddress { id: 1, host: "localhost".into(), port: 9092 };
        let api = |key, name, min, max, usable| ServedApi { key, name, min, max, usable };
        let apis = [api(0, Some("Produce"), 0, 13, Some(13)), api(99, None, 0, 0, None)];
        assert_eq!(
            lines(&broker, &apis),
            [
                "localhost:9092 (id: 1 rack: null isFenced: false) -> (",
                "\tProduce(0): 0 to 13 [usable: 13],",
                "\tUNKNOWN(99): 0 [usable: UNSUPPORTED]",
                ")",
            ]
        );
    }
}
