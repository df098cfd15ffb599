//! Sends requests to several brokers at the same time, so that a hung broker does not delay the answers of the others.
//!
//! Invariant: the answers are in the order of the brokers.

use super::cluster::{BrokerAddress, Cluster};
use crate::error::ClientError;

/// The combined answers of several brokers to a request for a list.
#[derive(Debug)]
pub struct Listed<T> {
    /// The entries of those brokers that have answered.
    pub found: Vec<T>,
    /// The error of a broker that did not answer, or refused. The entries of this broker are missing.
    pub failed: Option<ClientError>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Listed { found: Vec::new(), failed: None }
    }
}

impl<T> Listed<T> {
    /// Returns the entries, and the error if the entries of a broker are missing.
    ///
    /// # Errors
    /// Returns the broker's error if there are no entries at all. An empty list would look as if nothing existed.
    pub fn parts(self) -> Result<(Vec<T>, Option<ClientError>), ClientError> {
        match self.failed {
            Some(error) if self.found.is_empty() => Err(error),
            failed => Ok((self.found, failed)),
        }
    }

    /// Returns the entries of all brokers.
    ///
    /// # Errors
    /// Returns the error of a broker whose entries are missing.
    pub fn whole(self) -> Result<Vec<T>, ClientError> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.found),
        }
    }
}

impl Cluster {
    /// Calls `call` for each of these brokers, each in a thread with its own connections.
    pub(crate) fn at_each<T: Send>(
        &self,
        brokers: &[BrokerAddress],
        call: impl Fn(&mut Cluster, &BrokerAddress) -> Result<Vec<T>, ClientError> + Sync,
    ) -> Listed<T> {
        let call = &call;
        std::thread::scope(|scope| {
            let begin = |broker| {
                let mut cluster = self.detached();
                std::thread::Builder::new()
                    .name("each-broker".to_owned())
                    .spawn_scoped(scope, move || call(&mut cluster, broker))
                    .map_err(|source| ClientError::Io { address: broker.address(), source })
            };
            // All threads are started before the first one is awaited.
            let begun: Vec<_> = brokers.iter().map(begin).collect();
            let mut listed = Listed::default();
            for thread in begun {
                let answer = thread.and_then(|thread| match thread.join() {
                    Ok(answer) => answer,
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                match answer {
                    Ok(found) => listed.found.extend(found),
                    Err(error) => drop(listed.failed.get_or_insert(error)),
                }
            }
            listed
        })
    }
}
