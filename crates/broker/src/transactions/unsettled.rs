//! Transactions whose state may be lost: after a power cut, which may have taken the ends of logs, and once
//! `__transaction_state` is deleted. Those that are not decided are aborted, and no client of before goes on.
//!
//! Ids that are on record are fenced as their shards are loaded ([`Transaction::load_unsure`]). Transactions that no
//! record names any more are looked for in the partitions of this broker, and aborted there: in logs, and in the index
//! of diskless partitions, which has its commits on the disk. Once all are settled, the file [`FILE`] in the data folder
//! goes. In a cluster other replicas have what this broker has lost: there only
//! shards without a second replica count, and `fullbore transactions find-hanging` finds the rest.
//!
//! Not here: what a power cut leaves of a log, which is `fullbore_log`'s.
//!
//! Invariant: the file is on the disk before the folder says that it was used in this boot, so that a kill changes
//! nothing.

use super::Transactions;
use crate::coordinator::{Shard, Status};
use crate::diskless;
use crate::partitions::AnyPartition;
use fullbore_host::files::CHANGES;
use fullbore_host::task;
use fullbore_log::files;
use fullbore_rules::cluster::PreviousShutdown;
use fullbore_rules::sequence::{Marker, ProducerState};
use fullbore_rules::transaction::{TopicPartition, Transaction, TransactionState};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Name of the mark in the data folder.
const FILE: &str = "transactions-unsettled";
/// Pauses between two looks: short, and then longer and longer.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_MOST: Duration = Duration::from_secs(10);
/// Ids or partitions after which other tasks have their turn.
const TURN: usize = 256;
/// Transactions that are aborted at a time: markers of diskless partitions share a PUT.
const ABORTS: usize = 256;

/// Mark of a data folder that transactions may have lost their state.
#[derive(Debug)]
pub struct Unsettled {
    file: PathBuf,
    /// Times that the mark was set, and that number when all was settled last. Locked while the file changes.
    sets: Mutex<(u64, u64)>,
    /// Notified when the mark is set.
    changed: Notify,
    /// True if the process before did not stop cleanly.
    is_unclean: bool,
    /// True once an id was fenced or a transaction was aborted since the mark was set.
    has_found: AtomicBool,
}

/// Transaction that is open in a partition of this broker.
struct OpenTransaction {
    of: AnyPartition,
    producer: ProducerState,
}

impl Unsettled {
    /// Looks at a data folder that is about to be used again, and sets the mark if ends of its logs may be lost.
    pub fn look(data_dir: &Path, ended: PreviousShutdown) -> Unsettled {
        let file = data_dir.join(FILE);
        let sets = Mutex::new((u64::from(file.exists()), 0));
        let (is_unclean, has_found) = (ended != PreviousShutdown::Clean, AtomicBool::new(false));
        let unsettled = Unsettled { file, sets, changed: Notify::new(), is_unclean, has_found };
        // The folders of `__transaction_state` may be lost, and diskless partitions have none.
        let has_partitions =
            diskless::has_index(data_dir) || files::list_partitions(data_dir).is_ok_and(|all| !all.is_empty());
        if ended == PreviousShutdown::Lost && has_partitions {
            unsettled.set();
        }
        unsettled
    }

    /// Returns true until every transaction is settled.
    pub fn is_set(&self) -> bool {
        self.seen().is_some()
    }

    /// Returns the number of the last time that the mark was set, if not all is settled since.
    fn seen(&self) -> Option<u64> {
        let (sets, settled) = *self.sets.lock();
        (sets != settled).then_some(sets)
    }

    /// Notes on the disk that transactions may have lost their state.
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

    /// Clears the mark, unless it was set again after it was `seen`. Sets the mark in memory if `__transaction_state`
    /// is not there after a kill: the topic may have been deleted right before.
    pub(super) fn note_topic(&self, is_there: bool) {
        if self.is_unclean && !is_there {
            self.sets.lock().0 += 1;
        }
    }

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
    /// Returns true if the records of a shard may lack their end.
    pub(super) fn may_lack_its_end(&self, shard: &Shard) -> bool {
        self.unsettled.is_set() && shard.partition().registered().replicas.len() <= 1
    }

    /// Settles all transactions each time that they may have lost their state, however often that has to be tried.
    pub(super) async fn settle_forever(self: &Arc<Self>) {
        loop {
            let Some(seen) = self.unsettled.seen() else {
                self.unsettled.changed.notified().await;
                continue;
            };
            let mut pause = LOOK_FIRST;
            while !self.settle_once().await {
                sleep(pause).await;
                pause = (pause * 2).min(LOOK_MOST);
            }
            match self.unsettled.clear(seen) {
                Ok(()) if self.unsettled.has_found.swap(false, Ordering::Relaxed) => {
                    tracing::info!(
                        target: CHANGES,
                        "transactions are settled whose state may have been lost: their ids take new producer ids"
                    )
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot remove {FILE}: the next start fences transactional ids once more")
                }
            }
        }
    }

    /// Returns true once nothing is left to settle.
    async fn settle_once(self: &Arc<Self>) -> bool {
        self.topic.prepare_all().await;
        let is_known = |shard: &Arc<Shard>| matches!(shard.status(), Status::Serving | Status::Elsewhere);
        let shards = self.topic.read().clone();
        if !shards.iter().flat_map(|topic| topic.shards()).all(is_known) {
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
                self.happen(entry, Transaction::settle);
            }
        }
        are_fenced && (self.control.beats().is_some() || self.abort_unknown().await)
    }

    /// Aborts the transactions in partitions of this broker that no id has. Returns true if none is left.
    async fn abort_unknown(self: &Arc<Self>) -> bool {
        let (open, mut is_done) = self.open_transactions().await;
        let producers: HashSet<i64> = open.iter().map(|open| open.producer.producer_id).collect();
        let known = self.known_transactions(&producers).await;
        let mut aborting = JoinSet::new();
        for open in open {
            if known.contains(&(open.producer.producer_id, open.partition())) || !open.is_open_still().await {
                continue;
            }
            if aborting.len() >= ABORTS {
                is_done &= aborting.join_next().await.is_some_and(|aborted| aborted.unwrap_or(false));
            }
            let this = Arc::clone(self);
            aborting.spawn(task::boxed(async move { this.abort(&open).await }));
        }
        while let Some(aborted) = aborting.join_next().await {
            is_done &= aborted.unwrap_or(false);
        }
        is_done
    }

    /// Returns the transactions that are open in partitions of this broker, and true unless one of these is still to
    /// be opened.
    async fn open_transactions(&self) -> (Vec<OpenTransaction>, bool) {
        let (mut open, mut is_whole) = (Vec::new(), true);
        for replica in self.logs.partitions().into_iter().filter(|replica| replica.leads_in().is_some()) {
            if replica.opened().await.is_err() {
                is_whole = false;
                continue;
            }
            // A partition that cannot be read serves no client before the next start.
            let producers = replica.producers().unwrap_or_default();
            open.extend(OpenTransaction::all(&AnyPartition::Classic(replica), producers));
        }
        let Some(diskless) = self.logs.diskless() else { return (open, is_whole) };
        let Ok(partitions) = diskless.with_open_transactions().await else { return (open, false) };
        for partition in partitions {
            let (producers, of) = (partition.producers().await, AnyPartition::Diskless(Arc::clone(&partition)));
            match producers {
                Ok(producers) => open.extend(OpenTransaction::all(&of, producers)),
                Err(_) => is_whole &= partition.known.is_gone(),
            }
        }
        (open, is_whole)
    }

    /// Returns the partitions of transactions of these producers that are not complete.
    async fn known_transactions(&self, producers: &HashSet<i64>) -> HashSet<(i64, TopicPartition)> {
        let entries: Vec<_> = self.ids.lock().values().cloned().collect();
        let mut known = HashSet::new();
        for (count, entry) in entries.iter().enumerate() {
            if count % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            let state = entry.lock();
            let Ok(found) = state.transaction.describe() else { continue };
            let is_open = found.state == TransactionState::Ongoing || found.state.is_prepared();
            if is_open && producers.contains(&found.producer_id) {
                known.extend(found.partitions.iter().map(|partition| (found.producer_id, partition.clone())));
            }
        }
        known
    }

    /// Writes the marker of a transaction that no id has. Returns true once that is over.
    async fn abort(self: &Arc<Self>, open: &OpenTransaction) -> bool {
        let ProducerState { producer_id, producer_epoch, coordinator_epoch, .. } = open.producer;
        // Above the epoch of the records, which its producer may still send.
        let (epoch, version) = producer_epoch.checked_add(1).map_or((producer_epoch, 1), |next| (next, 2));
        let marker = Marker {
            producer_id,
            producer_epoch: epoch,
            coordinator_epoch: coordinator_epoch.max(0),
            is_commit: false,
        };
        let TopicPartition { topic, partition } = &open.partition();
        let code = self.write_marker(&open.partition(), &marker, version).await;
        let is_over =
            matches!(code, ErrorCode::NONE | ErrorCode::INVALID_PRODUCER_EPOCH | ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        self.unsettled.has_found.store(true, Ordering::Relaxed);
        let Some(left_out) = self.unmarked.due() else { return is_over };
        match is_over {
            true => {
                let first_offset = open.producer.open_from;
                tracing::warn!(
                    topic = &**topic,
                    partition,
                    producer_id,
                    first_offset,
                    left_out,
                    "the state of a transaction is lost: it is aborted"
                );
            }
            false => {
                let why = code.message();
                tracing::warn!(
                    topic = &**topic,
                    partition,
                    producer_id,
                    why,
                    left_out,
                    "cannot abort a transaction whose state is lost: it is tried again"
                );
            }
        }
        is_over
    }
}

impl OpenTransaction {
    /// Returns those of a partition with these producers.
    fn all(of: &AnyPartition, producers: Vec<ProducerState>) -> impl Iterator<Item = OpenTransaction> {
        let open = producers.into_iter().filter(|producer| producer.open_from.is_some());
        open.map(|producer| OpenTransaction { of: of.clone(), producer })
    }

    fn partition(&self) -> TopicPartition {
        let (topic, partition) = match &self.of {
            AnyPartition::Classic(replica) => (replica.topic(), replica.index()),
            AnyPartition::Diskless(partition) => (partition.known.topic(), partition.known.index()),
        };
        TopicPartition { topic: Text::from(topic), partition }
    }

    /// Returns true if the transaction was not ended since it was found.
    async fn is_open_still(&self) -> bool {
        let is_same = |now: &ProducerState| {
            now.producer_id == self.producer.producer_id && now.open_from == self.producer.open_from
        };
        self.of.producers().await.is_ok_and(|producers| producers.iter().any(is_same))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_may_be_lost_the_mark_is_kept_until_all_is_settled() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let look = |ended| Unsettled::look(folder.path(), ended);
        assert!(!look(PreviousShutdown::Lost).is_set(), "a new folder has lost nothing");
        fs::create_dir(folder.path().join("t-0")).expect("created");
        assert!(!look(PreviousShutdown::Killed).is_set());
        assert!(look(PreviousShutdown::Lost).is_set());
        let diskless = tempfile::tempdir().expect("temporary folder");
        fs::write(diskless.path().join("diskless.db"), "").expect("written");
        assert!(Unsettled::look(diskless.path(), PreviousShutdown::Lost).is_set(), "its partitions have no folders");
        let unsettled = look(PreviousShutdown::Killed);
        let seen = unsettled.seen().expect("a kill changes nothing");
        unsettled.set();
        unsettled.clear(seen).expect("noted");
        assert!(unsettled.is_set() && look(PreviousShutdown::Clean).is_set(), "it was set again meanwhile");
        unsettled.clear(unsettled.seen().expect("set")).expect("removed");
        assert!(!unsettled.is_set() && !look(PreviousShutdown::Clean).is_set());
        for (ended, is_there, is_set) in [
            (PreviousShutdown::Killed, false, true),
            (PreviousShutdown::Killed, true, false),
            (PreviousShutdown::Clean, false, false),
        ] {
            let unsettled = look(ended);
            unsettled.note_topic(is_there);
            assert_eq!(unsettled.is_set(), is_set, "{ended:?}, topic there: {is_there}");
        }
    }
}
