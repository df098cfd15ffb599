//! fsync: what a partition has to flush, and what a flush that failed means.
//!
//! Group commit falls out of it: while one flush of a partition runs, appends go on, and one more flush covers them
//! all. A failed fsync is never repeated and trusted, since the system may have dropped the pages: the partition takes
//! no appends until the next start looks at what is there. A file that could not be opened, for want of descriptors,
//! was not fsynced at all: nothing is lost, and the flush is tried again.
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

/// Sealed segments that may wait for their flush; with more, the append that rolls flushes them itself.
const SEALED_MAX: usize = 16;

/// A segment that gets no more appends and is not on the disk yet.
#[derive(Debug, Clone)]
pub struct Sealed {
    file: Arc<File>,
    indexes: Vec<PathBuf>,
    /// The offset after its last record.
    end_offset: i64,
}

impl Sealed {
    /// A segment that ends at an offset.
    pub fn new(segment: &mut Segment, end_offset: i64) -> io::Result<Sealed> {
        Ok(Sealed { file: segment.file()?, indexes: segment.index_paths(), end_offset })
    }

    fn sync(&self) -> Result<(), FlushError> {
        self.file.sync_data()?;
        for index in &self.indexes {
            match File::open(index) {
                Ok(file) => file.sync_data()?,
                // Retention was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FlushError::of_open(error)),
            }
        }
        Ok(())
    }
}

/// Why a flush did not do all it should.
#[derive(Debug)]
pub enum FlushError {
    /// Something could not be opened for the moment; what was written is where it was.
    Unopened(io::Error),
    /// An fsync has failed, or what was to be fsynced is not there.
    Failed(io::Error),
}

impl FlushError {
    /// Returns the error of a flush that failed before any fsync.
    pub fn of_open(error: io::Error) -> FlushError {
        if is_momentary(&error) { FlushError::Unopened(error) } else { FlushError::Failed(error) }
    }
}

impl From<io::Error> for FlushError {
    fn from(error: io::Error) -> FlushError {
        FlushError::Failed(error)
    }
}

/// Flush to run without the partition's lock.
#[derive(Debug)]
pub struct FlushPlan {
    sealed: Vec<Sealed>,
    active: Option<Arc<File>>,
    dir: Option<Arc<Path>>,
    /// Every record before it will be on the disk.
    upto: i64,
    /// How often the log had been cut off when it was planned.
    cuts: u32,
}

impl FlushPlan {
    /// Blocks until the disk has it.
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

/// How far a log is on the disk, and what is still to be brought there.
#[derive(Debug)]
pub struct Flushes {
    dir: Arc<Path>,
    /// Every record before it is on the disk.
    recovery_point: i64,
    /// Rolled segments that are not on the disk yet.
    sealed: Vec<Sealed>,
    /// True if names were added to the folder since it was last synced.
    has_new_names: bool,
    /// Told of every flush; made when someone first waits.
    told: Option<watch::Sender<Flushed>>,
    /// True once the state of the disk is unknown.
    is_broken: bool,
    /// Times that the log was cut off: what a flush has begun before says nothing of what came after.
    cuts: u32,
}

impl Flushes {
    /// Creates the flushes of a log that is being opened.
    pub fn new(dir: &Arc<Path>, recovery_point: i64) -> Flushes {
        let (sealed, told) = (Vec::new(), None);
        Flushes { dir: dir.clone(), recovery_point, sealed, has_new_names: true, told, is_broken: false, cuts: 0 }
    }

    /// Every record before it is on the disk.
    pub fn recovery_point(&self) -> i64 {
        self.recovery_point
    }

    /// Times that the log was cut off.
    pub fn cuts(&self) -> u32 {
        self.cuts
    }

    /// Returns true once the state of the disk is unknown.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The next flush covers this segment, too.
    pub fn seal(&mut self, sealed: Sealed) {
        self.sealed.push(sealed);
    }

    /// Returns true if the caller has to wait for the disk, since many segments do.
    pub fn is_crowded(&self) -> bool {
        self.sealed.len() >= SEALED_MAX
    }

    /// The next flush syncs the folder.
    pub fn note_new_names(&mut self) {
        self.has_new_names = true;
    }

    /// The log ends here: no record after it is on the disk.
    pub fn lower(&mut self, log_end: i64) {
        self.recovery_point = self.recovery_point.min(log_end);
    }

    /// The log was cut off. Some wait for the flush of what is gone: they are told that it failed, with those before
    /// them, whom nobody can tell apart.
    pub fn cut(&mut self, log_end: i64) {
        self.told = None;
        self.lower(log_end);
        self.sealed.retain(|sealed| sealed.end_offset <= log_end);
        self.cuts += 1;
        self.has_new_names = true;
    }

    /// Gives up the files of segments that retention has taken away.
    pub fn forget_before(&mut self, log_start: i64) {
        self.sealed.retain(|sealed| sealed.end_offset > log_start);
    }

    /// A flush of all sealed segments, and of the active one where there is one, up to an offset.
    pub fn plan(&mut self, active: Option<Arc<File>>, upto: i64) -> FlushPlan {
        FlushPlan {
            sealed: self.sealed.clone(),
            active,
            dir: std::mem::take(&mut self.has_new_names).then(|| self.dir.clone()),
            upto,
            cuts: self.cuts,
        }
    }

    /// Takes note of a flush that has run. One that could not open something is to be tried again.
    pub fn done(&mut self, plan: &FlushPlan, result: &Result<(), FlushError>) {
        match result {
            // An earlier failure cannot be made good: pages may be gone that this flush knew nothing of.
            Ok(()) if self.is_broken || plan.cuts != self.cuts => {}
            Ok(()) => {
                self.sealed.retain(|sealed| sealed.end_offset > plan.upto);
                self.recovery_point = self.recovery_point.max(plan.upto);
                self.tell(Flushed::Upto(self.recovery_point));
            }
            Err(FlushError::Unopened(_)) => self.has_new_names |= plan.dir.is_some(),
            Err(FlushError::Failed(error)) => self.failed(error),
        }
    }

    /// Takes note of a flush that failed.
    pub fn failed(&mut self, error: &io::Error) {
        tracing::error!(dir = %self.dir.display(), %error, "flush failed, no appends until the next start");
        self.give_up();
    }

    /// No appends from now on, and whoever waits for a flush is told so: what is on the disk is not known any more.
    pub fn give_up(&mut self) {
        self.is_broken = true;
        self.tell(Flushed::Failed);
    }

    /// The topic is deleted, which is on the disk: of what waits for its flush nothing can be lost any more, and who
    /// wrote it need not write it again.
    pub fn went_with_its_topic(&self, log_end: i64) {
        if !self.is_broken {
            self.tell(Flushed::Upto(log_end));
        }
    }

    fn tell(&self, news: Flushed) {
        if let Some(sender) = &self.told {
            sender.send_replace(news);
        }
    }

    /// Resolves when everything before an offset is on the disk, or can never be.
    pub fn ticket(&mut self, upto: i64) -> FlushTicket {
        let now = if self.is_broken { Flushed::Failed } else { Flushed::Upto(self.recovery_point) };
        FlushTicket::new(upto, self.told.get_or_insert_with(|| watch::channel(now).0).subscribe())
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
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut log = Log::open(&folder.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
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
    async fn what_waits_for_its_flush_while_its_topic_is_deleted_is_answered_as_written() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut log =
            Log::open(&folder.path().into(), RecoveryHint::NOTHING, 0, &broker.topics.defaults).expect("opened");
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
        let folder = tempfile::tempdir().expect("temporary folder");
        let dir: Arc<Path> = folder.path().into();
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
