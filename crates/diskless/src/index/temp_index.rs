//! An index in a temporary directory that belongs to one test, with a running thread.

use fullbore_rules::commit::{BatchKind, ObjectBatch, ObjectId};
use fullbore_rules::sequence::Stamp;
use fullbore_wire::Uuid;
use tempfile::TempDir;

use super::{Index, IndexOwner, IndexStore, IndexThread, SqliteIndex, UploadedObject};

/// An index in a temporary directory.
pub struct TempIndex {
    owner: IndexOwner,
    _thread: IndexThread,
    directory: TempDir,
}

impl TempIndex {
    /// Creates an empty index.
    pub fn empty() -> TempIndex {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = SqliteIndex::open(directory.path()).expect("made");
        let (owner, thread) = IndexOwner::start(Index::new(store, 5)).expect("started");
        TempIndex { owner, _thread: thread, directory }
    }

    /// Returns a handle of the index.
    pub fn owner(&self) -> IndexOwner {
        self.owner.clone()
    }

    /// Commits one object without uploading it, and returns its id.
    pub fn commit_object(&self) -> ObjectId {
        let mut store = SqliteIndex::open(self.directory.path()).expect("opened");
        let partition = store.create("topic", Uuid([1; 16]), 1).expect("made")[0].id;
        let object = store.register(1, 0).expect("registered")[0];
        let stamp = Stamp { producer_id: -1, producer_epoch: -1, base_sequence: -1, record_count: 1 };
        let batches = vec![ObjectBatch {
            partition,
            position: 0,
            size: 100,
            stamp,
            max_timestamp: 0,
            kind: BatchKind::Plain,
            confirmation: None,
        }];
        Index::new(store, 5).commit(&[UploadedObject { id: object, batches }], 0).expect("committed");
        object
    }
}
