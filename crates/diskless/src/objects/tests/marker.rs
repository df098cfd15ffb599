//! Tests requests to a store whose ownership marker is gone or meets a conflict.

use super::*;

/// Regression: the marker was checked less than 10 s before, so the object counted as deleted.
#[tokio::test]
async fn bucket_is_emptied_after_the_last_check_a_missing_object_is_not_deleted() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    objects.put(1, parts(), BodyProgress::default()).await.expect("put");
    let (place, aside) = (s3.directory().join("some"), s3.directory().join("aside"));
    fs::rename(&place, &aside).expect("moved");
    s3.every("DELETE", S3Fault::Status(404, "NoSuchKey"));
    let refused = objects.delete(1).await.expect_err("it was emptied");
    assert!(
        refused.is_retriable() && refused.to_string().contains("the store's ownership marker is gone"),
        "{refused}"
    );
    fs::rename(&aside, &place).expect("moved back");
    assert_eq!(objects.delete(1).await, Ok(()), "only the object is missing");
    s3.heal();
    assert_eq!(objects.delete(1).await, Ok(()));
}

/// Regression: the answer counted as a proof that the store has the marker of another cluster.
#[tokio::test]
async fn put_of_the_marker_meets_a_conflict_a_later_put_verifies_it() {
    for code in ["OperationAborted", "ConditionalRequestConflict"] {
        let (s3, index) = (S3::start(), TempIndex::empty());
        s3.every("PUT", S3Fault::Status(409, code));
        let objects = open(storage(&s3), "one", &index).await.expect("it may succeed later");
        assert!(!objects.ownership().is_verified(), "{code}");
        s3.heal();
        assert_eq!(objects.put(1, parts(), BodyProgress::default()).await, Ok(()), "{code}");
    }
}
