//! Decides whether the broker is ready and alive. A slow broker counts as healthy; the metrics show how slow it is.
//!
//! Liveness fails only for faults that a restart repairs. Readiness does not fail for faults that hit all brokers at
//! once, such as an unreachable database or object store. Otherwise clients would have no broker left at all.

use crate::node::Node;
use fullbore_control::Image;
use fullbore_db::calls::PlaneSeen;
use fullbore_diskless::{Diskless, StoreTrouble};
use fullbore_host::disk_space::DiskSpace;
use rustix::fs::{Access, access};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The reason why clients should not be sent to this broker.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unhealthy {
    #[error("stopping")]
    Stopping,
    #[error("the control thread has ended; see the broker's log")]
    Control,
    #[error("the index thread has ended: diskless topics accept no records; see the broker's log")]
    Index,
    #[error(
        "this broker is fenced: it leads nothing until its heartbeats reach the database again; see the broker's log"
    )]
    Fenced,
    #[error(
        "{0} partitions accept no records until the next start: a write or an fsync has failed; see the broker's log"
    )]
    Partitions(usize),
    #[error(
        "cannot use {0} partitions: their directories accept no files, or their records cannot be read; check \
         permissions, file system and disk of the directories that the broker's log names"
    )]
    UnwritablePartitions(usize),
    #[error(
        "the disk of the data directory {0} is full and records are refused: delete topics or records, lower retention.ms or \
         retention.bytes, or free space on this file system"
    )]
    DiskFull(PathBuf),
    #[error(
        "the disk of the data directory {directory} hangs: {}; records are refused until it responds; check that volume, since a restart \
         does not help", of_hung(.hung_for)
    )]
    DiskHangs {
        directory: PathBuf,
        /// How long a write has been hanging. `None` if the check of the directory ([`data_directory`]) does not
        /// return.
        hung_for: Option<Duration>,
    },
    #[error(
        "cannot create files in the data directory {0}: check its permissions and its file system; the broker's log has the reason"
    )]
    Unwritable(PathBuf),
    #[error("cannot write to the data directory {directory}: {error}")]
    DataDirectory { directory: PathBuf, error: io::Error },
}

fn of_hung(hung_for: &Option<Duration>) -> String {
    match hung_for {
        Some(time) => format!("a write has not returned for {} s", time.as_secs()),
        None => "the directory does not respond".to_owned(),
    }
}

/// The state that decides readiness, except for the data directory, which is checked separately.
#[derive(Clone, Copy, Debug)]
struct Condition {
    is_stopping: bool,
    control_serves: bool,
    index_serves: bool,
    is_fenced: bool,
    failed_partitions: usize,
    unwritable_partitions: usize,
    disk_is_full: bool,
    directory_is_unwritable: bool,
    disk_hung_for: Option<Duration>,
}

/// Returns true if the broker `own` is fenced in its metadata, or stands down because the others have fenced it.
fn is_fenced(image: &Image, own: i32) -> bool {
    image.stands_down() || image.node(own).is_some_and(|node| node.registration.is_fenced)
}

/// Checks readiness without waiting. The data directory is checked separately by [`data_directory`].
///
/// If the broker is ready, returns `None`, or a note about problems that do not make it unready. These concern the
/// database, the object store or single partitions.
///
/// # Errors
/// Returns the first fault that makes the broker unready.
pub(super) fn health(broker: &Node) -> Result<Option<String>, Unhealthy> {
    let own = broker.metadata.config.node.id;
    let condition = Condition {
        is_stopping: *broker.stopping().borrow(),
        control_serves: broker.metadata.control.is_serving(),
        index_serves: index_serves(broker),
        is_fenced: is_fenced(&broker.metadata.control.image(), own),
        failed_partitions: broker.partitions.failed_partitions(),
        unwritable_partitions: broker.partitions.unwritable_partitions(),
        disk_is_full: broker.space.is_full(),
        directory_is_unwritable: broker.space.is_unwritable(),
        disk_hung_for: broker.space.hung_for(),
    };
    judge(condition, &broker.metadata.config.node.data_dir)?;
    let of_database = broker.metadata.control.plane_calls().and_then(|calls| calls.seen()).and_then(note_of_database);
    let of_store = broker.partitions.diskless().and_then(Diskless::store_trouble).map(note_of_store);
    let of_damage = note_of_damage(broker.partitions.refused_partitions());
    let notes: Vec<String> = of_database.into_iter().chain(of_store).chain(of_damage).collect();
    Ok((!notes.is_empty()).then(|| notes.join("\n")))
}

/// Checks liveness.
///
/// # Errors
/// Returns the fault if only a restart can repair it.
pub(super) fn life(broker: &Node) -> Result<(), Unhealthy> {
    let is_stopping = *broker.stopping().borrow();
    match (is_stopping || broker.metadata.control.is_serving(), is_stopping || index_serves(broker)) {
        (true, true) => Ok(()),
        (false, _) => Err(Unhealthy::Control),
        (true, false) => Err(Unhealthy::Index),
    }
}

/// Returns false if this broker serves diskless topics and the thread of their index has panicked.
fn index_serves(broker: &Node) -> bool {
    !broker.partitions.diskless().is_some_and(Diskless::index_has_panicked)
}

fn judge(found: Condition, directory: &Path) -> Result<(), Unhealthy> {
    if found.is_stopping {
        return Err(Unhealthy::Stopping);
    }
    if !found.control_serves {
        return Err(Unhealthy::Control);
    }
    if !found.index_serves {
        return Err(Unhealthy::Index);
    }
    if found.is_fenced {
        return Err(Unhealthy::Fenced);
    }
    if found.failed_partitions > 0 {
        return Err(Unhealthy::Partitions(found.failed_partitions));
    }
    if found.disk_hung_for.is_some() {
        return Err(Unhealthy::DiskHangs { directory: directory.to_owned(), hung_for: found.disk_hung_for });
    }
    if found.disk_is_full {
        return Err(Unhealthy::DiskFull(directory.to_owned()));
    }
    if found.directory_is_unwritable {
        return Err(Unhealthy::Unwritable(directory.to_owned()));
    }
    if found.unwritable_partitions > 0 {
        return Err(Unhealthy::UnwritablePartitions(found.unwritable_partitions));
    }
    Ok(())
}

fn note_of_database(seen: PlaneSeen) -> Option<String> {
    let seconds = seen.since_answer.as_secs();
    (!seen.answers).then(|| {
        format!(
            "the database of the cluster has not answered this broker for {seconds} s: records are served, but topics \
             and settings cannot be changed, and this broker replaces no leader that fails"
        )
    })
}

fn note_of_damage(refused_partitions: usize) -> Option<String> {
    (refused_partitions > 0).then(|| {
        format!(
            "cannot serve {refused_partitions} damaged partitions: they are neither read nor written until they are repaired; \
             the broker's log names the files"
        )
    })
}

fn note_of_store(trouble: StoreTrouble) -> String {
    let why = match trouble {
        StoreTrouble::Unverified => "this broker has not reached the object store since its start".to_owned(),
        StoreTrouble::Failing(time) => {
            format!("requests to the object store have failed for {} s", time.as_secs())
        }
    };
    format!("{why}: diskless topics accept no records and serve cached ones only; classic topics are served")
}

/// Checks that the data directory is at its path and that this process may create files in it. This also finds a
/// failing disk, because Linux remounts such a disk read-only. May hang.
///
/// # Errors
/// Returns an error if the directory was moved or unmounted, or the error of the system call that checks the
/// permissions.
pub(super) fn data_directory(space: &DiskSpace, directory: &Path) -> Result<(), io::Error> {
    space.check_place()?;
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Turns the result of [`data_directory`] into a verdict. `looked` is that result, or `None` if the check did not
/// return in time.
///
/// # Errors
/// Returns a fault if the check has failed or has not returned.
pub(super) fn of_directory(looked: Option<Result<(), io::Error>>, directory: &Path) -> Result<(), Unhealthy> {
    let directory = directory.to_owned();
    match looked {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(Unhealthy::DataDirectory { directory, error }),
        None => Err(Unhealthy::DiskHangs { directory, hung_for: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_fault_has_its_message() {
        let directory = tempfile::tempdir().expect("a directory");
        let well = Condition {
            is_stopping: false,
            control_serves: true,
            index_serves: true,
            is_fenced: false,
            failed_partitions: 0,
            unwritable_partitions: 0,
            disk_is_full: false,
            directory_is_unwritable: false,
            disk_hung_for: None,
        };
        let verdict = |found| judge(found, directory.path()).map_err(|unhealthy| unhealthy.to_string());
        assert_eq!(verdict(well), Ok(()));
        assert_eq!(verdict(Condition { is_stopping: true, control_serves: false, ..well }), Err("stopping".to_owned()));
        let reported = |found, words: &str| {
            let why = verdict(found).expect_err(words);
            assert!(why.contains(words), "{why}");
        };
        reported(Condition { control_serves: false, ..well }, "control thread");
        reported(
            Condition { index_serves: false, ..well },
            "index thread has ended: diskless topics accept no records",
        );
        reported(Condition { is_fenced: true, ..well }, "this broker is fenced");
        reported(Condition { failed_partitions: 3, ..well }, "3 partitions");
        reported(Condition { unwritable_partitions: 2, ..well }, "cannot use 2 partitions: their directories");
        reported(Condition { directory_is_unwritable: true, ..well }, "cannot create files");
        reported(Condition { disk_is_full: true, ..well }, "is full and records are refused: delete topics");
        let hung_for = Some(Duration::from_millis(7_900));
        reported(Condition { disk_hung_for: hung_for, ..well }, "hangs: a write has not returned for 7 s");
        let hung = of_directory(None, directory.path()).expect_err("no answer").to_string();
        assert!(hung.contains("hangs: the directory does not respond"), "{hung}");
        let gone = directory.path().join("gone");
        std::fs::create_dir(&gone).expect("made");
        let space = DiskSpace::open(&gone, 0);
        std::fs::remove_dir(&gone).expect("removed");
        let why = of_directory(Some(data_directory(&space, &gone)), &gone).expect_err("no directory").to_string();
        assert!(why.contains("cannot write to the data directory") && why.contains("gone: it was moved or"), "{why}");
    }

    #[test]
    fn note_of_an_unreachable_object_store_has_the_time_since_the_failure() {
        let note = note_of_store(StoreTrouble::Failing(Duration::from_secs(12)));
        assert!(note.starts_with("requests to the object store have failed for 12 s: "), "{note}");
        let note = note_of_store(StoreTrouble::Unverified);
        assert!(note.starts_with("this broker has not reached the object store since its start: "), "{note}");
    }

    #[test]
    fn unreachable_database_is_a_note_and_no_fault() {
        let seen = |answers| PlaneSeen { answers, since_answer: Duration::from_secs(12), newest: 7 };
        assert_eq!(note_of_database(seen(true)), None);
        let note = note_of_database(seen(false)).expect("told");
        assert!(note.starts_with("the database of the cluster has not answered this broker for 12 s: "), "{note}");
    }
}
