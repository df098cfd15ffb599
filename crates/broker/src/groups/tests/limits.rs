//! Tests the limits of the committed offsets of all groups together.

use super::*;

#[tokio::test]
async fn offsets_at_their_limit_refuse_only_new_partitions() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "fullbore.offsets.max=3").await;
    let t = opened.topic("t").await;
    let all = (0..5).map(|partition| one(&t, partition, committed(1, 1))).collect();
    let full = ErrorCode::INVALID_COMMIT_OFFSET_SIZE;
    // The first commit counts while it is still in flight.
    let (first, second) = (opened.request("g", all), opened.request("h", vec![one(&t, 0, committed(2, 2))]));
    assert_eq!(first.done().await, Ok(vec![(3, full), (4, full)]));
    assert_eq!(second.done().await, Ok(vec![(0, full)]));
    assert_eq!(opened.commit("g", vec![one(&t, 0, committed(2, 2)), one(&t, 3, committed(2, 2))]).await, [(1, full)]);
    opened.forget("g", deletion(&t, 1, None)).kept().await.expect("kept").expect("kept");
    assert_eq!(opened.commit("h", vec![one(&t, 0, committed(3, 3))]).await, []);
    assert_eq!((opened.held(), opened.get("g", &t, 0)), (3, Some(committed(2, 2))));
}

#[tokio::test]
async fn metadata_at_its_limit_refuses_only_longer_metadata() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "fullbore.offsets.metadata.bytes.max=10").await;
    let t = opened.topic("t").await;
    let with = |partition, bytes: usize| {
        let metadata = "m".repeat(bytes).into_boxed_str();
        one(&t, partition, OffsetAndMetadata { metadata, ..committed(1, 1) })
    };
    let full = ErrorCode::INVALID_COMMIT_OFFSET_SIZE;
    // The metadata of the first commit counts while it is still in flight.
    let (first, second) = (opened.request("g", vec![with(0, 4), with(1, 7)]), opened.request("h", vec![with(0, 7)]));
    assert_eq!((first.done().await, second.done().await), (Ok(vec![(1, full)]), Ok(vec![(0, full)])));
    assert_eq!(opened.commit("h", vec![with(0, 6), with(1, 0)]).await, []);
    assert_eq!(opened.commit("g", vec![with(0, 5), with(1, 1), with(2, 0)]).await, [(0, full), (1, full)]);
    assert_eq!(opened.commit("g", vec![with(0, 4)]).await, [], "as long as before");
    // `shorter` frees four bytes of metadata. But `longer`, which is in flight for the same partition, needs them, so a
    // third commit must not get them.
    let (shorter, longer) = (opened.request("g", vec![with(0, 0)]), opened.request("g", vec![with(0, 4)]));
    shorter.done().await.expect("kept");
    let other = opened.commit("h", vec![with(2, 4)]).await;
    longer.done().await.expect("kept");
    assert_eq!((other, opened.groups.offsets.metadata_bytes()), (vec![(0, full)], 10));
    opened.forget("h", deletion(&t, 0, None)).kept().await.expect("kept").expect("kept");
    assert_eq!(opened.commit("i", vec![with(0, 6)]).await, []);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!((opened.groups.offsets.metadata_bytes(), opened.held()), (10, 4));
    for group in ["g", "h", "i"] {
        opened.groups.delete(group, true).await.expect("deleted");
    }
    assert_eq!((opened.groups.offsets.metadata_bytes(), opened.held()), (0, 0));
}

#[tokio::test]
async fn commit_without_a_written_offset_creates_no_group() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "fullbore.offsets.max=1").await;
    let t = opened.topic("t").await;
    // These commits have no offsets, as if the metadata of each had been too large. Such a commit must not create a
    // group.
    assert_eq!(opened.commit("none", vec![]).await, []);
    assert!(opened.groups.ids().is_empty());
    assert_eq!(opened.commit("g", vec![one(&t, 0, committed(1, 1))]).await, []);
    let full = ErrorCode::INVALID_COMMIT_OFFSET_SIZE;
    assert_eq!(opened.commit("full", vec![one(&t, 0, committed(1, 1))]).await, [(0, full)]);
    assert_eq!(opened.groups.ids(), ["g"]);
    // A group that already exists stays, although the commit writes nothing.
    opened.forget("g", deletion(&t, 0, None)).kept().await.expect("kept").expect("kept");
    assert_eq!(opened.commit("g", vec![]).await, []);
    assert_eq!(opened.groups.ids(), ["g"]);
}
