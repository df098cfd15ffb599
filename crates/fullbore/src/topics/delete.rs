//! `topics delete`.

use super::select::{must_exist, selected};
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use clap::Args;
use fullbore_bench::report::json::{list, object, string};
use fullbore_client::admin::delete_topics;

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

/// Deletes them.
pub fn run(delete: Delete) -> Result<(), Failure> {
    delete.format.choose();
    let mut cluster = delete.at.cluster(client_id::TOPICS)?;
    let names = selected(&mut cluster, Some(&delete.topic), false)?;
    must_exist(&names, Some(&delete.topic), delete.if_exists)?;
    if !names.is_empty() {
        delete_topics(&mut cluster, &names)?;
    }
    if delete.format.json {
        line(&object([("deleted", list(names.iter().map(|name| string(name))))]));
    }
    Ok(())
}
