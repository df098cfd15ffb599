//! Retires the replica of a deleted partition: closes its log and renames its directory, so that a new partition can
//! use the name.
//!
//! Housekeeping removes the files `file.delete.delay.ms` later.

use std::fs;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fullbore_rules::sequence::ProducerTails;

use super::opening::unique_now;
use super::state::LogState;
use super::{NOT_DELETED, Replica};
use fullbore_log::Log;
use fullbore_log::files;
use fullbore_log::partition::error::AppendError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Free {
        had_directory: bool,
    },
    /// The directory and the checkpoints of this name belong to another topic. Both stay unchanged.
    Anothers,
}

impl Replica {
    /// Closes the log and renames its directory. If another thread is already doing that, waits for it. Returns false
    /// if the directory could not be renamed.
    pub(crate) fn retire(&self) -> bool {
        // If this partition never had a directory, an older partition's directory may still have the name.
        self.retire_name_holders();
        self.retire_itself()
    }

    /// Retires the deleted partitions whose directories had the same name before, the oldest first. While the disk is
    /// slow, their number may grow, so a loop retires them: a recursion could overflow the stack.
    pub(crate) fn retire_name_holders(&self) {
        let (mut line, mut next) = (Vec::new(), self.name_holder.lock().clone());
        while let Some(partition) = next {
            next = partition.name_holder.lock().clone();
            line.push(partition);
        }
        line.iter().rev().for_each(|partition| _ = partition.retire_itself());
        *self.name_holder.lock() = None;
    }

    fn retire_itself(&self) -> bool {
        let mut retired = self.retired.lock();
        if let Some(is_away) = *retired {
            return is_away;
        }
        self.announce_leaving();
        let left = self.leave(AppendError::Deleted);
        let was_open = left.is_some();
        if let Some(log) = left {
            log.went_with_its_topic();
            self.leave_tails(self.tails_in(&log));
        }
        self.log_dir.cleanings.wait_until_left(&self.key(), self.topic_id());
        let given_away = self.give_directory_away(was_open);
        let are_stops_unknown = match given_away {
            // This process has not opened the log, so it does not know the log's producers.
            Ok(Name::Free { had_directory: true }) => !was_open,
            // This partition never had a log, so it has not inherited the last sequences of its predecessor's producers
            // (*tails*). If this process lacks them too, the next partition gets partial tails, which admit unknown
            // producers.
            Ok(Name::Free { had_directory: false }) => {
                !was_open && self.log_dir.carried_tails.lacks(&self.key(), self.past.as_deref().copied())
            }
            Ok(Name::Anothers) | Err(_) => false,
        };
        if are_stops_unknown {
            self.leave_tails(ProducerTails::partial());
        }
        if let Err(error) = &given_away {
            // A later topic with this name does not use the directory, because the directory contains the deleted
            // topic's id.
            tracing::error!(
                dir = %self.dir().display(),
                %error,
                "cannot move the directory of a deleted partition out of the way: its records stay, and the broker retries; correct the \
                 permissions or the file system"
            );
            self.log_dir.note_leftover(self.key(), self.topic_id(), self.removal_delay());
        }
        if !matches!(given_away, Ok(Name::Anothers)) {
            self.log_dir.checkpoints.forget(self.key());
            self.log_dir.cleanings.forget(&self.key());
        }
        // Drop the reference, because a retired partition must not keep another one in memory.
        *self.name_holder.lock() = None;
        *retired = Some(given_away.is_ok());
        given_away.is_ok()
    }

    /// Returns the last sequences of the log's producers (*tails*). A replica outside the ISR may lack records. For
    /// such a replica, returns partial tails without any producers.
    fn tails_in(&self, log: &Log) -> ProducerTails {
        if !self.registered().isr.contains(&self.log_dir.cluster.node_id) {
            return ProducerTails::partial();
        }
        log.producers().tails()
    }

    /// Renames the directory if it belongs to this topic, and schedules its removal. An open log proves that the
    /// directory belongs to this topic. A directory with records but without a topic id is renamed, but not removed.
    fn give_directory_away(&self, was_open: bool) -> io::Result<Name> {
        let dir = self.dir();
        // Fail if the data directory is not at its path. A later attempt will rename the partition's directory.
        self.log_dir.space.check_place()?;
        if !was_open {
            match files::read_topic_id(&dir)?.known() {
                Some(topic_id) if topic_id != self.topic_id() => return Ok(Name::Anothers),
                None if files::had_records(&dir)? => {
                    let aside = self.rename_as_stray(&dir, unique_now())?;
                    tracing::warn!(
                        dir = %dir.display(),
                        aside = %aside.display(),
                        "set aside the directory of a deleted partition: its topic id is lost, so its records may be another topic's"
                    );
                    return Ok(Name::Free { had_directory: true });
                }
                Some(_) | None => {}
            }
        }
        let unique = u128::from_be_bytes(self.topic_id().0);
        let away = files::retired_dir(&self.log_dir.path, self.topic(), self.index(), unique, files::DELETED_DIR);
        match fs::rename(&dir, &away) {
            Ok(()) => self.log_dir.remove_after(self.removal_delay(), away),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Name::Free { had_directory: false }),
            Err(error) => return Err(error),
        }
        Ok(Name::Free { had_directory: true })
    }

    fn removal_delay(&self) -> Duration {
        Duration::from_millis(self.config().file_delete_delay_ms)
    }

    /// Prevents the retirement while the caller holds the guard.
    #[cfg(test)]
    pub(crate) fn held_in_its_place(&self) -> impl Drop + '_ {
        self.retired.lock()
    }

    /// Marks the partition as deleted. From then on, long work on it ends early, and its checkpoints are no longer
    /// written.
    pub(crate) fn announce_leaving(&self) {
        self.phase.set_leaving();
        // The deletion makes the first call, which sets the version. Later calls do not change it.
        let _ = self.deleted_at.compare_exchange(NOT_DELETED, self.log_dir.carried_tails.epoch(), Relaxed, Relaxed);
    }

    fn leave_tails(&self, tails: ProducerTails) {
        let deleted_at = self.deleted_at.load(Relaxed);
        self.log_dir.carried_tails.leave(self.key(), self.topic_id(), tails, deleted_at);
    }

    /// Closes the partition for good, and returns its log if that was open. Refuses parked batches with `why`.
    pub(crate) fn leave(&self, why: AppendError) -> Option<Box<Log>> {
        let mut state = self.lock();
        self.interrupt_opening(&mut state);
        let left = self.put(&mut state, LogState::Gone);
        (state.failed, state.failing) = (None, None);
        let parked = state.parked.take();
        let due = [state.flush.timed.take(), state.flush.again.take()];
        drop(state);
        // Cancel the timed flushes. Otherwise each of them would keep the partition in memory until it is due.
        due.into_iter().flatten().for_each(|due| self.log_dir.flusher.take_back(due));
        if let Some(parked) = parked {
            parked.refuse(why);
        }
        self.waiters.end();
        match left {
            LogState::Open(log) => Some(log),
            _ => None,
        }
    }
}
