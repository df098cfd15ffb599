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
        for method in ["PUT", "GET", "DELETE"] {
            s3.next(method, S3Fault::Redirect(status));
        }
        let put = objects.put(2, parts(), BodyProgress::default()).await;
        let get = objects.get(1, 0..9, BodyProgress::default()).await.map(drop);
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
