use std::fs;
use std::path::{Path as FilePath, PathBuf};

use fullbore_tests::s3::{S3, S3Fault};
use fullbore_tls::Secret;

use super::*;
use crate::config::S3Storage;

async fn folder(folder: &FilePath, cluster_id: &str) -> Result<Objects, StartObjectsError> {
    Objects::open(&DisklessStorage::Folder(folder.into()), cluster_id).await
}

fn storage(s3: &S3) -> S3Storage {
    S3Storage {
        bucket: S3::BUCKET.into(),
        prefix: "some/where".into(),
        endpoint: Some(s3.endpoint()),
        region: None,
        is_path_style: true,
        credentials: Some((S3::KEY_ID.into(), Secret::from(S3::SECRET.to_owned()))),
    }
}

async fn open(storage: S3Storage, cluster_id: &str) -> Result<Objects, String> {
    Objects::open(&DisklessStorage::S3(storage), cluster_id).await.map_err(|error| error.to_string())
}

fn parts() -> Vec<Bytes> {
    vec![Bytes::from_static(b"some"), Bytes::from_static(b"thing")]
}

async fn is_there_until_it_is_deleted(opened: impl AsyncFn() -> Objects) {
    let objects = opened().await;
    let twice = tokio::join!(objects.put(7, parts()), objects.put(7, parts()));
    assert_eq!(twice, (Ok(()), Ok(())));
    let objects = opened().await;
    assert_eq!(objects.get(7, 2..6).await, Ok(Bytes::from_static(b"meth")));
    assert_eq!(objects.get(7, 4..100).await, Ok(Bytes::from_static(b"thing")), "up to its end");
    assert_eq!(objects.get(8, 0..1).await, Err(ObjectError::NotFound(8)));
    assert_eq!((objects.delete(7).await, objects.delete(7).await), (Ok(()), Ok(())));
    assert_eq!(objects.get(7, 0..1).await, Err(ObjectError::NotFound(7)));
}

#[tokio::test]
async fn an_object_is_in_its_folder_until_it_is_deleted() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let path = temporary.path().join("made/here");
    is_there_until_it_is_deleted(async || folder(&path, "one").await.expect("opened")).await;
}

#[tokio::test]
async fn an_object_is_in_its_bucket_until_it_is_deleted() {
    let s3 = S3::start();
    is_there_until_it_is_deleted(async || open(storage(&s3), "one").await.expect("opened")).await;
}

#[tokio::test]
async fn another_clusters_store_is_refused() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    folder(temporary.path(), "one").await.expect("opened");
    let refused = folder(temporary.path(), "other").await.err().expect("refused").to_string();
    assert!(refused.ends_with(": it has objects of the cluster one, and this is other"), "{refused}");

    let s3 = S3::start();
    open(storage(&s3), "one").await.expect("opened");
    let refused = open(storage(&s3), "other").await.err().expect("refused");
    let says = "diskless.storage=s3://objects/some/where: it has objects of the cluster one, and this is other";
    assert_eq!(refused, says);
    let elsewhere = S3Storage { prefix: String::new(), ..storage(&s3) };
    open(elsewhere, "other").await.expect("another prefix");
}

#[tokio::test]
async fn two_stores_of_a_cluster_are_told_apart_unless_a_claim_has_no_number() {
    let [one, other, older] = [(); 3].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let id = async |at: &tempfile::TempDir| {
        let objects = folder(at.path(), "one").await.expect("opened");
        objects.store_id().map(str::to_owned)
    };
    let first = id(&one).await;
    assert!(first.is_some() && id(&one).await == first);
    assert_ne!(id(&other).await, first);
    // As one that an older version has made, or that found no room.
    std::fs::write(older.path().join("cluster"), "one").expect("written");
    assert_eq!(id(&older).await, None);
}

#[tokio::test(start_paused = true)]
async fn of_two_clusters_that_claim_at_once_one_is_refused() {
    let store = double::StoreDouble::taking(Duration::from_millis(10));
    let below = |cluster_id| Objects::below(store.clone(), Path::from("some/where"), cluster_id, false);
    let (one, other, again) = (below("one"), below("other"), below("one"));
    let (one, other, again) = tokio::join!(one.claimed(), other.claimed(), again.claimed());
    assert_eq!((one, again), (Ok(()), Ok(())));
    assert!(matches!(other, Err(ObjectError::OtherCluster { .. })), "{other:?}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_refused() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    fs::write(temporary.path().join("file"), b"").expect("written");
    let path: PathBuf = temporary.path().join("file/in");
    let refused = folder(&path, "one").await.err().expect("refused").to_string();
    assert!(refused.contains("diskless.storage=") && refused.contains("file/in"), "{refused}");
}

#[tokio::test]
async fn a_store_that_refuses_says_why_in_its_own_words() {
    let s3 = S3::start();
    let right = storage(&s3);
    let key = |id: &str, secret: &str| Some((id.to_owned(), Secret::from(secret.to_owned())));
    for (wrong, says) in [
        (S3Storage { credentials: key("stranger", S3::SECRET), ..right.clone() }, "NotSignedUp"),
        (S3Storage { credentials: key(S3::KEY_ID, "TOPSECRET"), ..right.clone() }, "SignatureDoesNotMatch"),
    ] {
        let refused = open(wrong, "one").await.err().expect(says);
        assert!(refused.contains(says) && !refused.contains("TOPSECRET"), "{refused}");
        assert!(!refused.contains('<'), "{refused}");
    }
    for (method, may) in [("GET", "read"), ("PUT", "write"), ("DELETE", "delete")] {
        s3.every(method, S3Fault::Status(403, "AccessDenied"));
        let refused = open(right.clone(), "one").await.err().expect(may);
        assert!(refused.contains("AccessDenied"), "{may}: {refused}");
        s3.heal();
    }
    for (status, code) in [(404, "NoSuchBucket"), (403, "RequestTimeTooSkewed"), (400, "AuthorizationHeaderMalformed")]
    {
        s3.every("GET", S3Fault::Status(status, code));
        let refused = open(right.clone(), "one").await.err().expect(code);
        assert!(refused.ends_with(&format!("{code}: It is a test.")), "{refused}");
    }
}

#[tokio::test]
async fn a_store_that_is_not_there_is_waited_for() {
    let s3 = S3::start();
    s3.every("GET", S3Fault::Status(503, "SlowDown"));
    let objects = open(storage(&s3), "one").await.expect("it starts");
    let refused = objects.put(1, parts()).await.expect_err("not yet");
    assert!(refused.is_retriable() && refused.to_string().contains("SlowDown"), "{refused}");
    s3.heal();
    assert_eq!(objects.put(1, parts()).await, Ok(()));
    // It comes to be another cluster's, or nobody is at its address.
    s3.every("GET", S3Fault::Reset);
    let late = open(storage(&s3), "other").await.expect("it starts");
    s3.heal();
    let refused = late.put(1, parts()).await.expect_err("another's");
    assert!(matches!(refused, ObjectError::OtherCluster { .. }), "{refused}");
    let endpoint = Some("http://127.0.0.1:9".to_owned());
    let nowhere = open(S3Storage { endpoint, ..storage(&s3) }, "one").await.expect("it starts");
    let refused = nowhere.put(1, parts()).await.expect_err("nobody there");
    assert!(refused.is_retriable() && refused.to_string().contains("refused"), "{refused}");
}

#[tokio::test]
async fn a_fault_of_one_request_is_an_error_that_may_be_tried_again() {
    let s3 = S3::start();
    let objects = open(storage(&s3), "one").await.expect("opened");
    let large = || vec![Bytes::from(vec![7; 1 << 20])];
    for fault in
        [S3Fault::Status(500, "InternalError"), S3Fault::Status(503, "SlowDown"), S3Fault::Reset, S3Fault::AnswerLost]
    {
        s3.next("PUT", fault);
        let failed = objects.put(1, large()).await.expect_err("a fault");
        assert!(failed.is_retriable(), "{fault:?}: {failed}");
        assert_eq!(objects.put(1, large()).await, Ok(()), "{fault:?}");
        s3.next("GET", fault);
        let get = timeout(Duration::from_secs(30), objects.get(1, 0..1 << 20)).await;
        let failed = get.expect("an answer").expect_err("a fault");
        assert!(failed.is_retriable(), "{fault:?}: {failed}");
        assert_eq!(objects.get(1, 0..1 << 20).await.map(|got| got.len()), Ok(1 << 20), "{fault:?}");
    }
    s3.next("PUT", S3Fault::Hang);
    let hangs = timeout(Duration::from_millis(100), objects.put(1, large())).await;
    assert!(hangs.is_err(), "and it is given up");
    assert_eq!(objects.put(1, large()).await, Ok(()));
}
