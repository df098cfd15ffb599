//! An index with faults, and the driver that answers the requests to this index.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_rules::commit::{DisklessPartitionId, ObjectId};
use fullbore_tests::Random;
use fullbore_wire::Uuid;
use parking_lot::Mutex;

use super::Fault;
use super::world::{World, ms, random};
use crate::index::manual_index::{CommitAnswerer, ManualIndex, Turn};
use crate::index::{
    ChangeSource, ClassicTails, CommitFound, CommitQuestion, CommitWrite, IndexStore, KnownStore, PartitionRow,
    ProducerRow, ProducerRowPlace, SqliteIndex, UnusedObject, UploadedObject,
};
use fullbore_db::{CommitError, StoreError};

/// The fault that the next transaction will have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StoreFault {
    #[default]
    None,
    /// The transaction cannot begin.
    Away,
    /// The transaction is not committed.
    Refused,
    /// The transaction is not committed, and the caller does not learn this.
    UnknownNotMade,
    /// The transaction is committed, but the caller does not learn this.
    UnknownMade,
}

/// The driver's plan for the next transaction.
#[derive(Default)]
struct Plan {
    fault: StoreFault,
    /// True if a commit is answered as if it had been made, but only stored in `postponed`.
    postpones: bool,
    postponed: Option<CommitWrite>,
}

/// A SQLite index whose transactions have the faults of the plan.
pub struct TroubledIndex {
    inner: SqliteIndex,
    plan: Arc<Mutex<Plan>>,
    world: Arc<World>,
}

/// A change feed that compares all rows with those of the previous poll to find changes.
pub struct PolledChanges {
    world: Arc<World>,
    index: SqliteIndex,
    seen: HashMap<DisklessPartitionId, PartitionRow>,
}

impl PolledChanges {
    pub fn new(world: &Arc<World>) -> PolledChanges {
        let index = SqliteIndex::open(&world.directory).expect("opened");
        PolledChanges { world: Arc::clone(world), index, seen: HashMap::new() }
    }
}

impl ChangeSource for PolledChanges {
    fn changed(&mut self) -> Result<Vec<PartitionRow>, StoreError> {
        if self.world.out_until(true).is_some() {
            return Err(away());
        }
        let rows = self.index.partitions();
        Ok(rows.into_iter().filter(|row| self.seen.insert(row.id, *row) != Some(*row)).collect())
    }
}

/// The driver, which answers the requests to the index.
pub struct Driver {
    world: Arc<World>,
    index: ManualIndex<TroubledIndex>,
    plan: Arc<Mutex<Plan>>,
    by: Random,
}

impl TroubledIndex {
    fn fault(&self) -> StoreFault {
        std::mem::take(&mut self.plan.lock().fault)
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut SqliteIndex) -> Result<T, CommitError>) -> Result<T, CommitError> {
        match self.fault() {
            StoreFault::None => change(&mut self.inner),
            StoreFault::Away | StoreFault::Refused => Err(CommitError::Refused(away())),
            StoreFault::UnknownNotMade => Err(unknown()),
            StoreFault::UnknownMade => change(&mut self.inner).and_then(|_| Err(unknown())),
        }
    }
}

fn away() -> StoreError {
    StoreError::Away("the index is away".into())
}

fn unknown() -> CommitError {
    CommitError::Unknown("the answer is lost".into())
}

impl IndexStore for TroubledIndex {
    fn begin(&mut self, question: &CommitQuestion) -> Result<CommitFound, StoreError> {
        if self.plan.lock().fault == StoreFault::Away {
            self.fault();
            return Err(away());
        }
        self.inner.begin(question)
    }

    fn commit(&mut self, write: &CommitWrite) -> Result<(), CommitError> {
        if self.plan.lock().postpones {
            self.inner.abandon();
            self.plan.lock().postponed = Some(write.clone());
            return Ok(());
        }
        match self.fault() {
            StoreFault::None => self.inner.commit(write),
            StoreFault::UnknownMade => self.inner.commit(write).and_then(|()| Err(unknown())),
            fault => {
                self.inner.abandon();
                Err(if fault == StoreFault::Refused { CommitError::Refused(away()) } else { unknown() })
            }
        }
    }

    fn abandon(&mut self) {
        self.fault();
        self.inner.abandon();
    }

    fn register(&mut self, count: usize, now_ms: i64) -> Result<Vec<ObjectId>, CommitError> {
        self.change(|inner| inner.register(count, now_ms))
    }

    fn create(&mut self, name: &str, topic_id: Uuid, count: i32) -> Result<Vec<PartitionRow>, CommitError> {
        self.fault();
        // Like the index in PostgreSQL, this index knows which topics exist. A broker that has not learned of a
        // deletion may still request the creation of the topic. The index then creates nothing.
        if self.world.topic.lock().current != Some(topic_id) {
            return Ok(Vec::new());
        }
        let mut rows = self.inner.create(name, topic_id, count)?;
        // Simulates that producers were forgotten because there were too many.
        if self.world.setup.has_forgotten {
            self.inner.have_forgotten();
            rows.iter_mut().for_each(|row| row.has_forgotten = true);
        }
        Ok(rows)
    }

    fn succeed_classic(&mut self, name: &str, topic_id: Uuid, before: &[ClassicTails]) -> Result<(), CommitError> {
        self.inner.succeed_classic(name, topic_id, before)
    }

    fn predecessors(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<ProducerRow>, StoreError> {
        self.inner.predecessors(ids)
    }

    fn delete(&mut self, topic_id: Uuid, known: &[DisklessPartitionId]) -> Result<(), CommitError> {
        self.fault();
        self.inner.delete(topic_id, known)
    }

    fn move_log_starts(
        &mut self,
        moves: &[(DisklessPartitionId, i64)],
    ) -> Result<Vec<Option<PartitionRow>>, CommitError> {
        self.change(|inner| inner.move_log_starts(moves))
    }

    fn clear(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError> {
        self.change(|inner| inner.clear(runs_max, now_ms))
    }

    fn retain_batches(&mut self, partitions: &[DisklessPartitionId], window: usize) -> Result<(), CommitError> {
        self.inner.retain_batches(partitions, window)
    }

    fn expire_producers(
        &mut self,
        after: DisklessPartitionId,
        before_ms: i64,
        producers_max: usize,
    ) -> Result<Option<(DisklessPartitionId, bool)>, CommitError> {
        self.change(|inner| inner.expire_producers(after, before_ms, producers_max))
    }

    fn producers_from(
        &mut self,
        id: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<ProducerRowPlace>, StoreError> {
        self.inner.producers_from(id, offset, count)
    }

    fn remove_producers(&mut self, id: DisklessPartitionId, base_offsets: &[i64]) -> Result<(), CommitError> {
        self.change(|inner| inner.remove_producers(id, base_offsets))
    }

    fn unused(&mut self, count: usize, for_ms: u64, now_ms: i64) -> Result<Vec<UnusedObject>, CommitError> {
        self.change(|inner| inner.unused(count, for_ms, now_ms))
    }

    fn delete_failed(&mut self, ids: &[ObjectId], now_ms: i64) -> Result<(), CommitError> {
        self.change(|inner| inner.delete_failed(ids, now_ms))
    }

    fn forget(&mut self, ids: &[ObjectId]) -> Result<(), CommitError> {
        self.change(|inner| inner.forget(ids))
    }

    fn known_store(&mut self) -> Result<KnownStore, StoreError> {
        self.inner.known_store()
    }

    fn adopt_store(&mut self, store_id: &str) -> Result<String, CommitError> {
        self.change(|inner| inner.adopt_store(store_id))
    }
}

impl Driver {
    /// Opens the index in the schedule's directory. Returns its handle and its driver.
    pub fn open(world: &Arc<World>, life: u64) -> (crate::index::IndexOwner, Driver) {
        let plan = Arc::<Mutex<Plan>>::default();
        // Each life of the process has its own object numbers. They are the same in each run of the schedule.
        let inner = SqliteIndex::open(&world.directory).expect("opened").numbered_from((life as u32) << 16);
        let store = TroubledIndex { inner, plan: Arc::clone(&plan), world: Arc::clone(world) };
        let index = crate::index::Index::new(store, world.setup.window);
        let (owner, index) = ManualIndex::new(index);
        let by = random(world.setup.seed, 100 + life);
        (owner, Driver { world: Arc::clone(world), index, plan, by })
    }

    /// Answers requests until the process ends.
    pub async fn run(mut self) {
        loop {
            match self.index.turn().await {
                Turn::Commit(objects, answer) => self.commit(objects, answer).await,
                Turn::Other(other) => {
                    self.take_time().await;
                    self.index.carry_out(other, self.world.wall_ms());
                }
                Turn::Idle => {
                    self.plan_luck();
                    self.index.tidy(self.world.wall_ms());
                }
            }
        }
    }

    fn plan_luck(&mut self) {
        let bad = [StoreFault::Away, StoreFault::Refused, StoreFault::UnknownNotMade, StoreFault::UnknownMade];
        let fault = match self.world.strikes(&mut self.by, self.world.setup.index_trouble) {
            true => bad[self.by.below(bad.len())],
            false if self.world.out_until(true).is_some() => StoreFault::Away,
            false => StoreFault::None,
        };
        if fault != StoreFault::None {
            self.world.trouble();
        }
        self.plan.lock().fault = fault;
    }

    /// Waits before a transaction, sometimes for seconds, and then draws a random fault for it.
    async fn take_time(&mut self) {
        let is_slow = self.world.strikes(&mut self.by, self.world.setup.index_trouble * 2);
        let _trouble = is_slow.then(|| self.world.lasting_trouble());
        let takes = self.by.below(if is_slow { 3_000 } else { 6 });
        tokio::time::sleep(ms(takes)).await;
        self.plan_luck();
    }

    async fn commit(&mut self, mut objects: Vec<UploadedObject>, answer: CommitAnswerer) {
        self.take_time().await;
        let fault = self.world.setup.fault;
        let is_reversed = fault == Some(Fault::CommitsOutOfOrder);
        if is_reversed {
            objects.reverse();
        }
        self.plan.lock().postpones = fault == Some(Fault::AnswersBeforeCommit);
        let fault = self.plan.lock().fault;
        let mut committed = self.index.commit(&objects, self.world.wall_ms());
        if let Ok(committed) = &mut committed
            && is_reversed
        {
            committed.verdicts.reverse();
        }
        let ids: Vec<_> = objects.iter().map(|object| object.id).collect();
        self.world.report(|| format!("commit of {ids:?} {fault:?}: {:?}", committed.as_ref().map(|of| &of.verdicts)));
        let postponed = self.plan.lock().postponed.take();
        let after = ms(self.by.below(6));
        if let Some(write) = postponed {
            let _ = answer.send(committed);
            tokio::time::sleep(after).await;
            self.commit_at_last(&write);
            return;
        }
        // If the process ends during this pause, the commit is not answered.
        tokio::time::sleep(after).await;
        let _ = answer.send(committed);
    }

    fn commit_at_last(&mut self, write: &CommitWrite) {
        let nothing = CommitQuestion { partitions: Vec::new(), objects: Vec::new() };
        self.plan.lock().postpones = false;
        self.index.with_store(|store| {
            if store.inner.begin(&nothing).is_ok() {
                let _ = store.inner.commit(write);
            }
        });
    }
}
