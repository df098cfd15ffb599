//! Wrong answers of a store, or of a proxy in front of the store.

use hyper::{Request, StatusCode};
use object_store::ClientOptions;
use object_store::client::{HttpConnector, HttpRequestBody};

use super::*;

/// Regression test: with the status 303, the client sent a GET, and took its page for the result of the PUT.
#[tokio::test]
async fn request_is_redirected_it_is_refused_and_names_the_host() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    objects.put(1, parts(), BodyProgress::default()).await.expect("put");
    for status in [301, 302, 303, 307, 308] {
        s3.next("PUT", S3Fault::Redirect(status));
        let put = objects.put(2, parts(), BodyProgress::default()).await;
        s3.next("GET", S3Fault::Redirect(status));
        let get = objects.get(1, 0..9, BodyProgress::default()).await.map(drop);
        s3.next("DELETE", S3Fault::Redirect(status));
        for done in [put, get, objects.delete(1).await] {
            let refused = done.expect_err("redirected");
            assert!(matches!(refused, ObjectError::Denied(_)), "{status}: {refused:?}");
            let text = refused.to_string();
            assert!(text.contains(&format!("to the host 127.0.0.1 (status code: {status})")), "{text}");
            assert!(!text.contains("hush") && !text.contains("user"), "{text}");
        }
    }
    assert_eq!(objects.get(1, 0..9, BodyProgress::default()).await, Ok(Bytes::from_static(b"something")));
    assert_eq!(objects.get(2, 0..9, BodyProgress::default()).await, Err(ObjectError::NotFound(2)));
}

const OTHER_STORE: &str = "012345678901234567890A";

/// Regression test: the marker of any cluster counted. Records were put into a store of another cluster, and those that
/// this store lacks counted as lost.
#[tokio::test]
async fn another_store_takes_the_place_nothing_is_put_deleted_or_lost_until_it_is_back() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened").checking_always();
    objects.put(1, parts(), BodyProgress::default()).await.expect("put");
    let marker = s3.directory().join("some/where/cluster");
    let ours = fs::read_to_string(&marker).expect("the marker");
    let others = [format!("other {OTHER_STORE}"), format!("one {OTHER_STORE}"), format!("{ours} later")];
    for other in &others {
        fs::write(&marker, other).expect("written");
        let before = (s3.requests("PUT"), s3.requests("DELETE"));
        let refused = objects.put(2, parts(), BodyProgress::default()).await.expect_err("not ours");
        assert!(refused.is_retriable() && refused.to_string().contains(other.as_str()), "{refused}");
        assert_eq!(objects.delete(1).await, Err(refused.clone()));
        assert_eq!(objects.probe().await, Err(refused.clone()));
        assert_eq!(objects.get(3, 0..9, BodyProgress::default()).await, Err(refused.clone()), "it is not lost");
        assert_eq!(objects.get(1, 9..10, BodyProgress::default()).await, Err(refused), "it does not end there");
        assert_eq!((s3.requests("PUT"), s3.requests("DELETE")), before);
        fs::write(&marker, &ours).expect("written");
        assert_eq!(objects.put(2, parts(), BodyProgress::default()).await, Ok(()));
        assert_eq!(objects.get(3, 0..9, BodyProgress::default()).await, Err(ObjectError::NotFound(3)));
    }
}

/// A reader that finds another store is the first to notice it, and the next PUT must not rely on an earlier check.
#[tokio::test]
async fn reader_finds_another_store_the_next_put_checks_again() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened");
    objects.put(1, parts(), BodyProgress::default()).await.expect("put");
    fs::write(s3.directory().join("some/where/cluster"), format!("other {OTHER_STORE}")).expect("written");
    let refused = objects.get(2, 0..9, BodyProgress::default()).await.expect_err("not ours");
    assert_eq!(objects.put(2, parts(), BodyProgress::default()).await, Err(refused));
}

#[tokio::test]
async fn store_returns_a_page_for_its_marker_the_marker_does_not_count_as_there() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    let objects = open(storage(&s3), "one", &index).await.expect("opened").checking_always();
    s3.every("GET", S3Fault::Status(200, "InternalError"));
    let before = s3.requests("PUT");
    let refused = objects.put(1, parts(), BodyProgress::default()).await.expect_err("a page");
    assert!(refused.is_retriable() && refused.to_string().contains("<Code>InternalError"), "{refused}");
    assert_eq!(s3.requests("PUT"), before);
    s3.heal();
    assert_eq!(objects.put(1, parts(), BodyProgress::default()).await, Ok(()));
}

/// Regression test: such answers ended the start, as if the store belonged to the cluster "<?xml".
#[tokio::test]
async fn marker_is_cut_or_a_page_at_the_start_it_is_read_again_later() {
    let (s3, index) = (S3::start(), TempIndex::empty());
    open(storage(&s3), "one", &index).await.expect("opened");
    for fault in [
        S3Fault::Status(200, "InternalError"),
        S3Fault::Cut,
        S3Fault::Status(400, "RequestTimeout"),
        S3Fault::Status(409, "OperationAborted"),
        S3Fault::Status(403, "RequestTimeTooSkewed"),
        S3Fault::Status(403, "SlowDown"),
    ] {
        s3.every("GET", fault);
        let before = s3.requests("PUT");
        let objects = open(storage(&s3), "one", &index).await.expect("it starts");
        let refused = objects.put(1, parts(), BodyProgress::default()).await.expect_err("not yet");
        assert!(refused.is_retriable(), "{fault:?}: {refused}");
        assert_eq!(s3.requests("PUT"), before, "{fault:?}");
        s3.heal();
        assert_eq!(objects.put(1, parts(), BodyProgress::default()).await, Ok(()), "{fault:?}");
    }
    let marker = s3.directory().join("some/where/cluster");
    let ours = fs::read_to_string(&marker).expect("the marker");
    for (text, expected) in [
        (format!("other {OTHER_STORE}"), "objects of the cluster other"),
        (format!("one {OTHER_STORE}"), "the store has objects of this cluster that the index does not know"),
        (format!("{ours} later"), "is of a later version"),
    ] {
        fs::write(&marker, text).expect("written");
        let refused = open(storage(&s3), "one", &index).await.err().expect(expected);
        assert!(refused.contains(expected), "{refused}");
    }
}

#[tokio::test]
async fn service_of_credentials_redirects_its_client_follows() {
    let s3 = S3::start();
    for follows_redirects in [true, false] {
        let connector =
            http::Connector { authorities: Vec::new(), pace: Arc::default(), container_token: None, follows_redirects };
        let client = connector.connect(&ClientOptions::new().with_allow_http(true)).expect("a client");
        s3.next("GET", S3Fault::Redirect(302));
        let request = Request::get(s3.endpoint()).body(HttpRequestBody::empty()).expect("a request");
        let answer = client.execute(request).await.map(|answer| answer.status());
        assert_eq!(answer.ok(), follows_redirects.then_some(StatusCode::OK));
    }
}
