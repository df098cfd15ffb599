//! Transactions whose state may be lost. The causes are a power loss that may have truncated logs, committed records of
//! `__transaction_state` missing at a start, and the deletion of that topic. Undecided transactions are aborted, and
//! earlier clients are fenced.
//!
//! Recorded ids are fenced as their shards are loaded ([`Transaction::load_unsure`]). In a cluster other replicas have
//! the records that this broker has lost, so only shards without a second replica are affected. Transactions without a
//! record are searched for in all partitions, and aborted there ([`super::unknown`]). Once all are resolved, the file
//! [`FILE`] in the data directory is removed.
//!
//! Not here: the effects of a power loss on a log (`fullbore_log`).
//!
//! Invariant: the file is on the disk before the data directory records this boot, so that a kill between the two loses
//! nothing.

use super::Transactions;
use super::unknown::TURN;
use crate::coordinator::Shard;
use crate::diskless;
use fullbore_host::files::CHANGES;
use fullbore_log::files;
use fullbore_rules::cluster::PreviousShutdown;
use fullbore_rules::transaction::Transaction;
use parking_lot::Mutex;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Name of the marker file in the data directory.
const FILE: &str = "transactions-unsettled";
/// First pause between two passes.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// Longest pause between two passes.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Marker of a data directory whose transactions may have lost their state.
#[derive(Debug)]
pub struct Unsettled {
    file: PathBuf,
    /// Number of times that the marker was set, and the last such number for which all transactions were resolved.
    /// Locked while the file changes.
    sets: Mutex<(u64, u64)>,
    /// Notified when the marker is set.
    changed: Notify,
    /// True if the previous process did not stop cleanly.
    is_unclean: bool,
    /// True once an id was fenced or a transaction aborted since the marker was set.
    pub(super) has_found: AtomicBool,
    /// True after a kill of a standalone broker, until it has searched once for transactions without an id.
    must_search: AtomicBool,
}

impl Unsettled {
    /// Checks a data directory that is about to be used again, and sets the marker if its logs may be truncated.
    pub fn open(data_dir: &Path, ended: PreviousShutdown) -> Unsettled {
        let file = data_dir.join(FILE);
        let sets = Mutex::new((u64::from(file.exists()), 0));
        let (is_unclean, has_found) = (ended != PreviousShutdown::Clean, AtomicBool::new(false));
        let (changed, must_search) = (Notify::new(), AtomicBool::new(false));
        let unsettled = Unsettled { file, sets, changed, is_unclean, has_found, must_search };
        // Any partition counts: the directories of `__transaction_state` may be lost, and diskless partitions have no
        // directories.
        let has_folders = files::list_partitions(data_dir).is_ok_and(|all| !all.is_empty());
        let has_partitions = has_folders || diskless::has_index(data_dir);
        if ended == PreviousShutdown::Lost && has_partitions {
            unsettled.set();
        }
        unsettled
    }

    /// Returns true until every transaction is resolved.
    pub fn is_set(&self) -> bool {
        self.seen().is_some()
    }

    /// Returns how often the marker was set; `None` if all transactions were resolved after the last time.
    fn seen(&self) -> Option<u64> {
        let (sets, settled) = *self.sets.lock();
        (sets != settled).then_some(sets)
    }

    /// Sets the marker, also on the disk: transactions may have lost their state.
    pub(super) fn set(&self) {
        let mut sets = self.sets.lock();
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let noted = files::replace(&self.file, b"").and_then(|()| files::sync_dir(folder));
        if let Err(error) = noted {
            tracing::error!(%error, "cannot write {}: a kill before transactions are settled may leave some open", self.file.display());
        }
        sets.0 += 1;
        drop(sets);
        self.changed.notify_one();
    }

    /// Notes at the broker's start whether `__transaction_state` exists. After a kill, a missing topic may have been
    /// deleted right before, so the marker is set in memory. A standalone broker (`is_alone`) searches for transactions
    /// without an id after each kill, since the directory of one of the topic's partitions may be gone.
    pub(super) fn note_topic(&self, is_there: bool, is_alone: bool) {
        if self.is_unclean && !is_there {
            self.sets.lock().0 += 1;
        }
        self.must_search.store(self.is_unclean && is_alone, Ordering::Relaxed);
    }

    /// Notes that all transactions are resolved for the first `seen` settings of the marker. Removes the file, unless
    /// the marker was set again since.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be removed. It then stays.
    fn clear(&self, seen: u64) -> io::Result<()> {
        let mut sets = self.sets.lock();
        sets.1 = seen;
        if sets.0 != seen {
            return Ok(());
        }
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Transactions {
    /// Returns true if records at the end of the shard's log may be lost, and no other replica has them.
    pub(super) fn may_lack_its_end(&self, shard: &Shard) -> bool {
        self.unsettled.is_set() && shard.partition().registered().replicas.len() <= 1
    }

    /// Resolves all transactions whenever their state may have been lost, and retries until that succeeds.
    pub(super) async fn resolve_forever(self: &Arc<Self>) {
        loop {
            let seen = self.unsettled.seen();
            if seen.is_none() && !self.unsettled.must_search.load(Ordering::Relaxed) {
                self.unsettled.changed.notified().await;
                continue;
            }
            let mut pause = PAUSE_FIRST;
            while !self.resolve_once().await {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            self.peers.end_searches().await;
            self.unsettled.must_search.store(false, Ordering::Relaxed);
            match seen.map_or(Ok(()), |seen| self.unsettled.clear(seen)) {
                Ok(()) if self.unsettled.has_found.swap(false, Ordering::Relaxed) => {
                    tracing::info!(
                        target: CHANGES,
                        "settled all transactions whose state may have been lost: their ids take new producer ids"
                    )
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot remove {FILE}: the next start fences transactional ids again")
                }
            }
        }
    }

    /// Resolves transactions in one pass. Returns true once no transaction is left to resolve.
    async fn resolve_once(self: &Arc<Self>) -> bool {
        self.topic.prepare_all().await;
        if !self.are_own_shards_served() {
            return false;
        }
        let entries: Vec<_> = self.ids.lock().values().cloned().collect();
        let mut are_fenced = true;
        for (count, entry) in entries.iter().enumerate() {
            if count % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            if entry.lock().transaction.is_unsure() {
                are_fenced = false;
                self.unsettled.has_found.store(true, Ordering::Relaxed);
                self.happen(entry, Transaction::fence_clients);
            }
        }
        are_fenced && self.abort_unknown().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_of_possible_loss_stays_until_all_is_settled() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let open = |ended| Unsettled::open(folder.path(), ended);
        assert!(!open(PreviousShutdown::Lost).is_set(), "a new folder has lost nothing");
        fs::create_dir(folder.path().join("t-0")).expect("created");
        assert!(!open(PreviousShutdown::Killed).is_set());
        assert!(open(PreviousShutdown::Lost).is_set());
        let diskless = tempfile::tempdir().expect("temporary folder");
        fs::write(diskless.path().join("diskless.db"), "").expect("written");
        assert!(Unsettled::open(diskless.path(), PreviousShutdown::Lost).is_set(), "its partitions have no folders");
        let unsettled = open(PreviousShutdown::Killed);
        let seen = unsettled.seen().expect("a kill changes nothing");
        unsettled.set();
        unsettled.clear(seen).expect("noted");
        assert!(unsettled.is_set() && open(PreviousShutdown::Clean).is_set(), "it was set again meanwhile");
        unsettled.clear(unsettled.seen().expect("set")).expect("removed");
        assert!(!unsettled.is_set() && !open(PreviousShutdown::Clean).is_set());
        for (ended, is_there, is_set) in [
            (PreviousShutdown::Killed, false, true),
            (PreviousShutdown::Killed, true, false),
            (PreviousShutdown::Clean, false, false),
        ] {
            let unsettled = open(ended);
            unsettled.note_topic(is_there, false);
            assert_eq!(unsettled.is_set(), is_set, "{ended:?}, topic there: {is_there}");
        }
    }
}
