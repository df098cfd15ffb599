//! `groups delete` deletes groups with their offsets.

use super::select::Which;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line, name};
use clap::Args;
use fullbore_bench::report::json::{array, list, object, string};
use fullbore_client::admin::GroupAdmin;

#[derive(Args, Debug)]
pub struct Delete {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Deletes the groups. If a group cannot be deleted, still deletes the others.
pub fn run(delete: &Delete) -> Result<(), Failure> {
    delete.format.choose();
    let mut cluster = delete.at.cluster(client_id::GROUPS)?;
    let mut groups = GroupAdmin::of(&mut cluster, delete.at.patience())?;
    let ids = delete.which.ids(&mut groups)?;
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    for id in ids {
        match groups.delete(&id) {
            Ok(()) => deleted.push(id),
            Err(error) => failed.push((id, error.to_string())),
        }
    }
    if delete.format.json {
        let refusal =
            |(id, error): &(fullbore_wire::Text, String)| object([("group", string(id)), ("error", string(error))]);
        let deleted = list(deleted.iter().map(|id| string(id)));
        line(&object([("deleted", deleted), ("failed", array(failed.iter().map(refusal)))]));
    } else if !deleted.is_empty() {
        let names = deleted.iter().map(|id| format!("'{}'", name(id))).collect::<Vec<_>>().join(", ");
        line(&match failed.is_empty() {
            true => format!("Deletion of requested consumer groups ({names}) was successful."),
            false => format!("These consumer groups were deleted successfully: {names}"),
        });
    }
    match &failed[..] {
        [] => Ok(()),
        [(_, only)] => Err(Failure::new(only)),
        [(_, first), rest @ ..] => Err(Failure::new(format!("{first}; {} more failed", rest.len()))),
    }
}
