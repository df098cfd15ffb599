//! What happens in the background, once a second: retention, removal of files, expiry of producers,
//! checkpoints, and giving descriptors back.
//!
//! One thread for all partitions, and so it opens none: where retention is due and the log is not open, the opener is asked, and
//! a later round goes on.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::registry::Logs;
use crate::log::{retention, segment};
use crate::replica::replica::{LogState, Partition};
use crate::system::now_ms;

const ROUND: Duration = Duration::from_secs(1);
/// The first retention comes soon after the start, whatever the interval.
const FIRST_RETENTION: Duration = Duration::from_secs(30);
/// Between two retentions while the disk is full, if no shorter interval is set.
const RETENTION_WHEN_FULL: Duration = Duration::from_secs(10);
/// Between two tries to remove what the system has not let go of.
const REMOVE_AGAIN: Duration = Duration::from_secs(10);
/// log.flush.offset.checkpoint.interval.ms in Kafka.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Rounds without use after which a log's descriptors are closed, with plenty left and with few.
const IDLE_ROUNDS: u32 = 60;
const IDLE_ROUNDS_WHEN_FEW: u32 = 2;
/// Partitions' folders that are looked into for files set aside before the start, a round.
const FOLDERS_PER_ROUND: usize = 2_000;

/// When things are due.
struct Agenda {
    retention: Instant,
    /// Partitions to which retention is applied once their logs are open, until it is due again.
    unopened: Vec<Arc<Partition>>,
    retention_when_full: Instant,
    expiry: Instant,
    checkpoint: Instant,
    high_watermarks: Instant,
    /// Partitions whose folders are to be looked into once, when all are told.
    unlooked: Option<Vec<Arc<Partition>>>,
}

/// Starts the thread; it ends when the logs stop or are dropped.
pub fn start(logs: Weak<Logs>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("housekeeping".to_owned()).spawn(move || run(&logs))
}

fn run(logs: &Weak<Logs>) {
    let Some(settings) = logs.upgrade().map(|logs| logs.settings) else {
        return;
    };
    let retention_interval = Duration::from_millis(settings.retention_check_interval_ms);
    let expiry_interval = Duration::from_millis(settings.producer_id_expiration_check_interval_ms);
    let now = Instant::now();
    let mut agenda = Agenda {
        retention: now + retention_interval.min(FIRST_RETENTION),
        unopened: Vec::new(),
        retention_when_full: now,
        expiry: now + expiry_interval,
        checkpoint: now + CHECKPOINT_INTERVAL,
        high_watermarks: now,
        unlooked: None,
    };
    while let Some(logs) = logs.upgrade() {
        let mut stopping = logs.stopping.lock();
        if !*stopping {
            logs.stop.wait_for(&mut stopping, ROUND);
        }
        if *stopping {
            return;
        }
        drop(stopping);
        logs.round(&mut agenda, retention_interval, expiry_interval);
    }
}

/// Whether it is time, and if so, the next time is set.
fn is_due(at: &mut Instant, interval: Duration) -> bool {
    let now = Instant::now();
    let due = *at <= now;
    if due {
        *at = now + interval;
    }
    due
}

impl Logs {
    fn round(&self, agenda: &mut Agenda, retention_interval: Duration, expiry_interval: Duration) {
        self.remove_doomed();
        let partitions = self.partitions();
        close_idle_files(&partitions);
        self.look_for_files_set_aside(agenda, &partitions);
        let space = &self.log_dir.space;
        let is_wanted = space.is_full() && is_due(&mut agenda.retention_when_full, RETENTION_WHEN_FULL);
        if is_due(&mut agenda.retention, retention_interval) || is_wanted {
            agenda.unopened = partitions.iter().filter(|partition| !self.retain(partition)).cloned().collect();
        } else {
            agenda.unopened.retain(|partition| !partition.is_open() || !self.retain(partition));
        }
        if is_due(&mut agenda.expiry, expiry_interval) {
            let expiration_ms = self.producer_id_expiration_ms();
            partitions.iter().for_each(|partition| expire(partition, expiration_ms));
        }
        if is_due(&mut agenda.checkpoint, CHECKPOINT_INTERVAL)
            && let Err(error) = self.write_checkpoints()
            && !space.note(&error)
        {
            tracing::error!(%error, "checkpoints not written");
        }
        let interval = Duration::from_millis(self.settings.high_watermark_checkpoint_interval_ms);
        if is_due(&mut agenda.high_watermarks, interval)
            && let Err(error) = self.log_dir.checkpoints.write_high_watermarks(&partitions)
            && !space.note(&error)
        {
            tracing::error!(%error, "high watermarks not written");
        }
        if let Err(error) = self.log_dir.checkpoints.forget_recovered()
            && !space.note(&error)
        {
            tracing::error!(%error, "list of partitions to be recovered not written");
        }
        space.look();
    }

    fn look_for_files_set_aside(&self, agenda: &mut Agenda, partitions: &[Arc<Partition>]) {
        if agenda.unlooked.is_none() && self.log_dir.aside.is_all_told() {
            agenda.unlooked = Some(partitions.to_vec());
        }
        if let Some(unlooked) = &mut agenda.unlooked {
            for partition in unlooked.drain(unlooked.len().saturating_sub(FOLDERS_PER_ROUND)..) {
                self.log_dir.aside.look(&partition.dir());
            }
        }
    }

    fn remove_doomed(&self) {
        let now = Instant::now();
        // Who still sends such a file has it open.
        let all = self.log_dir.space.is_full();
        let due: Vec<_> = {
            let mut doomed = self.log_dir.doomed.lock();
            doomed.extract_if(.., |(due, _)| all || *due <= now).collect()
        };
        for (_, path) in due {
            if let Err(error) = remove(&path) {
                tracing::error!(path = %path.display(), %error, "not removed, tried again");
                self.log_dir.doom(REMOVE_AGAIN, path);
            }
        }
    }

    /// Applies retention to one partition, unless nothing is due there; false if its log has to be opened first, which is
    /// then asked for.
    fn retain(&self, partition: &Arc<Partition>) -> bool {
        let now_ms = now_ms();
        // A high watermark that is not the newest keeps more.
        let mut state = partition.state.lock();
        let config = partition.config();
        let high_watermark = state.replica.high_watermark();
        let log = match &mut state.log {
            LogState::Open(log) => log,
            LogState::Opening(_) => return false,
            LogState::Unopened if retention::may_be_due(&partition.dir(), now_ms, &config).unwrap_or(false) => {
                self.log_dir.opener.ask_in_time(partition);
                return false;
            }
            LogState::Unopened | LogState::Absent | LogState::Refused(_) | LogState::Gone => return true,
        };
        let before = log.segments.back().map(|segment| segment.base_offset);
        let space = &self.log_dir.space;
        let retired = log.retire_old(now_ms, high_watermark, &config, space.is_full());
        let delay = Duration::from_millis(config.file_delete_delay_ms);
        retired.paths.into_iter().for_each(|path| self.log_dir.doom(delay, path));
        if let Err(error) = retired.result
            && !space.note(&error)
        {
            tracing::error!(dir = %log.dir.display(), %error, "not all that is due to old segments was done");
        }
        if log.segments.back().map(|segment| segment.base_offset) != before {
            log.close_files(false);
        }
        true
    }
}

fn close_idle_files(partitions: &[Arc<Partition>]) {
    let few_left = segment::open_files() > descriptors_max() / 2;
    let idle_rounds = if few_left { IDLE_ROUNDS_WHEN_FEW } else { IDLE_ROUNDS };
    for partition in partitions {
        let Some(mut state) = partition.state.try_lock() else {
            continue;
        };
        if let LogState::Open(log) = &mut state.log {
            log.idle_rounds = log.idle_rounds.saturating_add(1);
            if log.idle_rounds == idle_rounds || (few_left && log.idle_rounds > idle_rounds) {
                log.close_files(true);
            }
        }
    }
}

fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

fn expire(partition: &Partition, expiration_ms: i64) {
    if let LogState::Open(log) = &mut partition.state.lock().log {
        log.producers.expire(now_ms(), expiration_ms);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
