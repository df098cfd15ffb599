//! `topics delete` deletes topics.

use super::target::TopicTarget;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use clap::Args;
use fullbore_bench::report::json::{array, list, object, string};
use fullbore_client::ClientError;
use fullbore_client::admin::delete_topics;
use fullbore_wire::Text;

#[derive(Args, Debug)]
pub struct Delete {
    #[command(flatten)]
    target: TopicTarget,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Deletes the topics. If a named topic does not exist, deletes none. If a topic cannot be deleted, still deletes the
/// others.
pub fn run(delete: Delete) -> Result<(), Failure> {
    delete.format.choose();
    let mut cluster = delete.at.cluster(client_id::TOPICS)?;
    let names = delete.target.confirmed(&mut cluster, "delete")?;
    let failed = if names.is_empty() { Vec::new() } else { delete_topics(&mut cluster, &names)? };
    let deleted: Vec<Text> =
        names.into_iter().filter(|name| failed.iter().all(|(refused, _)| refused != name)).collect();
    if delete.format.json {
        let refusal = |(name, error): &(Text, ClientError)| {
            object([("topic", string(name)), ("error", string(&error.to_string()))])
        };
        let deleted = list(deleted.iter().map(|name| string(name)));
        line(&object([("deleted", deleted), ("failed", array(failed.iter().map(refusal)))]));
    } else {
        deleted.iter().for_each(|name| line(&format!("Deleted topic {name}.")));
    }
    match &failed[..] {
        [] => Ok(()),
        [(_, only)] => Err(Failure::new(only.to_string())),
        [(_, first), rest @ ..] => Err(Failure::new(format!("{first}; {} more failed", rest.len()))),
    }
}
