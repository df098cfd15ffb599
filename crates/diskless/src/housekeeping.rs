//! Runs the periodic tasks of diskless topics: retention, expiry of idle producers, and GC of objects. If the broker
//! could not verify the store's ownership marker when it started, another task retries until it can.
//!
//! [`super::retention`] decides which records are too old, and [`super::index`] decides which objects are unused.
//!
//! The broker's runtime may stop a task at any await. The first pass after the restart then does the remaining work.

use fullbore_host::task;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullbore_rules::commit::ObjectId;
use fullbore_wire::Uuid;
use parking_lot::RwLock;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::index::{IndexOwner, UnusedObject};
use super::objects::{ObjectError, Objects};
use super::partition::DisklessPartition;
use super::pipeline::Pipeline;
use fullbore_config::ObjectCleanerConfig;
use fullbore_host::log_rate_limit::LogRateLimit;

/// The partitions of each topic.
pub type DisklessTopics = RwLock<HashMap<Uuid, Vec<Arc<DisklessPartition>>>>;

/// Maximum number of objects of each kind that one query of the index returns to the GC. The kinds are unused objects,
/// objects that were never committed, objects whose DELETE failed, and objects whose second DELETE is due.
const CLEANED_AT_ONCE: usize = 64;
/// Maximum number of objects that the broker remembers after a failed DELETE. The next pass begins with these objects.
/// The index returns all others again later.
const FAILED_MAX: usize = 10_000;
/// Maximum number of concurrent DELETEs. One at a time would be too slow: a broker may put dozens of objects a second,
/// and deletes each of them twice.
const DELETES: usize = 8;
/// How long the task waits between two attempts to verify the store's ownership marker.
const VERIFY_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of a DELETE. Without it, one unanswered DELETE would block the GC forever.
const DELETE_MAX: Duration = Duration::from_secs(10);

/// Spawns the tasks. Must be called within a tokio runtime.
pub fn start(
    topics: &Arc<DisklessTopics>,
    objects: Objects,
    index: IndexOwner,
    retention: RetentionTerms,
    cleaner: ObjectCleanerConfig,
) {
    task::spawn(retain(Arc::downgrade(topics), index.clone(), retention));
    if !objects.ownership().is_verified() {
        task::spawn(verify_ownership(Arc::downgrade(topics), objects.clone()));
    }
    task::spawn(clean(Arc::downgrade(topics), objects, index, cleaner));
}

/// Verifies the store's ownership marker, and retries until this succeeds. Readers that wait for the store need no
/// notification, because they retry by themselves.
async fn verify_ownership(topics: Weak<DisklessTopics>, objects: Objects) {
    let failures = LogRateLimit::default();
    while topics.strong_count() > 0 {
        tokio::time::sleep(VERIFY_INTERVAL).await;
        match objects.verified_in_time().await {
            Ok(()) => return tracing::info!("the object store is in use"),
            Err(error) => {
                if let Some(left_out) = failures.due() {
                    tracing::error!(%error, left_out, "cannot use the object store: this broker's diskless topics accept no records until a retry succeeds; see the error");
                }
            }
        }
    }
}

/// The settings of the retention task, and the pipeline in which it expires idle producers.
pub struct RetentionTerms {
    /// `log.retention.check.interval.ms`.
    pub interval: Duration,
    /// Until this time, in ms since 1970, retention deletes no records.
    pub keeps_records_until_ms: Arc<AtomicI64>,
    /// The pipeline. The task removes idle producers from the pipeline's known states. The index expires producers in
    /// its own rows.
    pub pipeline: Pipeline,
    /// `producer.id.expiration.ms`.
    pub producers_expire_after_ms: Arc<AtomicI64>,
}

/// Deletes old records and forgets idle producers, once per interval. While the index does not answer, passes are
/// skipped, because only the index has the time and the log starts.
async fn retain(topics: Weak<DisklessTopics>, index: IndexOwner, terms: RetentionTerms) {
    loop {
        tokio::time::sleep(terms.interval).await;
        let now_ms = match index.judged_at().await {
            Ok(now_ms) => now_ms,
            Err(_) if topics.strong_count() == 0 => return,
            Err(_) => continue,
        };
        let Some(topics) = topics.upgrade() else { return };
        let partitions: Vec<_> = topics.read().values().flatten().cloned().collect();
        drop(topics);
        if now_ms >= terms.keeps_records_until_ms.load(Ordering::Relaxed) {
            for partition in partitions.iter().filter(|partition| !partition.view.is_gone()) {
                partition.retain(now_ms).await;
            }
        }
        terms.pipeline.expire_producers(now_ms, terms.producers_expire_after_ms.load(Ordering::SeqCst));
    }
}

/// Runs the GC once per interval, as soon as the store's ownership marker is verified.
async fn clean(topics: Weak<DisklessTopics>, objects: Objects, index: IndexOwner, config: ObjectCleanerConfig) {
    let mut cleaner = Cleaner { objects, index, failures: LogRateLimit::default(), failed: VecDeque::new() };
    loop {
        tokio::time::sleep(Duration::from_millis(config.interval_ms)).await;
        if topics.strong_count() == 0 {
            return;
        }
        if cleaner.objects.ownership().is_verified() {
            cleaner.delete_unused(config.retention_period_ms).await;
        }
    }
}

/// Deletes the objects that the index reports as unused.
struct Cleaner {
    objects: Objects,
    index: IndexOwner,
    failures: LogRateLimit,
    /// Objects whose DELETE failed. The next pass deletes them first.
    failed: VecDeque<UnusedObject>,
}

impl Cleaner {
    /// Repeats the failed DELETEs, then deletes the objects that the index returns. A step deletes up to
    /// [`CLEANED_AT_ONCE`] objects of each kind. If all DELETEs of a step fail, the pass ends.
    async fn delete_unused(&mut self, for_ms: u64) {
        for _ in 0..self.failed.len().div_ceil(CLEANED_AT_ONCE) {
            let again: Vec<_> = self.failed.drain(..self.failed.len().min(CLEANED_AT_ONCE)).collect();
            if !self.delete_all(&again).await {
                return;
            }
        }
        // An error of the index ends the pass. Other users of the index log the error.
        while let Ok(unused) = self.index.unused(CLEANED_AT_ONCE, for_ms).await {
            if !self.delete_all(&unused).await || unused.len() < CLEANED_AT_ONCE {
                break;
            }
        }
    }

    /// Sends one DELETE for each object in `unused`. The GC deletes every object twice, and removes it from the index
    /// after the second DELETE. Also records in the index which DELETEs failed. Returns false if no DELETE succeeded.
    async fn delete_all(&mut self, unused: &[UnusedObject]) -> bool {
        let (mut waiting, mut deleting) = (unused.iter().copied(), JoinSet::new());
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let mut is_any = false;
        loop {
            for object in waiting.by_ref().take(DELETES - deleting.len()) {
                let objects = self.objects.clone();
                deleting.spawn(task::boxed(async move { (object, delete(&objects, object.id).await) }));
            }
            match deleting.join_next().await {
                Some(Ok((UnusedObject { id, is_again }, Ok(())))) => {
                    is_any = true;
                    done.extend(is_again.then_some(id));
                }
                Some(Ok((object, Err(error)))) => {
                    failed.push(object.id);
                    if self.failed.len() < FAILED_MAX {
                        self.failed.push_back(object);
                    }
                    if let Some(left_out) = self.failures.due() {
                        tracing::warn!(%error, left_out, "cannot delete an unused object: the GC retries; check the store");
                    }
                }
                Some(Err(_)) => {}
                None => break,
            }
        }
        if !done.is_empty() {
            self.index.forget(done);
        }
        if !failed.is_empty() {
            self.index.delete_failed(failed);
        }
        is_any
    }
}

async fn delete(objects: &Objects, id: ObjectId) -> Result<(), ObjectError> {
    let late = |_| ObjectError::Unavailable(format!("no answer to a DELETE within {} s", DELETE_MAX.as_secs()));
    timeout(DELETE_MAX, objects.delete(id)).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use fullbore_tests::s3::{S3, S3Fault};

    use super::super::index::temp_index::TempIndex;
    use super::super::objects::BodyProgress;
    use super::super::objects::double::{StoreDouble, s3_storage};
    use super::*;
    use fullbore_config::DisklessStorage;

    fn cleaner(objects: &Objects, index: &TempIndex) -> Cleaner {
        let objects = objects.clone();
        Cleaner { objects, index: index.owner(), failures: LogRateLimit::default(), failed: VecDeque::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn many_objects_are_deleted_in_less_time_than_one_after_the_other() {
        let (objects, index) =
            (Objects::over(StoreDouble::taking(Duration::from_millis(50)), "one"), TempIndex::empty());
        for id in 0..3 {
            objects.put(id, vec!["some".into()], BodyProgress::default()).await.expect("put");
        }
        let unused: Vec<_> = (0..64).map(|id| UnusedObject { id, is_again: id % 2 == 1 }).collect();
        let began = tokio::time::Instant::now();
        assert!(cleaner(&objects, &index).delete_all(&unused).await);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(objects.get(2, 0..1, BodyProgress::default()).await, Err(ObjectError::NotFound(2)));
    }

    #[tokio::test]
    async fn delete_fails_twice_the_next_pass_deletes_the_object() {
        let (s3, index) = (S3::start(), TempIndex::empty());
        let objects = Objects::open(&DisklessStorage::S3(s3_storage(&s3)), "one", index.owner()).await.expect("opened");
        for id in 1..3 {
            objects.put(id, vec!["some".into()], BodyProgress::default()).await.expect("put");
        }
        let mut cleaner = cleaner(&objects, &index);
        s3.every("DELETE", S3Fault::Status(403, "AccessDenied"));
        let unused = [1, 2].map(|id| UnusedObject { id, is_again: id == 2 });
        assert!(!cleaner.delete_all(&unused).await);
        cleaner.delete_unused(60_000).await;
        assert_eq!(cleaner.failed.len(), 2, "they failed again");
        s3.heal();
        cleaner.delete_unused(60_000).await;
        assert_eq!(cleaner.failed.len(), 0);
        for id in 1..3 {
            assert_eq!(objects.get(id, 0..1, BodyProgress::default()).await, Err(ObjectError::NotFound(id)));
        }
    }

    #[tokio::test]
    async fn a_delete_that_hangs_is_given_up() {
        let (s3, index) = (S3::start(), TempIndex::empty());
        let objects = Objects::open(&DisklessStorage::S3(s3_storage(&s3)), "one", index.owner()).await.expect("opened");
        objects.put(1, vec!["some".into()], BodyProgress::default()).await.expect("put");
        s3.next("DELETE", S3Fault::Hang);
        let before = s3.requests("DELETE");
        let deleting = tokio::spawn({
            let objects = objects.clone();
            async move { delete(&objects, 1).await }
        });
        while s3.requests("DELETE") == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // From here on every task waits, so the paused clock jumps to the time limit of the DELETE.
        tokio::time::pause();
        let late = deleting.await.expect("no panic").expect_err("no answer");
        assert_eq!(late.to_string(), "the object store fails: no answer to a DELETE within 10 s");
        tokio::time::resume();
        assert_eq!(delete(&objects, 1).await, Ok(()));
        assert_eq!(objects.get(1, 0..1, BodyProgress::default()).await, Err(ObjectError::NotFound(1)));
    }
}
