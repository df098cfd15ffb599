//! Flushes a log to the disk with fsync, and handles failed flushes.
//!
//! Appends continue while a flush runs, and the next flush covers all of them. If an fsync fails, a second attempt
//! would prove nothing, because the system may have dropped the data. The partition therefore accepts no appends until
//! the broker's next start has read the files. If a file could not be opened for lack of descriptors, no fsync was
//! tried. Nothing is lost in that case, and the flush is repeated.
//!
//! Invariant: every record before the recovery point is on the disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use super::files;
use super::segment::Segment;
use crate::partition::flushed::{FlushTicket, Flushed};
use fullbore_host::files::is_momentary;

/// Maximum number of sealed segments that wait for a flush. Once there are that many, the append that seals another
/// segment flushes them all.
const SEALED_MAX: usize = 16;

/// A segment that gets no more appends, but is not on the disk yet.
#[derive(Debug, Clone)]
pub struct Sealed {
    file: Arc<File>,
    indexes: Vec<PathBuf>,
    /// The offset after the segment's last record.
    end_offset: i64,
}

impl Sealed {
    /// Creates the entry of a segment that was just sealed and ends at `end_offset`.
    pub fn new(segment: &mut Segment, end_offset: i64) -> io::Result<Sealed> {
        Ok(Sealed { file: segment.file()?, indexes: segment.index_paths(), end_offset })
    }

    fn sync(&self) -> Result<(), FlushError> {
        self.file.sync_data()?;
        for index in &self.indexes {
            match File::open(index) {
                Ok(file) => file.sync_data()?,
                // Retention has removed the segment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FlushError::of_open(error)),
            }
        }
        Ok(())
    }
}

/// The reason why a flush is incomplete.
#[derive(Debug)]
pub enum FlushError {
    /// A file could not be opened at the moment. The data is not affected.
    Unopened(io::Error),
    /// An fsync failed, or a file is missing.
    Failed(io::Error),
}

impl FlushError {
    /// Returns the error for a file that could not be opened. The result is [`FlushError::Unopened`] only if the cause
    /// is temporary, such as a lack of descriptors.
    pub fn of_open(error: io::Error) -> FlushError {
        if is_momentary(&error) { FlushError::Unopened(error) } else { FlushError::Failed(error) }
    }
}

impl From<io::Error> for FlushError {
    fn from(error: io::Error) -> FlushError {
        FlushError::Failed(error)
    }
}

/// A flush that runs without the partition's lock.
#[derive(Debug)]
pub struct FlushPlan {
    sealed: Vec<Sealed>,
    active: Option<Arc<File>>,
    dir: Option<Arc<Path>>,
    /// The offset before which all records are on the disk after this flush.
    upto: i64,
    /// How often the log had been truncated when the flush was planned.
    cuts: u32,
}

impl FlushPlan {
    /// Runs the flush, and blocks until the data is on the disk.
    pub fn run(&self) -> Result<(), FlushError> {
        self.sealed.iter().try_for_each(Sealed::sync)?;
        if let Some(active) = &self.active {
            active.sync_data()?;
        }
        if let Some(dir) = &self.dir {
            files::sync_topic_id(dir).map_err(FlushError::of_open)?;
        }
        for dir in self.dir.iter().flat_map(|dir| [Some(dir.as_ref()), dir.parent()]).flatten() {
            File::open(dir).map_err(FlushError::of_open)?.sync_all()?;
        }
        Ok(())
    }
}

/// How far a log is flushed, and what the next flush must include.
#[derive(Debug)]
pub struct Flushes {
    dir: Arc<Path>,
    /// The offset before which all records are on the disk.
    recovery_point: i64,
    /// Sealed segments that are not on the disk yet.
    sealed: Vec<Sealed>,
    /// True if files were created or renamed since the directory was last flushed.
    has_new_names: bool,
    /// The sender that reports the progress of flushes. Created when the first caller waits for a flush.
    progress: Option<watch::Sender<Flushed>>,
    /// True once it is unknown which bytes are on the disk. The log accepts no appends then.
    is_broken: bool,
    /// Number of truncations. The success of a flush does not count if the log was truncated after the flush was
    /// planned.
    cuts: u32,
}

impl Flushes {
    /// Creates the state for a log that is being opened.
    pub fn new(dir: &Arc<Path>, recovery_point: i64) -> Flushes {
        let (sealed, progress) = (Vec::new(), None);
        Flushes { dir: dir.clone(), recovery_point, sealed, has_new_names: true, progress, is_broken: false, cuts: 0 }
    }

    /// Returns the offset before which all records are on the disk.
    pub fn recovery_point(&self) -> i64 {
        self.recovery_point
    }

    /// Returns how often the log was truncated.
    pub fn cuts(&self) -> u32 {
        self.cuts
    }

    /// Returns true if a failure has left it unknown which bytes are on the disk. The log then accepts no appends.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Includes a segment in the next flush.
    pub fn seal(&mut self, sealed: Sealed) {
        self.sealed.push(sealed);
    }

    /// Returns true if [`SEALED_MAX`] segments wait for a flush. The caller must then flush them.
    pub fn is_crowded(&self) -> bool {
        self.sealed.len() >= SEALED_MAX
    }

    /// Makes the next flush also flush the directory, because files were created or renamed.
    pub fn note_new_names(&mut self) {
        self.has_new_names = true;
    }

    /// Lowers the recovery point to `log_end` if it is larger. Records that are appended from there on are not on the
    /// disk yet.
    pub fn lower(&mut self, log_end: i64) {
        self.recovery_point = self.recovery_point.min(log_end);
    }

    /// Records that the log was truncated to `log_end`. All callers that wait for a flush get an error, because it is
    /// not known which of them wait for removed records.
    pub fn cut(&mut self, log_end: i64) {
        self.progress = None;
        self.lower(log_end);
        self.sealed.retain(|sealed| sealed.end_offset <= log_end);
        self.cuts += 1;
        self.has_new_names = true;
    }

    /// Forgets segments that retention has removed.
    pub fn forget_before(&mut self, log_start: i64) {
        self.sealed.retain(|sealed| sealed.end_offset > log_start);
    }

    /// Plans a flush of all sealed segments, and of `active` if it is set. `upto` is the offset up to which these
    /// segments have records.
    pub fn plan(&mut self, active: Option<Arc<File>>, upto: i64) -> FlushPlan {
        FlushPlan {
            sealed: self.sealed.clone(),
            active,
            dir: std::mem::take(&mut self.has_new_names).then(|| self.dir.clone()),
            upto,
            cuts: self.cuts,
        }
    }

    /// Records the result of a flush. If a file could not be opened, the flush must be repeated.
    pub fn done(&mut self, plan: &FlushPlan, result: &Result<(), FlushError>) {
        match result {
            // After an earlier failed flush, a successful one proves nothing, because the data of the failed flush may
            // be lost. The success of a flush that was planned before a truncation does not count either.
            Ok(()) if self.is_broken || plan.cuts != self.cuts => {}
            Ok(()) => {
                self.sealed.retain(|sealed| sealed.end_offset > plan.upto);
                self.recovery_point = self.recovery_point.max(plan.upto);
                self.publish(Flushed::Upto(self.recovery_point));
            }
            Err(FlushError::Unopened(_)) => self.has_new_names |= plan.dir.is_some(),
            Err(FlushError::Failed(error)) => self.failed(error),
        }
    }

    /// Logs that a flush has failed, and stops all appends until the broker restarts.
    pub fn failed(&mut self, error: &io::Error) {
        tracing::error!(dir = %self.dir.display(), %error, "cannot flush the log: no appends until the next start");
        self.give_up();
    }

    /// Stops all appends, because the state of the disk is unknown. All callers that wait for a flush get an error.
    pub fn give_up(&mut self) {
        self.is_broken = true;
        self.publish(Flushed::Failed);
    }

    /// Completes all waits for a flush as successful, because the topic was deleted. Otherwise producers would send the
    /// deleted records again. The deletion must be on the disk before this call.
    pub fn went_with_its_topic(&self, log_end: i64) {
        if !self.is_broken {
            self.publish(Flushed::Upto(log_end));
        }
    }

    fn publish(&self, news: Flushed) {
        if let Some(sender) = &self.progress {
            sender.send_replace(news);
        }
    }

    /// Returns a ticket to wait for the flush of all records before `upto`. The wait also ends if these records can no
    /// longer reach the disk.
    pub fn ticket(&mut self, upto: i64) -> FlushTicket {
        let now = if self.is_broken { Flushed::Failed } else { Flushed::Upto(self.recovery_point) };
        FlushTicket::new(upto, self.progress.get_or_insert_with(|| watch::channel(now).0).subscribe())
    }
}

#[cfg(test)]
mod tests {
    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

    use super::*;
    use crate::Log;
    use crate::partition::error::AppendError;
    use crate::recovery::RecoveryHint;
    use crate::validation::ValidBatch;
    use fullbore_config::{BrokerConfig, Properties};

    #[tokio::test]
    async fn after_a_failed_flush_nothing_is_appended_or_called_durable_even_if_the_next_one_works() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(b"v"), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let batch = ValidBatch::unchecked(&bytes);
        let appended = log.append(&batch, 0, 0, &config).expect("appended");
        let ticket = |log: &mut Log| log.flush_ticket(appended.end_offset);

        let waiting = ticket(&mut log);
        let plan = log.plan_flush(true).expect("planned");
        log.flushed(&plan, &Err(FlushError::Failed(io::Error::other("EIO"))));
        assert_eq!(waiting.wait().await, Err(AppendError::Storage));
        let plan = log.plan_flush(true).expect("planned");
        log.flushed(&plan, &plan.run());
        assert_eq!(ticket(&mut log).wait().await, Err(AppendError::Storage));
        assert_eq!(log.append(&batch, 0, 0, &config), Err(AppendError::Storage));
        assert_eq!(log.recovery_point(), 0);
    }

    #[tokio::test]
    async fn waiters_for_the_flush_of_a_deleted_topic_are_answered_as_written() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut log =
            Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &broker.topics.defaults).expect("opened");
        log.log_end = 3;
        let waiting = log.flush_ticket(3);
        log.went_with_its_topic();
        drop(log);
        assert_eq!(waiting.wait().await, Ok(()));
    }

    #[test]
    fn segments_that_a_killed_broker_had_not_flushed_are_before_the_recovery_point_passes_them() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = fullbore_config::TopicConfig { segment_bytes: 1000, ..broker.topics.defaults };
        let directory = tempfile::tempdir().expect("temporary directory");
        let dir: Arc<Path> = directory.path().into();
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(&[1; 700]), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let batch = ValidBatch::unchecked(&bytes);
        let mut log = Log::open(&dir, RecoveryHint::NOTHING, 0, &config).expect("opened");
        (0..5).for_each(|_| _ = log.append(&batch, 0, 0, &config).expect("appended"));
        drop(log);
        for (recovery_point, unflushed) in [(0, 4), (2, 2), (5, 0)] {
            let known = RecoveryHint { clean: false, recovery_point, ..RecoveryHint::NOTHING };
            let mut log = Log::open(&dir, known, 0, &config).expect("recovered");
            let plan = log.plan_flush(true).expect("planned");
            assert_eq!((plan.sealed.len(), plan.upto), (unflushed, 5), "from {recovery_point}");
            log.flushed(&plan, &plan.run());
            assert_eq!((log.recovery_point(), log.flushes.sealed.len()), (5, 0));
        }
    }
}
