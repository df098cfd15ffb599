//! Damages files of a broker that has ended, at random.
//!
//! Invariant: the head of the parent module has a rule for each kind of damage.

use super::model::Log;
use fullbore_tests::{Broker, Random};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// How many bytes at the end of a segment or of the write-ahead log may be damaged.
const TAIL: usize = 4096;
const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
const LOG_STARTS: &str = "log-start-offset-checkpoint";
const LEADER_EPOCHS: &str = "leader-epoch-checkpoint";
const WAL: &str = "control.db-wal";

/// The files that will be damaged.
pub struct Plan {
    files: Vec<PathBuf>,
    newest_segments: bool,
}

/// The damage that was done.
pub struct Damaged {
    done: Vec<String>,
    /// True if the write-ahead log of the control plane was damaged.
    pub wal: bool,
    /// True if a file with log starts was damaged.
    pub log_starts: bool,
}

impl Plan {
    /// Chooses one to four files to damage. The newest segments may be damaged too, but only after a kill.
    pub fn choose(broker: &Broker, random: &mut Random, is_clean: bool) -> Plan {
        let mut newest_segments = !is_clean && random.below(2) == 0;
        let mut left = candidates(broker);
        let mut files = Vec::new();
        for _ in 0..random.between(1, 5) {
            if left.is_empty() {
                break;
            }
            let file = left.swap_remove(random.below(left.len()));
            let is = |name: &str| file.ends_with(name);
            let says_starts = is(LEADER_EPOCHS) || is(LOG_STARTS);
            let is_excluded = says_starts
                && (files.iter().any(says_where_logs_start) || !broker.data_dir().join(LOG_STARTS).exists());
            if is_excluded || (is(WAL) && is_clean) {
                continue;
            }
            newest_segments &= !is(RECOVERY_POINTS);
            files.push(file);
        }
        Plan { files, newest_segments }
    }

    pub fn carry_out(self, logs: &mut [Log], random: &mut Random) -> Damaged {
        let mut damaged = Damaged { done: Vec::new(), wal: false, log_starts: false };
        for path in &self.files {
            let mut bytes = fs::read(path).expect("ours");
            let is_wal = path.ends_with(WAL);
            let from = if is_wal { bytes.len().saturating_sub(TAIL) } else { 0 };
            let how = spoil(&mut bytes, from, random);
            fs::write(path, bytes).expect("ours");
            damaged.wal |= is_wal;
            damaged.log_starts |= says_where_logs_start(path);
            damaged.done.push(format!("{} {how}", path.display()));
        }
        for log in logs.iter_mut().filter(|log| log.newest().is_file()) {
            if !self.newest_segments || random.below(3) == 0 {
                continue;
            }
            let mut bytes = fs::read(log.newest()).expect("ours");
            let from = bytes.len().saturating_sub(TAIL);
            let how = spoil(&mut bytes, from, random);
            damaged.done.push(format!("{} {how}", log.newest().display()));
            log.damage_newest(&bytes);
        }
        damaged
    }
}

fn says_where_logs_start(path: impl AsRef<Path>) -> bool {
    path.as_ref().ends_with(LEADER_EPOCHS) || path.as_ref().ends_with(LOG_STARTS)
}

/// Returns the files that may be damaged: indexes, snapshots, checkpoints and the side files of the database.
fn candidates(broker: &Broker) -> Vec<PathBuf> {
    let list = |directory: &Path| -> Vec<PathBuf> {
        fs::read_dir(directory).expect("ours").map(|entry| entry.expect("readable").path()).collect()
    };
    let mut found = Vec::new();
    for path in list(broker.data_dir()) {
        if path.is_dir() {
            found.extend(list(&path));
        } else {
            found.push(path);
        }
    }
    let kinds = ["index", "timeindex", "snapshot"];
    found.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).expect("text");
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        kinds.contains(&kind) || name.ends_with("-checkpoint") || [WAL, "control.db-shm"].contains(&name)
    });
    found.sort();
    found
}

/// Truncates the bytes, or zeroes or flips some of them, at `from` or later. Returns a description of the damage.
fn spoil(bytes: &mut Vec<u8>, from: usize, random: &mut Random) -> String {
    if bytes.len() == from {
        return "empty as it was".to_owned();
    }
    let len = bytes.len();
    let at = random.between(from, len);
    match random.below(4) {
        0 => {
            bytes.truncate(at);
            format!("cut at {at} of {len}")
        }
        1 => {
            let end = random.between(at, len) + 1;
            bytes[at..end].fill(0);
            format!("zeroed from {at} to {end} of {len}")
        }
        2 => {
            bytes[at..].fill(0);
            format!("zeroed from {at} to its end, {len}")
        }
        _ => {
            let flips: Vec<usize> = (0..random.between(1, 5)).map(|_| random.between(from, len)).collect();
            flips.iter().for_each(|&at| bytes[at] ^= 1 << random.below(8));
            format!("flipped in {flips:?} of {len}")
        }
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.done.join("; "))
    }
}
