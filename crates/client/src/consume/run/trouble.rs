//! Finds the reason to show to the user if a run cannot read a partition: a refusal, or a broker that does not answer.

use super::{REFUSED_AFTER, Run};
use crate::consume::cursor::Sink;
use crate::consume::error::ConsumeError;
use crate::consume::waiting::sentence;
use crate::error::ClientError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A response counts as late once it takes this much longer than fetch.max.wait.ms.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

impl<S: Sink> Run<'_, S> {
    /// Returns the outcome of a run that has reached its timeout. If a partition cannot be read, this is an error with
    /// the reason.
    pub(super) fn time_is_up(&mut self) -> Result<(), ConsumeError> {
        let waiting = self.progress.waiting.first(Duration::ZERO, false).map(|(error, _)| error);
        let silent = || self.hang().or_else(|| self.silence()).map(Arc::new);
        match waiting.or_else(silent) {
            Some(source) => Err(ConsumeError::Unreachable { waited: self.plan.timeout, source }),
            None => match self.given_up.pop() {
                Some((_, error)) => Err(error),
                None => Ok(()),
            },
        }
    }

    /// Returns the reason why a partition has not been read for a while, or `None` if all are read.
    pub(super) fn trouble(&self) -> Option<String> {
        let waiting = &self.progress.waiting;
        let refused = waiting.first(REFUSED_AFTER, true).map(|(error, count)| sentence(&error, count));
        let hang = || self.hang().map(|hang| hang.to_string());
        let broken = || waiting.first(REFUSED_AFTER, false).map(|(error, count)| sentence(&error, count));
        refused.or_else(hang).or_else(broken)
    }

    /// Returns an error if a broker takes too long to accept a connection or to answer a look-up.
    fn hang(&self) -> Option<ClientError> {
        let connecting = self.connecting.iter().map(|(leader, waiting)| (leader.as_str(), waiting.since, 1));
        // A look-up tries the servers of the list one after another, so its limit is [`ANSWER_GRACE`] for each server.
        let servers = self.scout.servers();
        let looking = self.scout.looks_since().map(|since| (servers, since, servers.split(',').count()));
        let is_late = |(_, since, brokers): &(&str, Instant, usize)| since.elapsed() > ANSWER_GRACE * *brokers as u32;
        let (address, since, _) = connecting.chain(looking).find(is_late)?;
        Some(silent(address, since))
    }

    /// Returns an error if a leader has not answered within the maximum wait of a fetch plus [`ANSWER_GRACE`].
    fn silence(&self) -> Option<ClientError> {
        let patience = Duration::from_millis(self.plan.fetch.max_wait_ms.max(0) as u64) + ANSWER_GRACE;
        self.fetchers.values().find_map(|fetcher| {
            let since = fetcher.awaited.get()?;
            (since.elapsed() > patience).then(|| silent(&fetcher.leader, since))
        })
    }
}

/// Returns the error for a broker that does not answer.
fn silent(address: &str, since: Instant) -> ClientError {
    let source = std::io::Error::other(format!("no answer for {} ms", since.elapsed().as_millis()));
    ClientError::Io { address: address.to_owned(), source }
}
