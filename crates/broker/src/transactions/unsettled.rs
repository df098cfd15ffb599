//! Resolves transactions whose state may be lost. After a power loss, the last records of `__transaction_state`, or the
//! whole topic, may be missing. The broker then aborts the undecided transactions and fences their clients.
//!
//! An id that still has a record is fenced after its shard is loaded ([`Transaction::load_unsure`]). This affects only
//! shards without a second replica, since another replica has the records that this broker has lost. Transactions
//! without a record are searched for in all partitions and aborted there ([`super::unknown`]). They are also searched
//! for after an older copy of the index of diskless topics was accepted.
//!
//! The file [`FILE`] marks the data directory until all transactions are resolved. It is on the disk before the data
//! directory records this boot, so a kill between these two writes loses nothing. The file [`SEARCH_FILE`] does the
//! same for a search after an older copy was accepted. The effects of a power loss on a log are in `fullbore_log`.

use super::Transactions;
use super::unknown::TURN;
use crate::coordinator::Shard;
use fullbore_diskless::has_index;
use fullbore_host::files::CHANGES;
use fullbore_host::log_rate_limit::LogRateLimit;
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

/// The name of the marker file in the data directory.
const FILE: &str = "transactions-unsettled";
/// The name of the file that exists until a search for transactions without an id is finished. It fences no ids.
const SEARCH_FILE: &str = "transactions-unsearched";
/// The pause after the first attempt that did not resolve all transactions. It doubles with each further attempt.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// Maximum pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Stores, in memory and in a file of the data directory, whether transactions may have lost their state.
#[derive(Debug)]
pub struct Unsettled {
    file: PathBuf,
    search_file: PathBuf,
    /// Two counts: how many times a possible loss of state was noted, and how many of these losses were resolved. They
    /// differ while there may be unresolved transactions. Locked while the file changes.
    sets: Mutex<(u64, u64)>,
    /// Notified when a possible loss of state is noted.
    changed: Notify,
    /// True if the previous process did not stop cleanly.
    is_unclean: bool,
    /// True if an id was fenced or a transaction aborted since the last log line about resolved transactions.
    pub(super) has_found: AtomicBool,
    /// True if transactions without an id must be searched for, even if no loss of state was noted.
    must_search: AtomicBool,
    /// Limits how often the log reports that transactions are not resolved yet.
    late: LogRateLimit,
}

impl Unsettled {
    /// Opens the note of a data directory. If a power loss may have truncated the logs, notes that transactions may
    /// have lost their state.
    pub fn open(data_dir: &Path, ended: PreviousShutdown) -> Unsettled {
        let (file, search_file) = (data_dir.join(FILE), data_dir.join(SEARCH_FILE));
        let sets = Mutex::new((u64::from(file.exists()), 0));
        let (is_unclean, has_found) = (ended != PreviousShutdown::Clean, AtomicBool::new(false));
        let (changed, must_search) = (Notify::new(), AtomicBool::new(search_file.exists()));
        let late = LogRateLimit::default();
        let unsettled = Unsettled { file, search_file, sets, changed, is_unclean, has_found, must_search, late };
        // After a power loss, any partition may have transactions without a state, since the directories of
        // `__transaction_state` may be lost. Diskless partitions have no directories, so their index is checked as
        // well.
        let has_directories = files::list_partitions(data_dir).is_ok_and(|all| !all.is_empty());
        let has_partitions = has_directories || has_index(data_dir);
        if ended == PreviousShutdown::Lost && has_partitions {
            unsettled.set();
        }
        unsettled
    }

    /// Returns true while there may be unresolved transactions.
    pub fn is_set(&self) -> bool {
        self.seen().is_some()
    }

    /// Returns how many times it was noted that state may be lost. `None` if all of these losses are resolved.
    fn seen(&self) -> Option<u64> {
        let (sets, settled) = *self.sets.lock();
        (sets != settled).then_some(sets)
    }

    /// Notes in memory and on the disk that transactions may have lost their state.
    pub(super) fn set(&self) {
        let mut sets = self.sets.lock();
        write_marker(&self.file);
        sets.0 += 1;
        drop(sets);
        self.changed.notify_one();
    }

    /// If `__transaction_state` does not exist after a kill (`is_there` is false), notes in memory that transactions
    /// may have lost their state. Writes no file, since the topic may have been deleted right before the kill.
    ///
    /// A standalone broker (`is_alone`) searches for transactions without an id after each kill, because the directory
    /// of a partition of the topic may be missing.
    pub(super) fn note_topic(&self, is_there: bool, is_alone: bool) {
        if self.is_unclean && !is_there {
            self.sets.lock().0 += 1;
        }
        self.must_search.fetch_or(self.is_unclean && is_alone, Ordering::Relaxed);
    }

    /// Requests a search for transactions without an id, because the index of diskless topics may be an older copy. A
    /// transaction that was open there at the time of the copy may have ended since, so that no id knows of it any
    /// more. Later starts resume the search until it is finished. Must be called before the coordinator starts.
    pub fn note_older_index(&self) {
        write_marker(&self.search_file);
        self.must_search.store(true, Ordering::Relaxed);
    }

    /// Notes that the search for transactions without an id is finished.
    ///
    /// # Errors
    /// Returns the error of the file system. The file stays in this case.
    fn end_search(&self) -> io::Result<()> {
        self.must_search.store(false, Ordering::Relaxed);
        remove_marker(&self.search_file)
    }

    /// Notes that the first `seen` possible losses of state are resolved. If none was noted since, removes the file.
    ///
    /// # Errors
    /// Returns an error of the file system if the file cannot be removed.
    fn clear(&self, seen: u64) -> io::Result<()> {
        let mut sets = self.sets.lock();
        sets.1 = seen;
        if sets.0 != seen {
            return Ok(());
        }
        remove_marker(&self.file)
    }
}

/// Creates a marker file that is on the disk when this returns.
fn write_marker(file: &Path) {
    let directory = file.parent().unwrap_or(Path::new("."));
    let noted = files::replace(file, b"").and_then(|()| files::sync_dir(directory));
    if let Err(error) = noted {
        tracing::error!(%error, "cannot write {}: transactions may have lost their state, and if the broker is killed before it has ended them, some may stay open; check the disk", file.display());
    }
}

/// Removes a marker file if it exists.
fn remove_marker(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Transactions {
    /// Returns true if the last records of the shard's log may be lost and no other replica has them.
    pub(super) fn may_lack_its_end(&self, shard: &Shard) -> bool {
        self.unsettled.is_set() && shard.partition().registered().replicas.len() <= 1
    }

    /// Resolves all transactions whenever their state may have been lost, and retries after each failure.
    pub(super) async fn resolve_forever(self: &Arc<Self>) {
        loop {
            let seen = self.unsettled.seen();
            if seen.is_none() && !self.unsettled.must_search.load(Ordering::Relaxed) {
                self.unsettled.changed.notified().await;
                continue;
            }
            let mut pause = PAUSE_FIRST;
            while !self.resolve_once().await {
                if pause == PAUSE_MAX
                    && let Some(left_out) = self.unsettled.late.due()
                {
                    tracing::warn!(
                        left_out,
                        "cannot search all partitions for transactions whose state is lost: such transactions stay open until a retry succeeds; start brokers that do not run, and check partitions without a leader"
                    );
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            self.peers.end_searches().await;
            let ended = self.unsettled.end_search();
            match ended.and(seen.map_or(Ok(()), |seen| self.unsettled.clear(seen))) {
                Ok(()) if self.unsettled.has_found.swap(false, Ordering::Relaxed) => {
                    tracing::info!(
                        target: CHANGES,
                        "settled all transactions whose state may have been lost: their transactional ids get new \
                         producer ids"
                    )
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot remove {FILE} or {SEARCH_FILE}: the next start searches for lost transactions again")
                }
            }
        }
    }

    /// Tries once to resolve all transactions. Returns true if none is left.
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

    /// A broker may stop before the search is finished, and start again at any later time.
    #[test]
    fn search_after_an_older_index_is_resumed_by_later_starts_until_it_is_finished() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let open = || Unsettled::open(directory.path(), PreviousShutdown::Clean);
        let searches = |unsettled: &Unsettled| unsettled.must_search.load(Ordering::Relaxed);
        assert!(!searches(&open()));
        open().note_older_index();
        let unsettled = open();
        assert!(searches(&unsettled) && !unsettled.is_set(), "it fences no ids");
        unsettled.end_search().expect("removed");
        assert!(!searches(&unsettled) && !searches(&open()));
    }

    #[test]
    fn marker_of_possible_loss_stays_until_all_is_settled() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let open = |ended| Unsettled::open(directory.path(), ended);
        assert!(!open(PreviousShutdown::Lost).is_set(), "a new directory has lost nothing");
        fs::create_dir(directory.path().join("t-0")).expect("created");
        assert!(!open(PreviousShutdown::Killed).is_set());
        assert!(open(PreviousShutdown::Lost).is_set());
        let diskless = tempfile::tempdir().expect("temporary directory");
        fs::write(diskless.path().join("diskless.db"), "").expect("written");
        assert!(
            Unsettled::open(diskless.path(), PreviousShutdown::Lost).is_set(),
            "its partitions have no directories"
        );
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
