//! Reads of objects whose store is emptied, or cuts its responses short.

use super::*;

/// A reader could otherwise skip records that are not lost, because a check a moment ago has seen the marker.
#[tokio::test]
async fn bucket_was_checked_and_is_then_emptied_its_objects_are_not_lost() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    objects.put(1, parts(), BodyProgress::default()).await.expect("put");
    let (place, aside) = (s3.directory().join("some"), s3.directory().join("aside"));
    fs::rename(&place, &aside).expect("moved");
    let failed = objects.get(1, 0..9, BodyProgress::default()).await.expect_err("it was emptied");
    assert!(failed.is_retriable(), "{failed}");
    fs::rename(&aside, &place).expect("moved back");
    assert_eq!(objects.get(1, 0..9, BodyProgress::default()).await, Ok(Bytes::from_static(b"something")));
    assert_eq!(objects.get(2, 0..9, BodyProgress::default()).await, Err(ObjectError::NotFound(2)));
}

#[tokio::test]
async fn responses_are_cut_short_only_the_rest_is_requested() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    // The server sends at least a part of each half, because its buffer for a response is smaller.
    let content = Bytes::from_iter((0..4 << 20_u32).map(|at| (at % 251) as u8));
    objects.put(1, vec![content.clone()], BodyProgress::default()).await.expect("put");
    let before = s3.requests("GET");
    (0..2).for_each(|_| s3.next("GET", S3Fault::Reset));
    let range = 1000..content.len() as u32;
    let got = objects.get(1, range.clone(), BodyProgress::default()).await.expect("the rest is requested");
    assert!(got == content.slice(1000..), "got {} bytes, which differ", got.len());
    assert_eq!(s3.requests("GET") - before, 3);
    s3.every("GET", S3Fault::Status(503, "SlowDown"));
    let before = s3.requests("GET");
    assert!(objects.get(1, range, BodyProgress::default()).await.expect_err("refused").is_retriable());
    assert_eq!(s3.requests("GET") - before, 1, "a response without bytes is not continued");
}

/// The bytes of the beginning must not be taken for those of the range.
#[tokio::test]
async fn store_returns_more_than_the_range_nothing_is_read() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    let content = Bytes::from_iter((0..4 << 20_u32).map(|at| (at % 251) as u8));
    objects.put(1, vec![content.clone()], BodyProgress::default()).await.expect("put");
    s3.every("GET", S3Fault::NoRanges);
    let before = s3.requests("GET");
    let range = 1 << 20..content.len() as u32;
    assert!(objects.get(1, range, BodyProgress::default()).await.expect_err("too much").is_retriable());
    assert_eq!(s3.requests("GET") - before, 1);
}

/// Regression test: a body that was cut without an error counted as the end of its object, and its records as lost.
#[tokio::test]
async fn bodies_are_cut_and_their_lengths_fit_the_object_does_not_end_there() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    let content = Bytes::from_iter((0..1 << 20_u32).map(|at| (at % 251) as u8));
    objects.put(1, vec![content.clone()], BodyProgress::default()).await.expect("put");
    let before = s3.requests("GET");
    (0..2).for_each(|_| s3.next("GET", S3Fault::Cut));
    let beyond = 1000..2 * content.len() as u32;
    let got = objects.get(1, beyond, BodyProgress::default()).await.expect("the rest is requested");
    assert!(got == content.slice(1000..), "got {} bytes, which differ", got.len());
    assert_eq!(s3.requests("GET") - before, 3);
    s3.every("GET", S3Fault::Cut);
    let failed = objects.get(1, 0..1 << 20, BodyProgress::default()).await.expect_err("always cut");
    assert!(matches!(failed, ObjectError::Unavailable(_)), "{failed:?}");
    s3.heal();
    let end = content.len() as u32;
    let short = objects.get(1, end..end + 1, BodyProgress::default()).await;
    assert_eq!(short, Err(ObjectError::Short { id: 1, end }), "the object does end here");
}
