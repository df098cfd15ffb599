//! `fullbore consume` writes the records of topics to standard output.
//!
//! A fetcher reads a record from its leader (`fullbore_client::consume`). [`printer`] formats the record by [`format`]
//! and appends it to a chunk, and the thread of [`outlet`] writes the chunk to standard output. [`direct`] reads
//! without a group, [`grouped`] as a member of a group. [`start`] parses the starts and ends of the read.

mod ahead;
mod args;
mod direct;
mod format;
mod grouped;
mod outlet;
mod printer;
mod reading;
mod settings;
mod start;
mod style;

pub use args::Consume;

use crate::client::{self, client_properties, without_effect};
use crate::closed;
use crate::failure::{Failure, records_were_written};
use crate::output;
use crate::stop::Stop;
use ahead::Ahead;
use fullbore_client::ConsumerConfig;
use fullbore_client::consume::StartOffset;
use fullbore_client::group::Member;
use grouped::Grouped;
use outlet::Outlet;
use printer::PrinterContext;
use reading::{CTRL_C_PATIENCE, End, INTERRUPTED_PATIENCE};
use settings::member_of;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The client id if no property names one.
const CLIENT_ID: &str = "fullbore-consume";

/// Returns a notice if a property has no effect in this command.
fn notice(key: &str) -> Option<String> {
    if key == "group.id" {
        return Some("has no effect on this consumer; name the group with --group".to_owned());
    }
    let own: Vec<&'static str> = ConsumerConfig::settings().map(|setting| setting.name).collect();
    without_effect(key, "this consumer", &own)
}

/// Runs the command.
pub fn run(args: Consume) -> Result<(), Failure> {
    output::Format { json: args.json }.choose();
    closed::check_stdout()?;
    let stop = Stop::at_signal(Box::new(|| {}))?;
    let properties = client_properties(args.command_config.as_deref(), &args.consumer_property, &notice)?;
    let settings = args.settings(&properties)?;
    let otherwise = if args.exit || args.from_beginning { StartOffset::Earliest } else { StartOffset::Latest };
    let (start, until) = start::start_and_end(&args.offsets, otherwise)?;
    let style = args.style()?;
    let mut cluster = client::cluster(args.bootstrap_server.as_deref(), &properties, CLIENT_ID, args.patience)?;
    let topics = args.topics(&mut cluster, settings.exclude_internal)?;
    let outlet = Outlet::start()?;
    let left = AtomicU64::new(args.max_messages.unwrap_or(u64::MAX));
    let shared = Arc::new(PrinterContext { style, outlet: outlet.clone(), left, until });
    let outcome = match member_of(&args, &settings, topics.all.clone())? {
        None => direct::read(&mut cluster, &topics, &args, start, &settings, &shared, &stop),
        Some(config) => {
            let own = || client::cluster(args.bootstrap_server.as_deref(), &properties, CLIENT_ID, args.patience);
            let member = Member::start(config, own()?, own()?)?;
            // The program connects now, so that it reports at once if no broker listens at the address.
            cluster.any()?;
            let from_start = settings.fetch.reset == Some(StartOffset::Earliest);
            let ahead = Ahead::look(&mut cluster, own()?, &topics.all, from_start, &stop)?;
            Grouped::new(&mut cluster, (member, ahead), &args, &settings, &topics, &shared, &stop).read()
        }
    };
    let patience = || stop.time_left(INTERRUPTED_PATIENCE, CTRL_C_PATIENCE);
    let requested = Instant::now();
    // After a stop, queued records are written for a short time only, because the reader of the output may be slow.
    outlet.drained(if stop.is_requested() { patience() } else { Duration::MAX }, || {
        stop.is_requested() && requested.elapsed() > patience()
    });
    let End { finished, unread } = outcome?;
    let written = outlet.records();
    match (finished || output::is_lost() || !stop.is_requested(), args.max_messages) {
        (false, Some(wanted)) => {
            Err(Failure::interrupted(format!("interrupted after {written} of {wanted} records were written")))
        }
        (false, None) if args.exit => {
            Err(Failure::interrupted(format!("interrupted before the end; {}", records_were_written(written))))
        }
        // A read without a planned end can only end by a stop, so a stop is no failure.
        _ => match unread.filter(|_| !shared.is_spent() && !output::is_lost()) {
            Some(unread) => {
                Err(Failure::new(format!("{}; {}", unread.trim_end_matches('.'), records_were_written(written))))
            }
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests;
