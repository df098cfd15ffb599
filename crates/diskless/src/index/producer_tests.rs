//! Tests producers in the index on each back end: after the deletion of their partition, after the removal of their old
//! rows, and at their expiry.

mod expiry;
mod old_rows;
mod recreated;

use fullbore_rules::commit::{CommitVerdict, DisklessPartitionId, Refusal};
use fullbore_rules::sequence::{PRODUCERS_MAX, SequenceRefusal, Stamp};
use fullbore_wire::Uuid;

use super::postgres::tests::PostgresBackEnd;
use super::tests::{BackEnd, NOW, Opened, SqliteBackEnd, appended, batch, by, on_each_back_end};
use super::{Index, IndexStore, UploadedObject};

/// Deletes the topic and creates it again. Returns its first partition.
fn make_again<B: BackEnd>(opened: &mut Opened<B>, life: u8, is_deleted_first: bool) -> DisklessPartitionId {
    let (old, new) = (Uuid([life; 16]), Uuid([life + 1; 16]));
    opened.back_end.add_topic("topic", new);
    let mut other = opened.back_end.store();
    if is_deleted_first {
        opened.index.store.delete(old, &[]).expect("deleted");
    }
    let made = other.create("topic", new, 2).expect("made");
    // Only now does the first broker learn of the deletion.
    opened.index.store.delete(old, &[]).expect("deleted");
    assert_eq!(opened.index.store.create("topic", new, 2).expect("made"), made);
    made[0].id
}

fn tails_left<B: BackEnd>(index: &mut Index<B::Store>, partition: DisklessPartitionId) -> usize {
    index.refresh_one(partition, 0).expect("known").expect("there").predecessor.len()
}

fn tidy_at<B: BackEnd>(index: &mut Index<B::Store>, now_ms: i64) {
    while index.tidy(10, now_ms).expect("tidied") {}
}
