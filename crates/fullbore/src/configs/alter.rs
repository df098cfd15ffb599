//! `configs alter` sets and deletes configurations.

use super::entity::{Entity, Whose, singular};
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use crate::properties::read_properties;
use clap::Args;
use fullbore_bench::report::json::object;
use fullbore_client::admin::{Change, ResourceKind, alter_configs, describe_configs};
use fullbore_client::blocking::Cluster;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Alter {
    #[command(flatten)]
    entity: Entity,
    /// Configurations to set; put a value with commas into brackets: k1=v1,k2=[v1,v2].
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = pairs)]
    add_config: Option<Pairs>,
    /// A file of properties to set; --add-config overrides it.
    #[arg(long, value_name = "FILE")]
    add_config_file: Option<PathBuf>,
    /// Configurations to delete, separated by commas.
    #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
    delete_config: Vec<String>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// The keys and values of `--add-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pairs(Vec<(String, String)>);

/// Alters the configurations.
pub fn run(alter: &Alter) -> Result<(), Failure> {
    alter.format.choose();
    let meant = alter.entity.meant()?;
    let Some(whose) = &meant.whose else {
        let what = singular(meant.kind);
        return Err(Failure::new(format!("name the {what} to alter with --{what} or --entity-name")));
    };
    let changes = alter.changes()?;
    let mut cluster = alter.at.cluster(client_id::CONFIGS)?;
    check_deleted(&mut cluster, meant.kind, whose, &changes)?;
    alter_configs(&mut cluster, (meant.kind, whose.resource_name()), &changes)?;
    if alter.format.json {
        line(&object([("altered", object(whose.members(meant.kind)))]));
    } else {
        line(&done(meant.kind, whose));
    }
    Ok(())
}

/// Checks that the configurations to delete are set, as kafka-configs.sh does, because brokers ignore unknown names in
/// a deletion. Does not check loggers, since for these the broker makes the check itself.
fn check_deleted(cluster: &mut Cluster, kind: ResourceKind, whose: &Whose, changes: &[Change]) -> Result<(), Failure> {
    let deleted = |change: &Change| match change {
        Change::Delete(key) => Some(key.clone()),
        Change::Set(..) => None,
    };
    let mut unset: Vec<String> = changes.iter().filter_map(deleted).collect();
    if unset.is_empty() || kind == ResourceKind::BrokerLogger {
        return Ok(());
    }
    let source = whose.source(kind);
    let configs = describe_configs(cluster, (kind, whose.resource_name()))?;
    unset.retain(|key| !configs.iter().any(|config| config.source == source && *config.name == **key));
    if unset.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "Invalid config(s): {}; `fullbore configs describe` shows those that are set and can be deleted",
        unset.join(",")
    )))
}

fn done(kind: ResourceKind, whose: &Whose) -> String {
    match whose {
        Whose::Defaults => "Completed updating default config for brokers in the cluster.".to_owned(),
        Whose::Named(name) => format!("Completed updating config for {} {name}.", singular(kind)),
    }
}

impl Alter {
    fn changes(&self) -> Result<Vec<Change>, Failure> {
        let mut set: BTreeMap<String, String> = BTreeMap::new();
        let file = read_properties(self.add_config_file.as_deref())?;
        set.extend(file.iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
        set.extend(self.add_config.iter().flat_map(|pairs| pairs.0.clone()));
        let deleted = self.delete_config.iter().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        let deleted: Vec<String> = deleted.collect();
        if let Some(both) = deleted.iter().find(|key| set.contains_key(*key)) {
            return Err(Failure::new(format!("{both} is both set and deleted; leave one of the two out")));
        }
        if set.is_empty() && deleted.is_empty() {
            return Err(Failure::new(
                "nothing changes; give --add-config KEY=VALUE, --add-config-file FILE or --delete-config KEY",
            ));
        }
        let set = set.into_iter().map(|(key, value)| Change::Set(key, value));
        Ok(set.chain(deleted.into_iter().map(Change::Delete)).collect())
    }
}

/// Parses pairs like `k1=v1,k2=[v1,v2]`. Commas within brackets belong to the value.
fn pairs(text: &str) -> Result<Pairs, String> {
    let mut parts = vec![String::new()];
    let mut within = false;
    for letter in text.chars() {
        match letter {
            '[' => within = true,
            ']' => within = false,
            ',' if !within => parts.push(String::new()),
            other => parts.last_mut().expect("there is always one").push(other),
        }
    }
    let pair = |part: &String| match part.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("must be KEY=VALUE,..., with commas of values in brackets: k1=v1,k2=[v1,v2]".to_owned()),
    };
    parts.iter().filter(|part| !part.trim().is_empty()).map(pair).collect::<Result<_, _>>().map(Pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_within_brackets_belong_to_the_value() {
        let of = |text: &str| pairs(text).map(|pairs| pairs.0);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(of("a=1, b=[c,d],e="), Ok(vec![pair("a", "1"), pair("b", "c,d"), pair("e", "")]));
        assert_eq!(of("match=[client_id=x]"), Ok(vec![pair("match", "client_id=x")]));
        for wrong in ["a", "=1", "a=1,b"] {
            of(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn the_last_line_is_kafkas() {
        let named = Whose::Named("m".to_owned());
        let reported = done(ResourceKind::ClientMetrics, &named);
        assert_eq!(reported, "Completed updating config for client-metric m.");
        let reported = done(ResourceKind::Broker, &Whose::Defaults);
        assert_eq!(reported, "Completed updating default config for brokers in the cluster.");
    }
}
