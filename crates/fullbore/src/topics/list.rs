//! `topics list` lists topics.

use super::select::{Select, matching};
use crate::client_id;
use crate::failure::Failure;
use crate::output::line;
use fullbore_bench::report::json::{array, object, string};
use fullbore_wire::Text;

/// Prints the names of the topics.
pub fn run(select: Select) -> Result<(), Failure> {
    select.format.choose();
    let mut cluster = select.at.cluster(client_id::TOPICS)?;
    let topics = matching(&mut cluster, select.pattern().as_deref(), select.exclude_internal)?;
    if select.format.json {
        let topic = |(name, is_internal): &(Text, bool)| {
            object([("name", string(name)), ("is_internal", is_internal.to_string())])
        };
        line(&object([("topics", array(topics.iter().map(topic)))]));
    } else {
        topics.iter().for_each(|(name, _)| line(name));
    }
    Ok(())
}
