//! `topics delete`.

use super::select::{must_exist, selected};
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
    /// Topics whose whole name matches this regular expression, several separated by commas.
    #[arg(long)]
    topic: String,
    /// Succeed when no topic matches.
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Deletes them; those that cannot be deleted do not keep the others.
pub fn run(delete: Delete) -> Result<(), Failure> {
    delete.format.choose();
    let mut cluster = delete.at.cluster(client_id::TOPICS)?;
    let names = selected(&mut cluster, Some(&delete.topic), false)?;
    must_exist(&names, Some(&delete.topic), delete.if_exists)?;
    let failed = if names.is_empty() { Vec::new() } else { delete_topics(&mut cluster, &names)? };
    let deleted: Vec<Text> =
        names.into_iter().filter(|name| failed.iter().all(|(refused, _)| refused != name)).collect();
    if delete.format.json {
        let refusal = |(name, error): &(Text, ClientError)| {
            object([("topic", string(name)), ("error", string(&error.to_string()))])
        };
        let deleted = list(deleted.iter().map(|name| string(name)));
        line(&object([("deleted", deleted), ("failed", array(failed.iter().map(refusal)))]));
    } else if !failed.is_empty() && !deleted.is_empty() {
        let names = deleted.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
        line(&format!("These topics were deleted: {names}"));
    }
    match &failed[..] {
        [] => Ok(()),
        [(_, only)] => Err(Failure::new(only.to_string())),
        [(_, first), rest @ ..] => Err(Failure::new(format!("{first}; so it is with {} more", rest.len()))),
    }
}
