//! `configs describe` prints the lines of kafka-configs.sh, or one JSON document.

use super::entity::{Entity, Whose, singular};
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use clap::Args;
use fullbore_bench::report::json::{array, list, object, string, text};
use fullbore_client::admin::{
    ConfigEntry, GroupAdmin, ResourceKind, Synonym, config_resources, describe_configs, list_topics,
};
use fullbore_client::blocking::Cluster;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct DescribeConfigsArgs {
    #[command(flatten)]
    entity: Entity,
    /// Also print configurations with their default values.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Prints the configurations.
pub fn run(describe: &DescribeConfigsArgs) -> Result<(), Failure> {
    describe.format.choose();
    let meant = describe.entity.meant()?;
    let patience = describe.at.patience();
    let mut cluster = describe.at.cluster(client_id::CONFIGS)?;
    let kind = meant.kind;
    let every = meant.whose.is_none();
    let entities = match meant.whose {
        Some(whose) => {
            must_exist(&mut cluster, kind, &whose, patience)?;
            vec![whose]
        }
        None => existing(&mut cluster, kind, patience)?,
    };
    let mut documents = Vec::new();
    for whose in entities {
        let mut configs = describe_configs(&mut cluster, (kind, whose.resource_name()))?;
        if !describe.all {
            let source = whose.source(kind);
            configs.retain(|config| config.source == source);
        }
        if !every && !describe.all && kind == ResourceKind::ClientMetrics && configs.is_empty() {
            return Err(absent(kind, whose.resource_name()));
        }
        if describe.format.json {
            documents.push(document(kind, &whose, &configs));
        } else {
            line(&heading(kind, &whose, describe.all));
            configs.iter().for_each(|config| line(&config_line(config)));
        }
    }
    if describe.format.json {
        line(&object([("entities", array(documents))]));
    }
    Ok(())
}

/// Returns all entities of a kind. For groups, retries for `patience` while a coordinator loads.
fn existing(cluster: &mut Cluster, kind: ResourceKind, patience: Duration) -> Result<Vec<Whose>, Failure> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    match kind {
        ResourceKind::Topic => names.extend(list_topics(cluster)?.into_iter().map(|(name, _)| name.to_string())),
        ResourceKind::Broker | ResourceKind::BrokerLogger => {
            let brokers = cluster.brokers()?;
            let mut all: Vec<Whose> = brokers.iter().map(|broker| Whose::Named(broker.id.to_string())).collect();
            all.extend((kind == ResourceKind::Broker).then_some(Whose::Defaults));
            return Ok(all);
        }
        ResourceKind::Group => {
            names.extend(config_resources(cluster, kind)?.iter().map(ToString::to_string));
            let groups = GroupAdmin::of(cluster, patience)?.list(&[], &[])?;
            names.extend(groups.iter().map(|group| group.id.to_string()));
        }
        ResourceKind::ClientMetrics => {
            names.extend(config_resources(cluster, kind)?.iter().map(ToString::to_string));
        }
    }
    Ok(names.into_iter().map(Whose::Named).collect())
}

/// Checks that an entity exists. Brokers do not check this for groups and client metrics.
fn must_exist(cluster: &mut Cluster, kind: ResourceKind, whose: &Whose, patience: Duration) -> Result<(), Failure> {
    let Whose::Named(name) = whose else { return Ok(()) };
    // Subscriptions to client metrics are not looked up, because the broker might not list them. A later step treats a
    // subscription without configurations as missing.
    let is_listed = kind != ResourceKind::ClientMetrics;
    match is_listed && !existing(cluster, kind, patience)?.contains(whose) {
        true => Err(absent(kind, name)),
        false => Ok(()),
    }
}

fn absent(kind: ResourceKind, name: &str) -> Failure {
    let what = singular(kind);
    Failure::new(format!(
        "The {what} '{name}' doesn't exist and doesn't have dynamic config; `fullbore configs describe --entity-type \
         {what}s` shows those that do"
    ))
}

fn heading(kind: ResourceKind, whose: &Whose, all: bool) -> String {
    match whose {
        Whose::Defaults => "Default configs for brokers in the cluster are:".to_owned(),
        Whose::Named(name) => {
            let which = if all { "All" } else { "Dynamic" };
            format!("{which} configs for {} {name} are:", singular(kind))
        }
    }
}

fn config_line(config: &ConfigEntry) -> String {
    let synonym = |synonym: &Synonym| {
        format!("{}:{}={}", synonym.source.name(), synonym.name, synonym.value.as_deref().unwrap_or("null"))
    };
    format!(
        "  {}={} sensitive={} synonyms={{{}}}",
        config.name,
        config.value.as_deref().unwrap_or("null"),
        config.is_sensitive,
        config.synonyms.iter().map(synonym).collect::<Vec<_>>().join(", "),
    )
}

fn document(kind: ResourceKind, whose: &Whose, configs: &[ConfigEntry]) -> String {
    let synonym = |synonym: &Synonym| {
        object([
            ("name", string(&synonym.name)),
            ("value", text(synonym.value.as_deref())),
            ("source", string(synonym.source.name())),
        ])
    };
    let config = |config: &ConfigEntry| {
        object([
            ("name", string(&config.name)),
            ("value", text(config.value.as_deref())),
            ("source", string(config.source.name())),
            ("is_sensitive", config.is_sensitive.to_string()),
            ("is_read_only", config.is_read_only.to_string()),
            ("synonyms", list(config.synonyms.iter().map(synonym))),
        ])
    };
    let configs = [("configs", array(configs.iter().map(config)))];
    object(whose.members(kind).into_iter().chain(configs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_client::admin::ConfigSource;

    /// The expected lines were captured from Kafka 4.3.1.
    #[test]
    fn lines_of_configs_are_kafkas() {
        let synonym = |source, name: &str, value: &str| Synonym {
            name: name.into(),
            value: Some(value.into()),
            source: ConfigSource(source),
        };
        let config = ConfigEntry {
            name: "cleanup.policy".into(),
            value: Some("compact,delete".into()),
            source: ConfigSource::TOPIC,
            is_sensitive: false,
            is_read_only: false,
            synonyms: vec![synonym(1, "cleanup.policy", "compact,delete"), synonym(5, "log.cleanup.policy", "delete")],
        };
        let kafkas = "  cleanup.policy=compact,delete sensitive=false \
                      synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, \
                      DEFAULT_CONFIG:log.cleanup.policy=delete}";
        assert_eq!(config_line(&config), kafkas);
        let named = Whose::Named("t2".to_owned());
        assert_eq!(heading(ResourceKind::Topic, &named, false), "Dynamic configs for topic t2 are:");
        assert_eq!(heading(ResourceKind::Topic, &named, true), "All configs for topic t2 are:");
        let defaults = heading(ResourceKind::Broker, &Whose::Defaults, true);
        assert_eq!(defaults, "Default configs for brokers in the cluster are:");
    }
}
