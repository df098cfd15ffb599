//! How a replica goes: its log out of use, its folder out of the way.
//!
//! Not the removal of its files, which comes file.delete.delay.ms later.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fullbore_rules::sequence::Stops;

use super::state::LogState;
use super::{NOT_DELETED, Replica};
use fullbore_log::Log;
use fullbore_log::files;
use fullbore_log::partition::error::AppendError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Free {
        had_folder: bool,
    },
    /// A folder of another topic's: so what is noted under the name is of that.
    Anothers,
}

impl Replica {
    /// Takes the log out of use and the folder out of the way. Done when it returns, whoever did it; false if the
    /// system lets the folder keep its name.
    pub(crate) fn retire(&self) -> bool {
        // One that never came to have a folder leaves the name to who had it before.
        self.retire_predecessors();
        self.retire_itself()
    }

    /// Retires every predecessor of the directory's name, the eldest first. A loop, no recursion: on a slow disk a name
    /// may have any number of lives.
    pub(crate) fn retire_predecessors(&self) {
        let (mut line, mut next) = (Vec::new(), self.predecessor.lock().clone());
        while let Some(partition) = next {
            next = partition.predecessor.lock().clone();
            line.push(partition);
        }
        line.iter().rev().for_each(|partition| _ = partition.retire_itself());
        *self.predecessor.lock() = None;
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
            self.leave_stops(self.stops_in(&log));
        }
        self.log_dir.cleanings.wait_until_left(&self.key(), self.topic_id());
        let given_away = self.give_folder_away(was_open);
        let are_stops_unknown = match given_away {
            // Its log was not read in this run.
            Ok(Name::Free { had_folder: true }) => !was_open,
            // A partition without a log has not taken over the stops before it, which are not known either.
            Ok(Name::Free { had_folder: false }) => {
                !was_open && self.log_dir.succession.lacks(&self.key(), self.past.as_deref().copied())
            }
            Ok(Name::Anothers) | Err(_) => false,
        };
        if are_stops_unknown {
            self.leave_stops(Stops::partial());
        }
        if let Err(error) = &given_away {
            // Its topic id keeps a topic created later from taking it for its own.
            tracing::error!(
                dir = %self.dir().display(),
                %error,
                "cannot move the directory of a deleted partition out of the way: its records stay, and it is tried again; correct the \
                 permissions or the file system"
            );
            self.log_dir.note_leftover(self.key(), self.topic_id(), self.removal_delay());
        }
        if !matches!(given_away, Ok(Name::Anothers)) {
            self.log_dir.checkpoints.forget(self.key());
            self.log_dir.cleanings.forget(&self.key());
        }
        // So that who is out of the way keeps nobody else in memory.
        *self.predecessor.lock() = None;
        *retired = Some(given_away.is_ok());
        given_away.is_ok()
    }

    /// Returns the stops of producers in the log. Those of a replica that was behind may lack some.
    fn stops_in(&self, log: &Log) -> Stops {
        if !self.registered().isr.contains(&self.log_dir.cluster.node_id) {
            return Stops::partial();
        }
        log.producers().stops()
    }

    /// Renames the directory and has it removed later, if it is this topic's, which that of a log that `was_open` is.
    fn give_folder_away(&self, was_open: bool) -> io::Result<Name> {
        let dir = self.dir();
        if !was_open && self.is_anothers(&dir)? {
            return Ok(Name::Anothers);
        }
        let unique = u128::from_be_bytes(self.topic_id().0);
        let away = files::retired_dir(&self.log_dir.path, self.topic(), self.index(), unique, files::DELETED_DIR);
        match fs::rename(&dir, &away) {
            Ok(()) => self.log_dir.remove_after(self.removal_delay(), away),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Name::Free { had_folder: false }),
            Err(error) => return Err(error),
        }
        Ok(Name::Free { had_folder: true })
    }

    fn removal_delay(&self) -> Duration {
        Duration::from_millis(self.config().file_delete_delay_ms)
    }

    /// Returns true if the directory with the partition's name is another topic's. One without a topic id may be, if
    /// there is something in it.
    fn is_anothers(&self, dir: &Path) -> io::Result<bool> {
        match files::read_topic_id(dir)? {
            Some(topic_id) => Ok(topic_id != self.topic_id()),
            None => Ok(dir.try_exists()? && files::has_records(dir)?),
        }
    }

    /// Keeps whoever takes the folder out of the way from doing so.
    #[cfg(test)]
    pub(crate) fn held_in_its_place(&self) -> impl Drop + '_ {
        self.retired.lock()
    }

    /// Notes that the partition is deleted: long work gives up, and nothing more is noted of it.
    pub(crate) fn announce_leaving(&self) {
        self.phase.set_leaving();
        // The first call is that of the deletion.
        let _ = self.deleted_at.compare_exchange(NOT_DELETED, self.log_dir.succession.epoch(), Relaxed, Relaxed);
    }

    fn leave_stops(&self, stops: Stops) {
        let deleted_at = self.deleted_at.load(Relaxed);
        self.log_dir.succession.leave(self.key(), self.topic_id(), stops, deleted_at);
    }

    /// Takes the partition out of service and gives back the log, if it was open. `why` is what parked batches are
    /// answered with.
    pub(crate) fn leave(&self, why: AppendError) -> Option<Box<Log>> {
        let mut state = self.lock();
        self.interrupt_opening(&mut state);
        let left = self.put(&mut state, LogState::Gone);
        (state.failed, state.failing) = (None, None);
        let parked = state.parked.take();
        let due = [state.flush.timed.take(), state.flush.again.take()];
        drop(state);
        // Or a topic that is flushed once a year would be kept for as long.
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
